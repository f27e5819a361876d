"""`dsparkd keys FOLDER NAME`: a pair of CURVE keys, of an engine or of one of its clients."""

from pathlib import Path
from typing import Annotated

import typer

from ..wire.curve import make_keys


def keys(
    folder: Annotated[Path, typer.Argument(help="Where to write; made if it is not there.")],
    name: Annotated[str, typer.Argument(help="Whose keys: NAME.key to give away, NAME.key_secret to keep.")],
) -> None:
    """Make CURVE keys for an engine that listens beyond this machine, or for a client of it."""
    public, secret = make_keys(folder, name)
    typer.echo(f"{public}\n{secret}")
