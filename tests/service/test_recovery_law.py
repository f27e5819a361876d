"""The law of recovery: at whatever input a scheduler dies, what its clients were told and what the next one tells them
is what nobody's death would have told, once each.

The pure core twice, a fold of facts between them; the scripted worker's continuation is the reference.
"""

from typing import Any

import attrs
import pytest
from dsparkd.scheduler.core import events, results
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.service.promises import ACCEPTED, CLIENT, EMITTED, ENDED, Promises
from dsparkd.scheduler.testing import Bench
from hypothesis import given, note, settings
from hypothesis import strategies as st

LIMITS = Limits(num_slots=2, max_model_len=96, max_step_tokens=16, max_queue=4)


@attrs.frozen
class Asked:
    """A request: its prompt's length, its options, and after how many steps it comes."""

    prompt_len: int
    max_tokens: int
    stop: int | None
    temperature: float
    at_step: int

    def options(self) -> dict[str, Any]:
        stops = frozenset() if self.stop is None else frozenset({self.stop})
        params = events.Params(temperature=self.temperature, seed=self.prompt_len)
        return {"max_tokens": self.max_tokens, "stop_token_ids": stops, "params": params}

    def prompt(self, number: int) -> list[int]:
        return [(number * 5 + index) % 31 for index in range(self.prompt_len)]


ASKED = st.builds(
    Asked,
    prompt_len=st.integers(1, 24),
    max_tokens=st.integers(1, 40),
    stop=st.none() | st.integers(0, 63),
    temperature=st.sampled_from([0.0, 0.8]),
    at_step=st.integers(0, 12),
)


def facts_of(bench: Bench, promises: Promises, submits: dict[int, events.Submit], outputs: list[Any]) -> None:
    """As the clients' edge keeps them."""
    for output in outputs:
        if isinstance(output, results.Accepted) and output.request not in promises.requests:
            promises.add([ACCEPTED, submits[output.request], str(output.request), b"\x80"])
        elif isinstance(output, results.Tokens):
            promises.add([EMITTED, output.request, output.index, output.token_ids])
        elif isinstance(output, results.Ended):
            promises.add([ENDED, output, ""])


def reborn(promises: Promises, **worker: Any) -> Bench:
    """A fresh core that begins with what was promised."""
    bench = Bench(limits=LIMITS, **worker)
    for number in promises.clients:
        bench.send(events.ClientHello(number))
    for request in promises.live:
        one = promises.requests[request]
        bench.tokens[request] = list(one.token_ids)
        bench.send(events.Recover(one.submit, tuple(one.token_ids)))
    return bench


@settings(max_examples=80, deadline=None)
@given(asked=st.lists(ASKED, min_size=1, max_size=5), deaths=st.lists(st.integers(1, 25), max_size=3), data=st.data())
def test_a_scheduler_may_die_after_any_step_and_nobody_can_tell(
    asked: list[Asked], deaths: list[int], data: st.DataObject
) -> None:
    worker: dict[str, Any] = {"vocab_size": 64, "mean": data.draw(st.sampled_from([1.0, 2.5, 6.0]), label="mean")}
    bench = Bench(limits=LIMITS, **worker)
    promises = Promises(most_kept=100)
    promises.add([CLIENT, 0, "token"])
    bench.send(events.ClientHello(0))
    submits: dict[int, events.Submit] = {}
    waiting, step = dict(enumerate(asked)), 0
    while waiting or promises.live:
        for number in [number for number, one in waiting.items() if one.at_step <= step]:
            one = waiting.pop(number)
            submits[number] = events.Submit(0, number, tuple(one.prompt(number)), events.Options(**one.options()))
            facts_of(bench, promises, submits, bench.send(submits[number]))
        facts_of(bench, promises, submits, bench.tick())
        if step in deaths:
            note(f"the scheduler dies at step {step}, {len(promises.live)} requests are live")
            bench = reborn(promises, **worker)  # the step in flight is lost with it
        else:
            facts_of(bench, promises, submits, bench.answer())
        step += 1
    for number, submit in submits.items():
        told = promises.requests.get(number)
        if told is None:
            assert number in bench.refused or len(asked) > LIMITS.max_queue
            continue
        assert told.ended is not None
        assert told.ended.state == "FINISHED"
        assert told.token_ids == expected(bench, submit, told.ended)
        assert told.ended.output_len == len(told.token_ids)


def expected(bench: Bench, submit: events.Submit, ended: results.Ended) -> list[int]:
    room = min(submit.options.max_tokens, LIMITS.max_model_len - len(submit.prompt))
    params = submit.options.params
    whole = bench.solo(submit.prompt, room, temperature=params.temperature, seed=params.seed)
    stops = [index for index, token in enumerate(whole) if token in submit.options.stop_token_ids]
    assert ended.reason == ("stop" if stops else "length")
    return whole[: stops[0] + 1] if stops else whole


def test_a_recovered_request_comes_before_those_that_had_not_begun_in_accept_order() -> None:
    promises = Promises(most_kept=9)
    promises.add([CLIENT, 0, "token"])
    for number, told in ((3, []), (1, [5]), (2, []), (4, [6, 7])):
        promises.add([ACCEPTED, events.Submit(0, number, (1, 2)), str(number), b"\x80"])
        if told:
            promises.add([EMITTED, number, 0, told])
    bench = reborn(promises)
    assert [one.id for one in bench.core.ledger.queue] == [1, 4, 3, 2]


def test_limits_that_became_narrower_refuse_nobody_who_was_accepted() -> None:
    promises = Promises(most_kept=9)
    promises.add([CLIENT, 0, "token"])
    for number in range(6):  # the queue takes 4
        promises.add([ACCEPTED, events.Submit(0, number, (1,) * 40), str(number), b"\x80"])
    bench = reborn(promises)
    bench.run()
    assert sorted(bench.ended) == list(range(6))


@pytest.mark.parametrize("why", ["live", "a stranger's"])
def test_what_cannot_be_recovered_is_our_bug(why: str) -> None:
    from dsparkd.statemachine.errors import LocalError

    bench = Bench(limits=LIMITS)
    bench.send(events.ClientHello(0))
    recover = events.Recover(events.Submit(0 if why == "live" else 1, 7, (1, 2)))
    if why == "live":
        bench.send(recover)
    with pytest.raises(LocalError, match="cannot be recovered"):
        bench.send(recover)
