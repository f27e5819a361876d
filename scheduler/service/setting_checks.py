"""What one setting may be, and what settings may be together: each fault a sentence that names key and value.

Owns the checks that the fields of `setting_keys.py` carry, and the judgement of a whole set of values. Never reads a
file.
"""

import difflib
import ipaddress
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from ..wire.sockets import endpoint_problems
from .policy_settings import policy_problems

Check = tuple[Callable[[Any], bool], str]


def about(check: Check, meaning: str, *, unit: str = "", unset: str = "none", example: Any = None) -> dict[str, Any]:
    """What a field of `Keys` carries. `unset` says what None stands for, `example` is a value to show for it; pages and
    example files are made of these (`setting_pages.py`)."""
    return {"check": check, "meaning": meaning, "unit": unit, "unset": unset, "example": example}


def setting(
    default: Any, check: Check, meaning: str, *, unit: str = "", unset: str = "none", example: Any = None
) -> Any:
    """A field of `Keys`, see `about`."""
    return attrs.field(default=default, metadata=about(check, meaning, unit=unit, unset=unset, example=example))


def integer(low: int) -> Check:
    return (lambda value: type(value) is int and value >= low), f"an integer, {low} or more"


def one_of(*names: str) -> Check:
    return (lambda value: value in names), " or ".join(names)


def optional(check: Check) -> Check:
    return (lambda value: value is None or check[0](value)), check[1]


SECONDS: Check = (lambda value: type(value) in (int, float) and 0.001 <= value <= 1e6, "seconds, from 0.001 to 1e6")
FLAG: Check = (lambda value: type(value) is bool, "true or false")
TEXT: Check = (lambda value: type(value) is str and value != "", "text")
POLICY_TEXT: Check = (TEXT[0], "text (settings reach a child process; an object goes to Service(policy=...))")
HOST_PORT: Check = (
    lambda value: host_and_port(value) is not None,
    "HOST:PORT, such as 127.0.0.1:9464, the port from 0 (any) to 65535",
)
ANY: Check = (lambda value: True, "")  # judged by `policy_problems`, a line for each fault


def by_rows(value: Any) -> Any:
    """Keys of TOML and JSON tables are text; what does not read as a number stays for the refusal to name."""
    if not isinstance(value, Mapping):
        return value
    read = {_whole(key): length for key, length in value.items()}
    return read if len(read) == len(value) else value


def _whole(key: Any) -> Any:
    return int(key) if type(key) is str and key.isascii() and key.isdecimal() else key


def setting_problems(
    fields: Iterable["attrs.Attribute[Any]"], values: Mapping[str, Any], origins: Mapping[str, str]
) -> list[str]:
    """All that is wrong with `values`. `origins` names where a value came from, when that was not the file."""
    known = {field.name: field for field in fields}
    problems = [f"{key}: unknown{did_you_mean(key, known)}" for key in values if key not in known]
    if "target" not in values:
        problems.append("target: missing, expected the folder of a checkpoint")
    complete = {name: values.get(name, field.default) for name, field in known.items()}
    for name, value in complete.items():
        accepts, expected = known[name].metadata["check"]
        if value is not attrs.NOTHING and not accepts(value):
            origin = f" (from {origins[name]})" if name in origins else ""
            problems.append(f"{name} = {value!r}: expected {expected}{origin}")
    defaults = {name: field.default for name, field in known.items()}
    joint = [] if problems else _joint_problems(complete, defaults)
    return [*problems, *joint, *_bind_problems(complete), *_metrics_problems(complete), *policy_problems(complete)]


def _joint_problems(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """What is wrong between values that are each well-formed."""
    problems = []
    for key, other in (("curve_secret", "curve_clients"), ("curve_clients", "curve_secret")):
        if values[key] is not None and values[other] is None:
            problems.append(f"{key} = {values[key]!r}: expected {other} with it")
    longest = values["max_model_len"] - 1
    if values["max_prompt_len"] is not None and values["max_prompt_len"] > longest:
        problems.append(f"max_prompt_len = {values['max_prompt_len']}: expected {longest} or less (max_model_len - 1)")
    if values["trace"] is None:
        idle = [key for key in ("trace_redact",) if values[key] is not None]
        idle += [key for key in ("trace_outputs", "trace_segment_mb") if values[key] != defaults[key]]
        problems += [f"{key} = {values[key]!r}: expected trace = FILE or FOLDER/ with it" for key in idle]
    if values["journal"] is None:
        idle = [key for key in values if key.startswith("journal_") and values[key] != defaults[key]]
        problems += [f"{key} = {values[key]!r}: expected journal = FOLDER with it" for key in idle]
    elif values["bind"].startswith("tcp://") and values["bind"].rpartition(":")[2] in ("*", "0"):
        problems.append(f"bind = {values['bind']!r}: expected a port of its own with a journal, to be found again at")
    elif values["trace"] is not None and not values["trace"].endswith("/"):
        problems.append(f"trace = {values['trace']!r}: expected a FOLDER/ with a journal: each scheduler has its file")
    if values["device"] == "cpu" and values["runner"] == "cuda":
        problems.append("runner = 'cuda' needs device = 'cuda', found device = 'cpu'")
    return problems


def _bind_problems(values: Mapping[str, Any]) -> list[str]:
    """Judged whatever else is wrong: it says who may speak to this machine."""
    if type(values["bind"]) is not str or not values["bind"]:
        return []
    has_keys = values["curve_secret"] is not None and values["curve_clients"] is not None
    return [f"bind: {problem}" for problem in endpoint_problems(values["bind"], has_keys=has_keys)]


def _metrics_problems(values: Mapping[str, Any]) -> list[str]:
    """Judged whatever else is wrong: it says who may read from this machine."""
    address, anywhere = values["metrics"], values["metrics_any_interface"]
    if address is None:
        return ["metrics_any_interface = True: expected metrics = HOST:PORT with it"] if anywhere is True else []
    found = host_and_port(address)
    if anywhere is False and found is not None and not _is_loopback(found[0]):
        return [
            f"metrics = {address!r}: anybody who reaches {found[0]} could read it; expected a loopback host, "
            "or metrics_any_interface = true beside it"
        ]
    return []


def host_and_port(address: Any) -> tuple[str, int] | None:
    """Split HOST:PORT, an IPv6 host in brackets; None for anything else."""
    if type(address) is not str:
        return None
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    digits = port.isascii() and port.isdecimal() and len(port) <= 5
    return (host, int(port)) if colon and host and digits and int(port) < 65536 else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def did_you_mean(key: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(key, names, n=1)
    return f", did you mean {near[0]}?" if near else f", expected one of {', '.join(names)}"
