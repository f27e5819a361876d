"""The files and folders that settings name: whether an engine would find them as it needs them.

Owns the looking, which leaves nothing behind; each file's own module says what it must hold. `dsparkd doctor` and
`dsparkd config --check` ask before an engine would.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from ...statemachine.errors import Refused
from ..wire.curve import server_keys
from .calibration_files import read_calibration
from .config import Settings
from .cost_files import read_costs


def file_problems(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Yield (key, value, problem) of each setting that names a file or a folder; the problem is empty where it is good.

    Checkpoints are looked at from outside: `dsparkd inspect` reads them.
    """
    scripted = settings.target.startswith("scripted")
    for key, folder in (("target", settings.target), ("drafter", settings.drafter)):
        if folder is not None and not scripted:
            yield key, folder, _checkpoint_problem(Path(folder))
    readers: dict[str, Callable[[Path], object]] = {
        "cost_table": read_costs,
        "confidence_calibration": read_calibration,
        "trace_redact": Path.read_bytes,
    }
    for key, read in readers.items():
        name: str | None = getattr(settings, key)
        if name is not None:
            yield key, name, _said(partial(read, Path(name)))
    if settings.curve_secret is not None and settings.curve_clients is not None:
        secret, clients = Path(settings.curve_secret), Path(settings.curve_clients)
        yield "curve_secret", settings.curve_secret, _said(lambda: server_keys(secret, clients))
    if settings.journal is not None:
        yield "journal", settings.journal, _said(lambda: _write_in(Path(settings.journal or ""), make=True))
    if settings.trace is not None:
        path, is_folder = Path(settings.trace), settings.trace.endswith("/")
        yield "trace", settings.trace, _said(lambda: _write_in(path if is_folder else path.parent, make=is_folder))


def _checkpoint_problem(folder: Path) -> str:
    if not (folder / "config.json").is_file():
        return "expected a checkpoint's folder with config.json"
    return "" if any(folder.glob("*.safetensors")) else "holds no *.safetensors"


def _said(look: Callable[[], object]) -> str:
    try:
        look()
    except (Refused, OSError) as error:
        return str(error)
    return ""


def _write_in(folder: Path, *, make: bool) -> None:
    """As the engine would; what this made is removed. Raises OSError."""
    made = [one for one in (folder, *folder.parents) if not one.exists()] if make else []
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    finally:
        for one in made:
            with suppress(OSError):
                one.rmdir()
