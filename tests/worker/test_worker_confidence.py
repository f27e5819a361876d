"""Confidences in the real worker: with each held draft when INIT asks; a drafter without the head is refused."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dsparkd import Client, local
from dsparkd.models.shipped import shipped_pair
from dsparkd.scheduler.cli.batch import run_batch
from dsparkd.scheduler.cli.calibrate import calibrate
from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.costs import CostTable
from dsparkd.scheduler.core.handle import Core
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.core.policies import parse_policy
from dsparkd.scheduler.service.calibration_files import Calibration, read_calibration, write_calibration
from dsparkd.scheduler.service.text import tokenizer_beside
from dsparkd.scheduler.service.worker_rows import worker_event
from dsparkd.scheduler.testing import Bench
from dsparkd.scheduler.wire import messages as wire
from dsparkd.statemachine import worker
from dsparkd.worker.backend import TorchBackend
from worker_support import GOLDEN, TOLERANCE, Driver, TorchRows, backend, bench, samples, seed

COSTS = CostTable(
    fingerprint=(),
    context_len=64,
    rows=(1, 4),
    widths=(1, 5),
    target_ns=((100, 140), (200, 900)),
    draft_ns=(20, 60),
)
NAMES_WITHOUT_HEAD = ("dflash", "tied_embedding_tap")


def test_the_held_drafts_confidences_are_the_goldens_in_every_round() -> None:
    for name in ("vanilla", "rnn"):
        driver = Driver(backend(name, confidences=True))
        one = samples(name)[1]
        row = driver.one(seed(0, 1, one["prompt_ids"], propose_len=4))
        for number, golden in enumerate(one["rounds"][:-1]):
            assert driver.window(0).held == golden["draft_ids"], (name, number)
            assert row.held_confidence_logits == pytest.approx(golden["confidence_logits"], abs=TOLERANCE)
            row = driver.one(wire.Decode(0, 1, 4, 4))


def test_absence_is_absence() -> None:
    """Nothing held, nothing asked, no head: no logits at all; a shorter draft has fewer."""
    driver = Driver(backend("vanilla", confidences=True))
    prompt = samples("vanilla")[1]["prompt_ids"]
    assert driver.one(seed(0, 1, prompt)).held_confidence_logits is None
    assert len(driver.one(wire.Decode(0, 1, 0, 2)).held_confidence_logits) == 2
    assert driver.one(wire.Decode(0, 1, 2, 0)).held_confidence_logits is None
    for name, asks in (("vanilla", False), ("dflash", True)):
        silent = Driver(backend(name, confidences=asks))
        row = silent.one(seed(0, 1, samples(name)[1]["prompt_ids"], propose_len=4))
        assert (row.held_len, row.held_confidence_logits) == (4, None)


@pytest.mark.parametrize("name", [*NAMES_WITHOUT_HEAD, "vanilla"])
@pytest.mark.parametrize("policy", ["confidence", "confidence:budget"])
def test_a_checkpoint_without_the_head_refuses_the_policy_by_name(name: str, policy: str) -> None:
    made = TorchBackend()
    folder = GOLDEN / name
    made.load(wire.Init(1, str(folder / "target"), str(folder / "draft"), 2, 100, 100, measure_costs=True))
    core = Core(Limits(num_slots=2, max_model_len=100), parse_policy(policy))
    for event in (events.WorkerHello(1), events.WorkerLoaded(1), worker_event(made.warm())):
        core.handle(event)
    if name == "vanilla":
        assert core.ledger.worker.state is worker.State.READY
    else:
        assert core.ledger.worker.state is worker.State.ABANDONED
        assert f"the policy {policy} needs confidences: expected a drafter with" in core.ledger.worker.reason


class Confident(TorchRows):
    has_confidence = True


@pytest.mark.parametrize("policy", ["confidence", "confidence:budget"])
def test_its_text_is_that_of_fixed_lengths_greedy_and_sampled(policy: str) -> None:
    made = backend("vanilla", confidences=True)
    runs = []
    for chosen in (policy, "fixed:4"):
        limits = Limits(num_slots=4, max_model_len=200, max_step_tokens=64)
        one = Bench(chosen, limits=limits, worker=lambda: Confident(made), costs=COSTS)
        for number, sample in enumerate([*samples("vanilla"), samples("vanilla")[1]]):
            params = events.Params(temperature=0.8 * (number % 2), seed=number)
            one.submit(number, sample["prompt_ids"], max_tokens=30, params=params)
        one.run()
        lens = {row.draft_len for command in one.commands for row in command.rows if isinstance(row, events.Decode)}
        runs.append((one.tokens, lens))
    assert runs[0][0] == runs[1][0]
    assert len(runs[0][1]) > 2, "lengths vary, or nothing was shown"


def test_a_position_that_is_drafted_twice_is_drafted_with_new_noise() -> None:
    """Under rejection. At a temperature where noise decides, equal noise would draw equal tokens nearly always."""
    driver = Driver(backend("vanilla", acceptance="rejection", num_slots=4))
    prompt = samples("vanilla")[1]["prompt_ids"]
    same = count = 0
    for number in range(10):
        params = [wire.Params(temperature=1000.0, seed=4 * number + slot) for slot in range(4)]
        rows = [seed(slot, number + 1, prompt, propose_len=4, params=params[slot]) for slot in range(4)]
        driver.step(*rows)
        before = [driver.window(slot).held for slot in range(4)]
        driver.step(*[wire.Decode(slot, number + 1, 0, 4) for slot in range(4)])  # one token on, nothing verified
        for slot in range(4):
            pairs = list(zip(before[slot][1:], driver.window(slot).held, strict=False))
            count += len(pairs)
            same += sum(old == new for old, new in pairs)
    assert count == 120
    assert same < 12


def test_served_it_emits_what_fixed_7_emits_and_its_traffic_calibrates_it(tmp_path: Path) -> None:
    """The shipped pair behind sockets, `confidence` with a calibration file, recorded as `generate --passes` does."""
    pair, bind = shipped_pair(), f"ipc://{tmp_path}/engine"
    source, recorded, given, fitted = (tmp_path / name for name in ("in", "out", "given.json", "fitted.json"))
    errors = {"num_rounds": [1] * 7, "ece_before": [0.0] * 7, "ece_after": [0.0] * 7}
    write_calibration(given, Calibration(dsparkd="0", fingerprint={}, temperatures=[1.5] * 7, **errors))  # type: ignore[arg-type]
    tokenizer = tokenizer_beside(str(pair.target))
    assert tokenizer is not None
    prompts = [tokenizer.encode(json.loads(line)["prompt"]) for line in pair.prompts.read_text().splitlines()[:4]]
    alone = bench("fixed:7", name="shipped", limits={"max_model_len": 200})
    rows: list[dict[str, Any]] = []
    for number, prompt in enumerate(prompts):
        temperature = 0.7 * (number % 2)
        rows.append({"prompt_token_ids": prompt, "temperature": temperature, "seed": number, "max_tokens": 32})
        alone.submit(number, prompt, max_tokens=32, params=events.Params(temperature=temperature, seed=number))
    alone.run()
    source.write_text("".join(json.dumps({**row, "ignore_eos": True}) + "\n" for row in rows))
    settings = {"target": str(pair.target), "drafter": str(pair.drafter), "num_slots": 4, "max_model_len": 200}
    chosen = {"policy": "confidence", "confidence_calibration": str(given)}
    with local(bind=bind, **settings, **chosen) as client:
        opened = partial(Client, bind)
        options = {"passes": True}
        assert run_batch(source, recorded, opened=opened, options=options, seed=0, concurrency=4, passes=True) == 0
        calibrate(recorded, fitted, None, bind)
        stats = client.stats()
    found = [json.loads(line)["token_ids"] for line in recorded.read_text().splitlines()]
    assert found == [alone.tokens[number] for number in range(4)]
    assert 0 < stats["tokens_verified"] < stats["tokens_drafted"], "lengths vary, or nothing was shown"
    made = read_calibration(fitted)
    assert set(made.fingerprint) == {"target", "drafter"}
    assert sum(made.ece_after) <= sum(made.ece_before)
