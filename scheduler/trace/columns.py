"""Columns of numbers as a page reads them: typed arrays in base64.

Owns the spelling; `report.js` reads it.
"""

import base64
import sys
from array import array
from collections.abc import Sequence

_KINDS = {"u16": ("H", 0xFFFF), "u32": ("I", 0xFFFFFFFF), "f64": ("d", 0)}


def packed(kind: str, values: Sequence[float]) -> list[str]:
    """u16 or u32 (rounded, cut at the top: pictures need no more) or f64, little-endian."""
    code, most = _KINDS[kind]
    made = array(code, values if kind == "f64" else [min(most, max(0, round(one))) for one in values])
    if sys.byteorder == "big":
        made.byteswap()
    return [kind, base64.b64encode(made.tobytes()).decode()]
