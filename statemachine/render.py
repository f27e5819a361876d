"""A table as pictures: Mermaid diagram, state x event matrix, list of rows. Text in, nothing decided.

Owns the look of generated pages; `scheduler/cli` prints it.
"""

from typing import Any

from .rows import Ignore, Row
from .table import Table


def mermaid(table: Table[Any, Any, Any]) -> str:
    """The machine as a Mermaid state diagram; rows between the same two states share an arrow."""
    page = table.page
    arrows: dict[tuple[str, str], list[str]] = {}
    for row in page.rows:
        label = row.event.name if row.case is None else f"{row.event.name} [{row.case.name}]"
        arrows.setdefault((row.state.name, row.next.name), []).append(label)
    lines = ["stateDiagram-v2", f"    [*] --> {page.initial.name}"]
    lines += [f"    {source} --> {target}: {', '.join(labels)}" for (source, target), labels in arrows.items()]
    lines += [f"    {final.name} --> [*]" for final in sorted(page.finals)]
    return "\n".join(lines)


def matrix(table: Table[Any, Any, Any]) -> str:
    """The whole state x event plane as a Markdown table: next states, `ignored`, or empty for illegal."""
    page = table.page
    cells: dict[tuple[Any, Any], list[str]] = {}
    for entry in table.listing:
        text = "ignored" if isinstance(entry, Ignore) else _way(entry)
        cells.setdefault((entry.state, entry.event), []).append(text)
    head = ["state", *(event.name for event in page.events)]
    lines = [_line(head), _line(["---"] * len(head))]
    for state in page.states:
        lines.append(_line([state.name, *(" / ".join(cells.get((state, event), [])) for event in page.events)]))
    return "\n".join(lines)


def listing(table: Table[Any, Any, Any]) -> str:
    """Every row with its effects, then every ignored cell with its reason."""
    lines = []
    for entry in table.listing:
        if isinstance(entry, Row):
            effects = ", ".join(effect.name for effect in entry.effects) or "no effect"
            lines.append(f"- {entry}: {effects}")
        else:
            lines.append(f"- {entry.state.name} ignores {entry.event.name}: {entry.why}")
    return "\n".join(lines)


def _way(row: Row[Any, Any, Any]) -> str:
    return row.next.name if row.case is None else f"{row.case.name}: {row.next.name}"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
