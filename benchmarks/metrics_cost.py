"""What metrics add to a turn of the scheduler, in us, beside what the core takes for the same step.

Run `python benchmarks/metrics_cost.py [--json FILE]`. A real `Service` is made and not run: its core is fed reports
that were made beforehand, and its watch hears of each turn as the loop tells it. CPU time of the thread, best of
several runs, less what reading the clock takes. What the worker waits for (`took`, `obeyed`) is told apart from what is
done behind its command.
"""

import argparse
import json
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog
from core_speed import BLOCK_LEN, answer
from dsparkd.scheduler.core import events
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.service.loop import Service

ROWS = (1, 16, 64, 256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    results: dict[str, Any] = {}
    for num_rows in ROWS:
        runs = [costs_us(num_rows) for _ in range(9)]
        core, waited, behind, reading = (min(run[at] for run in runs) for at in range(4))
        results[str(num_rows)] = {"core": core, "waited_for": waited, "behind": behind, "reading": reading}
        print(
            f"{num_rows:3} rows: core {core:7.1f} us a step; metrics: {waited:5.2f} us before the command has left, "
            f"{behind:6.2f} us behind it, {reading:7.1f} us for a reading (one a scrape)"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


def costs_us(num_rows: int, *, steps: int = 60) -> tuple[float, float, float, float]:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            target="scripted",
            drafter="x",
            bind=f"ipc://{folder}/engine",
            policy=f"fixed:{BLOCK_LEN}",
            num_slots=num_rows,
            max_model_len=4096,
            max_step_tokens=10**6,
            metrics="127.0.0.1:0",
        )
        service = Service(settings)
        try:
            return _measured(service, num_rows, steps)
        finally:
            service.close()


def _measured(service: Service, num_rows: int, steps: int) -> tuple[float, float, float, float]:
    core, watch = service.core, service._watch
    core.start()
    session = core.ledger.worker.session
    for word in (
        events.ClientHello(0),
        events.WorkerHello(session),
        events.WorkerLoaded(session),
        events.WorkerReady(session, num_rows, 4096, BLOCK_LEN),
    ):
        core.handle(word)
    for number in range(num_rows):
        submit = events.Submit(0, number, tuple(range(8)), events.Options(max_tokens=4000))
        watch.took(submit, core.handle(submit))
    tick = events.Tick(0)
    outputs = core.handle(tick)
    watch.took(tick, outputs)
    watch.end_turn(time.monotonic_ns())
    spent = [0, 0, 0]
    for now in range(1, steps + 1):
        report, tick = answer(outputs, num_tokens=1 if now == 1 else 4), events.Tick(now)
        began_ns = time.monotonic_ns()
        marks = [time.thread_time_ns()]
        settled = core.handle(report)
        outputs = core.handle(tick)
        marks.append(time.thread_time_ns())
        watch.took(report, settled)
        watch.took(tick, outputs)
        watch.obeyed(began_ns)
        marks.append(time.thread_time_ns())
        watch.end_turn(began_ns)
        marks.append(time.thread_time_ns())
        for at in range(3):
            spent[at] += marks[at + 1] - marks[at]
    start = time.thread_time_ns()
    watch._metrics._read()
    reading = time.thread_time_ns() - start
    core_us, waited_us, behind_us = (one / steps / 1000 - clock_us() for one in spent)
    return core_us, waited_us, behind_us, reading / 1000


def clock_us(repeats: int = 1000) -> float:
    """What stands between two readings of the clock when nothing else does."""
    start = time.thread_time_ns()
    for _ in range(repeats):
        time.thread_time_ns()
    return (time.thread_time_ns() - start) / repeats / 1000


if __name__ == "__main__":
    main()
