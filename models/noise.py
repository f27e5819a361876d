"""Counter-based noise: five integers in, one number out, the same in every batch and on every machine.

Owns the exact definition below. Holds no generator state. Called by `sampling` only.

Definition, in unsigned 64-bit integers that wrap around; another language needs no more than this:

    GOLDEN = 0x9E3779B97F4A7C15
    mix(x):  x = x ^ (x >> 30); x = x * 0xBF58476D1CE4E5B9
             x = x ^ (x >> 27); x = x * 0x94D049BB133111EB
             return x ^ (x >> 31)                                   (splitmix64's finaliser)
    h = 0
    for field in (seed, sample_index, stream, position, token_id):   (negative fields as two's complement)
        h = mix((h ^ field) + GOLDEN)
    u = h >> 32                                                     (0 .. 2**32 - 1)
    gumbel = float32(-log(-log((u + 0.5) * 2**-32)))                (both logarithms in float64)

`position` is the absolute position of the token being drawn, the first prompt token being position 0. Every step of
`mix` is a bijection, so distinct tokens of one position never share a 64-bit value. The obvious float32 form of the
last line yields infinities. TEST_VECTORS holds (seed, sample_index, stream, position, token_id, u, gumbel): u must
agree exactly, gumbel to one unit in the last place of float32.
"""

import torch
from torch import Tensor

# Streams keep draws apart that must be independent. Coupled sampling uses TARGET on both sides, on purpose.
TARGET = 0
DRAFT = 1
ACCEPT = 2
RESIDUAL = 3
NUM_STREAMS = 4


def draft_stream(index: int) -> int:
    """The stream of a drafter's own draw at place `index` of its block (0 the first).

    A position is drafted by several blocks when not all of one is verified. How much of an earlier block was verified
    may follow from its tokens, so a later block must not draw with the same noise again.
    """
    return DRAFT + NUM_STREAMS * index


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


GOLDEN = _signed(0x9E3779B97F4A7C15)
FIRST_FACTOR = _signed(0xBF58476D1CE4E5B9)
SECOND_FACTOR = _signed(0x94D049BB133111EB)

TEST_VECTORS: tuple[tuple[int, int, int, int, int, int, float], ...] = (
    (0, 0, 0, 0, 0, 2024692378, 0.28498417139053345),
    (1, 0, 0, 0, 0, 881605914, -0.4596085846424103),
    (0, 1, 0, 0, 0, 4188827187, 3.6879537105560303),
    (0, 0, 1, 0, 0, 1022273383, -0.3614540100097656),
    (0, 0, 0, 1, 0, 761604026, -0.5479898452758789),
    (0, 0, 0, 0, 1, 2782098827, 0.8341617584228516),
    (1234567890123456789, 3, 0, 4095, 151668, 2771836489, 0.8256874084472656),
    (-1, 0, 3, 17, 2047, 1614554687, 0.021852273494005203),
    (9223372036854775807, 7, 2, 1, 0, 2033801493, 0.29097115993499756),
)


def mix64(x: Tensor) -> Tensor:
    """splitmix64's finaliser on int64 tensors of any shape, read as unsigned."""
    x = (x ^ _shifted(x, 30)) * FIRST_FACTOR
    x = (x ^ _shifted(x, 27)) * SECOND_FACTOR
    return x ^ _shifted(x, 31)


def uniform32(seed: Tensor, sample_index: Tensor, stream: int, position: Tensor, token_ids: Tensor) -> Tensor:
    """The top 32 bits, as int64 in 0..2**32-1.

    seed, sample_index, position: [rows]; token_ids: [rows, n] or [1, n], all int64. Returns [rows, n].
    """
    row = mix64(seed + GOLDEN)  # h = 0 makes the first xor disappear
    row = mix64((row ^ sample_index) + GOLDEN)
    row = mix64((row ^ stream) + GOLDEN)
    row = mix64((row ^ position) + GOLDEN)
    return _shifted(mix64((row.unsqueeze(-1) ^ token_ids) + GOLDEN), 32)


def unit(bits: Tensor) -> Tensor:
    """32 random bits as float64 strictly between 0 and 1."""
    return (bits.double() + 0.5) * 2.0**-32


def gumbel(seed: Tensor, sample_index: Tensor, stream: int, position: Tensor, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise, float32 [rows, n]; arguments as for `uniform32`. Finite for every input."""
    return (-(-unit(uniform32(seed, sample_index, stream, position, token_ids)).log()).log()).float()


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch shifts int64 arithmetically, so the copied sign bits are masked away."""
    return torch.bitwise_right_shift(x, bits) & ((1 << (64 - bits)) - 1)
