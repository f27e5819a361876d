"""`dsparkd COMMAND`: the torch-free commands and the one place where an error becomes an exit status.

Owns nothing but assembly. `__main__.py` calls `run` with the shipped pair.
"""

import signal
import sys
from collections.abc import Sequence

import typer
from rich.console import Console

from ...statemachine.errors import EngineError
from .bench import bench
from .calibrate import calibrate
from .check import check
from .config import config
from .costs import costs
from .demo import demo
from .docs import docs
from .doctor import doctor
from .engines import Pair
from .generate import generate
from .keys import keys
from .machines import machines
from .replay import replay
from .report import report
from .serve import serve
from .simulate import simulate_
from .top import top
from .trace import trace

app = typer.Typer(
    name="dsparkd",
    help="Speculative decoding with DSpark drafters: the same text, sooner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command()(serve)
app.command()(generate)
app.command()(demo)
app.command()(bench)
app.command()(machines)
app.command()(check)
app.command()(costs)
app.command()(calibrate)
app.command()(docs)
app.command()(replay)
app.command()(report)
app.command("simulate")(simulate_)
app.command()(top)
app.command()(config)
app.command()(doctor)
app.command()(keys)
app.add_typer(trace, name="trace")


def run(pair: Pair, argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0, 1 for an error or a failed check, 2 for bad usage."""
    signal.signal(signal.SIGTERM, _leave)  # `serve` has a better answer of its own
    command = typer.main.get_command(app)
    try:
        status = command.main(args=list(argv) if argv is not None else None, obj=pair, standalone_mode=False)
    except EngineError as error:
        Console(stderr=True, soft_wrap=True).print(f"dsparkd: {error}", style="red", markup=False, highlight=False)
        return 1
    except typer.Exit as leave:
        return leave.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except Exception as error:
        if not hasattr(error, "exit_code"):
            raise
        show = getattr(error, "show", None)  # a usage error of the command-line library
        if show is not None:
            show(file=sys.stderr)
        return int(error.exit_code)
    return status if isinstance(status, int) else 0


def _leave(number: int, frame: object) -> None:
    """Unwind, so that an engine of our own and its folder go with us."""
    sys.exit(128 + number)
