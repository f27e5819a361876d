"""Prompts to measure with: rows of JSON lines as batch mode takes them, or those of a trace.

Owns the reading; `bench.py` calls it. Options that stand beside a prompt are not read: a measurement has its own.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...statemachine.errors import Refused
from ..core import events
from ..trace.reading import Event, Header, is_trace, read_trace

EXPECTED = 'expected rows like {"prompt": "..."} or {"prompt_token_ids": [1, 2]}'
Prompt = str | list[int]


def read_prompts(path: Path) -> list[Prompt]:
    """Return at least one prompt. Raises `Refused` naming the path and what does not read."""
    try:
        prompts = list(_of_trace(path) if is_trace(path) else _of_rows(path))
    except (OSError, ValueError, RecursionError) as error:
        raise Refused("BAD_CONFIG", f"--prompts {path}: {EXPECTED}: {type(error).__name__}: {error}") from error
    if not prompts:
        raise Refused("BAD_CONFIG", f"--prompts {path}: no prompt in it, expected at least one")
    return prompts


def _of_rows(path: Path) -> Iterator[Prompt]:
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            row = json.loads(line)
            prompt = _prompt(row) if isinstance(row, dict) else None
            if prompt is None:
                raise Refused("BAD_CONFIG", f"--prompts {path}, line {number}: {line[:200]}: {EXPECTED}")
            yield prompt


def _prompt(row: dict[str, Any]) -> Prompt | None:
    text, ids = row.get("prompt"), row.get("prompt_token_ids")
    if ids is None:
        return text if isinstance(text, str) and text else None
    whole = text is None and isinstance(ids, list) and all(type(one) is int and one >= 0 for one in ids)
    return ids if whole and ids else None


def _of_trace(path: Path) -> Iterator[Prompt]:
    for entry in read_trace(path):
        if isinstance(entry, Header) and entry.redacted:
            raise Refused("BAD_CONFIG", f"--prompts {path}: a redacted trace, expected one that holds the texts")
        if isinstance(entry, Event) and isinstance(entry.input, events.Submit):
            yield list(entry.input.prompt)
