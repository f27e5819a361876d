"""What each option of a request may be, one by one and together, with the expectation in words.

Owns types and ranges; never a frame. A client looks here for what cannot be sent; nothing is clamped or ignored.
"""

import math
import reprlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from .messages import RequestOptions

_MAX_I64 = 2**63
_MAX_SHOWN = 80  # characters of one value, and
_MAX_PROBLEMS = 20  # how many problems one refusal lists: it must stay far smaller than a frame
_MAX_STOPS = 16
_MAX_STOP_LEN = 256  # characters: so many may be held back
_MAX_TOP_LOGPROBS = 20
_MAX_LABEL = 256  # characters: it goes into the log line of its request
_HOTTEST = 3e38  # the largest temperatures that float32 holds; beyond, masked tokens would be drawn


def _integer(low: int, high: int = _MAX_I64) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value < high


def _number(test: Callable[[float], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and math.isfinite(value) and test(value)


def _flag(value: Any) -> bool:
    return type(value) is bool


def _ids(value: Any) -> bool:
    return type(value) is list and all(map(_integer(0), value))


def _texts(value: Any) -> bool:
    return (
        type(value) is list
        and len(value) <= _MAX_STOPS
        and all(type(one) is str and 1 <= len(one) <= _MAX_STOP_LEN for one in value)
    )


_COUNT = (_integer(1), "an integer in 1..2**63 - 1")
_SIZE = (_integer(0), "an integer in 0..2**63 - 1")
_FLAG = (_flag, "true or false")
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_tokens": _COUNT,
    "temperature": (_number(lambda value: 0 <= value <= _HOTTEST), f"a number from 0 to {_HOTTEST:g}"),
    "top_k": _SIZE,
    "top_p": (_number(lambda value: 0 < value <= 1), "a number above 0, up to 1"),
    "min_p": (_number(lambda value: 0 <= value <= 1), "a number from 0 to 1"),
    "seed": _SIZE,
    "sample_index": _SIZE,
    "stop_token_ids": (_ids, "a list of token ids"),
    "ignore_eos": _FLAG,
    "deadline_ms": (_integer(1, 2**43), "an integer in 1..2**43 - 1 (nanoseconds of 64 bits hold it)"),
    "max_draft_len": _SIZE,
    "margins": _FLAG,
    "passes": _FLAG,
    "label": (
        lambda value: type(value) is str and len(value) <= _MAX_LABEL,
        f"text of at most {_MAX_LABEL} characters",
    ),
    "cache_salt": (
        lambda value: type(value) is str and len(value) <= _MAX_LABEL,
        f"text of at most {_MAX_LABEL} characters",
    ),
    "stop": (_texts, f"a list of at most {_MAX_STOPS} texts of 1..{_MAX_STOP_LEN} characters"),
    "min_tokens": _SIZE,
    "logprobs": _FLAG,
    "top_logprobs": (_integer(0, _MAX_TOP_LOGPROBS + 1), f"an integer in 0..{_MAX_TOP_LOGPROBS}"),
    "priority": (_integer(-(2**31), 2**31), "an integer in -2**31..2**31 - 1"),
}
_HINTS = {
    "n": "n samples are n requests with sample_index 0..n - 1 and one seed, as Client.samples makes them",
    "stop_strings": "the option is called stop",
    "max_new_tokens": "the option is called max_tokens",
    "min_new_tokens": "the option is called min_tokens",
}
_GLANCE = reprlib.Repr()  # looks at a few entries and levels, so that no value can cost more than its refusal
_GLANCE.maxlevel = 2
_GLANCE.maxstring = _GLANCE.maxother = _MAX_SHOWN
_DEFAULT_NONE = frozenset({"seed", "deadline_ms", "max_draft_len", "label", "cache_salt"})


def judge(given: Mapping[Any, Any], unsayable: Mapping[Any, str] = MappingProxyType({})) -> tuple[bool, list[str]]:
    """Return whether a name is unknown, and every problem. unsayable: of names among them, why they cannot be sent."""
    unknown = [name for name in given if name not in _RULES]
    problems = [f"{shown(name)}: unknown, expected {_instead(name)}" for name in unknown]
    for name, value in given.items():
        if name in _RULES and name in unsayable:
            problems.append(f"{name} = {shown(value)}: {unsayable[name]}: expected {_RULES[name][1]}")
        elif name in _RULES and not _passes(name, value):
            problems.append(f"{name} = {shown(value)}: expected {_RULES[name][1]}")
    problems += [] if problems else _at_odds(RequestOptions(**given))
    if len(problems) > _MAX_PROBLEMS:
        problems[_MAX_PROBLEMS:] = [f"and {len(problems) - _MAX_PROBLEMS} more"]
    return bool(unknown), problems


def expected_of(name: str) -> str:
    """Return what is expected of an option, in words."""
    return _RULES[name][1]


def _at_odds(options: RequestOptions) -> list[str]:
    """Options that are fit one by one and not together."""
    problems = []
    if options.min_tokens > options.max_tokens:
        problems.append(f"min_tokens = {options.min_tokens}: expected at most max_tokens = {options.max_tokens}")
    if options.top_logprobs and not options.logprobs:
        problems.append(f"top_logprobs = {options.top_logprobs}: expected 0 without logprobs = true")
    return problems


def _instead(name: Any) -> str:
    hint = _HINTS.get(name) if isinstance(name, str) else None
    return f"one of {', '.join(_RULES)}" + (f" ({hint})" if hint else "")


def _passes(name: str, value: Any) -> bool:
    return (value is None and name in _DEFAULT_NONE) or _RULES[name][0](value)


def shown(value: Any) -> str:
    try:
        return _GLANCE.repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"an integer of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"
