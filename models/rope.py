"""What config.json says of rotary embeddings, in either spelling (`rope_scaling`, `rope_parameters`).

Owns the kinds that are served and the keys that each may have; never computes (`layers.inverse_frequencies`). A kind or
a key that is not known is refused by name: ignored, it would cost acceptance by and by and tell nobody.
"""

from collections.abc import Mapping

from .fields import Fields

RopeScaling = Mapping[str, float | str]
KINDS = ("default", "linear", "dynamic", "yarn", "llama3")
_COMMON = {"rope_type", "type", "rope_theta"}


def read_rope(fields: Fields) -> tuple[float, RopeScaling | None]:
    """Rotary base and scaling; None for plain rotary embeddings. Problems are noted in `fields`."""
    key = fields.spelling("rope_parameters", "rope_scaling")
    raw = fields.values.get(key)
    if raw is None:
        return fields.number("rope_theta"), None
    if not isinstance(raw, dict):
        fields.wrong(key, "an object or null")
        return 1.0, None
    rope = Fields(raw, fields.problems, prefix=f"{key}.")
    theta = rope.number("rope_theta") if "rope_theta" in raw else fields.number("rope_theta")
    if fields.values.get("rope_theta", theta) != theta:
        fields.wrong("rope_theta", f"{theta}, as {key} says")
    kind = raw.get("rope_type", raw.get("type"))
    if kind not in KINDS:
        rope.wrong("rope_type", f"one of {', '.join(KINDS)}")
        return theta, None
    if raw.get("type", kind) != kind:
        rope.wrong("type", f"{kind!r}, as rope_type says")
    scaling = _read_kind(rope, kind)
    for name in sorted(set(raw) - _COMMON - set(scaling) - ({"attention_factor"} if kind == "yarn" else set())):
        rope.wrong(name, f"no such key with rope_type {kind!r}")
    return theta, scaling or None


def _read_kind(rope: Fields, kind: str) -> dict[str, float | str]:
    """The keys of one kind with their published defaults; empty for plain embeddings."""
    if kind == "default":
        return {}
    scaling: dict[str, float | str] = {"rope_type": kind, "factor": rope.number("factor")}
    if kind in ("yarn", "llama3"):
        scaling["original_max_position_embeddings"] = rope.positive("original_max_position_embeddings")
    if kind == "yarn":
        scaling["beta_fast"] = rope.number("beta_fast", default=32.0)
        scaling["beta_slow"] = rope.number("beta_slow", default=1.0)
        scaling["truncate"] = rope.flag("truncate", default=True)
        if rope.values.get("attention_factor") is not None:
            scaling["attention_factor"] = rope.number("attention_factor")
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if low >= high:
            rope.wrong("high_freq_factor", f"more than low_freq_factor = {low}")
        scaling |= {"low_freq_factor": low, "high_freq_factor": high}
    return scaling
