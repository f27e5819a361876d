"""The parts that target and drafter are built from: norm, rotary table, grouped attention, a decoder layer.

Owns the fused weights and the arithmetic of one layer. Never holds a cache and never looks at a length: attention
reads whatever keys and values the caller hands over. Called by `target`, `drafter` and the worker's windows.

On small models the cost is the number of operations, not their size, so matrices are fused, means are matrix
products with a constant column, and nothing is allocated that a call does not return.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import silu

from ..statemachine.errors import LocalError
from .config import ModelConfig
from .rope import RopeScaling

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Norm:
    """RMS norm of the last dimension: statistics in float32, cast back, then the weight in the model dtype.

    In float32 the weight may be None because the matrix that follows has it folded into its columns.
    """

    def __init__(
        self, weight: Tensor | None, width: int, *, eps: float, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.weight = weight
        self.dtype = dtype
        self.eps = torch.full((1, 1), eps, dtype=torch.float32, device=device)
        self.mean = torch.full((width, 1), 1.0 / width, dtype=torch.float32, device=device)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [rows, width] -> [rows, width] in the model dtype."""
        wide = x if x.dtype == torch.float32 else x.float()
        # A product with a column of 1/width is a mean for a third of the price of `mean` on a CPU.
        normed = wide * torch.addmm(self.eps, wide * wide, self.mean).rsqrt_()
        if normed.dtype != self.dtype:
            normed = normed.to(self.dtype)
        return normed if self.weight is None else normed.mul_(self.weight)


