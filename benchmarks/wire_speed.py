"""What scheduler and wire cost a step: how long a worker waits between its report and the next command.

The worker is the scripted one, in its own process over ipc, and measures the wait itself; the client streams every
token meanwhile. Goal: under 200 us a step + 10 us a row. Run: `python benchmarks/wire_speed.py`.
"""

import argparse
import subprocess

from dsparkd import Client, local

TARGET = "scripted:mean=3,vocab=2000,block=7"


def wait_us(client: Client, num_rows: int, max_tokens: int) -> tuple[float, float]:
    """Return microseconds waited a step, and the tokens that a step emitted."""
    before = client.stats()
    streams = [client.submit([1, 2, 3 + row], max_tokens=max_tokens) for row in range(num_rows)]
    for stream in streams:
        stream.result()
    after = client.stats()
    steps = after["steps_timed"] - before["steps_timed"]
    emitted = after["tokens_emitted"] - before["tokens_emitted"]
    return (after["wait_ns"] - before["wait_ns"]) / 1e3 / steps, emitted / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print("rows   us a step (best of rounds)   us a row beyond 200   tokens a step")
    for num_rows in (1, 16, 64):
        with local(
            target=TARGET, num_slots=num_rows, max_model_len=4096, max_step_tokens=4096, log=subprocess.DEVNULL
        ) as client:
            wait_us(client, num_rows, 100)  # the first wait counts from READY: not a step's
            rounds = [wait_us(client, num_rows, arguments.max_tokens) for _ in range(arguments.rounds)]
        best, emitted = min(rounds)
        print(f"{num_rows:4}   {best:12.0f}   {max(0.0, best - 200) / num_rows:34.1f}   {emitted:21.1f}")


if __name__ == "__main__":
    main()
