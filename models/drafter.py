"""The fast DSpark drafter: context keys and values from the target's features, one block pass, a chain of tokens.

Owns the drafter's weights. Never holds a window and never chooses a token: `attend` reads the caller's context, `pick`
draws. Called by the worker's phases; `reference` holds the readable twin. Row j of a block (row 0 the anchor, the rest
masks) predicts the token at position start + j + 1, so B rows give B drafts.
"""

from collections.abc import Callable, Mapping

import attrs
import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from .config import DrafterConfig
from .heads import confidence_head, markov_head
from .layers import Attend, Norm, RotaryTable, affine, laid_out, layers_of, table_of

Pick = Callable[[int, Tensor], Tensor]


@attrs.frozen
class Proposal:
    """token_ids: [rows, B] int64; confidence_logits: [rows, B] float32, or None without a confidence head."""

    token_ids: Tensor
    confidence_logits: Tensor | None


class DSparkDrafter:
    """Weights of a Qwen3DSparkModel under its checkpoint's names (see `shapes.drafter_shapes`)."""

    def __init__(
        self,
        config: DrafterConfig,
        tensors: Mapping[str, Tensor],
        *,
        dtype: torch.dtype,
        device: torch.device,
        shares_target_embeddings: bool = False,
    ) -> None:
        """tensors must hold embedding and output matrix; the target's own, in this dtype, are shared and not copied."""
        self.config = config
        self.dtype = dtype
        self.device = device
        self.block_size = config.block_size
        self.mask_token_id = config.mask_token_id
        self.shares_target_embeddings = shares_target_embeddings
        tensors = {name: value.to(device=device, dtype=dtype) for name, value in tensors.items()}
        self.embed_tokens = tensors["embed_tokens.weight"]
        self.lm_head = tensors["lm_head.weight"]
        self.layers = layers_of("layers", config.num_layers, config, tensors, dtype=dtype, device=device)
        self.markov = markov_head(config, tensors)
        self.confidence = confidence_head(config, tensors)
        self.rotary: RotaryTable | None = None
        self._load_norms(tensors)
        self._load_context(tensors)
        # Row offsets and the masked tail are constants of the block, made once.
        self.offsets = torch.arange(self.block_size, device=device)
        self.masks = torch.full((1, self.block_size - 1), self.mask_token_id, dtype=torch.int64, device=device)

    def _load_norms(self, tensors: Mapping[str, Tensor]) -> None:
        eps, width = self.config.rms_norm_eps, self.config.hidden_size
        folds = self.dtype == torch.float32
        hidden_norm = None if folds else tensors["hidden_norm.weight"]
        self.norm = Norm(tensors["norm.weight"], width, eps=eps, dtype=self.dtype, device=self.device)
        self.hidden_norm = Norm(hidden_norm, width, eps=eps, dtype=self.dtype, device=self.device)

    def _load_context(self, tensors: Mapping[str, Tensor]) -> None:
        """Stack all layers' k and v projections: the context is the same for all of them."""
        self.fc = laid_out(tensors["fc.weight"])  # [m*d, d]
        names = [f"layers.{index}.self_attn.{kind}_proj" for kind in "kv" for index in range(self.config.num_layers)]
        stacked = torch.cat([tensors[f"{name}.weight"] for name in names])  # all k, then all v
        folds = self.dtype == torch.float32
        self.context_kv = laid_out(stacked, tensors["hidden_norm.weight"] if folds else None)  # [d, 2*n*G*D]
        bias = self.config.attention_bias
        self.context_bias = torch.cat([tensors[f"{name}.bias"] for name in names]) if bias else None
        weights = [tensors[f"layers.{index}.self_attn.k_norm.weight"] for index in range(self.config.num_layers)]
        self.context_key_weight = torch.stack(weights).repeat_interleave(self.config.num_kv_heads, 0)  # [n*G, D]

    def prepare(self, max_positions: int, *, text_len: int | None = None) -> None:
        """Build the rotary table for positions 0..max_positions-1; blocks reach B - 1 beyond their start."""
        self.rotary = RotaryTable(self.config, max_positions, self.device, self.dtype, text_len=text_len)

    def context(self, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (normed, rotated) and values of context rows, which depend on the row's features and position only.

        features: [tokens, m*d] as the target tapped them; positions: [tokens] int64. Returns two tensors
        [n, tokens, G, D]. Context rows skip the layers' input norms.
        """
        cos, sin = table_of(self.rotary).at(positions)
        hidden = self.hidden_norm(torch.mm(features, self.fc))
        both = affine(hidden, self.context_kv, self.context_bias)
        num_layers, groups, size = self.config.num_layers, self.config.num_kv_heads, self.config.head_dim
        heads = both.view(-1, 2, num_layers * groups, size)  # [tokens, 2, n*G, D]
        keys = self.layers[0].rotate(heads[:, 0], self.context_key_weight, cos, sin)
        shape = (-1, num_layers, groups, size)
        return keys.view(shape).transpose(0, 1), heads[:, 1].view(shape).transpose(0, 1)

    def block(self, anchors: Tensor, start_pos: Tensor, attend: Attend) -> Tensor:
        """The block backbone: anchor and masks at start_pos .. start_pos + B - 1.

        anchors, start_pos: [rows] int64. attend(layer, q [rows, B, H, D], k [rows, B, G, D], v [rows, B, G, D]) ->
        [rows, B, H*D] reads the row's context below start_pos and all B block rows, both ways. Returns
        [rows, B, d] after the final norm.
        """
        rows, size = anchors.shape[0], self.block_size
        token_ids = torch.cat((anchors.unsqueeze(1), self.masks.expand(rows, -1)), 1).view(-1)
        cos, sin = table_of(self.rotary).at((start_pos.unsqueeze(1) + self.offsets).view(-1))
        x = embedding(token_ids, self.embed_tokens)  # [rows*B, d]
        for index, layer in enumerate(self.layers):
            q, k, v = (part.view(rows, size, *part.shape[1:]) for part in layer.project(x, cos, sin))
            x = layer.close(x, attend(index, q, k, v).view(rows * size, -1))
        return self.norm(x).view(rows, size, -1)

    def propose(self, hidden: Tensor, anchors: Tensor, pick: Pick, *, with_confidence: bool = True) -> Proposal:
        """The sequential stage: B tokens, each biased by the one before it.

        hidden: [rows, B, d] from `block`; anchors: [rows] int64; pick(index, logits [rows, V] float32) -> [rows] int64
        is called once for each block position in order. Without `with_confidence` the confidence head stays unread.
        """
        ordered = hidden.transpose(0, 1)  # [B, rows, d]: a position's rows lie together
        base = linear(ordered, self.lm_head).float()  # [B, rows, V]
        chain = self.markov.chain(ordered, base)
        previous = [anchors]
        for index in range(self.block_size):
            previous.append(pick(index, chain.logits(index, previous[-1])))
        tokens = torch.stack(previous, 1)  # [rows, 1 + B]
        confidence = None
        if with_confidence and self.confidence is not None:
            confidence = self.confidence.logits(hidden, tokens[:, :-1])
        return Proposal(tokens[:, 1:], confidence)
