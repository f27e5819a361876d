"""A mask in rejection mode: what comes out is distributed as the masked target."""

from pathlib import Path

import torch
from dsparkd.models.checkpoint import read_target
from dsparkd.models.reference import ReferenceTarget
from dsparkd.scheduler.core import events
from dsparkd.scheduler.wire import messages as wire
from dsparkd.worker.backend import TorchBackend
from test_worker_rejection import PROMPT, VOCAB, chi_square, pair  # noqa: F401 (a fixture)
from worker_support import bench

NUM_REQUESTS = 1200
MASKED = (0, 3)


def masked_joint(target: Path) -> torch.Tensor:
    """The exact joint distribution of the first three tokens, the first two of which are masked: [V, V, V]."""
    twin = ReferenceTarget(*read_target(target))

    def step(text: list[int], *, masked: bool) -> torch.Tensor:
        logits = twin.logits_and_features(text)[0][-1]
        return (logits.index_fill(0, torch.tensor(MASKED), -torch.inf) if masked else logits).softmax(-1)

    first, joint = step(PROMPT, masked=True), torch.zeros(VOCAB, VOCAB, VOCAB)
    for one in range(VOCAB):
        second = step([*PROMPT, one], masked=True)
        for two in range(VOCAB):
            joint[one, two] = first[one] * second[two] * step([*PROMPT, one, two], masked=False)
    return joint


def test_what_comes_out_is_distributed_as_the_masked_target(pair: tuple[Path, Path]) -> None:  # noqa: F811
    made = TorchBackend()
    made.load(wire.Init(1, str(pair[0]), str(pair[1]), 64, 32, 512, acceptance="rejection"))
    made.warm()
    engine = bench("fixed:3", made=made, limits={"max_step_tokens": 512, "max_queue": NUM_REQUESTS})
    for request in range(NUM_REQUESTS):
        params = events.Params(temperature=1.0, seed=9000 + request, min_tokens=2, masked_token_ids=MASKED)
        engine.submit(request, PROMPT, max_tokens=4, params=params)
    engine.run()
    counts = torch.zeros(VOCAB, VOCAB, VOCAB)
    for request in range(NUM_REQUESTS):
        one, two, three, _ = engine.tokens[request]
        counts[one, two, three] += 1
    assert chi_square(counts, masked_joint(pair[0])) < 1
