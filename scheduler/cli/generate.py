"""`dsparkd generate PROMPT...`: decode prompts from the command line, or a JSONL file of them in batch."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ...statemachine.errors import Refused
from ..wire.client_async import AsyncClient
from ..wire.result import Result
from .batch import run_batch
from .engines import (
    Acceptance,
    Concurrency,
    Drafter,
    DraftLen,
    Dtype,
    EngineFlags,
    MaxModelLen,
    MaxTokens,
    Model,
    Pair,
    Seed,
    Temperature,
    engine,
    keys_of_environment,
    refuse_own_engine,
)


def generate(
    context: typer.Context,
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT...", help="Texts to go on from.")] = None,
    input_: Annotated[
        Path | None, typer.Option("--input", help="JSONL: `prompt` or `prompt_token_ids`, and any request option.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", help="JSONL: one row out for each row in.")] = None,
    passes: Annotated[bool, typer.Option("--passes", help="Write each verify pass too.")] = False,
    connect: Annotated[str | None, typer.Option("--connect", help="An engine that runs already.")] = None,
    model: Model = None,
    drafter: Drafter = None,
    draft_len: DraftLen = 7,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    concurrency: Concurrency = 8,
    dtype: Dtype = "float32",
    acceptance: Acceptance = "coupled",
    max_model_len: MaxModelLen = 512,
) -> None:
    """Print what follows each prompt. Starts an engine for the purpose unless --connect names one."""
    _refuse_at_odds(prompts, input_, output, passes=passes)
    if connect is not None:
        refuse_own_engine(context)
    flags = EngineFlags(
        model=model,
        drafter=drafter,
        draft_len=draft_len,
        concurrency=concurrency,
        dtype=dtype,
        acceptance=acceptance,
        max_model_len=max_model_len,
    )
    pair: Pair = context.obj
    options: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature}
    if connect is not None:
        options["max_draft_len"] = draft_len
    if passes:
        options["passes"] = True
    settings = {} if connect is not None else flags.settings(pair)
    if input_ is not None and output is not None:
        failed = run_batch(
            input_,
            output,
            opened=lambda: engine(connect, settings),
            options=options,
            seed=seed,
            concurrency=concurrency,
            passes=passes,
        )
        if failed:
            raise Refused("FAILED", f"{failed} rows failed: their `error` in {output} says why")
        return
    with engine(connect, settings) as client:
        results = asyncio.run(_all(client.address, prompts or [], options, seed))
    _print(prompts or [], results)


def _refuse_at_odds(prompts: list[str] | None, input_: Path | None, output: Path | None, *, passes: bool) -> None:
    if bool(prompts) == (input_ is not None):
        raise Refused("BAD_CONFIG", "expected either PROMPT... or --input FILE.jsonl")
    if (input_ is None) != (output is None):
        raise Refused("BAD_CONFIG", "--input and --output belong together")
    if input_ is not None and output is not None and input_.exists() and output.exists() and output.samefile(input_):
        raise Refused("BAD_CONFIG", f"--output {output}: is what --input reads, expected another file")
    if passes and output is None:
        raise Refused("BAD_CONFIG", "--passes: expected --output FILE.jsonl to write them to")


async def _all(address: str, prompts: list[str], options: dict[str, Any], seed: int) -> list[Result]:
    async with AsyncClient(address, keys=keys_of_environment()) as client:
        jobs = [client.generate(prompt, seed=seed + index, **options) for index, prompt in enumerate(prompts)]
        return await asyncio.gather(*jobs)


def _print(prompts: list[str], results: list[Result]) -> None:
    """The text on stdout, so that it can be piped; what it cost on stderr."""
    notes = Console(stderr=True)
    for prompt, result in zip(prompts, results, strict=True):
        sys.stdout.write(prompt + (result.text or "") + "\n")
        counts = result.counts
        passes = counts.num_passes - counts.num_zero_passes
        ratio = f", acceptance length {counts.num_emitted_drafting / passes:.2f}" if passes else ""
        notes.print(f"[{len(result.token_ids)} tokens, {result.finish_reason}{ratio}]", style="dim", markup=False)
    failed = [result.error for result in results if result.error is not None]
    if failed:
        raise Refused("FAILED", "; ".join(failed))
