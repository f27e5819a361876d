"""A rolling 64-bit hash of a text: what the scripted worker's tokens and draft lengths are made of.

Owns the arithmetic. The same text gives the same value on every machine; any change of it gives another.
"""

from collections.abc import Sequence

MASK = (1 << 64) - 1
EMPTY_HASH = 0x9E3779B97F4A7C15


def push(state: int, token_id: int) -> int:
    """Return the rolling hash of the text after one more token."""
    return (state * 0xD1342543DE82EF95 + token_id + 1) & MASK


def hash_of(text: Sequence[int]) -> int:
    state = EMPTY_HASH
    for token_id in text:
        state = push(state, token_id)
    return state


def mix(state: int) -> int:
    """splitmix64's finaliser: neighbouring texts get unrelated tokens."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)
