"""What client and scheduler cost a token with many streams on one client: CPU time of the two processes.

The worker is the scripted one, in a process of its own that is not counted; every token goes through the scheduler,
over ipc, through the client, to the reader of its stream. CPU time of a process is little disturbed by what else the
machine does. Streams are all live at once, in as many slots. Run: `python benchmarks/client_streams.py`.
"""

import argparse
import asyncio
import os
import subprocess
import time
from pathlib import Path

from dsparkd import AsyncClient, Client, local

TARGET = "scripted:mean=3,vocab=2000,block=7"
LEAST_TOKENS = 20_000  # of a round: the system counts CPU time in ticks of 10 ms
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def with_threads(client: Client, num_streams: int, max_tokens: int, *, times: int) -> int:
    total = 0
    for _ in range(times):
        streams = [client.submit([1, 2, 3 + number], max_tokens=max_tokens) for number in range(num_streams)]
        total += sum(len(stream.result().token_ids) for stream in streams)
    return total


async def with_tasks(address: str, num_streams: int, max_tokens: int, *, times: int) -> int:
    total = 0
    async with AsyncClient(address, timeout_s=120) as client:
        for _ in range(times):
            jobs = (client.generate([1, 2, 3 + number], max_tokens=max_tokens) for number in range(num_streams))
            total += sum(len(result.token_ids) for result in await asyncio.gather(*jobs))
    return total


def measured(num_streams: int, max_tokens: int, *, rounds: int) -> dict[str, tuple[float, float, float]]:
    """Microseconds a token of (client, scheduler, wall clock) by kind of client; the best round of each."""
    found: dict[str, list[tuple[float, float, float]]] = {"Client": [], "AsyncClient": []}
    settings = {"num_slots": num_streams, "max_model_len": 512, "max_step_tokens": 8 * num_streams + 512}
    with local(target=TARGET, drafter="scripted", policy="fixed:7", log=subprocess.DEVNULL, **settings) as client:
        scheduler = int(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()[0])
        times = -(-LEAST_TOKENS // (num_streams * max_tokens))
        with_threads(client, num_streams, 16, times=1)
        for _ in range(rounds):
            for kind, rows in found.items():
                before = (time.process_time(), cpu_s(scheduler), time.perf_counter())
                if kind == "Client":
                    tokens = with_threads(client, num_streams, max_tokens, times=times)
                else:
                    tokens = asyncio.run(with_tasks(client.address, num_streams, max_tokens, times=times))
                after = (time.process_time(), cpu_s(scheduler), time.perf_counter())
                a, b, c = (1e6 * (late - early) / tokens for late, early in zip(after, before, strict=True))
                rows.append((a, b, c))
    return {kind: min(rows, key=lambda row: row[0] + row[1]) for kind, rows in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    print("streams   client        client us   scheduler us   together   wall us (worker included), a token")
    for num_streams in (1, 16, 1000):
        for kind, (client, scheduler, wall) in measured(num_streams, flags.max_tokens, rounds=flags.rounds).items():
            row = f"{client:9.1f}   {scheduler:12.1f}   {client + scheduler:8.1f}   {wall:7.1f}"
            print(f"{num_streams:7}   {kind:11}   {row}")


if __name__ == "__main__":
    main()
