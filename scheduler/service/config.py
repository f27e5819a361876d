"""Settings of one engine: names, types, ranges and defaults; from a TOML file and from flags.

Owns every key that `serve` knows and refuses all problems in one error; resolves to the core's `Limits` and the
worker's `Init`. Nothing is clamped or ignored.
"""

import difflib
import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import attrs

from ...statemachine.errors import Refused, refuse_all
from ..core.limits import SECOND_NS, Limits
from ..core.policies import Policy
from ..wire.messages import Init
from ..wire.sockets import endpoint_problems
from .policy_settings import policy_of, policy_problems

Check = tuple[Callable[[Any], bool], str]


def _integer(low: int) -> Check:
    return (lambda value: type(value) is int and value >= low), f"an integer, {low} or more"


def _one_of(*names: str) -> Check:
    return (lambda value: value in names), " or ".join(names)


def _optional(check: Check) -> Check:
    return (lambda value: value is None or check[0](value)), check[1]


def _setting(default: Any, check: Check) -> Any:
    return attrs.field(default=default, metadata={"check": check})


def _by_rows(value: Any) -> Any:
    """Keys of TOML and JSON tables are text; what does not read as a number stays for the refusal to name."""
    if not isinstance(value, Mapping):
        return value
    read = {_whole(key): length for key, length in value.items()}
    return read if len(read) == len(value) else value


def _whole(key: Any) -> Any:
    return int(key) if type(key) is str and key.isascii() and key.isdecimal() else key


_SECONDS: Check = (lambda value: type(value) in (int, float) and 0.001 <= value <= 1e6, "seconds, from 0.001 to 1e6")
_FLAG: Check = (lambda value: type(value) is bool, "true or false")
_TEXT: Check = (lambda value: type(value) is str and value != "", "text")
_POLICY_TEXT: Check = (_TEXT[0], "text (settings reach a child process; an object goes to Service(policy=...))")
_ANY: Check = (lambda value: True, "")  # judged by `policy_problems`, a line for each fault


