"""In rejection mode a greedy row takes no notice of the rows beside it: same tokens, same accepted drafts."""

import pytest
from dsparkd.scheduler.wire import messages as wire
from worker_support import Driver, backend, seed

PROMPT = list(range(10, 40))
NUM_STEPS = 12


def passes(acceptance: str, neighbour: str) -> list[tuple[int, list[int]]]:
    """(accepted_len, emitted) of each pass of a greedy row; `neighbour`: when a sampled row runs beside it."""
    driver = Driver(backend("shipped", acceptance=acceptance, num_slots=2))
    driver.step(seed(0, 1, PROMPT, propose_len=7))
    driver.step(seed(1, 1, PROMPT[:20], propose_len=7, params=wire.Params(temperature=1.0, seed=3)))
    found = []
    for index in range(NUM_STEPS):
        rows = [wire.Decode(0, 1, len(driver.window(0).held), 7)]
        if neighbour == "always" or (neighbour == "sometimes" and index % 2):
            rows.append(wire.Decode(1, 1, len(driver.window(1).held), 7))
        answer = driver.step(*rows).rows[0]
        found.append((answer.accepted_len, answer.token_ids))
    return found


@pytest.mark.parametrize("neighbour", ["sometimes", "always"])
def test_a_greedy_row_accepts_the_same_beside_sampled_rows(neighbour: str) -> None:
    alone = passes("coupled", "never")
    assert sum(length for length, _ in alone) > 0
    assert passes("rejection", "never") == alone
    assert passes("rejection", neighbour) == alone
