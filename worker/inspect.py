"""`dsparkd inspect PATH [DRAFTER]`: what a checkpoint is, whether a pair fits, what a slot takes, and every problem.

Owns the figures and their presentation; `models/survey.py` judges. Reads headers and configurations only and never
loads torch, so it is quick for a checkpoint of any size and runs where the worker is not installed. `__main__` adds it
to the command line.
"""

import json
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..models.config import DrafterConfig, ModelConfig, TargetConfig
from ..models.headers import FLOATS
from ..models.shapes import SHAREABLE, num_elements
from ..models.survey import Survey, is_drafter, survey_drafter, survey_target
from .sizes import pending_rows

Facts = dict[str, Any]


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


BYTES = {Dtype.float32: FLOATS["F32"], Dtype.bfloat16: FLOATS["BF16"], Dtype.float16: FLOATS["F16"]}


def inspect(
    path: Annotated[Path, typer.Argument(help="Folder of a target or of a drafter.")],
    drafter: Annotated[Path | None, typer.Argument(help="Folder of the drafter of that target.")] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option("--max-model-len", min=1, help="For the bytes of a slot; as trained if not given."),
    ] = None,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="For the bytes of a slot.")] = Dtype.float32,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a checkpoint is, whether a pair fits, and all that is wrong; status 1 if it cannot be served.

    Tensor data are not read, so whether a drafter's matrices equal its target's shows only when the pair is loaded.
    """
    found = report(path, drafter, max_model_len=max_model_len, dtype=dtype)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        _print(found)
    if found["problems"]:
        raise typer.Exit(1)


def report(path: Path, drafter: Path | None, *, max_model_len: int | None, dtype: Dtype) -> Facts:
    """What is printed: `target`, `drafter` (None where there is none), `slot` (None with problems), `problems`."""
    if drafter is None and is_drafter(path):
        alone = survey_drafter(path, None)
        return {"target": None, "drafter": _drafter_facts(alone), "slot": None, "problems": list(alone.problems)}
    target = survey_target(path)
    second = None if drafter is None else survey_drafter(drafter, target.config)
    problems = [f"target: {problem}" for problem in target.problems]
    problems += [] if second is None else [f"drafter: {problem}" for problem in second.problems]
    slot = None
    if not problems:
        config = target.served()
        own = None if second is None else second.served()
        length = config.max_positions if max_model_len is None else max_model_len
        if length > config.max_positions:
            problems.append(f"max_model_len = {length}: expected at most the target's {config.max_positions} positions")
        slot = slot_facts(config, own, max_model_len=length, dtype=dtype)
    return {
        "target": _target_facts(target),
        "drafter": None if second is None else _drafter_facts(second),
        "slot": slot,
        "problems": problems,
    }


def slot_facts(target: TargetConfig, drafter: DrafterConfig | None, *, max_model_len: int, dtype: Dtype) -> Facts:
    """Bytes of one slot's window with the default settings, and of one position of either part."""
    size = BYTES[dtype]
    spare = 0 if drafter is None else drafter.block_size  # what a step writes beyond what is readable, less one row
    target_row = _row_bytes(target, size)
    drafter_row = 0 if drafter is None else _row_bytes(drafter, size)
    window = 0 if drafter is None else min(drafter.sliding_window or max_model_len, max_model_len)
    context = drafter_row * (window + spare + 1)
    if drafter is not None:  # and the features that may wait to go there
        context += pending_rows(drafter, size, drafter_window=window) * drafter.feature_len * size
    return {
        "max_model_len": max_model_len,
        "dtype": dtype.value,
        "drafter_window": window,
        "target_bytes_per_token": target_row,
        "drafter_bytes_per_token": drafter_row,
        "bytes": target_row * (max_model_len + spare + 1) + context,
    }


def _row_bytes(config: ModelConfig, size: int) -> int:
    """Keys and values of one position in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * size


def _target_facts(survey: Survey[TargetConfig]) -> Facts:
    config = survey.config
    if config is None:
        return _known(survey, {})
    # A tied target has its matrix once.
    tied = ("lm_head.weight",) if config.tie_word_embeddings else ()
    own = {
        "tie_word_embeddings": config.tie_word_embeddings,
        "eos_token_id": list(config.eos_token_ids),
        "tokenizer": (survey.folder / "tokenizer.json").is_file(),
        "parameters": num_elements(survey.shapes, without=tied),
    }
    return _known(survey, _sizes(config) | own)


def _drafter_facts(survey: Survey[DrafterConfig]) -> Facts:
    config = survey.config
    if config is None:
        return _known(survey, {})
    markov, confidence = config.markov_head_type, "with Markov" if config.confidence_head_with_markov else "plain"
    own = {
        "num_target_layers": config.num_target_layers,
        "target_layer_ids": list(config.target_layer_ids),
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "markov_rank": config.markov_rank,
        "markov_head": markov or "none (DFlash)",
        "confidence_head": confidence if config.enable_confidence_head else "none",
        "sliding_window": config.sliding_window,
        "parameters": num_elements(survey.shapes, without=SHAREABLE),
        "parameters_shared": num_elements({name: survey.shapes[name] for name in SHAREABLE}),
        "shareable_in_file": [name for name in SHAREABLE if name in survey.headers.tensors],
    }
    return _known(survey, _sizes(config) | own)


def _sizes(config: ModelConfig) -> Facts:
    """The sizes under the names that config.json gives them."""
    return {
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_positions,
        "rope": "plain" if config.rope_scaling is None else str(config.rope_scaling["rope_type"]),
        "rope_theta": config.rope_theta,
    }


def _known(survey: Survey[TargetConfig] | Survey[DrafterConfig], facts: Facts) -> Facts:
    """What the folder is, and of `facts` those that its configuration reliably says."""
    headers, wrong = survey.headers.tensors.values(), survey.wrong_keys
    counted = ("parameters", "parameters_shared")
    return {
        "path": str(survey.folder),
        "layout": survey.layout.name,
        "served": not survey.problems,
        **{name: value for name, value in facts.items() if name not in wrong and not (wrong and name in counted)},
        "tensors": len(headers),
        "files": len({header.file for header in headers}),
        "dtypes": dict(sorted(Counter(header.dtype for header in headers).items())),
    }


def _print(found: Facts) -> None:
    console = Console(soft_wrap=True)
    for title in ("target", "drafter", "slot"):
        if found[title] is not None:
            table = Table(title=title, show_header=False, title_justify="left")
            for name, value in found[title].items():
                table.add_row(name, _shown(value))
            console.print(table, markup=False, highlight=False)
    if found["problems"]:
        count = len(found["problems"])
        console.print(f"cannot be served: {count} problem(s)", style="red", markup=False, highlight=False)
        for problem in found["problems"]:
            console.print(f"  - {problem}", style="red", markup=False, highlight=False)
    elif found["target"] is None:
        console.print("can be served with a target that fits; name the target first to see whether one does")
    else:
        console.print("can be served" if found["drafter"] is None else "the pair fits and can be served")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items())
    return "none" if value is None else str(value)
