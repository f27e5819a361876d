"""How fast the scheduler decides: ns for a table step, and us for everything that `core.handle` does for one step.

Run `python benchmarks/core_speed.py [--json FILE]`. The worker takes no time here: reports are made beforehand, so only
the core is measured (a Tick that plans, and the Report that it settles). Each figure is the best of several
runs, in CPU time of the thread: other work on the machine only adds.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.core.handle import Core
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.core.policies.fixed import Fixed
from dsparkd.statemachine import request
from dsparkd.statemachine.request import Event, State

BLOCK_LEN = 7
ROWS = (1, 16, 64, 256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Any] = {"ns_per_table_step": round(table_step_ns(), 1), "handle": {}}
    print(f"table step                {results['ns_per_table_step']:8.0f} ns")
    for num_rows in ROWS:
        step_us = min(handle_us(num_rows) for _ in range(15))
        results["handle"][num_rows] = {"us_per_step": round(step_us, 1), "us_per_row": round(step_us / num_rows, 2)}
        print(f"core.handle, {num_rows:3} rows     {step_us:8.1f} us a step   {step_us / num_rows:6.2f} us a row")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


class Facts:
    ending = None
    held_len = 7


def table_step_ns(repeats: int = 50_000) -> float:
    """A classified cell, the dearest kind."""
    table, facts, runs = request.TABLE, Facts(), []
    for _ in range(9):
        start = time.thread_time_ns()
        for _ in range(repeats):
            table.step(State.VERIFYING, Event.EMITTED, facts)
        runs.append((time.thread_time_ns() - start) / repeats)
    return min(runs)


def handle_us(num_rows: int, *, steps: int = 30) -> float:
    """Plan and settle steps of `num_rows` verifying requests, each emitting four tokens of a draft of seven."""
    limits = Limits(num_slots=num_rows, max_model_len=4096, max_step_tokens=10**6, max_queue=num_rows)
    core = Core(limits, Fixed(BLOCK_LEN))
    core.start()
    session = core.ledger.worker.session
    core.handle(events.ClientHello(0))
    for word in (
        events.WorkerHello(session),
        events.WorkerLoaded(session),
        events.WorkerReady(session, num_rows, limits.max_model_len, BLOCK_LEN),
    ):
        core.handle(word)
    for number in range(num_rows):
        core.handle(events.Submit(0, number, tuple(range(8)), events.Options(max_tokens=4000)))
    core.handle(answer(core.handle(events.Tick(0)), num_tokens=1))
    spent = 0
    for now in range(1, steps + 1):
        tick = events.Tick(now)
        start = time.thread_time_ns()
        outputs = core.handle(tick)
        spent += time.thread_time_ns() - start
        report = answer(outputs, num_tokens=4)
        start = time.thread_time_ns()
        core.handle(report)
        spent += time.thread_time_ns() - start
    return spent / steps / 1000


def answer(outputs: list[results.Output], *, num_tokens: int) -> events.Report:
    command = next(one for one in outputs if isinstance(one, results.Command))
    rows: list[events.ReportRow] = [
        events.Emitted(row.slot, row.epoch, list(range(num_tokens)), num_tokens - 1, BLOCK_LEN)
        for row in command.rows
        if not isinstance(row, events.Scrub)
    ]
    return events.Report(command.session, command.step_id, rows)


if __name__ == "__main__":
    main()
