"""`dsparkd machines [NAME]`: the tables that decide everything, as a matrix, a diagram or a list."""

from enum import StrEnum
from typing import Annotated

import typer

from ...statemachine import render
from ...statemachine.errors import Refused
from ..core.tables import TABLES, Machine


class Form(StrEnum):
    matrix = "matrix"
    mermaid = "mermaid"
    rows = "rows"


PRINTERS = {Form.matrix: render.matrix, Form.mermaid: render.mermaid, Form.rows: render.listing}


def machines(
    names: Annotated[list[str] | None, typer.Argument(help="request, slot, step, worker, client, engine.")] = None,
    form: Annotated[Form, typer.Option("--form", help="How to print them.")] = Form.rows,
) -> None:
    """Print the state machines: states, events, rows with their effects, and what is ignored and why."""
    for machine in [_named(name) for name in names or []] or list(Machine):
        typer.echo(f"# {machine.name}\n\n{PRINTERS[form](TABLES[machine])}\n")


def _named(name: str) -> Machine:
    if name.upper() not in Machine.__members__:
        known = ", ".join(machine.name.lower() for machine in Machine)
        raise Refused("BAD_CONFIG", f"machine {name!r}: expected one of {known}")
    return Machine[name.upper()]
