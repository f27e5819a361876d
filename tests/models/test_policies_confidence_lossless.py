"""Truncation by confidence in rejection mode, exactly: every draft, test and residual draw, in rationals.

Two requests run through the core's own plan with the policy under test; what comes out must be the target's own
distribution, of both together. Draws are fresh for each block, as `draft_stream` makes them.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import product

import attrs
import pytest
from dsparkd.models.noise import ACCEPT, NUM_STREAMS, RESIDUAL, TARGET, draft_stream
from dsparkd.models.sampling import accept_probability, residual_or_target, residual_weight
from dsparkd.scheduler.core.costs import CostTable
from dsparkd.scheduler.core.events import Decode, Options, WorkerReady
from dsparkd.scheduler.core.ledger import Ledger, Request
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.core.plan import plan
from dsparkd.scheduler.core.policies.confidence import BUDGET, Confidence, best_budget, best_ranked
from dsparkd.statemachine import request
from hypothesis import given, settings
from hypothesis import strategies as st

VOCAB = (0, 1)
BLOCK = 2
Text = tuple[int, ...]
Rational = tuple[Fraction, ...]
Row = tuple[Text, tuple[float, ...] | None]  # what it emitted, and the confidences of its last draft that is over
FORMS = (Confidence(), Confidence(form=BUDGET))


@attrs.frozen
class Models:
    """By the token before (0, 1) or by none (2): the chance of token 0, and the logit of the confidence."""

    target: tuple[Fraction, ...]
    drafter: tuple[Fraction, ...]
    logits: tuple[float, ...]

    def p(self, text: Text) -> Rational:
        return _both(self.target[text[-1] if text else 2])

    def q(self, text: Text) -> Rational:
        return _both(self.drafter[text[-1] if text else 2])

    def logit(self, text: Text) -> float:
        return self.logits[text[-1] if text else 2]


def _both(chance: Fraction) -> Rational:
    return chance, 1 - chance


@attrs.frozen
class Searching(Confidence):
    """The wrong rule: the best of the whole path by current confidences."""

    def _lengths(self, rows: Sequence[Request], costs: CostTable, most: int) -> list[int]:
        held = [self._survival(one, one.held_confidence, most) for one in rows]
        block_ns = costs.draft(len(rows))
        budget = best_budget(held, lambda tokens: 1 / (costs.target(len(rows), tokens) + block_ns))
        return best_ranked(held, budget)


def planned(
    policy: Confidence, costs: CostTable, rows: Sequence[Row], held: Sequence[tuple[float, ...]], step_tokens: int
) -> list[int]:
    """How much of each row's draft the core verifies in the next step."""
    ledger = Ledger(num_slots=2, restart_budget=1)
    ledger.worker.capacity = WorkerReady(1, 2, 64, BLOCK, costs=costs, has_confidence=True)
    for index, ((text, past), logits) in enumerate(zip(rows, held, strict=True)):
        one = Request(index, client=0, prompt=(0,), options=Options(max_tokens=30), order=index)
        one.state, one.slot, one.held_len = request.State.DRAFT_READY, index, BLOCK
        one.output, one.held_confidence, one.past_confidence = list(text), logits, past
        ledger.requests[index] = ledger.seated[index] = one
        ledger.slots[index].owner = index
    limits = Limits(num_slots=2, max_model_len=64, max_step_tokens=step_tokens)
    return [row.draft_len for _, _, row, _ in plan(ledger, limits, policy) if isinstance(row, Decode)]


def drafts(models: Models, text: Text) -> Iterator[tuple[Text, Fraction, tuple[float, ...]]]:
    """Every draft of a block with its probability, and its confidences: each made of the tokens before its own."""
    for draft in product(VOCAB, repeat=BLOCK):
        chance = Fraction(1)
        for index, token in enumerate(draft):
            chance *= models.q(text + draft[:index])[token]
        if chance:
            yield draft, chance, tuple(models.logit(text + draft[:index]) for index in range(BLOCK))


def verified(models: Models, text: Text, draft: Text) -> Iterator[tuple[Text, Fraction]]:
    """Every outcome of verifying `draft` after `text`, by the engine's own arithmetic."""
    reached = Fraction(1)
    for index, token in enumerate(draft):
        p, q = models.p(text + draft[:index]), models.q(text + draft[:index])
        stands = accept_probability(p[token], q[token])
        weights = [residual_weight(p[each], q[each]) for each in VOCAB]
        weights = [residual_or_target(weights[each], p[each], sum(weights)) for each in VOCAB]
        for each in VOCAB:
            if weights[each]:
                yield text + draft[:index] + (each,), reached * (1 - stands) * weights[each] / sum(weights)
        reached *= stands
    for each, chance in enumerate(models.p(text + draft)):
        yield text + draft + (each,), reached * chance


