"""What a checkpoint's config.json says, read once and checked whole.

Owns the two configuration records and both spellings of the file (`rope_theta`, `torch_dtype`, `rope_scaling`, and
the newer `rope_parameters`, `dtype`). Never reads a tensor and never guesses: whatever is wrong is collected, and one
`Refused` with code BAD_CHECKPOINT names every key, value and expectation. Called by `checkpoint` and the worker.
"""

from itertools import pairwise
from pathlib import Path

import attrs

from ..statemachine.errors import refuse_all
from .fields import Fields, read_json
from .rope import RopeScaling, read_rope

BAD_CHECKPOINT = "BAD_CHECKPOINT"
TARGET_ARCHITECTURE = "Qwen3ForCausalLM"
DRAFTER_ARCHITECTURE = "Qwen3DSparkModel"
MARKOV_HEAD_TYPES = ("vanilla", "gated", "rnn")
DTYPES = ("float32", "bfloat16", "float16")

# Why an architecture that looks close enough to try is refused by name.
FOREIGN = {
    "DFlashDraftModel": "its mask rows predict the token at their own position, so every draft would be off by one",
    "Gemma4DSparkModel": "Gemma layers (scaled embeddings, sandwich norms, soft-capped logits) are not supported",
    "Qwen3Eagle3Model": "it drafts token by token and has no block",
}


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


def load_target_config(folder: Path) -> TargetConfig:
    """Read `folder`/config.json and generation_config.json of a target.

    Raises Refused(BAD_CHECKPOINT) with all problems at once.
    """
    problems: list[str] = []
    fields = Fields(read_json(folder / "config.json", problems), problems)
    shared = _read_shared(fields, TARGET_ARCHITECTURE)
    if fields.flag("use_sliding_window", default=False):
        fields.wrong("use_sliding_window", "false: a target with sliding-window layers is not supported")
    _layer_kinds(fields, shared.num_layers, allowed=("full_attention",))
    eos_token_ids = _read_eos(folder, fields, shared.vocab_size)
    refuse_all(f"target checkpoint {folder}", problems, BAD_CHECKPOINT)
    return TargetConfig(**attrs.asdict(shared), eos_token_ids=eos_token_ids)


def load_drafter_config(folder: Path, target: TargetConfig) -> DrafterConfig:
    """Read `folder`/config.json of a DSpark drafter and hold it against its target's.

    Raises Refused(BAD_CHECKPOINT) with all problems at once.
    """
    problems: list[str] = []
    fields = Fields(read_json(folder / "config.json", problems), problems)
    shared = _read_shared(fields, DRAFTER_ARCHITECTURE)
    own = _read_block(fields, target) | _read_heads(fields) | {"sliding_window": _read_window(fields, shared)}
    for key, value, expected in (
        ("vocab_size", shared.vocab_size, target.vocab_size),
        ("hidden_size", shared.hidden_size, target.hidden_size),
        ("num_target_layers", own["num_target_layers"], target.num_layers),
    ):
        if value and value != expected:
            problems.append(f"{key} = {value}: expected {expected}, as the target has")
    refuse_all(f"drafter checkpoint {folder}", problems, BAD_CHECKPOINT)
    return DrafterConfig(**attrs.asdict(shared), **own)  # type: ignore[arg-type]


def _read_shared(fields: Fields, architecture: str) -> ModelConfig:
    _check_architecture(fields, architecture)
    theta, scaling = read_rope(fields)
    shared = ModelConfig(
        hidden_size=fields.positive("hidden_size"),
        num_layers=fields.positive("num_hidden_layers"),
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
    found = fields.values.get("architectures")
    if found != [architecture]:
        name = str(found[0]) if isinstance(found, list) and found else ""
        reason = f"; {name} is refused because {FOREIGN[name]}" if name in FOREIGN else ""
        fields.wrong("architectures", f"['{architecture}']{reason}")
    if fields.values.get("model_type", "qwen3") != "qwen3":
        fields.wrong("model_type", "'qwen3'")
    if fields.values.get("hidden_act", "silu") != "silu":
        fields.wrong("hidden_act", "'silu'")
    if fields.values.get("quantization_config") is not None:
        fields.wrong("quantization_config", "none: quantised weights are not supported")
    if "dflash_config" in fields.values:
        fields.wrong("dflash_config", f"none: upstream DFlash is refused because {FOREIGN['DFlashDraftModel']}")


def _read_eos(folder: Path, fields: Fields, vocab_size: int) -> tuple[int, ...]:
    """Stop ids: generation_config.json where it names some, else config.json, else none."""
    path = folder / "generation_config.json"
    source = (
        Fields(read_json(path, fields.problems), fields.problems, prefix="generation_config.")
        if path.exists()
        else fields
    )
    if source.values.get("eos_token_id") is None:
        source = fields
    raw = source.values.get("eos_token_id")
    found = [] if raw is None else raw if isinstance(raw, list) else [raw]
    for token_id in found:
        if type(token_id) is not int or not 0 <= token_id < max(vocab_size, 1):
            source.wrong("eos_token_id", f"ids in 0..{vocab_size - 1}")
            return ()
    return tuple(found)


def _read_block(fields: Fields, target: TargetConfig) -> dict[str, object]:
    mask_token_id = fields.integer("mask_token_id")
    if mask_token_id is not None and not 0 <= mask_token_id < target.vocab_size:
        fields.wrong("mask_token_id", f"an id in 0..{target.vocab_size - 1}")
    return {
        "block_size": fields.positive("block_size"),
        "mask_token_id": mask_token_id if mask_token_id is not None else 0,
        "target_layer_ids": _read_taps(fields, target.num_layers),
        "num_target_layers": fields.positive("num_target_layers"),
    }


def _read_taps(fields: Fields, num_target_layers: int) -> tuple[int, ...]:
    """The tapped layers. The last one is refused: libraries disagree on whether its output is normed."""
    raw = fields.values.get("target_layer_ids")
    if not isinstance(raw, list) or not raw or any(type(tap) is not int for tap in raw):
        fields.wrong("target_layer_ids", "a non-empty list of integers")
        return ()
    if any(later <= earlier for earlier, later in pairwise(raw)):
        fields.wrong("target_layer_ids", "strictly increasing layer ids")
    if any(not -1 <= tap <= num_target_layers - 2 for tap in raw):
        fields.wrong(
            "target_layer_ids", f"ids in -1..{num_target_layers - 2} (-1 the embedding; the last layer is refused)"
        )
    return tuple(raw)


def _read_heads(fields: Fields) -> dict[str, object]:
    rank = fields.integer("markov_rank", default=0)
    if rank is not None and rank < 0:
        fields.wrong("markov_rank", "0 or more")
    kind = fields.choice("markov_head_type", MARKOV_HEAD_TYPES) if rank else None
    confidence = fields.flag("enable_confidence_head", default=False)
    with_markov = fields.flag("confidence_head_with_markov", default=False) and confidence
    if with_markov and not rank:
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
