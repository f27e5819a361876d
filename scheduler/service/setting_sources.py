"""Where settings come from: a TOML file, the environment, flags. Later ones win, in this order.

Owns the reading of each and the names of environment variables, DSPARKD_ and the key in upper case. `config.py` joins
and judges what was read; nothing here knows what a value may be.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...statemachine.errors import Refused
from .setting_checks import did_you_mean
from .supervisor import TOKEN_VARIABLE

PREFIX = "DSPARKD_"
# Variables of this prefix that are no settings; a process of ours that finds them leaves them alone.
KEY_VARIABLES = ("DSPARKD_SERVER_KEY", "DSPARKD_CLIENT_KEY")  # of commands that connect to an engine with CURVE keys
OTHERS = frozenset({TOKEN_VARIABLE, *KEY_VARIABLES})


def read_file(path: Path) -> dict[str, Any]:
    """Raises `Refused` naming the file when it cannot be read or is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refused("BAD_CONFIG", f"{path}: cannot be read: {error}") from error


def toml_value(text: str) -> Any:
    """Read one value; what is no TOML is taken as text, so that paths need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text


def variable_of(key: str) -> str:
    return PREFIX + key.upper()


def read_environment(environment: Mapping[str, str], known: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that variables give, and a sentence for each variable of our prefix that is none."""
    names = {variable_of(key): key for key in known}
    given = {name: text for name, text in environment.items() if name.startswith(PREFIX) and name not in OTHERS}
    values = {names[name]: toml_value(text) for name, text in given.items() if name in names}
    strange = sorted(name for name in given if name not in names)
    return values, [f"{name} (environment): unknown{did_you_mean(name, names)}" for name in strange]
