"""Settings of one engine, of a TOML file, of the environment and of flags.

Owns their joining and refuses all problems in one error; resolves to the core's `Limits` and the worker's `Init`.
Nothing is clamped or ignored. The keys stand in `setting_keys.py`; `setting_sources.py` reads, `setting_checks.py`
judges.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import attrs

from ...statemachine.errors import refuse_all
from ..core.limits import SECOND_NS, Limits
from ..core.policies import Policy
from ..wire.messages import Init
from .policy_settings import default_policy, policy_of
from .setting_checks import setting_problems
from .setting_keys import Keys
from .setting_sources import read_environment, read_file, variable_of


@attrs.frozen(kw_only=True)
class Settings(Keys):
    """One value per key. Build it with `load` or `from_mapping`, which list every problem; `Settings(...)` does too."""

    def __attrs_post_init__(self) -> None:
        refuse_all("settings", setting_problems(attrs.fields(Settings), attrs.asdict(self), {}))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, source: str = "settings") -> Self:
        """Raises `Refused` (BAD_CONFIG) with every problem: unknown keys, bad values, a missing target."""
        values = _spelled(values)
        refuse_all(source, setting_problems(attrs.fields(Settings), values, {}))
        return cls(**values)

    @classmethod
    def load(
        cls,
        path: Path | None,
        overrides: Mapping[str, Any] | None = None,
        *,
        pair: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Read a TOML file, let variables of `environment` win over it, and `overrides` (flags; None means not given)
        over both.

        `pair` (target and drafter) stands in when nobody names a target. The drafter `none` is plain decoding.
        """
        values: dict[str, Any] = {} if path is None else read_file(path)
        told, strange = read_environment(environment or {}, [field.name for field in attrs.fields(Settings)])
        flags = {key: value for key, value in (overrides or {}).items() if value is not None}
        values |= told | flags
        if "target" not in values:
            values = {**(pair or {}), **values}
        values = _spelled(values)
        origins = {key: variable_of(key) for key in told if key not in flags}
        found = setting_problems(attrs.fields(Settings), values, origins)
        refuse_all(str(path or "settings"), [*strange, *found])
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote: how a parent hands settings to a child process."""
        return cls.from_mapping(json.loads(text))

    def to_json(self) -> str:
        return json.dumps(attrs.asdict(self))

    def shown(self, policy: str | None = None) -> dict[str, Any]:
        """The effective configuration as plain values, every key: for the log and for `stats`. `policy` names one that
        was passed as an object. It holds no secrets: keys stand in files, and here are the files' names."""
        values: dict[str, Any] = json.loads(self.to_json())
        if policy is not None or not any(values[key] for key in ("policy", "draft_len_schedule", "max_concurrency")):
            values["policy"] = policy or default_policy(values)
        return values

    def variables(self, *keys: str) -> dict[str, str]:
        """Return the environment variables that give a process these settings."""
        return {variable_of(key): str(getattr(self, key)) for key in keys}

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


def _spelled(values: Mapping[str, Any]) -> dict[str, Any]:
    """The drafter `none`, as people write it, is no drafter."""
    return {**values, "drafter": None} if values.get("drafter") == "none" else {**values}


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
