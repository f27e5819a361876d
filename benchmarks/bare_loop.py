"""What the engine adds to the model: a bare torch loop, the engine decoding plainly, and the engine drafting, in turns.

Every prompt runs on all three in one process group and in alternating order, so that a noisy machine slows all alike;
only the ratios mean anything. Run: `python benchmarks/bare_loop.py [--prompts N] [--max-tokens N]`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from dsparkd import Client, local
from dsparkd.models.checkpoint import load_target
from dsparkd.models.layers import grouped_attention
from dsparkd.models.shipped import shipped_pair
from tokenizers import Tokenizer
from torch import Tensor

MAX_LEN = 512
HABITS = {"OMP_WAIT_POLICY": "PASSIVE", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # a worker's: the same for the loop


class BareLoop:
    """The target and nothing else: one row, one contiguous cache, argmax, next."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.target = load_target(folder, dtype=torch.float32, device=torch.device("cpu"))
        self.target.prepare(MAX_LEN)
        config = self.target.config
        size = (config.num_layers, 1, config.num_kv_heads, MAX_LEN, config.head_dim)
        self.keys, self.values = torch.zeros(size), torch.zeros(size)

    @torch.inference_mode()
    def generate(self, token_ids: list[int], max_tokens: int) -> list[int]:
        out: list[int] = []
        new, start = token_ids, 0
        while len(out) < max_tokens:
            out.append(int(self._forward(new, start).argmax()))
            start += len(new)
            new = out[-1:]
        return out

    def _forward(self, token_ids: list[int], start: int) -> Tensor:
        end = start + len(token_ids)
        positions = torch.arange(start, end)
        mask = None
        if len(token_ids) > 1:
            seen = torch.arange(end) <= positions.unsqueeze(-1)
            mask = torch.where(seen, 0.0, -torch.inf).unsqueeze(0)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.keys[layer, 0, :, start:end] = k.transpose(0, 1)
            self.values[layer, 0, :, start:end] = v.transpose(0, 1)
            keys, values = self.keys[layer, :, :, :end], self.values[layer, :, :, :end]
            return grouped_attention(q.unsqueeze(0), keys, values, mask)[0]

        hidden, _ = self.target.forward(torch.tensor(token_ids), positions, attend)
        return self.target.logits(hidden[-1:])

    def prefill(self, token_ids: list[int]) -> float:
        """Seconds of one plain forward of these rows."""
        with torch.inference_mode():
            began = time.perf_counter()
            self._forward(token_ids, 0).argmax().item()
            return time.perf_counter() - began


def first_token(client: Client, token_ids: list[int]) -> float:
    began = time.perf_counter()
    client.generate(token_ids, max_tokens=1)
    return time.perf_counter() - began


def main() -> None:
    if not HABITS.items() <= os.environ.items():  # read once, at a process's start
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **HABITS})
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=128)
    arguments = parser.parse_args()
    pair = shipped_pair()
    tokenizer = Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    texts = [json.loads(line)["prompt"] for line in pair.prompts.read_text().splitlines()][: arguments.prompts]
    prompts = [tokenizer.encode(text).ids for text in texts]
    bare = BareLoop(pair.target)
    common: dict[str, Any] = {"target": str(pair.target), "num_slots": 1, "log": subprocess.DEVNULL}
    with local(**common, policy="fixed:0") as plain, local(**common, drafter=str(pair.drafter)) as spec:
        ways = {
            "bare": lambda ids: bare.generate(ids, arguments.max_tokens),
            "plain": lambda ids: plain.generate(ids, max_tokens=arguments.max_tokens, ignore_eos=True).token_ids,
            "spec": lambda ids: spec.generate(ids, max_tokens=arguments.max_tokens, ignore_eos=True).token_ids,
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for way in ways.values():
            way(prompts[0])
        for turn, prompt in enumerate(prompts):
            outputs = {}
            names = list(ways)
            for name in names[turn % 3 :] + names[: turn % 3]:
                began = time.perf_counter()
                outputs[name] = ways[name](prompt)
                seconds[name].append(time.perf_counter() - began)
            if not outputs["bare"] == outputs["plain"] == outputs["spec"]:
                raise SystemExit(f"prompt {turn}: the three ways differ")
        long = (prompts[0] * 20)[:448]
        stats = {"plain": plain.stats(), "spec": spec.stats()}
        firsts = [(bare.prefill(long), first_token(spec, long), first_token(plain, long)) for _ in range(7)]
    totals = {name: sum(values) for name, values in seconds.items()}
    tokens = arguments.max_tokens * len(prompts)
    for name, total in totals.items():
        print(f"{name:6} {1e3 * total / tokens:6.3f} ms a token")
    for name, one in stats.items():
        shares = {key: one[key] / one["steps_timed"] / 1e6 for key in ("target_ns", "draft_ns")}
        print(
            f"{name:6} a step: "
            + ", ".join(f"{key.removesuffix('_ns')} {value:.2f} ms" for key, value in shares.items())
        )
    print(f"plain / bare      {totals['plain'] / totals['bare']:.3f}  (goal: at most 1.15)")
    print(f"plain / spec      {totals['plain'] / totals['spec']:.3f}  (goal: at least 1.4)")
    prefill, drafting, undrafting = (statistics.median(column) for column in zip(*firsts, strict=True))
    print(f"448-token prompt: one plain forward {1e3 * prefill:.1f} ms, first token {1e3 * undrafting:.1f} ms plain,")
    print(f"  {1e3 * drafting:.1f} ms seeding the drafter too: {drafting / prefill:.2f} x")


if __name__ == "__main__":
    main()
