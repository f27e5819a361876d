"""Batch mode: a JSONL of requests in, a JSONL of results out, in the same order; a bad row costs only itself.

Owns the rows' format (docs/batch.md). The engine judges every option; what it refuses becomes the row's error.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ...statemachine.errors import EngineError, Refused
from ..wire.client import Client
from ..wire.client_async import AsyncClient
from ..wire.result import EngineLost, Result
from .engines import keys_of_environment

Row = dict[str, Any]
_NO_OPTIONS = {"self", "request_id"}  # parameters of the client's method that are no options of the request


def run_batch(
    source: Path,
    output: Path,
    *,
    opened: Callable[[], AbstractContextManager[Client]],
    options: Row,
    seed: int,
    concurrency: int,
    passes: bool,
) -> int:
    """Run every row of `source` and return how many failed. `options` are defaults that a row's own keys replace."""
    lines = _lines(source)
    with opened() as client:
        return asyncio.run(
            _run(client.address, lines, output, options=options, seed=seed, concurrency=concurrency, passes=passes)
        )


def _lines(source: Path) -> list[str]:
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused("BAD_CONFIG", f"--input {source}: cannot be read: {error}") from error
    # Not splitlines(): JSON texts may hold the other line ends of Unicode.
    return [line for line in text.split("\n") if line.strip()]


async def _run(
    address: str, lines: list[str], output: Path, *, options: Row, seed: int, concurrency: int, passes: bool
) -> int:
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    failed = 0
    try:
        sink = output.open("w", encoding="utf-8")
    except OSError as error:
        raise Refused("BAD_CONFIG", f"--output {output}: cannot be written: {error}") from error
    with sink, progress:
        task = progress.add_task("requests", total=len(lines))
        async with AsyncClient(address, keys=keys_of_environment()) as client:
            jobs = (
                _one(client, line, {**options, "seed": seed + index}, name=f"row-{index}", passes=passes)
                for index, line in enumerate(lines)
            )
            async for row in _in_order(jobs, concurrency, lambda: progress.advance(task)):
                failed += row["error"] is not None
                sink.write(json.dumps(row, ensure_ascii=False) + "\n")
    return failed


async def _in_order(jobs: Iterable[Any], concurrency: int, done: Callable[[], object]) -> AsyncIterator[Row]:
    """Run at most `concurrency` jobs at once and yield their rows in the order of the jobs."""
    gate = asyncio.Semaphore(concurrency)

    async def gated(job: Any) -> Row:
        async with gate:
            row: Row = await job
            done()
            return row

    tasks = [asyncio.ensure_future(gated(job)) for job in jobs]
    try:
        for task in tasks:
            yield await task
    finally:
        for task in tasks:
            task.cancel()


async def _one(client: AsyncClient, line: str, options: Row, *, name: str, passes: bool) -> Row:
    """One row in, one row out; whatever is wrong with it is its `error`."""
    try:
        prompt, own = _parse(line)
        result = await client.generate(prompt, request_id=name, **{**options, **own})
    except EngineLost:
        raise  # not the row's fault, and every later row would wait for it in vain
    except EngineError as error:
        said = str(error).removeprefix(f"{client.address}: ").removeprefix(f"request {name}: ")
        code = f"{error.code}: " if isinstance(error, Refused) else ""
        return {"token_ids": [], "text": None, "finish_reason": None, "prompt_len": None, "error": f"{code}{said}"}
    return _row(result, passes=passes)


def _parse(line: str) -> tuple[str | list[int], Row]:
    """Split a row into its prompt and its options."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused("BAD_ROW", f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise Refused("BAD_ROW", f"{line[:80]}: expected a JSON object")
    prompts = [row.pop(key) for key in ("prompt", "prompt_token_ids") if row.get(key) is not None]
    if len(prompts) != 1:
        raise Refused("BAD_ROW", "expected exactly one of `prompt` and `prompt_token_ids`")
    prompt = prompts[0]
    if not isinstance(prompt, str) and not (isinstance(prompt, list) and all(type(one) is int for one in prompt)):
        raise Refused("BAD_ROW", f"prompt = {str(prompt)[:80]}: expected text or a list of token ids")
    for key in _NO_OPTIONS & row.keys():
        raise Refused("BAD_ROW", f"{key}: not an option of a request")
    own = {key: value for key, value in row.items() if key not in ("prompt", "prompt_token_ids")}
    return prompt, own


def _row(result: Result, *, passes: bool) -> Row:
    row: Row = {
        "token_ids": result.token_ids,
        "text": result.text,
        "finish_reason": result.finish_reason,
        "prompt_len": result.prompt_len,
        "error": result.error,
    }
    if result.logprobs is not None:
        row["logprobs"] = result.logprobs
    if result.top_logprobs is not None:
        row["top_logprobs"] = result.top_logprobs
    if passes:
        row["passes"] = [_pass(one) for one in result.passes]
    return row


def _pass(one: Any) -> Row:
    """One verify pass; `confidence_logits` only where the drafter has a confidence head."""
    row: Row = msgspec.to_builtins(one)
    row.setdefault("draft_token_ids", [])
    row.pop("draft_len", None)
    return row