def emitted(
    models: Models, policy: Confidence, costs: CostTable, *, num_rows: int, length: int, step_tokens: int = 64
) -> dict[tuple[Text, ...], Fraction]:
    """The joint distribution of the first `length` tokens of each row."""
    past = tuple(models.logits[:BLOCK])
    states: dict[tuple[Row, ...], Fraction] = {tuple(((), past) for _ in range(num_rows)): Fraction(1)}
    done: dict[tuple[Text, ...], Fraction] = {}
    while states:
        after: dict[tuple[Row, ...], Fraction] = {}
        for rows, weight in states.items():
            live = [index for index, (text, _) in enumerate(rows) if len(text) < length]
            if not live:
                texts = tuple(text for text, _ in rows)
                done[texts] = done.get(texts, Fraction(0)) + weight
                continue
            for chosen in product(*[list(drafts(models, rows[index][0])) for index in live]):
                held = [logits for _, _, logits in chosen]
                lens = planned(policy, costs, [rows[index] for index in live], held, step_tokens)
                outcomes = [
                    list(verified(models, rows[index][0], draft[:verify]))
                    for index, (draft, _, _), verify in zip(live, chosen, lens, strict=True)
                ]
                drafted = weight * math.prod([chance for _, chance, _ in chosen], start=Fraction(1))
                for results in product(*outcomes):
                    chance = drafted * math.prod([one for _, one in results], start=Fraction(1))
                    if chance:
                        grown = list(rows)
                        for index, (text, _), logits in zip(live, results, held, strict=True):
                            grown[index] = (text[:length], logits)
                        key = tuple(grown)
                        after[key] = after.get(key, Fraction(0)) + chance
        states = after
    return done


def target_alone(models: Models, *, num_rows: int, length: int) -> dict[tuple[Text, ...], Fraction]:
    @cache
    def chance_of(text: Text) -> Fraction:
        return chance_of(text[:-1]) * models.p(text[:-1])[text[-1]] if text else Fraction(1)

    texts = list(product(VOCAB, repeat=length))
    joint = {
        key: math.prod([chance_of(one) for one in key], start=Fraction(1)) for key in product(texts, repeat=num_rows)
    }
    return {key: chance for key, chance in joint.items() if chance}


def costs_of(*widths_ns: int, block_ns: int = 1) -> CostTable:
    """By tokens a row: 1, 2, 3."""
    rows = (1, 2)
    target = (tuple(widths_ns), tuple(2 * one for one in widths_ns))
    return CostTable(
        fingerprint=(), context_len=1, rows=rows, widths=(1, 2, 3), target_ns=target, draft_ns=(block_ns, block_ns)
    )


def published() -> tuple[Models, CostTable]:
    """p = (.7, .3), q = (.5, .5); c1 = .8, c2 = .9 after A and 0 after B; steps a time 1, .5, .45."""
    seven, half = Fraction(7, 10), Fraction(1, 2)
    models = Models((seven,) * 3, (half,) * 3, (math.log(9), -100.0, math.log(4)))
    return models, costs_of(10**9, 2 * 10**9, 2_222_222_222)


def test_the_published_counterexample_bends_the_distribution_and_neither_form_does() -> None:
    models, costs = published()
    target = target_alone(models, num_rows=1, length=1)
    assert target[((0,),)] == Fraction(7, 10)
    assert emitted(models, Searching(), costs, num_rows=1, length=1)[((0,),)] == Fraction(85, 100)
    for policy in FORMS:
        assert emitted(models, policy, costs, num_rows=1, length=1) == target


PROBABILITIES = st.integers(0, 5).map(lambda part: Fraction(part, 5))
MODELS = st.builds(
    Models,
    target=st.tuples(*[PROBABILITIES] * 3),
    drafter=st.tuples(*[PROBABILITIES] * 3),
    logits=st.tuples(*[st.sampled_from([-50.0, -1.5, 0.0, 1.5, 3.0, 50.0])] * 3),
)
COSTS = st.lists(st.sampled_from([0, 0, 1, 4, 10]), min_size=3, max_size=3).map(
    lambda steps: costs_of(4 + steps[0], 4 + sum(steps[:2]), 4 + sum(steps))
)


@pytest.mark.parametrize("policy", FORMS, ids=lambda policy: policy.name)
@settings(derandomize=True, max_examples=30, deadline=None)
@given(models=MODELS, costs=COSTS)
def test_one_request_emits_exactly_the_target_distribution(
    policy: Confidence, models: Models, costs: CostTable
) -> None:
    found = emitted(models, policy, costs, num_rows=1, length=4)
    assert found == target_alone(models, num_rows=1, length=4)


@pytest.mark.parametrize("policy", FORMS, ids=lambda policy: policy.name)
@settings(derandomize=True, max_examples=12, deadline=None)
@given(models=MODELS, costs=COSTS, step_tokens=st.sampled_from([64, 5, 4, 3]))
def test_two_requests_together_emit_exactly_the_target_distribution_of_each(
    policy: Confidence, models: Models, costs: CostTable, step_tokens: int
) -> None:
    found = emitted(models, policy, costs, num_rows=2, length=3, step_tokens=step_tokens)
    assert found == target_alone(models, num_rows=2, length=3)


def test_every_place_of_a_block_draws_from_a_stream_of_its_own() -> None:
    """The enumeration draws anew for each block; noise that is found by position alone would be used twice."""
    streams = [draft_stream(index) for index in range(64)]
    assert len({TARGET, ACCEPT, RESIDUAL, *streams}) == 3 + 64
    assert all(stream % NUM_STREAMS == streams[0] for stream in streams)
