"""Where the trained pair that comes with the package lies on disk.

Owns three paths. Never loads torch and never reads the files: the command line's main imports it. Called by
`dsparkd.__main__`, benchmarks, examples and tests.
"""

from pathlib import Path

import attrs


@attrs.frozen
class ShippedPair:
    """Folders of a target and its drafter, and a JSON-lines file of prompts ({"prompt": text} a line)."""

    target: Path
    drafter: Path
    prompts: Path


def shipped_pair() -> ShippedPair:
    """The small pair trained on the Python standard library's sources."""
    folder = Path(__file__).parent / "pairs" / "stdlib-small"
    return ShippedPair(folder / "target", folder / "drafter", folder / "prompts.jsonl")
