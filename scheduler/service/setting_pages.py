"""The list of settings for readers: the table of docs/configuration.md, and an example file with every key.

Owns the two texts and nothing in them: `setting_keys.py` says what a key is. `dsparkd docs` and `dsparkd config` call
it.
"""

import json
import re
from collections.abc import Mapping
from textwrap import wrap
from typing import Any

import attrs

from .config import Settings
from .setting_sources import PREFIX

_LINK = re.compile(r"\[([^]]+)\]\(([^)#]+)[^)]*\)")
_WIDTH = 100
_HEAD = f"""\
# Settings of `dsparkd serve --config FILE`. Every key stands here with its default; keys without one are commented out,
# with a value for example. Variables of the environment ({PREFIX} and the key in upper case) win over this file, flags
# win over both. `dsparkd config --check FILE` lists every fault.
"""


def key_table() -> str:
    """Return the table in Markdown."""
    lines = ["| key | default | unit | meaning |", "| --- | --- | --- | --- |"]
    for field in attrs.fields(Settings):
        about = field.metadata
        default = about["unset"] if _is_unset(field) else f"`{toml(field.default).strip(chr(34))}`"
        lines.append(f"| `{field.name}` | {default} | {about['unit']} | {about['meaning']} |")
    return "\n".join(lines) + "\n"


def example_toml() -> str:
    """Return a file that loads, and equals the defaults."""
    blocks = [_HEAD]
    for field in attrs.fields(Settings):
        about = field.metadata
        meaning = _LINK.sub(lambda link: f"{link[1]}: docs/{link[2]}", about["meaning"])
        unit = f" In {about['unit']}." if about["unit"] else ""
        unset = f" Not set: {about['unset']}." if _is_unset(field) else ""
        text = f"{meaning[:1].upper()}{meaning[1:]}.{unit}{unset}"
        lines = [f"# {line}" for line in wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)]
        if _is_unset(field):
            lines.append(f"# {field.name} = {toml(about['example'])}")
        else:
            lines.append(f"{field.name} = {toml(field.default)}")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def toml(value: Any) -> str:
    """Spell a value of a setting in TOML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)  # text, numbers, true and false are the same in both


def _is_unset(field: "attrs.Attribute[Any]") -> bool:
    return field.default is None or field.default is attrs.NOTHING
