"""What traces cost and how fast they replay.

Recording: the shipped pair serves 32 rows; the time that writing each turn takes is compared with the time of its
steps, in one run. Replaying: a scripted engine (8 ms a step) with cancels, a worker that is killed and zero-draft
requests is recorded over 10,000 steps; every digest must come out again, at many times the speed of life.
Run: `python benchmarks/trace_cost.py`.
"""

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from dsparkd import Client, local
from dsparkd.models.shipped import shipped_pair
from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.core.handle import Core
from dsparkd.scheduler.service.trace_writer import TraceWriter
from dsparkd.scheduler.trace.reading import Event, Header, read_trace
from dsparkd.scheduler.trace.replay import first_difference, policy_of

MOST_S = 900.0


def record_pair(path: Path, rows: int, max_tokens: int) -> None:
    pair = shipped_pair()
    prompts = [json.loads(line)["prompt"] for line in pair.prompts.read_text().splitlines()]
    with local(target=str(pair.target), drafter=str(pair.drafter), num_slots=rows, trace=str(path)) as client:
        streams = [client.submit(prompts[row % len(prompts)], max_tokens=max_tokens) for row in range(rows)]
        for stream in streams:
            stream.result()


def writing_share(path: Path, scratch: Path) -> tuple[float, float, int]:
    """Write a recorded run once more, timed. Return us a step of writing, us a step as it was, and steps."""
    entries = [entry for entry in read_trace(path) if isinstance(entry, Event | Header)]
    header = entries[0]
    assert isinstance(header, Header)
    core = Core(header.limits, policy_of(header))
    core.start()
    writer = TraceWriter(scratch, core, policy=header.policy)
    spent_ns = life_ns = steps = 0
    now_ns = sent_ns = 0
    for entry in entries[1:]:
        assert isinstance(entry, Event)
        outputs = core.handle(entry.input)
        began = time.perf_counter_ns()
        writer.took(entry.input, outputs)
        if type(entry.input) is events.Tick:
            writer.end_turn()
        spent_ns += time.perf_counter_ns() - began
        now_ns = entry.input.now_ns if type(entry.input) is events.Tick else now_ns
        if type(entry.input) is events.Tick and sent_ns and core.ledger.worker.last_step_id == steps + 1:
            steps += 1
            life_ns += now_ns - sent_ns
        if any(type(one) is results.Command for one in outputs):
            sent_ns = now_ns
    writer.close()
    return spent_ns / 1e3 / steps, life_ns / 1e3 / steps, steps


def record_chaos(path: Path, num_steps: int) -> float:
    """Return the seconds that it took."""
    target = "scripted:mean=3,vocab=2000,block=7,step_us=8000"
    began = time.monotonic()
    with local(
        target=target, drafter="x", num_slots=8, max_model_len=4096, trace=str(path), log=subprocess.DEVNULL
    ) as client:
        killed, number = False, 0
        live: list[Any] = []
        while client.stats()["steps"] < num_steps and time.monotonic() - began < MOST_S:
            while len(live) < 12:
                number += 1
                options = {"max_tokens": 300 + number % 700, "max_draft_len": 0 if number % 5 == 0 else None}
                live.append(client.submit([number % 2000, 2, 3], **options))
            live.pop(0).cancel() if number % 3 == 0 else live.pop(0).result()
            if not killed and client.stats()["steps"] > num_steps // 2:
                killed = kill_worker(client)
        for stream in live:
            stream.cancel()
    return time.monotonic() - began


def kill_worker(client: Client) -> bool:
    """SIGKILL the engine's worker: a grandchild of ours."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    for child in children:
        for grandchild in Path(f"/proc/{child}/task/{child}/children").read_text().split():
            os.kill(int(grandchild), signal.SIGKILL)
            return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pair, again, chaos = (Path(folder) / name for name in ("pair", "again", "chaos"))
        record_pair(pair, arguments.rows, arguments.max_tokens)
        spent, life, steps = writing_share(pair, again)
        share = f"{spent:.0f} us of {life:.0f} us a step of {arguments.rows} rows: {spent / life:.2%}"
        print(f"recording: {share} ({steps} steps)")
        took = record_chaos(chaos, arguments.steps)
        began = time.monotonic()
        count, difference = first_difference(chaos)
        speed = took / (time.monotonic() - began)
        told = "every digest equal" if difference is None else f"DIFFERENT at {difference.index}"
        print(f"replaying: {count} inputs of {took:.0f} s, {told}, {speed:.1f} times the speed of life")


if __name__ == "__main__":
    main()
