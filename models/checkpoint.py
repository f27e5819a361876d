"""Weights on disk to models in memory.

Owns the reading of tensor data (safetensors, single or sharded), the sharing of matrices and what only the data can
tell. Never judges names, shapes or settings: `survey` does, and nothing is read before it is content. Called by the
worker at start and by tests.
"""

from collections.abc import Mapping
from pathlib import Path

import attrs
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..statemachine.errors import refuse_all
from .config import BAD_CHECKPOINT, DrafterConfig, TargetConfig
from .drafter import DSparkDrafter
from .headers import Headers
from .shapes import SHAREABLE, drafter_shapes, target_shapes
from .survey import Survey, refuse, survey_drafter, survey_target
from .target import Qwen3Target

__all__ = [
    "LoadedPair",
    "drafter_shapes",
    "load_drafter",
    "load_pair",
    "load_target",
    "read_drafter",
    "read_target",
    "target_shapes",
]


@attrs.frozen
class LoadedPair:
    """Models ready for `prepare`, and what a start should say of them."""

    target: Qwen3Target
    drafter: DSparkDrafter | None
    warnings: list[str]


def load_pair(target: Path, drafter: Path | None, *, dtype: torch.dtype, device: torch.device) -> LoadedPair:
    """Load a target, and its drafter if there is one; see `load_drafter` for what the two share.

    Raises one Refused(BAD_CHECKPOINT) naming everything that is wrong with either and with the pair.
    """
    first = survey_target(target)
    if drafter is None:
        refuse(first)
        return LoadedPair(_target(first, dtype=dtype, device=device), None, [])
    second = survey_drafter(drafter, first.config)
    refuse(first, second)
    loaded = _target(first, dtype=dtype, device=device)
    return LoadedPair(loaded, *_drafter(second, loaded, dtype=dtype, device=device))


def load_target(folder: Path, *, dtype: torch.dtype, device: torch.device) -> Qwen3Target:
    """A target ready for `prepare`. Raises Refused(BAD_CHECKPOINT) naming everything that is wrong."""
    survey = survey_target(folder)
    refuse(survey)
    return _target(survey, dtype=dtype, device=device)


def load_drafter(folder: Path, target: Qwen3Target, *, dtype: torch.dtype, device: torch.device) -> DSparkDrafter:
    """A drafter for `target`, sharing its embedding and output matrix where the file's are equal or absent.

    Raises Refused(BAD_CHECKPOINT) naming everything that is wrong.
    """
    survey = survey_drafter(folder, target.config)
    refuse(survey)
    return _drafter(survey, target, dtype=dtype, device=device)[0]


def read_target(folder: Path) -> tuple[TargetConfig, dict[str, Tensor]]:
    """Configuration and tensors by name, on the CPU in the file's dtype; `lm_head.weight` is always there."""
    survey = survey_target(folder)
    refuse(survey)
    return survey.served(), _target_tensors(survey)


def read_drafter(folder: Path, target: TargetConfig) -> tuple[DrafterConfig, dict[str, Tensor]]:
    """Configuration and tensors by name, on the CPU; `embed_tokens` and `lm_head` may be absent from the file."""
    survey = survey_drafter(folder, target)
    refuse(survey)
    return survey.served(), _read_data(folder, survey.headers)


def _target(survey: Survey[TargetConfig], *, dtype: torch.dtype, device: torch.device) -> Qwen3Target:
    tensors = _target_tensors(survey)
    _judge_range(survey.folder, tensors, dtype)
    return Qwen3Target(survey.served(), tensors, dtype=dtype, device=device)


def _target_tensors(survey: Survey[TargetConfig]) -> dict[str, Tensor]:
    tensors = _read_data(survey.folder, survey.headers)
    if survey.served().tie_word_embeddings:
        embedding = tensors["model.embed_tokens.weight"]
        if not torch.equal(tensors.setdefault("lm_head.weight", embedding), embedding):
            problem = "lm_head.weight: expected model.embed_tokens.weight, as tie_word_embeddings is true"
            refuse_all(f"tensors in {survey.folder}", [problem], BAD_CHECKPOINT)
        tensors["lm_head.weight"] = embedding
    return tensors


def _drafter(
    survey: Survey[DrafterConfig], target: Qwen3Target, *, dtype: torch.dtype, device: torch.device
) -> tuple[DSparkDrafter, list[str]]:
    """The drafter, and a warning for each matrix of its own that should have been the target's."""
    tensors = _read_data(survey.folder, survey.headers)
    _judge_range(survey.folder, tensors, dtype)
    warnings = []
    shared = dict(zip(SHAREABLE, (target.embed_tokens, target.lm_head), strict=True))
    for name, kept in shared.items():
        own = tensors.get(name)
        if own is None or torch.equal(own.to(kept), kept):
            tensors[name] = kept
        else:
            size = kept.numel() * dtype.itemsize
            warnings.append(f"{name} of the drafter is not its target's: its own is used and takes {size} bytes more")
    shares = not warnings and all(kept.dtype == dtype and kept.device == device for kept in shared.values())
    made = DSparkDrafter(survey.served(), tensors, dtype=dtype, device=device, shares_target_embeddings=shares)
    return made, warnings


def _judge_range(folder: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Refuse weights that the serving dtype turns into infinities: float16 ends long before the others."""
    most = torch.finfo(dtype).max
    wider = {name: value for name, value in tensors.items() if torch.finfo(value.dtype).max > most}
    largest = {name: float(torch.linalg.vector_norm(value.float(), torch.inf)) for name, value in wider.items()}
    word = str(dtype).removeprefix("torch.")
    problems = [
        f"{name}: expected values up to {most:g} for {word}, found {x:g}" for name, x in largest.items() if x > most
    ]
    refuse_all(f"tensors in {folder}", problems, BAD_CHECKPOINT)


def _read_data(folder: Path, headers: Headers) -> dict[str, Tensor]:
    """Every tensor of the headers, on the CPU, in the file's dtype."""
    tensors: dict[str, Tensor] = {}
    problems: list[str] = []
    for file in sorted({header.file for header in headers.tensors.values()}):
        try:
            with safe_open(str(folder / file), framework="pt") as opened:
                names = [name for name, header in headers.tensors.items() if header.file == file]
                tensors |= {name: opened.get_tensor(name) for name in names}
        except (SafetensorError, OSError) as error:
            problems.append(f"{file}: expected a readable safetensors file, found {error}")
    refuse_all(f"tensors in {folder}", problems, BAD_CHECKPOINT)
    return tensors
