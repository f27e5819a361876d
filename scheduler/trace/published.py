"""Published step times: points of steps a second that others have measured, with where they stand.

Owns the numbers. A simulation of a machine that is not here starts from them.
"""

from collections.abc import Mapping

from .step_times import PointTimes, points_of

_SOURCE = "InternLM/lmdeploy, docs/en/benchmark/a100_fp16.md (commit 3e391df, v0.1.0a1), A100-80G fp16"
# Decoding: output tokens a second over the batch, prompt of 1 token and 128 generated. Many tokens: one over the time
# to the first token of prompts of 128 and of 2048 tokens at batch 1. The drafter's share is an assumption: five layers
# and a head beside the target's.
_POINTS: Mapping[str, tuple[tuple[tuple[int, float], ...], float]] = {
    "a100-llama2-7b": (
        ((1, 100.02), (16, 1504.72 / 16), (32, 2136.73 / 32), (64, 4154.81 / 64), (128, 1 / 0.022), (2048, 1 / 0.139)),
        0.16,
    ),
    "a100-llama2-13b": (
        ((1, 57.49), (16, 869.45 / 16), (32, 1667.5 / 32), (64, 3049.16 / 64), (128, 1 / 0.04), (2048, 1 / 0.242)),
        0.13,
    ),
    "a100x4-llama2-70b": (
        ((1, 33.94), (16, 468.52 / 16), (32, 906.03 / 32), (64, 1425.79 / 64), (128, 1 / 0.074), (2048, 1 / 0.402)),
        0.07,
    ),
}
PUBLISHED = tuple(_POINTS)


def published(name: str) -> PointTimes:
    points, share = _POINTS[name]
    return points_of(points, share, f"{name}: {_SOURCE}", where=name)