@attrs.frozen(kw_only=True)
class Settings:
    """One value per key. Build it with `load` or `from_mapping`, which list every problem; `Settings(...)` does too."""

    target: str = _setting(attrs.NOTHING, _TEXT)
    drafter: str | None = _setting(None, _optional(_TEXT))  # None: plain decoding
    bind: str = _setting("tcp://127.0.0.1:5599", _TEXT)
    num_slots: int = _setting(8, _integer(1))
    max_model_len: int = _setting(512, _integer(2))
    max_step_tokens: int = _setting(512, _integer(1))
    max_queue: int = _setting(1024, _integer(1))
    max_prompt_len: int | None = _setting(None, _optional(_integer(1)))
    max_draft_len: int | None = _setting(None, _optional(_integer(0)))
    drafter_window: int | None = _setting(None, _optional(_integer(1)))
    prefix_reuse: bool = _setting(True, _FLAG)
    min_reuse_len: int = _setting(16, _integer(1))
    acceptance: str = _setting("coupled", _one_of("coupled", "rejection"))
    policy: str | None = _setting(None, _optional(_POLICY_TEXT))
    draft_len_schedule: dict[int, int] | None = attrs.field(default=None, metadata={"check": _ANY}, converter=_by_rows)
    max_concurrency: int | None = _setting(None, _optional(_integer(1)))
    max_restarts: int = _setting(3, _integer(0))
    restart_budget: int = _setting(5, _integer(0))
    heartbeat_s: float = _setting(2.0, _SECONDS)
    load_deadline_s: float = _setting(120.0, _SECONDS)
    step_deadline_s: float = _setting(30.0, _SECONDS)
    drain_deadline_s: float = _setting(30.0, _SECONDS)
    client_grace_s: float = _setting(10.0, _SECONDS)
    dtype: str = _setting("float32", _one_of("float32", "bfloat16", "float16"))
    device: str = _setting("cpu", _TEXT)
    num_threads: int = _setting(1, _integer(1))
    runner: str = _setting("eager", _one_of("eager", "static", "cuda"))
    memory_limit_mb: int | None = _setting(None, _optional(_integer(1)))
    measure_costs: bool = _setting(True, _FLAG)
    cost_table: str | None = _setting(None, _optional(_TEXT))
    trace: str | None = _setting(None, _optional(_TEXT))
    trace_outputs: str = _setting("digest", _one_of("digest", "full"))
    trace_segment_mb: int = _setting(256, _integer(1))
    trace_redact: str | None = _setting(None, _optional(_TEXT))
    paranoid: bool = _setting(False, _FLAG)
    confidence_calibration: str | None = _setting(None, _optional(_TEXT))

    def __attrs_post_init__(self) -> None:
        refuse_all("settings", _problems(attrs.asdict(self)))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, source: str = "settings") -> Self:
        """Raises `Refused` (BAD_CONFIG) with every problem: unknown keys, bad values, a missing target."""
        refuse_all(source, _problems(values))
        return cls(**values)

    @classmethod
    def load(
        cls,
        path: Path | None,
        overrides: Mapping[str, Any] | None = None,
        *,
        pair: Mapping[str, Any] | None = None,
    ) -> Self:
        """Read a TOML file, then let `overrides` (flags; None means not given) win.

        `pair` (target and drafter) stands in when nobody names a target. The drafter `none` is plain decoding.
        """
        values: dict[str, Any] = {}
        if path is not None:
            try:
                values = tomllib.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise Refused("BAD_CONFIG", f"{path}: cannot be read: {error}") from error
        values |= {key: value for key, value in (overrides or {}).items() if value is not None}
        if "target" not in values:
            values = {**(pair or {}), **values}
        if values.get("drafter") == "none":
            values["drafter"] = None
        return cls.from_mapping(values, source=str(path or "settings"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote: how a parent hands settings to a child process."""
        return cls.from_mapping(json.loads(text))

    def to_json(self) -> str:
        return json.dumps(attrs.asdict(self))

    def limits(self) -> Limits:
        """Return the numbers that the core may know."""
        return Limits(**_limit_values(attrs.asdict(self)))

    def draft_policy(self) -> Policy:
        """Return the policy that `policy`, `draft_len_schedule` or `max_concurrency` describes."""
        return policy_of(attrs.asdict(self))

    def init(self, session: int) -> Init:
        """Return the worker's settings."""
        return Init(
            session=session,
            target=self.target,
            drafter=self.drafter,
            num_slots=self.num_slots,
            max_model_len=self.max_model_len,
            max_step_tokens=self.max_step_tokens,
            acceptance=self.acceptance,
            dtype=self.dtype,
            device=self.device,
            num_threads=self.num_threads,
            runner=self.runner,
            drafter_window=self.drafter_window,
            measure_costs=self.measure_costs,
            memory_limit_mb=self.memory_limit_mb,
            paranoid=self.paranoid,
        )


def _problems(values: Mapping[str, Any]) -> list[str]:
    known = {field.name: field for field in attrs.fields(Settings)}
    problems = [f"{key}: unknown{_did_you_mean(key, known)}" for key in values if key not in known]
    if "target" not in values:
        problems.append("target: missing, expected the folder of a checkpoint")
    complete = {name: values.get(name, field.default) for name, field in known.items()}
    for name, value in complete.items():
        accepts, expected = known[name].metadata["check"]
        if value is not attrs.NOTHING and not accepts(value):
            problems.append(f"{name} = {value!r}: expected {expected}")
    joint = [] if problems else _joint_problems(complete)
    return [*problems, *joint, *policy_problems(complete)]


_DEFAULTS = {field.name: field.default for field in attrs.fields(Settings)}


def _joint_problems(values: Mapping[str, Any]) -> list[str]:
    """What is wrong between values that are each well-formed."""
    problems = [f"bind: {problem}" for problem in endpoint_problems(values["bind"])]
    longest = values["max_model_len"] - 1
    if values["max_prompt_len"] is not None and values["max_prompt_len"] > longest:
        problems.append(f"max_prompt_len = {values['max_prompt_len']}: expected {longest} or less (max_model_len - 1)")
    if values["trace"] is None:
        idle = [key for key in ("trace_redact",) if values[key] is not None]
        idle += [key for key in ("trace_outputs", "trace_segment_mb") if values[key] != _DEFAULTS[key]]
        problems += [f"{key} = {values[key]!r}: expected trace = FILE or FOLDER/ with it" for key in idle]
    if values["device"] == "cpu" and values["runner"] == "cuda":
        problems.append("runner = 'cuda' needs device = 'cuda', found device = 'cpu'")
    return problems


def _limit_values(values: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in attrs.fields(Limits)}
    limits = {name: value for name, value in values.items() if name in names}
    for name, value in values.items():
        if name.removesuffix("_s") + "_ns" in names:
            limits[name.removesuffix("_s") + "_ns"] = int(value * SECOND_NS)
    limits["min_reuse_len"] = values["min_reuse_len"] if values["prefix_reuse"] else None
    limits["warm_deadline_ns"] = limits["load_deadline_ns"]
    limits["heartbeat_deadline_ns"] = 5 * int(values["heartbeat_s"] * SECOND_NS)
    return limits


def _did_you_mean(key: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f", did you mean {near[0]}?" if near else f", expected one of {', '.join(known)}"
