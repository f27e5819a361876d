"""A checkpoint judged whole, before a tensor is read: configuration, files, names and shapes, and the pair's fit.

Owns the one list of everything that is wrong. Never reads tensor data and never loads torch, so that the loader and
`dsparkd inspect` say the same. Called by `checkpoint` and the worker's `inspect`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Generic, TypeVar

import attrs

from ..statemachine.errors import LocalError, refuse_all
from .config import (
    BAD_CHECKPOINT,
    DrafterConfig,
    ModelConfig,
    TargetConfig,
    open_config,
    read_drafter_config,
    read_target_config,
)
from .headers import Headers, read_headers
from .layouts import DRAFTER, Layout
from .shapes import SHAREABLE, Shapes, drafter_shapes, judge_tensors, target_shapes

Config = TypeVar("Config", bound=ModelConfig)


def _printable(problems: Iterable[str]) -> tuple[str, ...]:
    """Names come from the files: what no terminal should get, or no encoding has, is shown by its escape."""
    return tuple(
        "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in problem)
        for problem in problems
    )


@attrs.frozen
class Survey(Generic[Config]):
    """What one checkpoint is.

    config: None when it is unreadable or of another layout; with problems, sizes that it does not say are 0. shapes:
    the tensors that it should have, optional ones included. wrong_keys: what the configuration does not reliably say.
    """

    role: str
    folder: Path
    layout: Layout
    config: Config | None
    shapes: Shapes
    headers: Headers
    problems: tuple[str, ...] = attrs.field(converter=_printable)
    wrong_keys: frozenset[str] = frozenset()

    def served(self) -> Config:
        """The configuration of a checkpoint that `refuse` let pass."""
        if self.config is None or self.problems:
            raise LocalError(f"{self.role} checkpoint {self.folder} was used in spite of {self.problems}")
        return self.config


def survey_target(folder: Path) -> Survey[TargetConfig]:
    """Judge a target. Nothing is raised; see `refuse`."""
    problems: list[str] = []
    layout, fields = open_config(folder, problems)
    if fields is None:
        return Survey("target", folder, layout, None, {}, Headers({}), problems)
    config = read_target_config(fields, folder)
    headers, shapes = read_headers(folder, problems), target_shapes(config)
    optional = ("lm_head.weight",) if config.tie_word_embeddings else ()
    problems += judge_tensors(headers, shapes, optional=optional, wrong_keys=fields.wrong_keys)
    return Survey("target", folder, layout, config, shapes, headers, problems, frozenset(fields.wrong_keys))


def survey_drafter(folder: Path, target: TargetConfig | None) -> Survey[DrafterConfig]:
    """Judge a drafter, alone or against its target's configuration. Nothing is raised; see `refuse`."""
    problems: list[str] = []
    layout, fields = open_config(folder, problems)
    if fields is None:
        return Survey("drafter", folder, layout, None, {}, Headers({}), problems)
    config = read_drafter_config(fields, target)
    headers, shapes = read_headers(folder, problems), drafter_shapes(config)
    problems += judge_tensors(headers, shapes, optional=SHAREABLE, wrong_keys=fields.wrong_keys)
    return Survey("drafter", folder, layout, config, shapes, headers, problems, frozenset(fields.wrong_keys))


def is_drafter(folder: Path) -> bool:
    """Whether the checkpoint calls itself a drafter of the layout that is served."""
    return open_config(folder, [])[0] == DRAFTER


def refuse(*surveys: Survey[TargetConfig] | Survey[DrafterConfig]) -> None:
    """Raise one Refused(BAD_CHECKPOINT) with all problems of all checkpoints, or return when there is none."""
    names = " and ".join(f"{one.role} checkpoint {one.folder}" for one in surveys)
    start = {one.role: f"{one.role}: " if len(surveys) > 1 else "" for one in surveys}
    refuse_all(names, [start[one.role] + problem for one in surveys for problem in one.problems], BAD_CHECKPOINT)
