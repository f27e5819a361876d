"""What a checkpoint's config.json says, read once and checked whole.

Owns the two configuration records and both spellings of the file (`rope_theta`, `torch_dtype`, `rope_scaling`, and
the newer `rope_parameters`, `dtype`). Never reads a tensor and never guesses: whatever is wrong is collected, and one
`Refused` with code BAD_CHECKPOINT names every key, value and expectation. Called by `checkpoint` and the worker.
"""

from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import attrs

from ..statemachine.errors import LocalError, refuse_all
from .fields import Fields, read_json
from .layouts import DRAFTER_ARCHITECTURE, TARGET_ARCHITECTURE, UNKNOWN, Layout, foreign, layout_of
from .rope import RopeScaling, read_rope

BAD_CHECKPOINT = "BAD_CHECKPOINT"
MARKOV_HEAD_TYPES = ("vanilla", "gated", "rnn")
DTYPES = ("float32", "bfloat16", "float16")
SMALLEST_BLOCK = 2
MOST_LAYERS = 1000  # each has a dozen tensors, and a missing one is told by name

Config = TypeVar("Config")


@attrs.frozen(kw_only=True)
class ModelConfig:
    """Sizes that target and drafter share. `rope_scaling` is None for plain rotary embeddings."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    attention_bias: bool
    dtype: str


@attrs.frozen(kw_only=True)
class TargetConfig(ModelConfig):
    """A Qwen3 target. `eos_token_ids` come from generation_config.json, else config.json; they may be empty."""

    eos_token_ids: tuple[int, ...]


@attrs.frozen(kw_only=True)
class DrafterConfig(ModelConfig):
    """A DSpark drafter. `num_layers` counts its own layers; `target_layer_ids` are the taps in column order of `fc`."""

    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    markov_rank: int
    markov_head_type: str | None
    enable_confidence_head: bool
    confidence_head_with_markov: bool
    sliding_window: int | None

    @property
    def feature_len(self) -> int:
        """m*d: what the target's taps give for one position."""
        return len(self.target_layer_ids) * self.hidden_size


def load_target_config(folder: Path) -> TargetConfig:
    """Read `folder`/config.json and generation_config.json of a target.

    Raises Refused(BAD_CHECKPOINT) with all problems at once.
    """
    problems: list[str] = []
    _, fields = open_config(folder, problems)
    config = None if fields is None else read_target_config(fields, folder)
    refuse_all(f"target checkpoint {folder}", problems, BAD_CHECKPOINT)
    return _made(config)


def load_drafter_config(folder: Path, target: TargetConfig) -> DrafterConfig:
    """Read `folder`/config.json of a DSpark drafter and hold it against its target's.

    Raises Refused(BAD_CHECKPOINT) with all problems at once.
    """
    problems: list[str] = []
    _, fields = open_config(folder, problems)
    config = None if fields is None else read_drafter_config(fields, target)
    refuse_all(f"drafter checkpoint {folder}", problems, BAD_CHECKPOINT)
    return _made(config)


def open_config(folder: Path, problems: list[str]) -> tuple[Layout, Fields | None]:
    """The layout of `folder`, and its config.json under inspection.

    No fields, and one problem noted, for what is no JSON object or of a layout that is refused: what its keys mean is
    not known here, so nothing else is said of them.
    """
    values = read_json(folder / "config.json", problems)
    if values is None:
        return UNKNOWN, None
    layout, key = layout_of(values)
    if layout.reason is not None:
        shown = repr(values[key])
        problems.append(foreign(layout, f"{key} = {shown if len(shown) <= 60 else shown[:57] + '...'}"))
        return layout, None
    return layout, Fields(values, problems)


