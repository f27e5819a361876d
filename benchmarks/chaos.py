"""Chaos: processes are killed and stopped at random instants, frames are lost, late and told twice, and every stream is
compared with the undisturbed run.

Under steady load (greedy and coupled requests, several clients) against an engine with a journal. Between clients and
engine stands a proxy that meddles with frames. A stream that says other tokens is judged by the margins that the
undisturbed run reported: where two tokens were nearly as good, a difference is a near tie, and the comparison of that
request ends there; everything else is `changed`. Run, each about ten minutes on two cores:
`OMP_WAIT_POLICY=PASSIVE python benchmarks/chaos.py --kills 200 --seed 1 --json chaos.json` (scripted worker), and
`... --pair --kills 60` (the shipped pair).
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
from chaos_load import PATIENCE_S, Asked, Load
from chaos_proxy import Proxy
from dsparkd import AsyncClient, Client, EngineError
from dsparkd.models.shipped import shipped_pair
from dsparkd.scheduler.service import local, run
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.wire import messages as wire

NEAR = 1e-4  # float32
NUM_CLIENTS = 4
LONGEST_SURVIVAL_S = 5.0  # of a child over its parent
KINDS = ("worker", "worker", "worker", "stop worker", "scheduler", "client")
SLOW = "scripted:mean=3.2,step_us=2000"


@attrs.define
class Report:
    requests: int = 0
    worker_kills: int = 0
    scheduler_kills: int = 0
    client_kills: int = 0
    proxied_faults: int = 0
    lost: int = 0
    duplicated: int = 0
    changed: int = 0
    near_ties: int = 0
    hung: int = 0
    orphans: int = 0
    recovery_ms_p50: float = 0.0
    recovery_ms_p99: float = 0.0


def settings_of(folder: Path, *, pair: bool) -> Settings:
    shipped = shipped_pair()
    model = {"target": str(shipped.target), "drafter": str(shipped.drafter), "load_deadline_s": 60.0}
    scripted = {"target": SLOW, "drafter": "scripted", "load_deadline_s": 20.0}
    return Settings.from_mapping(
        {
            "bind": f"ipc://{folder}/engine",
            "journal": str(folder / "journal"),
            "journal_sync": "never",  # processes die here, not the machine
            "journal_segment_mb": 1,
            "num_slots": 8,
            "heartbeat_s": 0.2,
            "step_deadline_s": 2.0,
            "client_grace_s": 120.0,
            "max_restarts": 1_000_000,
            "restart_budget": 1_000_000,
            "respawn_budget": 1_000_000,
            "measure_costs": False,
            "policy": "fixed:7",
            **(model if pair else scripted),
        }
    )


# ---- kills ----------------------------------------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def strike(kind: str, parent: int, users: list[Load], dice: random.Random, report: Report) -> bool:
    """Kill or stop somebody. Returns whether there was anybody to."""
    if kind == "client":
        dice.choice(users).killed.set()
        report.client_kills += 1
        return True
    schedulers = children(parent)
    workers = [worker for one in schedulers for worker in children(one)]
    victims = schedulers if kind == "scheduler" else workers
    if not victims:
        return False
    with suppress(ProcessLookupError):
        os.kill(victims[0], signal.SIGSTOP if kind == "stop worker" else signal.SIGKILL)
    if kind == "scheduler":
        report.scheduler_kills += 1
    else:
        report.worker_kills += 1
    for user in users:
        user.last_kill = time.monotonic()
    return True


def is_ready(address: str) -> bool:
    try:
        with Client(address, timeout_s=2.0) as asking:
            return asking.health().worker in ("READY", "DEGRADED")
    except EngineError:
        return False


@contextmanager
def engine(settings: Settings, log: Any) -> Iterator[int]:
    process = run.start(settings, respawn=settings.journal is not None, log=log)
    try:
        yield process.pid
    finally:
        local.stop(process)


def is_ours(pid: int) -> bool:
    """Whether it still lives, and is no other process that got its number."""
    try:
        return b"dsparkd" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def storm(settings: Settings, arguments: argparse.Namespace, report: Report, log: Any) -> list[Load]:
    """The load with its kills; returns the users when all have ended, or their patience has."""
    dice, ended = random.Random(arguments.seed), threading.Event()
    numbers = iter(range(1_000_000))
    with engine(settings, log) as parent, Proxy(settings.bind, seed=arguments.seed) as proxy:
        with Client(settings.bind, timeout_s=120) as first:
            first.wait_ready()
        users = [Load(proxy.address, numbers, ended, pair=arguments.pair) for _ in range(NUM_CLIENTS)]
        for user in users:
            user.start()
        kills, seen = 0, set[int]()
        while kills < arguments.kills:
            seen.update(pid for one in children(parent) for pid in (one, *children(one)))
            time.sleep(dice.uniform(0.05, 4.0 if arguments.pair else 0.4))
            if is_ready(settings.bind) or dice.random() < 0.1:  # mostly those who work; now and then who just starts
                kind = dice.choice(KINDS)
                kills += strike(kind, parent, users, dice, report) and kind != "client"
            if arguments.verbose and kills % 10 == 0:
                print(f"{kills} kills, {sum(len(user.asked) for user in users)} requests", file=sys.stderr)
        ended.set()
        until = time.monotonic() + PATIENCE_S
        for user in users:
            user.join(max(0.0, until - time.monotonic()))
        report.proxied_faults = proxy.num_faults
    time.sleep(LONGEST_SURVIVAL_S)
    report.orphans = sum(is_ours(pid) for pid in seen)
    return users


# ---- judgement ------------------------------------------------------------------------------------------------------


def undisturbed(settings: Settings, everything: list[Asked], log: Any) -> None:
    """What every request says when nobody meddles."""

    async def ask() -> None:
        async with AsyncClient(calm.bind, timeout_s=300) as client:
            await client.wait_ready()
            for begin in range(0, len(everything), 64):
                part = everything[begin : begin + 64]
                streams = [await client.submit(one.prompt, **one.options) for one in part]
                for one, stream in zip(part, streams, strict=True):
                    async for message in stream:
                        if isinstance(message, wire.Tokens):
                            one.expected += message.token_ids
                            one.margins += message.margins or []

    calm = attrs.evolve(settings, journal=None, journal_sync="accept", journal_segment_mb=64, bind=settings.bind + "2")
    with engine(calm, log):
        asyncio.run(ask())


def judge(one: Asked, report: Report) -> None:
    if one.never_came:
        return
    if not one.is_over:
        report.hung += 1
    elif one.problem == "duplicated":
        report.duplicated += 1
    elif one.problem or len(one.heard) != len(one.expected):
        report.lost += 1
    elif one.heard != one.expected:
        at = next(index for index, pair in enumerate(zip(one.heard, one.expected, strict=True)) if pair[0] != pair[1])
        near = at < len(one.margins) and one.margins[at] < NEAR
        report.near_ties += near
        report.changed += not near


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=40, help="of workers and schedulers, stops of workers included")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pair", action="store_true", help="with the shipped pair, not the scripted worker")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--log", type=Path, help="where the engine's log goes")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    report = Report()
    with (
        tempfile.TemporaryDirectory(prefix="dsparkd-chaos-") as folder,
        (arguments.log or Path(os.devnull)).open("wb") as log,
    ):
        settings = settings_of(Path(folder), pair=arguments.pair)
        users = storm(settings, arguments, report, log)
        everything = [one for user in users for one in user.asked]
        undisturbed(settings, everything, log)
    for one in everything:
        judge(one, report)
    report.requests = len(everything)
    recovered = sorted(ms for user in users for ms in user.recovery_ms)
    if recovered:
        report.recovery_ms_p50 = round(statistics.median(recovered), 1)
        report.recovery_ms_p99 = round(recovered[min(len(recovered) - 1, int(0.99 * len(recovered)))], 1)
    text = json.dumps(attrs.asdict(report), indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")
    for one in everything:
        if (one.problem and not one.never_came) or not one.is_over:
            print(one.name, one.problem, one.is_over, len(one.heard), len(one.expected), file=sys.stderr)
    return 1 if report.lost or report.duplicated or report.changed or report.hung or report.orphans else 0


if __name__ == "__main__":
    sys.exit(main())
