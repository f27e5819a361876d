"""The sequential stage of the drafter: Markov heads, which bias each position by the token before it, and confidence.

Owns the heads' weights and the state of one chain. Never picks a token. Called by `drafter`. What depends on the
hidden states alone is computed for all positions at once; a position of the chain then costs a few operations.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from .config import DrafterConfig
from .layers import laid_out


class Chain(Protocol):
    """One pass along the block. Positions are asked for in order, 0 to B-1."""

    def logits(self, index: int, previous: Tensor) -> Tensor:
        """previous: [rows] token before position `index` -> draft logits [rows, V] float32."""
        ...


class MarkovHead(Protocol):
    """Starts chains."""

    def chain(self, hidden: Tensor, base: Tensor) -> Chain:
        """hidden: [B, rows, d] after the final norm, base: [B, rows, V] float32."""
        ...


class NoHead:
    """Rank 0: positions are independent and the base logits stand."""

    def chain(self, hidden: Tensor, base: Tensor) -> Chain:
        return _BaseChain(base)


class VanillaHead:
    """bias = W2 . W1[previous]."""

    def __init__(self, token_table: Tensor, output: Tensor) -> None:
        self.token_table = token_table  # [V, r]
        self.output = laid_out(output)  # [r, V]

    def chain(self, hidden: Tensor, base: Tensor) -> Chain:
        return _VanillaChain(self, base)


class GatedHead:
    """g = sigmoid(Wg . [hidden ; e] + bg), e = W1[previous]; bias = W2 . (g * e)."""

    def __init__(self, token_table: Tensor, output: Tensor, gate: Tensor, gate_bias: Tensor) -> None:
        self.token_table, self.output, self.bias = token_table, laid_out(output), gate_bias
        width = gate.shape[1] - token_table.shape[1]
        self.from_hidden, self.from_token = gate[:, :width].contiguous(), gate[:, width:].t().contiguous()

    def chain(self, hidden: Tensor, base: Tensor) -> Chain:
        return _GatedChain(self, linear(hidden, self.from_hidden, self.bias), base)


class RnnHead:
    """(g, c, o) = Wj . [s ; e ; hidden] + bj; s = sigmoid(g) * s + (1 - sigmoid(g)) * tanh(c); bias = W2 . tanh(o)."""

    def __init__(self, token_table: Tensor, output: Tensor, joint: Tensor, joint_bias: Tensor) -> None:
        self.token_table, self.output, self.bias = token_table, laid_out(output), joint_bias
        read = 2 * token_table.shape[1]  # state and token, in this order, before the hidden state
        self.from_state, self.from_hidden = joint[:, :read].t().contiguous(), joint[:, read:].contiguous()

    def chain(self, hidden: Tensor, base: Tensor) -> Chain:
        return _RnnChain(self, linear(hidden, self.from_hidden, self.bias), base)


class _BaseChain:
    def __init__(self, base: Tensor) -> None:
        self.base = base.unbind(0)

    def logits(self, index: int, previous: Tensor) -> Tensor:
        return self.base[index]


class _VanillaChain:
    def __init__(self, head: VanillaHead, base: Tensor) -> None:
        self.head, self.base = head, base.unbind(0)

    def logits(self, index: int, previous: Tensor) -> Tensor:
        return _biased(self.base[index], embedding(previous, self.head.token_table), self.head.output)


class _GatedChain:
    def __init__(self, head: GatedHead, gates: Tensor, base: Tensor) -> None:
        self.head, self.gates, self.base = head, gates.unbind(0), base.unbind(0)

    def logits(self, index: int, previous: Tensor) -> Tensor:
        token = embedding(previous, self.head.token_table)
        gate = torch.addmm(self.gates[index], token, self.head.from_token).sigmoid_()
        return _biased(self.base[index], gate.mul_(token), self.head.output)


class _RnnChain:
    def __init__(self, head: RnnHead, joint: Tensor, base: Tensor) -> None:
        self.head, self.joint, self.base = head, joint.unbind(0), base.unbind(0)
        self.state = joint.new_zeros(joint.shape[1], head.token_table.shape[1])

    def logits(self, index: int, previous: Tensor) -> Tensor:
        read = torch.cat((self.state, embedding(previous, self.head.token_table)), -1)
        keep, candidate, output = torch.addmm(self.joint[index], read, self.head.from_state).chunk(3, -1)
        self.state = torch.lerp(candidate.tanh(), self.state, keep.sigmoid())
        return _biased(self.base[index], output.tanh(), self.head.output)


def _biased(base: Tensor, read: Tensor, output: Tensor) -> Tensor:
    """base [rows, V] float32 + read [rows, r] . output [r, V]; the sum is taken in float32."""
    return torch.addmm(base, read, output) if read.dtype == base.dtype else base + torch.mm(read, output)


class ConfidenceHead:
    """w . [hidden ; W1[previous]] + b, or w . hidden + b: the logit of "this draft stands if those before it do"."""

    def __init__(self, weight: Tensor, bias: Tensor, token_table: Tensor | None) -> None:
        self.bias = bias
        self.token_table = token_table  # [V, r] or None: does not read the token
        width = weight.shape[1] - (0 if token_table is None else token_table.shape[1])
        self.from_hidden = weight[:, :width].contiguous()
        self.from_token = weight[:, width:].contiguous()

    def logits(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """hidden: [rows, B, d], previous: [rows, B] the token before each position -> [rows, B] float32."""
        logits = linear(hidden, self.from_hidden, self.bias)
        if self.token_table is not None:
            logits = logits + linear(embedding(previous, self.token_table), self.from_token)
        return logits.squeeze(-1).float()


def markov_head(config: DrafterConfig, tensors: Mapping[str, Tensor]) -> MarkovHead:
    """The head that `config` names, over tensors under their checkpoint names."""
    if not config.markov_rank:
        return NoHead()
    both = tensors["markov_head.markov_w1.weight"], tensors["markov_head.markov_w2.weight"]
    if config.markov_head_type == "gated":
        return GatedHead(*both, tensors["markov_head.gate_proj.weight"], tensors["markov_head.gate_proj.bias"])
    if config.markov_head_type == "rnn":
        return RnnHead(*both, tensors["markov_head.joint_proj.weight"], tensors["markov_head.joint_proj.bias"])
    return VanillaHead(*both)


def confidence_head(config: DrafterConfig, tensors: Mapping[str, Tensor]) -> ConfidenceHead | None:
    """The confidence head, or None where the checkpoint has none."""
    if not config.enable_confidence_head:
        return None
    token_table = tensors["markov_head.markov_w1.weight"] if config.confidence_head_with_markov else None
    return ConfidenceHead(tensors["confidence_head.proj.weight"], tensors["confidence_head.proj.bias"], token_table)
