"""Log-probabilities that cannot be those of a report's tokens break the worker's contract; lawful ones are told."""

import math
from typing import Any

import attrs
import pytest
from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.testing import Bench
from dsparkd.statemachine import worker


def reported(**wrong: Any) -> Bench:
    """An engine whose second report is altered by `wrong`: fields of its row's detail."""
    bench = Bench(acceptance=[7], vocab_size=50)
    bench.submit(0, [1, 2], max_tokens=20, params=events.Params(logprobs=True, top_logprobs=2))
    bench.tick()
    bench.answer()
    bench.tick()
    command, bench.in_flight = bench.in_flight, None
    assert command is not None
    (row,) = bench.worker.run_rows(command.rows)
    assert isinstance(row, events.Emitted)
    assert row.detail is not None
    row.detail = attrs.evolve(row.detail, **{name: change(getattr(row.detail, name)) for name, change in wrong.items()})
    bench.send(events.Report(command.session, command.step_id, [row]))
    return bench


WRONG: dict[str, dict[str, Any]] = {
    "one too few": {"logprobs": lambda each: each[:-1]},
    "one too many": {"logprobs": lambda each: [*each, -1.0]},
    "above 0": {"logprobs": lambda each: [*each[:-1], 0.5]},
    "no number": {"logprobs": lambda each: [math.nan, *each[1:]]},
    "tops of a token missing": {"top_logprobs": lambda each: each[:-1]},
    "tops without ids": {"top_token_ids": lambda each: [one[:1] for one in each]},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_the_log_probabilities_of_the_tokens_breaks_the_contract(name: str) -> None:
    bench = reported(**WRONG[name])
    assert bench.core.ledger.worker.state is worker.State.DEAD
    assert any(isinstance(one, results.KillWorker) for one in bench.outputs)


def test_lawful_ones_come_with_their_tokens() -> None:
    bench = reported()
    bench.run()
    for one in bench.outputs:
        if isinstance(one, results.Tokens):
            assert one.detail is not None
            assert len(one.detail.logprobs or ()) == len(one.detail.top_logprobs or ()) == len(one.token_ids)