def read_target_config(fields: Fields, folder: Path) -> TargetConfig:
    """A target's configuration; problems are noted in `fields`, and sizes that it does not say are 0."""
    shared = _read_shared(fields, TARGET_ARCHITECTURE)
    if fields.flag("use_sliding_window", default=False):
        fields.wrong("use_sliding_window", "false: a target with sliding-window layers is not supported")
    _layer_kinds(fields, shared.num_layers, allowed=("full_attention",))
    eos_token_ids = _read_eos(folder, fields, shared.vocab_size)
    return TargetConfig(**attrs.asdict(shared), eos_token_ids=eos_token_ids)


def read_drafter_config(fields: Fields, target: TargetConfig | None) -> DrafterConfig:
    """A drafter's configuration, held against its target's where there is one; see `read_target_config`."""
    shared = _read_shared(fields, DRAFTER_ARCHITECTURE)
    if shared.tie_word_embeddings:
        fields.wrong("tie_word_embeddings", "false: a drafter's matrices are copies of its target's, one by one")
    num_target_layers = fields.positive("num_target_layers", most=MOST_LAYERS)
    own = {
        **_read_block(fields, (target or shared).vocab_size or shared.vocab_size),
        "target_layer_ids": _read_taps(fields, (target.num_layers if target else 0) or num_target_layers),
        "num_target_layers": num_target_layers,
        **_read_heads(fields),
        "sliding_window": _read_window(fields, shared),
    }
    if target is not None:
        _judge_fit(fields, target)
    return DrafterConfig(**attrs.asdict(shared), **own)  # type: ignore[arg-type]


def _judge_fit(fields: Fields, target: TargetConfig) -> None:
    """What DeepSpec copies from the target into its drafter. A size that either does not say is not compared."""
    for key, expected in (
        ("hidden_size", target.hidden_size),
        ("vocab_size", target.vocab_size),
        ("num_target_layers", target.num_layers),
        ("num_attention_heads", target.num_heads),
        ("num_key_value_heads", target.num_kv_heads),
        ("head_dim", target.head_dim),
    ):
        if expected and key not in fields.wrong_keys and fields.values[key] != expected:
            fields.wrong(key, f"{expected}, as the target has")


def _made(config: Config | None) -> Config:
    if config is None:
        raise LocalError("a configuration was neither read nor refused")
    return config


def _read_shared(fields: Fields, architecture: str) -> ModelConfig:
    _check_architecture(fields, architecture)
    theta, scaling = read_rope(fields)
    shared = ModelConfig(
        hidden_size=fields.positive("hidden_size"),
        num_layers=fields.positive("num_hidden_layers", most=MOST_LAYERS),
        num_heads=fields.positive("num_attention_heads"),
        num_kv_heads=fields.positive("num_key_value_heads"),
        head_dim=fields.positive("head_dim"),
        intermediate_size=fields.positive("intermediate_size"),
        vocab_size=fields.positive("vocab_size"),
        max_positions=fields.positive("max_position_embeddings"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=False),
        attention_bias=fields.flag("attention_bias", default=False),
        dtype=fields.choice(fields.spelling("dtype", "torch_dtype"), DTYPES),
    )
    if shared.num_kv_heads and shared.num_heads % shared.num_kv_heads:
        fields.wrong("num_attention_heads", f"a multiple of num_key_value_heads = {shared.num_kv_heads}")
    if shared.head_dim % 2:
        fields.wrong("head_dim", "an even number, for rotary pairs")
    return shared


def _check_architecture(fields: Fields, architecture: str) -> None:
    if fields.values.get("architectures") != [architecture]:
        fields.wrong("architectures", f"['{architecture}']")
    if fields.values.get("model_type", "qwen3") != "qwen3":
        fields.wrong("model_type", "'qwen3'")
    if fields.values.get("hidden_act", "silu") != "silu":
        fields.wrong("hidden_act", "'silu'")
    if fields.values.get("quantization_config") is not None:
        fields.wrong("quantization_config", "none: quantised weights are not supported")


