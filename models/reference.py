"""The readable twin: batch 1, no cache, no fused weight, everything recomputed from scratch at each call.

Owns a second, slow statement of what target, drafter and the draft-and-verify loop compute; tests hold the fast path
against it. Never used for serving. Tensors carry the checkpoint's names; they are computed with in the dtype they
come in.
"""

from collections.abc import Callable, Mapping, Sequence

import attrs
import torch
from torch import Tensor
from torch.nn.functional import silu

from .config import DrafterConfig, ModelConfig, TargetConfig
from .layers import inverse_frequencies
from .sampling import Sampling, SamplingRow, accept_coupled, draw

Draw = Callable[[int, Tensor], int]


class ReferenceTarget:
    """A Qwen3 target over `checkpoint.read_target`'s configuration and tensors."""

    def __init__(self, config: TargetConfig, tensors: Mapping[str, Tensor], *, taps: Sequence[int] = ()) -> None:
        self.config = config
        self.tensors = tensors
        self.taps = tuple(taps)

    def logits_and_features(self, token_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """token_ids: n ints -> logits [n, V] float32, features [n, m*d]."""
        length = len(token_ids)
        x = self.tensors["model.embed_tokens.weight"][torch.tensor(token_ids)]  # [n, d]
        causal = torch.ones(length, length).tril().bool()
        streams = {-1: x}
        for index in range(self.config.num_layers):
            weights = _Layer(self.config, self.tensors, f"model.layers.{index}")
            h = rms_norm(x, weights["input_layernorm.weight"], self.config.rms_norm_eps)
            q, k, v = weights.queries(h, range(length)), weights.keys(h, range(length)), weights.values(h)
            x = x + weights.linear(attention(q, k, v, causal), "self_attn.o_proj")
            x = x + weights.mlp(x)
            streams[index] = x
        hidden = rms_norm(x, self.tensors["model.norm.weight"], self.config.rms_norm_eps)
        features = torch.cat([streams[tap] for tap in self.taps], -1) if self.taps else x[:, :0]
        return (hidden @ self.tensors["lm_head.weight"].T).float(), features


@attrs.frozen(kw_only=True)
class Draft:
    """One pass: B tokens, hidden [B, d], logits [B, V] before and after the head's bias, confidence logits [B]."""

    token_ids: list[int]
    hidden: Tensor
    base_logits: Tensor
    draft_logits: Tensor
    confidence_logits: Tensor | None


class ReferenceDrafter:
    """A DSpark drafter. `tensors` must hold embedding and output matrix. window: block rows see the last that many."""

    def __init__(self, config: DrafterConfig, tensors: Mapping[str, Tensor], *, window: int | None = None) -> None:
        self.config = config
        self.tensors = tensors
        self.window = window if window is not None else config.sliding_window

    def propose(self, features: Tensor, anchor: int, start: int, draw_token: Draw) -> Draft:
        """features: [start, m*d] of positions 0..start-1; draw_token(index, logits [V] float32) -> token."""
        hidden = self._block(features, anchor, start)
        base = (hidden @ self.tensors["lm_head.weight"].T).float()  # [B, V]
        previous, tokens, rows, confidence = anchor, [], [], []
        state = hidden.new_zeros(self.config.markov_rank)
        for index in range(self.config.block_size):
            bias, state = self._bias(hidden[index], previous, state)
            rows.append(base[index] + bias)
            confidence.append(self._confidence(hidden[index], previous))
            previous = draw_token(index, rows[-1])
            tokens.append(previous)
        logits = torch.stack(confidence) if self.config.enable_confidence_head else None
        return Draft(
            token_ids=tokens,
            hidden=hidden,
            base_logits=base,
            draft_logits=torch.stack(rows),
            confidence_logits=logits,
        )

    def _block(self, features: Tensor, anchor: int, start: int) -> Tensor:
        """The backbone: [B, d] after the final norm."""
        config, eps = self.config, self.config.rms_norm_eps
        first = max(0, start - self.window) if self.window is not None else 0
        context = rms_norm(features[first:start] @ self.tensors["fc.weight"].T, self.tensors["hidden_norm.weight"], eps)
        token_ids = [anchor] + [config.mask_token_id] * (config.block_size - 1)
        seen, own = range(first, start), range(start, start + config.block_size)
        x = self.tensors["embed_tokens.weight"][torch.tensor(token_ids)]  # [B, d]
        for index in range(config.num_layers):
            weights = _Layer(config, self.tensors, f"layers.{index}")
            h = rms_norm(x, weights["input_layernorm.weight"], eps)
            keys = torch.cat((weights.keys(context, seen), weights.keys(h, own)))
            values = torch.cat((weights.values(context), weights.values(h)))
            x = x + weights.linear(attention(weights.queries(h, own), keys, values, None), "self_attn.o_proj")
            x = x + weights.mlp(x)
        return rms_norm(x, self.tensors["norm.weight"], eps)

    def _bias(self, hidden: Tensor, previous: int, state: Tensor) -> tuple[Tensor, Tensor]:
        """The head's bias [V] for one position and its next state [r]."""
        if not self.config.markov_rank:
            return torch.zeros(()), state
        token, output = self._head("markov_w1.weight")[previous], self._head("markov_w2.weight")
        if self.config.markov_head_type == "gated":
            z = self._head("gate_proj.weight") @ torch.cat((hidden, token)) + self._head("gate_proj.bias")
            return (output @ (z.sigmoid() * token)).float(), state
        if self.config.markov_head_type == "rnn":
            z = self._head("joint_proj.weight") @ torch.cat((state, token, hidden)) + self._head("joint_proj.bias")
            keep, candidate, read = z.chunk(3)
            state = keep.sigmoid() * state + (1 - keep.sigmoid()) * candidate.tanh()
            return (output @ read.tanh()).float(), state
        return (output @ token).float(), state

    def _confidence(self, hidden: Tensor, previous: int) -> Tensor:
        if not self.config.enable_confidence_head:
            return torch.zeros(())
        with_token = self.config.confidence_head_with_markov
        read = torch.cat((hidden, self._head("markov_w1.weight")[previous])) if with_token else hidden
        weight, bias = self.tensors["confidence_head.proj.weight"], self.tensors["confidence_head.proj.bias"]
        return (weight @ read + bias).squeeze(0).float()

    def _head(self, name: str) -> Tensor:
        return self.tensors[f"markov_head.{name}"]


class _Layer:
    """One layer's tensors under a prefix, and the projections that target and drafter share."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Tensor], prefix: str) -> None:
        self.config, self.tensors, self.prefix = config, tensors, prefix

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[f"{self.prefix}.{name}"]

    def linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self[f"{name}.weight"].T
        return y + self[f"{name}.bias"] if self.config.attention_bias and name.startswith("self_attn") else y

    def queries(self, x: Tensor, positions: range) -> Tensor:
        return self._rotated(x, positions, "q")

    def keys(self, x: Tensor, positions: range) -> Tensor:
        return self._rotated(x, positions, "k")

    def values(self, x: Tensor) -> Tensor:
        return self.linear(x, "self_attn.v_proj").view(len(x), -1, self.config.head_dim)

    def mlp(self, x: Tensor) -> Tensor:
        h = rms_norm(x, self["post_attention_layernorm.weight"], self.config.rms_norm_eps)
        return self.linear(silu(self.linear(h, "mlp.gate_proj")) * self.linear(h, "mlp.up_proj"), "mlp.down_proj")

    def _rotated(self, x: Tensor, positions: range, kind: str) -> Tensor:
        heads = self.linear(x, f"self_attn.{kind}_proj").view(len(x), -1, self.config.head_dim)
        normed = rms_norm(heads, self[f"self_attn.{kind}_norm.weight"], self.config.rms_norm_eps)
        return rotated(normed, torch.tensor(positions, dtype=torch.float32), self.config)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Statistics in float32, cast back, then the weight in the model dtype."""
    wide = x.float()
    return weight * (wide / torch.sqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotated(heads: Tensor, positions: Tensor, config: ModelConfig) -> Tensor:
    """heads [n, heads, D] turned by their positions [n]; pairs are (i, i + D/2)."""
    frequencies, scale = inverse_frequencies(config)
    angles = torch.cat([positions[:, None] * frequencies] * 2, -1)[:, None]  # [n, 1, D]
    first, second = heads.chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    return heads * (angles.cos() * scale).to(heads.dtype) + turned * (angles.sin() * scale).to(heads.dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """q [n, H, D], k and v [length, G, D], mask [n, length] or None -> [n, H*D]."""
    share = q.shape[1] // k.shape[1]
    heads = []
    for head in range(q.shape[1]):
        scores = q[:, head] @ k[:, head // share].T / q.shape[-1] ** 0.5  # [n, length]
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        heads.append(torch.softmax(scores.float(), -1).to(q.dtype) @ v[:, head // share])
    return torch.cat(heads, -1)


@attrs.frozen(kw_only=True)
class Round:
    """One draft-and-verify round: the anchor's position, what was drafted and verified, what stood, what came out."""

    start_pos: int
    anchor: int
    draft: Draft
    draft_token_ids: list[int]
    accepted_len: int
    emitted: list[int]
    verify_logits: Tensor


def speculate(
    target: ReferenceTarget,
    drafter: ReferenceDrafter,
    prompt_ids: Sequence[int],
    *,
    max_tokens: int,
    draft_len: int,
    params: SamplingRow | None = None,
) -> tuple[list[int], list[Round]]:
    """Tokens and rounds of one request, greedy or coupled. The last rounds are not shortened; the tokens are cut."""
    known, rounds = list(prompt_ids), list[Round]()
    choose = _chooser(params or SamplingRow())
    logits, features = target.logits_and_features(known)
    known.append(choose(logits[-1], len(known)))
    while len(known) - len(prompt_ids) < max_tokens:
        start = len(known) - 1
        draft = drafter.propose(features[:start], known[-1], start, _drafting(choose, start + 1))
        proposed = draft.token_ids[:draft_len]
        logits, features = target.logits_and_features(known + proposed)
        drawn = [choose(logits[start + row], start + row + 1) for row in range(len(proposed) + 1)]
        stood = accept_coupled(torch.tensor([drawn]), torch.tensor([proposed]).long(), torch.tensor([len(proposed)]))
        accepted_len = int(stood)
        emitted = drawn[: accepted_len + 1]
        rounds.append(
            Round(
                start_pos=start,
                anchor=known[-1],
                draft=draft,
                draft_token_ids=proposed,
                accepted_len=accepted_len,
                emitted=emitted,
                verify_logits=logits[start:],
            )
        )
        known += emitted
    return known[len(prompt_ids) :][:max_tokens], rounds


def decode_plain(
    target: ReferenceTarget, prompt_ids: Sequence[int], *, max_tokens: int, params: SamplingRow | None = None
) -> list[int]:
    """max_tokens tokens, one target pass each, no drafter."""
    known = list(prompt_ids)
    choose = _chooser(params or SamplingRow())
    for _ in range(max_tokens):
        known.append(choose(target.logits_and_features(known)[0][-1], len(known)))
    return known[len(prompt_ids) :]


def _drafting(choose: Callable[[Tensor, int], int], first: int) -> Draw:
    """Draft with the target's own noise: block row i draws the token at position first + i."""
    return lambda index, logits: choose(logits, first + index)


def _chooser(params: SamplingRow) -> Callable[[Tensor, int], int]:
    """(logits [V], absolute position) -> token, with the engine's own `draw`."""
    sampling = Sampling.of([params], torch.device("cpu"))
    return lambda logits, position: int(draw(logits.unsqueeze(0), sampling, torch.tensor([position])))