class RotaryTable:
    """Cosines and sines of positions 0..max_positions-1 for half-split rotary pairs (i, i + D/2).

    text_len: the longest text that is served, in positions; blocks and drafts may reach beyond it.
    """

    def __init__(
        self,
        config: ModelConfig,
        max_positions: int,
        device: torch.device,
        dtype: torch.dtype,
        *,
        text_len: int | None = None,
    ) -> None:
        frequencies, scale = inverse_frequencies(config, text_len=text_len)
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)  # [positions, D/2]
        cos, sin = angles.cos() * scale, angles.sin() * scale
        # The sign of the rotated half sits in the table, so that rotating is a plain swap of halves.
        table = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1)
        self.table = table.to(device=device, dtype=dtype).unsqueeze(2)  # [positions, 2, 1, D]
        self.max_positions = max_positions

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions: [tokens] int64 -> cos and signed sin, each [tokens, 1, D]."""
        cos, sin = self.table.index_select(0, positions).unbind(1)
        return cos, sin


def inverse_frequencies(config: ModelConfig, *, text_len: int | None = None) -> tuple[Tensor, float]:
    """Rotation per position for each of D/2 pairs (float32, radians) and the factor of both tables.

    linear divides positions (Chen et al. 2023). dynamic widens the base with the length of the text beyond what was
    trained (NTK-aware, bloc97 and emozilla 2023); the length taken is `text_len` and not that of each text, so that a
    row does not depend on when it was computed, and up to the trained length nothing is scaled. yarn: see `_yarn`.
    llama3 interpolates slow pairs, keeps fast ones and blends between (Llama 3.1's definition).
    """
    size, theta, scaling = config.head_dim, config.rope_theta, config.rope_scaling
    exponents = torch.arange(0, size, 2, dtype=torch.float32) / size
    plain = 1.0 / (theta**exponents)
    if scaling is None:
        return plain, 1.0
    factor = float(scaling["factor"])
    if scaling["rope_type"] == "linear":
        return plain / factor, 1.0
    if scaling["rope_type"] == "dynamic":
        stretch = max(text_len or 0, config.max_positions) / config.max_positions
        base = theta * (factor * stretch - (factor - 1)) ** (size / (size - 2))
        return 1.0 / (base**exponents), 1.0
    return _yarn(plain, theta, scaling) if scaling["rope_type"] == "yarn" else (_llama3(plain, scaling), 1.0)


def _yarn(plain: Tensor, theta: float, scaling: RopeScaling) -> tuple[Tensor, float]:
    """Blend interpolated and original frequencies between two rotation counts, and scale both tables.

    Peng et al. 2023, sections 3.2 to 3.4.
    """
    size, factor = 2 * plain.shape[0], float(scaling["factor"])
    trained = float(scaling["original_max_position_embeddings"])

    def pair_with(rotations: float) -> float:
        """The (fractional) pair that turns `rotations` times within the trained length."""
        return size * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_with(float(scaling["beta_fast"])), pair_with(float(scaling["beta_slow"]))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = (torch.arange(size // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    stretched = ramp.clamp(0, 1)  # 0: kept as trained, 1: interpolated
    frequencies = plain / factor * stretched + plain * (1 - stretched)
    default = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return frequencies, float(scaling.get("attention_factor", default))


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = float(scaling["original_max_position_embeddings"]) * plain / (2 * math.pi)  # within the trained length
    kept = ((turns - low) / (high - low)).clamp(0, 1)  # 0: interpolated, 1: as trained
    return plain / float(scaling["factor"]) * (1 - kept) + plain * kept


def grouped_attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q keys^T / sqrt(D)) values, query head h reading KV head h // (H/G).

    q: [rows, width, H, D]; keys, values: [rows, G, length, D], views into a cache are fine; mask: None, boolean (True
    = may be read) or additive, [rows, width, length]. Returns [rows, width, H*D]. Two batched matrix products over
    grouped heads: no head is expanded.
    """
    rows, width, num_heads, size = q.shape
    groups, length = keys.shape[1], keys.shape[2]
    share = num_heads // groups
    if width > 1:
        q = q.view(rows, width, groups, share, size).transpose(1, 2)
    queries = q.reshape(rows * groups, width * share, size)
    keys, values = keys.reshape(rows * groups, length, size), values.reshape(rows * groups, length, size)
    scores = _scaled_scores(queries, keys)  # [rows*G, width*share, length]
    if mask is not None:
        view, spread = scores.view(rows, groups, width, share, length), mask[:, None, :, None, :]
        if mask.dtype == torch.bool:
            view.masked_fill_(~spread, -torch.inf)
        else:
            view.add_(spread)
    mixed = torch.bmm(torch.softmax(scores, -1), values)
    if width > 1:
        mixed = mixed.view(rows, groups, width, share, size).transpose(1, 2)
    return mixed.reshape(rows, width, num_heads * size)


def _scaled_scores(queries: Tensor, keys: Tensor) -> Tensor:
    # beta = 0 leaves the first argument unread; alpha carries the scale for free.
    unread = _unread(queries.dtype, queries.device)
    return torch.baddbmm(unread, queries, keys.mT, beta=0, alpha=1.0 / math.sqrt(queries.shape[-1]))


@cache
def _unread(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(1, dtype=dtype, device=device)


def laid_out(matrix: Tensor, norm_weight: Tensor | None = None) -> Tensor:
    """A checkpoint's [out, in] as a contiguous [in, out], the weight of the norm before it multiplied in where given.

    A product of few rows streams this layout faster from memory: 10 % of a whole pass on a CPU.
    """
    return (matrix if norm_weight is None else matrix * norm_weight).t().contiguous()


def affine(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """x [rows, in] . matrix [in, out], plus bias [out] where there is one."""
    return torch.mm(x, matrix) if bias is None else torch.addmm(bias, x, matrix)


class DecoderLayer:
    """One Qwen3 layer with fused weights. `project` before attention, `close` after it."""

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Tensor], *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """weights: the layer's tensors under their checkpoint names, without the layer's prefix."""
        tensor = {name: value.to(device=device, dtype=dtype) for name, value in weights.items()}
        # Folding changes the rounding: harmless in float32, off by an ulp of bf16 there, so only in float32.
        folds = dtype == torch.float32
        common = {"eps": config.rms_norm_eps, "dtype": dtype, "device": device}
        before, after = tensor["input_layernorm.weight"], tensor["post_attention_layernorm.weight"]
        self.input_norm = Norm(None if folds else before, config.hidden_size, **common)  # type: ignore[arg-type]
        self.post_norm = Norm(None if folds else after, config.hidden_size, **common)  # type: ignore[arg-type]
        self.head_norm = Norm(None, config.head_dim, **common)  # type: ignore[arg-type]
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.num_rotated = config.num_heads + config.num_kv_heads
        projections = [tensor[f"self_attn.{name}_proj.weight"] for name in "qkv"]
        self.qkv = laid_out(torch.cat(projections), before if folds else None)  # [d, (H+2G)*D]
        bias = config.attention_bias
        self.qkv_bias = torch.cat([tensor[f"self_attn.{name}_proj.bias"] for name in "qkv"]) if bias else None
        q_norm, k_norm = tensor["self_attn.q_norm.weight"], tensor["self_attn.k_norm.weight"]
        self.head_weight = torch.cat((q_norm.expand(self.num_heads, -1), k_norm.expand(self.num_kv_heads, -1)))
        self.out = laid_out(tensor["self_attn.o_proj.weight"])  # [H*D, d]
        self.out_bias = tensor["self_attn.o_proj.bias"] if bias else None
        gate_up = torch.cat((tensor["mlp.gate_proj.weight"], tensor["mlp.up_proj.weight"]))
        self.gate_up = laid_out(gate_up, after if folds else None)  # [d, 2*I]
        self.down = laid_out(tensor["mlp.down_proj.weight"])  # [I, d]
        # Swaps the halves of a head; a product with it is exact and cheaper than `roll` or `cat`.
        self.swap = torch.eye(config.head_dim, dtype=dtype, device=device).roll(config.head_dim // 2, 0)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x: [tokens, d] -> q [tokens, H, D] and k [tokens, G, D], normed and rotated, and v [tokens, G, D]."""
        heads = affine(self.input_norm(x), self.qkv, self.qkv_bias).view(x.shape[0], -1, self.head_dim)
        both, v = heads.split_with_sizes((self.num_rotated, self.num_kv_heads), 1)
        rotated = self.rotate(both, self.head_weight, cos, sin)
        q, k = rotated.split_with_sizes((self.num_heads, self.num_kv_heads), 1)
        return q, k, v

    def rotate(self, heads: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """heads: [tokens, n, D] -> head-normed with `weight` [n, D], then rotated; contiguous."""
        flat = self.head_norm(heads.reshape(-1, self.head_dim))
        normed = flat.view(heads.shape).mul_(weight)  # in place: `flat` below is weighted too
        swapped = torch.mm(flat, self.swap).view(heads.shape)
        return torch.addcmul(normed * cos, swapped, sin)

    def close(self, x: Tensor, attended: Tensor) -> Tensor:
        """x: [tokens, d] before the layer, attended: [tokens, H*D] -> [tokens, d] after it."""
        x = torch.addmm(x, attended, self.out)
        if self.out_bias is not None:
            x.add_(self.out_bias)
        gate, up = torch.mm(self.post_norm(x), self.gate_up).chunk(2, -1)
        return torch.addmm(x, silu(gate).mul_(up), self.down)


def layers_of(
    prefix: str,
    num_layers: int,
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> list[DecoderLayer]:
    """The layers whose tensors are named `prefix`.0, `prefix`.1 and so on."""
    layers = []
    for index in range(num_layers):
        start = f"{prefix}.{index}."
        own = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
        layers.append(DecoderLayer(config, own, dtype=dtype, device=device))
    return layers


def table_of(rotary: RotaryTable | None) -> RotaryTable:
    """The prepared table, or a LocalError: forgetting `prepare` is our bug."""
    if rotary is None:
        raise LocalError("a model was run before prepare(max_positions)")
    return rotary
