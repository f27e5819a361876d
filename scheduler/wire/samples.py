"""n samples of one prompt are n requests with one seed and a sample index each: their names and options.

Owns that spelling; the engine knows single requests only. Both clients call it.
"""

import secrets
from collections.abc import Iterator
from typing import Any

from ...statemachine.errors import Refused


def samples_of(
    address: str, n: int, request_id: str | None, options: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return (request id, options) of each. Raises `Refused` (BAD_OPTION) before anything is sent."""
    problems = [] if type(n) is int and n >= 1 else [f"n = {n!r}: expected an integer, 1 or more"]
    if "sample_index" in options:
        problems.append(f"sample_index = {options['sample_index']!r}: expected none, each sample has its own")
    if problems:
        raise Refused("BAD_OPTION", f"{address}: {'; '.join(problems)}")
    name = request_id or f"r-{secrets.token_hex(8)}"
    seed = options.get("seed")
    shared = {**options, "seed": secrets.randbelow(2**63) if seed is None else seed}
    return ((f"{name}/{index}", {**shared, "sample_index": index}) for index in range(n))
