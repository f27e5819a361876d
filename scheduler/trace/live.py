"""A recorded day once more, on an engine that lives: the same requests at their times, and whether it says the same.

Owns the sending and the comparison of tokens. Cancels and deaths of the record are not repeated: each request is
compared as far as the record goes. `cli/replay.py --live` shows what comes out.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from ...statemachine.errors import Refused
from ..core import events, results
from ..wire.client_async import AsyncClient
from .reading import Header, read_trace
from .replay import replay


@attrs.define
class Recorded:
    """One request of the record. `at_s` counts from the first one."""

    name: str
    at_s: float
    prompt: tuple[int, ...]
    options: dict[str, Any]
    token_ids: list[int] = attrs.field(factory=list)
    finished: bool = False


@attrs.frozen
class Divergence:
    """Where the live engine first says something else; `now` is None when it says less, or refuses."""

    name: str
    index: int
    then: int
    now: int | None
    message: str = ""


def recorded_requests(path: Path) -> list[Recorded]:
    """Read requests and what was emitted for them. Raises `Refused` for a redacted trace: its ids mean nothing."""
    if any(isinstance(entry, Header) and entry.redacted for entry in read_trace(path)):
        raise Refused("BAD_FILE", f"{path}: a redacted trace has no tokens to send")
    found: dict[int, Recorded] = {}
    early: list[tuple[events.Submit, str]] = []
    first_ns: int | None = None
    for step in replay(path):
        one = step.event.input
        if type(one) is events.Submit:
            early.append((one, step.event.name or f"request {one.request}"))
        elif type(one) is events.Tick:
            for submit, name in early:
                first_ns = one.now_ns if first_ns is None else first_ns
                at_s = (one.now_ns - first_ns) / 1e9
                found[submit.request] = Recorded(name, at_s, submit.prompt, wire_options(submit.options))
            early.clear()
        for output in step.outputs:
            if type(output) is results.Tokens and output.request in found:
                known = found[output.request].token_ids
                known[output.index :] = output.token_ids
            elif type(output) is results.Refusal:
                early = [one for one in early if one[0].request != output.request]  # it was never a request
            elif type(output) is results.Ended and output.request in found:
                found[output.request].finished = output.state == "FINISHED"
    if not found:
        raise Refused("BAD_FILE", f"{path}: holds no request")
    return list(found.values())


def wire_options(options: events.Options) -> dict[str, Any]:
    """The options that a client says for these of the core; end tokens of the checkpoint are among the stop ids."""
    params = attrs.asdict(options.params)
    for name in ("passes", "masked_token_ids"):  # the latter follow from the stop ids
        params.pop(name)
    return {
        **params,
        "max_tokens": options.max_tokens,
        "stop_token_ids": sorted(options.stop_token_ids),
        "ignore_eos": True,
        "max_draft_len": options.max_draft_len,
        "cache_salt": options.salt or None,
        "priority": options.priority,
        "stop": list(options.stop),
    }


async def run_again(address: str, requests: Sequence[Recorded], *, speed: float) -> list[Divergence]:
    """Send everything at its time divided by `speed` (0: all at once) and compare the tokens."""
    async with AsyncClient(address) as client:
        began = time.monotonic()
        return [one for one in await asyncio.gather(*(_again(client, each, began, speed) for each in requests)) if one]


async def _again(client: AsyncClient, one: Recorded, began: float, speed: float) -> Divergence | None:
    if speed > 0:
        await asyncio.sleep(max(0.0, began + one.at_s / speed - time.monotonic()))
    try:
        result = await client.generate(one.prompt, **one.options)
    except Refused as refused:
        return Divergence(one.name, 0, one.token_ids[0] if one.token_ids else -1, None, str(refused))
    return compared(one, result.token_ids)


def compared(one: Recorded, now: Sequence[int]) -> Divergence | None:
    """As far as the record goes; a finished request must end where it did."""
    for index, token_id in enumerate(one.token_ids):
        if index >= len(now) or now[index] != token_id:
            return Divergence(one.name, index, token_id, now[index] if index < len(now) else None)
    if one.finished and len(now) > len(one.token_ids):
        return Divergence(one.name, len(one.token_ids), -1, now[len(one.token_ids)], "it goes on where it ended")
    return None