def _read_eos(folder: Path, fields: Fields, vocab_size: int) -> tuple[int, ...]:
    """Stop ids: generation_config.json where it names some, else config.json, else none."""
    path, source = folder / "generation_config.json", fields
    values = read_json(path, fields.problems) if path.exists() else None
    if values is not None and values.get("eos_token_id") is not None:
        source = Fields(values, fields.problems, prefix="generation_config.")
    raw = source.values.get("eos_token_id")
    found = [] if raw is None else raw if isinstance(raw, list) else [raw]
    for token_id in found:
        if type(token_id) is not int or token_id < 0 or (vocab_size and token_id >= vocab_size):
            source.wrong("eos_token_id", f"ids in 0..{vocab_size - 1}" if vocab_size else "ids of 0 or more")
            return ()
    return tuple(found)


def _read_block(fields: Fields, vocab_size: int) -> dict[str, object]:
    """Block and mask. A block is the anchor and masks: with one row nothing would be drafted side by side."""
    block_size, mask_token_id = fields.integer("block_size"), fields.integer("mask_token_id")
    if block_size is not None and block_size < SMALLEST_BLOCK:
        fields.wrong("block_size", f"{SMALLEST_BLOCK} or more: a block is the anchor and at least one mask")
    if mask_token_id is not None and (mask_token_id < 0 or (vocab_size and mask_token_id >= vocab_size)):
        fields.wrong("mask_token_id", f"an id in 0..{vocab_size - 1}" if vocab_size else "an id of 0 or more")
    return {"block_size": block_size or 0, "mask_token_id": mask_token_id or 0}


def _read_taps(fields: Fields, num_target_layers: int) -> tuple[int, ...]:
    """The tapped layers. The last one is refused: libraries disagree on whether its output is normed."""
    raw = fields.values.get("target_layer_ids")
    if not isinstance(raw, list) or not raw or any(type(tap) is not int for tap in raw):
        fields.wrong("target_layer_ids", "a non-empty list of integers")
        return ()
    if any(later <= earlier for earlier, later in pairwise(raw)):
        fields.wrong("target_layer_ids", "strictly increasing layer ids")
    last = num_target_layers - 2
    if any(tap < -1 or (num_target_layers and tap > last) for tap in raw):
        span = f"-1..{last}" if num_target_layers else "-1 or more"
        fields.wrong("target_layer_ids", f"ids in {span} (-1 the embedding; the last layer is refused)")
    return tuple(raw)


def _read_heads(fields: Fields) -> dict[str, object]:
    rank = fields.integer("markov_rank", default=0)
    if rank is not None and rank < 0:
        fields.wrong("markov_rank", "0 or more")
        rank = None
    kind = fields.choice("markov_head_type", MARKOV_HEAD_TYPES) if rank != 0 else None
    confidence = fields.flag("enable_confidence_head", default=False)
    with_markov = fields.flag("confidence_head_with_markov", default=False) and confidence
    if with_markov and rank == 0:
        fields.wrong("confidence_head_with_markov", "false when markov_rank is 0")
    return {
        "markov_rank": rank or 0,
        "markov_head_type": kind,
        "enable_confidence_head": confidence,
        "confidence_head_with_markov": with_markov,
    }


def _read_window(fields: Fields, shared: ModelConfig) -> int | None:
    """The drafter's own sliding window, or None. All its layers slide or none does."""
    slides = fields.flag("use_sliding_window", default=False)
    kind = "sliding_attention" if slides else "full_attention"
    _layer_kinds(fields, shared.num_layers, allowed=(kind,))
    return fields.positive("sliding_window") if slides else None


def _layer_kinds(fields: Fields, num_layers: int, *, allowed: tuple[str, ...]) -> None:
    kinds = fields.values.get("layer_types")
    if kinds is None or not num_layers:
        return
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in allowed for kind in kinds):
        fields.wrong("layer_types", f"{num_layers} x {' or '.join(allowed)}")
