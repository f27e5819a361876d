"""The settings that choose a draft length policy: `policy`, `draft_len_schedule`, `max_concurrency`, exactly one.

Owns their judgement, together and each by itself, and the policies that other packages bring (entry points of the
group `dsparkd.policies`). `config.py` calls it; the core only ever sees the policy itself.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ...statemachine.errors import Refused, refuse_all
from ..core.policies import BUILT_IN, FORMS, Policy, parse_policy
from ..core.policies.auto import Auto
from ..core.policies.confidence import Confidence
from ..core.policies.schedule import MaxConcurrency, schedule_of, schedule_pairs, schedule_problems
from .calibration_files import read_calibration

if TYPE_CHECKING:
    from .config import Settings

DEFAULT = "auto"
WITHOUT_COSTS = "fixed:7"  # the default of an engine that was told to know no step times
GROUP = "dsparkd.policies"
KEYS = ("policy", "draft_len_schedule", "max_concurrency")


def policy_from_text(text: str) -> Policy:
    """Make a built-in policy, or one that an installed package brings. Raises `Refused` (BAD_CONFIG)."""
    name, _, argument = text.partition(":")
    if name in BUILT_IN:  # these names cannot be taken over
        return parse_policy(text)
    found = entry_points(group=GROUP)
    if name not in found.names:
        others = "".join(f", {other}" for other in sorted(found.names))
        raise Refused("BAD_CONFIG", f"policy = {text!r}: expected {FORMS}{others}")
    try:
        made = found[name].load()(argument)
    except Exception as error:
        message = f"policy = {text!r}: {found[name].value} failed: {type(error).__name__}: {error}"
        raise Refused("BAD_CONFIG", message) from error
    check_policy(made, f"policy = {text!r}")
    return made  # type: ignore[no-any-return]


def check_policy(made: Any, label: str) -> None:
    """Refuse an object that is no policy, with everything that it lacks."""
    expected: dict[str, tuple[Callable[[Any], bool], str]] = {
        "name": (lambda value: type(value) is str and value != "", "text"),
        "version": (lambda value: type(value) is int, "an integer"),
        "max_len": (
            lambda value: value is None or (type(value) is int and value >= 0),
            "an integer, 0 or more, or None",
        ),
        "decide": (callable, "a method decide(rows, ledger)"),
    }
    problems = []
    for key, (accepts, what) in expected.items():
        if not hasattr(made, key):
            problems.append(f"{key}: missing, expected {what}")
        elif not accepts(getattr(made, key)):
            problems.append(f"{key} = {getattr(made, key)!r}: expected {what}")
    refuse_all(f"{label}, a {type(made).__name__}", problems)


def default_policy(values: Mapping[str, Any]) -> str:
    """What is in force when nothing is said: `auto`, where step times are measured or given."""
    return DEFAULT if values["measure_costs"] or values["cost_table"] is not None else WITHOUT_COSTS


def policy_of(values: Mapping[str, Any]) -> Policy:
    """Return the policy of settings that have no problems. Raises `Refused` for a bad `confidence_calibration`."""
    if values["draft_len_schedule"] is not None:
        return schedule_of(values["draft_len_schedule"].items())
    if values["max_concurrency"] is not None:
        return MaxConcurrency(values["max_concurrency"])
    policy = policy_from_text(values["policy"] or default_policy(values))
    if isinstance(policy, Auto | Confidence):  # they weigh lengths against each other: only those that they may get
        policy = attrs.evolve(policy, max_len=values["max_draft_len"])
    if not isinstance(policy, Confidence) or values["confidence_calibration"] is None:
        return policy
    made = read_calibration(Path(values["confidence_calibration"]))
    fitted_for = tuple(sorted(made.fingerprint.items()))
    return attrs.evolve(policy, temperatures=tuple(made.temperatures), fingerprint=fitted_for)


def policy_problems(values: Mapping[str, Any]) -> list[str]:
    """Say all that is wrong with the three keys and with `max_draft_len`, whatever their values are."""
    given = [key for key in KEYS if values[key] is not None]
    problems = []
    if len(given) > 1:
        shown = ", ".join(f"{key} = {values[key]!r}" for key in given)
        problems.append(f"{' and '.join(given)}: expected exactly one of {', '.join(KEYS)}, found {shown}")
    limit = values["max_draft_len"] if type(values["max_draft_len"]) is int else None
    table = values["draft_len_schedule"]
    if isinstance(table, Mapping):
        found = schedule_problems(table.items(), max_draft_len=limit)
        problems += [f"draft_len_schedule: {problem}" for problem in found]
    elif table is not None:
        problems.append(f"draft_len_schedule = {table!r}: expected a table of drafts by rows, such as {{1 = 7, 4 = 3}}")
    text = values["policy"]
    if type(text) is str and text:
        problems += _text_problems(text, limit)
    if values["confidence_calibration"] is not None and str(text).partition(":")[0] != "confidence":
        shown = f"confidence_calibration = {values['confidence_calibration']!r}"
        problems.append(f"{shown}: expected policy = 'confidence' beside it, found policy = {text!r}")
    return problems


def _text_problems(text: str, limit: int | None) -> list[str]:
    name, _, argument = text.partition(":")
    if name == "schedule":
        found = schedule_problems(schedule_pairs(argument), max_draft_len=limit)
        return [f"policy = {text!r}: {problem}" for problem in found]
    try:
        policy = policy_from_text(text)
    except Refused as refused:
        return [str(refused)]
    if limit is not None and policy.max_len is not None and policy.max_len > limit:
        return [f"policy = {text!r} wants more than max_draft_len = {limit}"]
    return []


def only_policy(settings: "Settings", policy: Policy | None) -> Policy:
    """The policy that was passed, or that of the settings; both would leave one of them ignored."""
    if policy is None:
        return settings.draft_policy()
    check_policy(policy, "policy")
    keys = (*KEYS, "confidence_calibration")
    named = [f"{key} = {getattr(settings, key)!r}" for key in keys if getattr(settings, key) is not None]
    limit = settings.max_draft_len
    if limit is not None and policy.max_len is not None and policy.max_len > limit:
        named.append(f"max_draft_len = {limit}, it wants {policy.max_len}")
    refuse_all(f"policy {policy.name} is passed as an object", [f"{one}: expected no such setting" for one in named])
    return policy
