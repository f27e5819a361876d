"""The fast target: a Qwen3 decoder over flat tokens, which also hands out tapped features.

Owns the weights and one pass over them. Never holds a cache: the `attend` callback writes keys and values and reads
them back, so chunks, verify rows and padding are the caller's affair. Called by the worker's phases; `reference`
holds the readable twin.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from .config import TargetConfig
from .layers import Attend, Norm, RotaryTable, layers_of, table_of


class Qwen3Target:
    """Weights of a Qwen3ForCausalLM under its checkpoint's names (see `shapes.target_shapes`)."""

    def __init__(
        self, config: TargetConfig, tensors: Mapping[str, Tensor], *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self.embed_tokens = tensors["model.embed_tokens.weight"].to(device=device, dtype=dtype)
        tied = config.tie_word_embeddings
        self.lm_head = self.embed_tokens if tied else tensors["lm_head.weight"].to(device=device, dtype=dtype)
        self.norm = Norm(
            tensors["model.norm.weight"].to(device=device, dtype=dtype),
            config.hidden_size,
            eps=config.rms_norm_eps,
            dtype=dtype,
            device=device,
        )
        self.layers = layers_of("model.layers", config.num_layers, config, tensors, dtype=dtype, device=device)
        self.taps: tuple[int, ...] = ()
        self.rotary: RotaryTable | None = None

    def set_taps(self, layer_ids: tuple[int, ...]) -> None:
        """Which residual streams `forward` returns: -1 the embedding output, i the output of layer i, in this order."""
        self.taps = tuple(layer_ids)

    def prepare(self, max_positions: int, *, text_len: int | None = None) -> None:
        """Build the rotary table for positions 0..max_positions-1. Call before the first `forward`."""
        self.rotary = RotaryTable(self.config, max_positions, self.device, self.dtype, text_len=text_len)

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        """One pass over flat tokens of any number of rows.

        token_ids, positions: [tokens] int64. attend(layer, q [tokens, H, D], k [tokens, G, D], v [tokens, G, D]) ->
        [tokens, H*D] stores k and v (already normed and rotated) and attends. Returns hidden [tokens, d] after the
        final norm and features [tokens, m*d] in the order of the taps (width 0 without taps).
        """
        cos, sin = table_of(self.rotary).at(positions)
        x = embedding(token_ids, self.embed_tokens)  # [tokens, d]
        streams = {-1: x}
        for index, layer in enumerate(self.layers):
            q, k, v = layer.project(x, cos, sin)
            x = layer.close(x, attend(index, q, k, v))
            if index in self.taps:
                streams[index] = x
        features = torch.cat([streams[tap] for tap in self.taps], -1) if self.taps else x[:, :0]
        return self.norm(x), features

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [rows, d] -> [rows, V] float32, unfiltered and untempered."""
        return linear(hidden, self.lm_head).float()
