"""Under load: what a step costs the scheduler with 100 and with 10,000 requests queued, and what many steps leave.

The first is a ratio of two cores that take turns in one process, best of several rounds. The second runs a scripted
engine for 50,000 steps of requests that come, are cancelled and end, and compares its file descriptors, memory, slots
and queues early on and at the end; it fails (status 1) where something grew.
Run: `OMP_WAIT_POLICY=PASSIVE python benchmarks/endurance.py`.
"""

import argparse
import gc
import json
import random
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.service import local, run
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.testing import Bench
from dsparkd.scheduler.wire.client import Client

MOST_GROWTH_MB = 8.0
ROUNDS, STEPS_A_ROUND = 15, 100


def crowded(num_queued: int) -> Bench:
    """A core whose slots decode while so many wait; nothing is told twice, so its own lists stay short."""
    bench = Bench(limits=Limits(num_slots=16, max_model_len=4096, max_queue=20_000), vocab_size=64, acceptance=None)
    bench.outputs = deque(maxlen=1)  # type: ignore[assignment]
    bench.records = deque(maxlen=1)  # type: ignore[assignment]
    for number in range(num_queued + 16):
        bench.submit(number, [1, 2, 3], max_tokens=4000)
    for _ in range(20):
        bench.tick()
        bench.answer()
    return bench


def step_us(bench: Bench) -> float:
    """Scheduler time of a step: the Tick that plans it and the report that settles it, without the worker's."""
    spent = 0
    for _ in range(STEPS_A_ROUND):
        bench.now_ns += 1_000_000
        began = time.thread_time_ns()
        outputs = bench.core.handle(events.Tick(bench.now_ns))
        spent += time.thread_time_ns() - began
        report = _report(bench, outputs)
        began = time.thread_time_ns()
        bench.core.handle(report)
        spent += time.thread_time_ns() - began
    return spent / STEPS_A_ROUND / 1e3


def _report(bench: Bench, outputs: list[Any]) -> Any:
    command = next(one for one in outputs if isinstance(one, results.Command))
    return events.Report(command.session, command.step_id, bench.worker.run_rows(command.rows))


def queue_ratio() -> dict[str, float]:
    few, many = crowded(100), crowded(10_000)
    times: dict[str, list[float]] = {"100": [], "10000": []}
    gc.collect()
    gc.freeze()  # as many objects as wait are walked by each full collection; that is Python's, and rare
    for _ in range(ROUNDS):
        times["100"].append(step_us(few))
        times["10000"].append(step_us(many))
    best = {name: min(each) for name, each in times.items()}
    return {"us_100_queued": best["100"], "us_10000_queued": best["10000"], "ratio": best["10000"] / best["100"]}


def measure(pid: int, client: Client) -> dict[str, Any]:
    stats = client.stats()
    status = Path(f"/proc/{pid}/status").read_text()
    rss_kb = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    return {
        "steps": stats["steps"],
        "files": sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        "rss_mb": rss_kb / 1024,
        "slots": stats["slots"],
        "queue_len": stats["queue_len"],
    }


def endure(num_steps: int, folder: Path) -> dict[str, Any]:
    """Waves of requests, some cancelled, some of clients that come and go, until so many steps are done."""
    settings = Settings.from_mapping(
        {
            "target": "scripted:mean=3.2", "drafter": "scripted", "bind": f"ipc://{folder}/engine", "num_slots": 8,
            "journal": f"{folder}/journal", "journal_sync": "never", "journal_segment_mb": 1, "max_kept": 64,
        }
    )  # fmt: skip
    process = run.start(settings, log=(folder / "log").open("wb"))
    dice, early = random.Random(1), None
    try:
        with Client(settings.bind, timeout_s=60) as client:
            client.wait_ready()
            while True:
                wave(client, settings.bind, dice)
                now = measure(process.pid, client)
                if early is None and now["steps"] > num_steps / 5:
                    early = now
                if now["steps"] >= num_steps:
                    return {"early": early, "late": now}
    finally:
        local.stop(process)


def wave(client: Client, address: str, dice: random.Random) -> None:
    with Client(address) as visitor:
        streams = [visitor.submit([1, dice.randrange(500)], max_tokens=dice.randrange(1, 200)) for _ in range(4)]
        streams += [client.submit([2, dice.randrange(500)], max_tokens=dice.randrange(1, 200)) for _ in range(12)]
        for stream in dice.sample(streams, 3):
            stream.cancel()
        for stream in streams[2:]:
            stream.result()


def grew(early: dict[str, Any], late: dict[str, Any]) -> list[str]:
    problems = []
    if late["files"] > early["files"]:
        problems.append(f"open files: {early['files']} -> {late['files']}")
    if late["rss_mb"] > early["rss_mb"] + MOST_GROWTH_MB:
        problems.append(f"memory: {early['rss_mb']:.1f} -> {late['rss_mb']:.1f} MB")
    if late["slots"] != {"FREE": 8} or late["queue_len"]:
        problems.append(f"slots {late['slots']}, queue {late['queue_len']}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    queue = queue_ratio()
    print(f"a step of 16 rows with 100 queued {queue['us_100_queued']:.0f} us, with 10,000 {queue['ratio']:.3f} times")
    with tempfile.TemporaryDirectory(prefix="dsparkd-endurance-") as folder:
        found = endure(arguments.steps, Path(folder))
    print(json.dumps(found, indent=2))
    problems = grew(found["early"], found["late"])
    for problem in problems:
        print(f"grew: {problem}", file=sys.stderr)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"queue": queue, **found}, indent=2) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
