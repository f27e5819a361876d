"""Names and shapes of a checkpoint's tensors as data, and the judge that holds a file's headers against them.

Owns the key names of a Qwen3 target and a DSpark drafter. Never reads a file and never loads torch. Called by
`survey`, tests and whoever counts parameters.
"""

import math
from collections.abc import Collection

from .config import DrafterConfig, ModelConfig, TargetConfig
from .headers import FLOATS, Headers
from .layouts import foreign_tensors

# A size of 0 is one that the configuration does not say (a problem tells of it): any will do.
Shapes = dict[str, tuple[int, ...]]
SHAREABLE = ("embed_tokens.weight", "lm_head.weight")

_LAYERS = ("model.layers.", "layers.")
_HEADS = ("markov_head.", "confidence_head.")
# Without these keys it is not known which tensors of that name there should be, or how wide.
_DECIDES = {
    "architectures": ("",),
    "num_hidden_layers": _LAYERS,
    "attention_bias": _LAYERS,
    "tie_word_embeddings": ("lm_head.",),
    "markov_rank": _HEADS,
    "markov_head_type": _HEADS,
    "enable_confidence_head": _HEADS,
    "confidence_head_with_markov": _HEADS,
}


def target_shapes(config: TargetConfig) -> Shapes:
    """Every tensor of a Qwen3ForCausalLM file and its shape. With tied embeddings `lm_head.weight` may be absent."""
    return {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        **_layer_shapes("model.layers", config),
        "model.norm.weight": (config.hidden_size,),
        "lm_head.weight": (config.vocab_size, config.hidden_size),
    }


def drafter_shapes(config: DrafterConfig) -> Shapes:
    """Every tensor of a Qwen3DSparkModel file and its shape; embedding and output matrix may be absent."""
    width, rank, vocab = config.hidden_size, config.markov_rank, config.vocab_size
    shapes: Shapes = {
        "embed_tokens.weight": (vocab, width),
        **_layer_shapes("layers", config),
        "norm.weight": (width,),
        "hidden_norm.weight": (width,),
        "fc.weight": (width, config.feature_len),
        "lm_head.weight": (vocab, width),
    }
    if rank:
        shapes |= {"markov_head.markov_w1.weight": (vocab, rank), "markov_head.markov_w2.weight": (vocab, rank)}
    if config.markov_head_type == "gated":
        shapes |= {"markov_head.gate_proj.weight": (rank, width and width + rank)}
        shapes |= {"markov_head.gate_proj.bias": (rank,)}
    if config.markov_head_type == "rnn":
        shapes |= {"markov_head.joint_proj.weight": (3 * rank, width and width + 2 * rank)}
        shapes |= {"markov_head.joint_proj.bias": (3 * rank,)}
    if config.enable_confidence_head:
        read = width and width + rank if config.confidence_head_with_markov else width
        shapes |= {"confidence_head.proj.weight": (1, read), "confidence_head.proj.bias": (1,)}
    return shapes


def _layer_shapes(prefix: str, config: ModelConfig) -> Shapes:
    width, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    query, kv = config.num_heads * head, config.num_kv_heads * head
    outputs = {"q": query, "k": kv, "v": kv, "o": width}
    layer: Shapes = {f"self_attn.{name}_proj.weight": (rows, width) for name, rows in outputs.items() if name != "o"}
    layer["self_attn.o_proj.weight"] = (width, query)
    if config.attention_bias:
        layer |= {f"self_attn.{name}_proj.bias": (rows,) for name, rows in outputs.items()}
    layer |= {"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
    layer |= {"mlp.gate_proj.weight": (inner, width), "mlp.up_proj.weight": (inner, width)}
    layer |= {"mlp.down_proj.weight": (width, inner)}
    layer |= {"input_layernorm.weight": (width,), "post_attention_layernorm.weight": (width,)}
    return {f"{prefix}.{index}.{name}": shape for index in range(config.num_layers) for name, shape in layer.items()}


def judge_tensors(
    headers: Headers, expected: Shapes, *, optional: Collection[str], wrong_keys: Collection[str]
) -> list[str]:
    """Every missing, unexpected, misshaped or quantised tensor, a line each.

    expected: name -> shape, optional ones included. wrong_keys: keys of the configuration that say nothing reliable.
    """
    undecided = tuple(start for key in sorted(wrong_keys) for start in _DECIDES.get(key, ()))
    problems, explained = [], set()
    for problem, names in foreign_tensors(set(headers.tensors) - set(expected)).items():
        problems.append(problem)
        explained.update(names)
    for name, found in sorted(headers.tensors.items()):
        shape, decided = expected.get(name), not name.startswith(undecided)
        if shape is None and decided and name not in explained:
            problems.append(f"{name}: unexpected tensor {list(found.shape)} in {found.file}")
        if shape is not None and decided and not _fits(found.shape, shape):
            problems.append(f"{name}: expected {_shown(shape)}, found {list(found.shape)} in {found.file}")
        if shape is not None and found.dtype not in FLOATS:
            problems.append(f"{name}: expected one of {', '.join(FLOATS)}, found {found.dtype} in {found.file}")
    if headers.whole:
        there = {*headers.tensors, *headers.noted, *optional}
        absent = [name for name in expected if name not in there and not name.startswith(undecided)]
        problems += [f"{name}: expected {_shown(expected[name])}, found no such tensor" for name in absent]
    return problems


def _fits(found: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(found) == len(shape) and all(size in (0, own) for own, size in zip(found, shape, strict=True))


def _shown(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(str(size or '?') for size in shape)}]"


def num_elements(shapes: Shapes, *, without: Collection[str] = ()) -> int:
    """Elements of all tensors but those named in `without`."""
    return sum(math.prod(shape) for name, shape in shapes.items() if name not in without)
