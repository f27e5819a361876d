"""Golden folders, both twins loaded from them, and the smallest cache that drives the fast path."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import torch
from dsparkd.models.checkpoint import load_drafter, load_target, read_drafter, read_target
from dsparkd.models.drafter import DSparkDrafter, Proposal
from dsparkd.models.layers import grouped_attention
from dsparkd.models.reference import ReferenceDrafter, ReferenceTarget
from dsparkd.models.shipped import shipped_pair
from dsparkd.models.target import Qwen3Target
from safetensors.torch import load_file
from torch import Tensor

torch.set_num_threads(1)

CPU = torch.device("cpu")
GOLDEN = Path(__file__).parent.parent / "golden"
NAMES = ("vanilla", "gated", "rnn", "tied_embedding_tap", "dflash", "block7")
TOLERANCE = 2e-5


@attrs.frozen
class Pair:
    """One pair in both forms."""

    reference_target: ReferenceTarget
    reference_drafter: ReferenceDrafter
    target: Qwen3Target
    drafter: DSparkDrafter


@attrs.frozen
class Golden:
    """A pair with the rounds and tensors that another implementation recorded for it."""

    pair: Pair
    samples: list[dict[str, Any]]
    tensors: dict[str, Tensor]


def load_pair(target_folder: Path, drafter_folder: Path) -> Pair:
    target_config, target_tensors = read_target(target_folder)
    config, tensors = read_drafter(drafter_folder, target_config)
    as_float = [{name: value.float() for name, value in group.items()} for group in (target_tensors, tensors)]
    target = load_target(target_folder, dtype=torch.float32, device=CPU)
    drafter = load_drafter(drafter_folder, target, dtype=torch.float32, device=CPU)
    target.set_taps(config.target_layer_ids)
    target.prepare(256)
    drafter.prepare(256)
    twin = ReferenceTarget(target_config, as_float[0], taps=config.target_layer_ids)
    return Pair(twin, ReferenceDrafter(config, as_float[1]), target, drafter)


@cache
def golden(name: str) -> Golden:
    folder = GOLDEN / name
    samples = json.loads((folder / "golden.json").read_text())["samples"]
    tensors = load_file(folder / "golden.safetensors")
    return Golden(load_pair(folder / "target", folder / "draft"), samples, tensors)


@cache
def shipped() -> Pair:
    paths = shipped_pair()
    return load_pair(paths.target, paths.drafter)


@torch.inference_mode()
def assert_twins_agree(pair: Pair, prompt: list[int], *, anchor: int = 9) -> None:
    """The fast path and the reference give the same logits, features, block, drafts and confidences after `prompt`."""
    cache = TinyCache(pair)
    (logits,), (features,) = cache.run([prompt], [0])
    expected, expected_features = pair.reference_target.logits_and_features(prompt)
    # Logits reach 20, so the bound is relative to their size.
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=TOLERANCE)
    torch.testing.assert_close(features, expected_features, atol=TOLERANCE, rtol=TOLERANCE)
    cache.write_context(0, features, 0)
    hidden, proposal = cache.propose([anchor], [len(prompt)])
    draft = pair.reference_drafter.propose(expected_features, anchor, len(prompt), lambda _, row: int(row.argmax()))
    torch.testing.assert_close(hidden[0], draft.hidden, atol=TOLERANCE, rtol=TOLERANCE)
    assert proposal.token_ids[0].tolist() == draft.token_ids
    assert (proposal.confidence_logits is None) == (draft.confidence_logits is None)
    if proposal.confidence_logits is not None:
        torch.testing.assert_close(proposal.confidence_logits[0], draft.confidence_logits, atol=1e-4, rtol=TOLERANCE)


class TinyCache:
    """Windows of a few rows for the fast path: every row keeps its own length, nothing is shared or reused."""

    def __init__(self, pair: Pair, *, rows: int = 1, room: int = 256) -> None:
        self.pair = pair
        target, drafter = pair.target.config, pair.drafter.config
        shape = (2, target.num_layers, rows, target.num_kv_heads, room, target.head_dim)
        self.keys, self.values = torch.full(shape, torch.nan).unbind(0)
        shape = (2, drafter.num_layers, rows, drafter.num_kv_heads, room, drafter.head_dim)
        self.context_keys, self.context_values = torch.full(shape, torch.nan).unbind(0)

    @torch.inference_mode()
    def run(self, token_ids: list[list[int]], starts: list[int]) -> tuple[list[Tensor], list[Tensor]]:
        """One flat pass over the rows' new tokens -> logits and features of each row."""
        widths = [len(ids) for ids in token_ids]
        flat = torch.tensor([token for ids in token_ids for token in ids])
        at = torch.cat([torch.arange(s, s + w) for s, w in zip(starts, widths, strict=True)])

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            parts, first = [], 0
            for row, (start, width) in enumerate(zip(starts, widths, strict=True)):
                own, end = slice(first, first + width), start + width
                self.keys[layer, row, :, start:end] = k[own].transpose(0, 1)
                self.values[layer, row, :, start:end] = v[own].transpose(0, 1)
                mask = torch.arange(end) <= torch.arange(start, end).unsqueeze(-1)
                window = [kept[layer, row : row + 1, :, :end] for kept in (self.keys, self.values)]
                parts.append(grouped_attention(q[own].unsqueeze(0), *window, mask.unsqueeze(0))[0])
                first += width
            return torch.cat(parts)

        hidden, features = self.pair.target.forward(flat, at, attend)
        logits = self.pair.target.logits(hidden)
        return list(logits.split(widths)), list(features.split(widths))

    @torch.inference_mode()
    def write_context(self, row: int, features: Tensor, start: int) -> None:
        keys, values = self.pair.drafter.context(features, torch.arange(start, start + len(features)))
        self.context_keys[:, row, :, start : start + len(features)] = keys.transpose(1, 2)
        self.context_values[:, row, :, start : start + len(features)] = values.transpose(1, 2)

    @torch.inference_mode()
    def propose(self, anchors: list[int], starts: list[int], *, window: int | None = None) -> tuple[Tensor, Proposal]:
        """Draft for all rows in one block pass -> hidden [rows, B, d] and the greedy proposal."""
        drafter = self.pair.drafter

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            parts = []
            for row, start in enumerate(starts):
                seen = slice(0 if window is None else max(0, start - window), start)
                keys = torch.cat((self.context_keys[layer, row, :, seen], k[row].transpose(0, 1)), 1)
                values = torch.cat((self.context_values[layer, row, :, seen], v[row].transpose(0, 1)), 1)
                parts.append(grouped_attention(q[row : row + 1], keys.unsqueeze(0), values.unsqueeze(0)))
            return torch.cat(parts)

        heads = torch.tensor(anchors)
        hidden = drafter.block(heads, torch.tensor(starts), attend)
        return hidden, drafter.propose(hidden, heads, lambda index, logits: logits.argmax(-1))
