"""What is fitted to a trace rests on the tokens that are in it, whatever its numbers claim."""

import pytest
from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.trace.fitting import _Reading

LIES = (-(2**63), -1, 2**40, 2**63 - 1)


@pytest.mark.parametrize("draft_len", [*LIES, 3])
@pytest.mark.parametrize("accepted_len", [*LIES, 2])
def test_no_number_of_a_trace_tests_more_positions_than_tokens_came(draft_len: int, accepted_len: int) -> None:
    reading = _Reading()
    command = results.Command(1, 1, [events.Decode(0, 1, draft_len, 7)])
    reading._count(command, events.Report(1, 1, [events.Emitted(0, 1, [5, 6, 7], accepted_len, 7)], ()))
    assert len(reading.tested) == len(reading.stood) <= 3
    if (draft_len, accepted_len) == (3, 2):
        assert (reading.tested, reading.stood) == ([1, 1, 1], [1, 1, 0])
