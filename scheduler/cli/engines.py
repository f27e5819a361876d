"""Which engine a command talks to: one that runs already, or one of its own for as long as the command takes.

Owns the flags that describe an engine and their translation to settings; the shipped pair is the default.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer

from ...statemachine.errors import Refused, refuse_all
from ..service.local import local
from ..service.setting_sources import KEY_VARIABLES
from ..wire.client import Client
from ..wire.curve import ClientKeys, curve_keys
from ..wire.result import EngineLost

LOG_LINES = 20
OWN_ENGINE = ("model", "drafter", "dtype", "acceptance", "max_model_len")


@attrs.frozen
class Pair:
    """The pair that is served when nobody names another one; prompts is a JSONL of `{"prompt": ...}`."""

    target: Path
    drafter: Path
    prompts: Path

    def settings(self) -> dict[str, Any]:
        """The settings that stand in when nobody names a target."""
        return {"target": str(self.target), "drafter": str(self.drafter)}


Model = Annotated[
    str | None, typer.Option("--model", help="Folder of the target's checkpoint (default: shipped pair).")
]
Drafter = Annotated[
    str | None, typer.Option("--drafter", help="Folder of the drafter's checkpoint; `none` decodes plainly.")
]
DraftLen = Annotated[int, typer.Option("--draft-len", min=0, help="Draft tokens to verify in a pass; 0: none.")]
Temperature = Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the first request; the others count on from it.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="Most tokens a request may emit.")]
Concurrency = Annotated[int, typer.Option("--concurrency", min=1, help="Requests at once.")]
Dtype = Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")]
Acceptance = Annotated[str, typer.Option("--acceptance", help="coupled (same tokens as plain) or rejection.")]
MaxModelLen = Annotated[int, typer.Option("--max-model-len", min=2, help="Longest prompt + output, in tokens.")]


@attrs.frozen(kw_only=True)
class EngineFlags:
    """An engine of one's own, as flags describe it."""

    model: str | None
    drafter: str | None
    draft_len: int
    concurrency: int
    dtype: str
    acceptance: str = "coupled"
    max_model_len: int = 512

    def settings(self, pair: Pair, *, plain: bool = False) -> dict[str, Any]:
        """Return what `local` takes; `plain` leaves the drafter out. Raises `Refused` for flags that contradict."""
        drafter = self._drafter(pair)
        if plain or drafter is None:
            drafter, policy = None, "fixed:0"
        else:
            policy = f"fixed:{self.draft_len}"
        return {
            "target": self.model or str(pair.target),
            "drafter": drafter,
            "policy": policy,
            "num_slots": self.concurrency,
            "max_model_len": self.max_model_len,
            "dtype": self.dtype,
            "acceptance": self.acceptance,
        }

    def _drafter(self, pair: Pair) -> str | None:
        if self.drafter == "none":
            return None
        if self.drafter is None and self.model is not None:
            message = f"drafter: missing for --model {self.model}: expected a checkpoint's folder, or `none`"
            raise Refused("BAD_CONFIG", message)
        return self.drafter or str(pair.drafter)


def refuse_own_engine(context: typer.Context) -> None:
    """With --connect the engine is there already: a flag that would describe another one must not be ignored."""
    given = [name for name in OWN_ENGINE if str(context.get_parameter_source(name)).endswith("COMMANDLINE")]
    refuse_all("--connect", [f"--{name.replace('_', '-')}: describes an engine of one's own" for name in given])


def keys_of_environment() -> ClientKeys | None:
    """The keys for an engine that asks for them. Raises `Refused` when only one of the two variables is set."""
    server, own = (os.environ.get(name) for name in KEY_VARIABLES)
    if server is None and own is None:
        return None
    missing = [name for name, value in zip(KEY_VARIABLES, (server, own), strict=True) if value is None]
    refuse_all("CURVE keys", [f"{name} (environment): missing, expected a key file" for name in missing])
    return curve_keys(Path(server or ""), Path(own or ""))


def refuse_nobody(connect: str) -> None:
    """A socket that is not there will not answer: say so at once."""
    if connect.startswith("ipc://") and not Path(connect.removeprefix("ipc://")).exists():
        raise Refused("BAD_CONFIG", f"--connect {connect}: no engine is there")


@contextmanager
def quiet_local(settings: dict[str, Any]) -> Iterator[Client]:
    """An engine of one's own whose log is kept aside and shown only when it fails."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        try:
            with local(log=log, **settings) as client:
                yield client
        except EngineLost:
            log.seek(0)
            sys.stderr.writelines(log.readlines()[-LOG_LINES:])
            raise


@contextmanager
def engine(connect: str | None, settings: dict[str, Any]) -> Iterator[Client]:
    """Yield a client of the engine at `connect`, or of one that lives as long as the block."""
    if connect is None:
        with quiet_local(settings) as client:
            yield client
    else:
        refuse_nobody(connect)
        with Client(connect, keys=keys_of_environment()) as client:
            client.wait_ready()
            yield client
