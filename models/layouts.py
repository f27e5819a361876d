"""Which layout a checkpoint has, and why those that are not served are refused by name.

Owns the marks by which other layouts are known: architectures, keys and tensor names. Never judges a layout that is
served; `config` and `shapes` do. Called by `survey`.
"""

from collections.abc import Collection, Mapping
from typing import Any

import attrs

TARGET_ARCHITECTURE = "Qwen3ForCausalLM"
DRAFTER_ARCHITECTURE = "Qwen3DSparkModel"


@attrs.frozen
class Layout:
    """A layout that is recognised; `reason` says why it is refused, None that it is served."""

    name: str
    reason: str | None = None


UNKNOWN = Layout("not recognised")
TARGET = Layout(f"{TARGET_ARCHITECTURE} as transformers writes it")
DRAFTER = Layout(f"{DRAFTER_ARCHITECTURE} as DeepSpec writes it")
SPECULATORS = Layout("speculators", "its sizes and taps stand in nested objects with a numbering of their own")
DFLASH = Layout(
    "upstream DFlash", "its mask rows predict the token at their own position, so every draft would be off by one"
)
SPECFORGE = Layout("SpecForge Eagle3", "it drafts token by token, from a reduced vocabulary, and has no block")
EAGLE3 = Layout("Eagle3", "it drafts token by token and has no block")
GEMMA = Layout("Gemma", "Gemma layers (scaled embeddings, sandwich norms, soft-capped logits) are not supported")
EMBEDDED = Layout("embedded drafter", "stages inside the target's own checkpoint (`mtp.*`) are not supported")

# In this order: a layout that wraps others comes before them.
_KEYS = {"speculators_config": SPECULATORS, "speculators_model_type": SPECULATORS, "dflash_config": DFLASH}
_STAGES = ("num_nextn_predict_layers", "n_mtp_layers")
_TENSORS = {
    "mtp.": EMBEDDED,
    "model.mtp.": EMBEDDED,
    "midlayer.": SPECFORGE,
    "d2t": SPECFORGE,
    "t2d": SPECFORGE,
}


def layout_of(values: Mapping[str, Any]) -> tuple[Layout, str]:
    """The layout of a config.json and the key that gives it away; UNKNOWN where only a judge of its keys can tell."""
    for key, layout in _KEYS.items():
        if key in values:
            return layout, key
    names = values.get("architectures")
    for name in names if isinstance(names, list) else []:
        layout = _of_architecture(str(name))
        if layout.reason is not None:
            return layout, "architectures"
    if str(values.get("model_type")).startswith("gemma"):
        return GEMMA, "model_type"
    for key in _STAGES:
        if values.get(key):
            return EMBEDDED, key
    own = str(names[0]) if isinstance(names, list) and len(names) == 1 else ""
    return {TARGET_ARCHITECTURE: TARGET, DRAFTER_ARCHITECTURE: DRAFTER}.get(own, UNKNOWN), "architectures"


def foreign(layout: Layout, what: str) -> str:
    """The problem of another layout; `what` gives it away."""
    return f"{what}: expected {TARGET.name} or {DRAFTER.name}; {layout.name} is refused because {layout.reason}"


def foreign_tensors(names: Collection[str]) -> dict[str, list[str]]:
    """Problem -> the names that it explains, for tensors that only another layout has."""
    found: dict[str, list[str]] = {}
    for start, layout in _TENSORS.items():
        own = sorted(name for name in names if name == start or (start.endswith(".") and name.startswith(start)))
        if own:
            what = f"{start}* ({len(own)} tensors)" if start.endswith(".") else start
            found[foreign(layout, what)] = own
    return found


def _of_architecture(name: str) -> Layout:
    if name == "DFlashDraftModel":
        return DFLASH
    if name.endswith("ForCausalLMEagle3"):
        return SPECFORGE
    if "eagle" in name.lower():
        return EAGLE3
    return GEMMA if name.startswith("Gemma") else UNKNOWN
