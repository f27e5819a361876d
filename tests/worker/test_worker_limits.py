"""To the very end of the longest text, and not one position further."""

import json
import shutil
from pathlib import Path

import pytest
from dsparkd.scheduler.wire import messages as wire
from dsparkd.statemachine.errors import Refused
from dsparkd.worker.backend import TorchBackend
from window_support import MAX_MODEL_LEN, House, house, prompt_of
from worker_support import GOLDEN, Driver, backend, bench, phases_of

BLOCKS = {"vanilla": 4, "block7": 7}


@pytest.mark.parametrize(
    ("runner", "prompt_len"), [*[("eager", length) for length in (1, 9, *range(54, 64))], ("static", 1), ("static", 57)]
)
@pytest.mark.parametrize("name", BLOCKS)
def test_generating_to_exactly_max_model_len_says_what_plain_decoding_says(
    name: str, prompt_len: int, runner: str
) -> None:
    prompt = prompt_of(name, prompt_len)
    texts = []
    for drafter in (True, False):
        made = _made(name, drafter, runner)
        engine = bench(f"fixed:{BLOCKS[name] if drafter else 0}", made=made, limits={"max_model_len": MAX_MODEL_LEN})
        engine.submit(0, prompt, max_tokens=1000)
        engine.run()
        texts.append(engine.tokens[0])
    assert len(texts[0]) == MAX_MODEL_LEN - prompt_len
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", BLOCKS)
def test_l104_a_prompt_is_served_even_where_no_draft_fits_and_refused_where_no_token_does(name: str) -> None:
    """A draft's room is the window's own spare rows: admission counts a token of output and nothing else."""
    block = BLOCKS[name]
    for prompt_len in (MAX_MODEL_LEN - block - 1, MAX_MODEL_LEN - 2, MAX_MODEL_LEN - 1):
        made = _made(name, True, "eager")
        engine = bench(f"fixed:{block}", made=made, limits={"max_model_len": MAX_MODEL_LEN})
        engine.submit(0, prompt_of(name, prompt_len), max_tokens=1000)
        engine.run(max_steps=3 * (MAX_MODEL_LEN - prompt_len) + 20)  # there is always progress
        assert len(engine.tokens[0]) == MAX_MODEL_LEN - prompt_len
        assert engine.submit(1, prompt_of(name, MAX_MODEL_LEN))[0].code == "PROMPT_TOO_LONG"


_kept: dict[tuple[str, bool, str], TorchBackend] = {}


def _made(name: str, drafter: bool, runner: str) -> TorchBackend:
    """A worker of its own for each: a bench begins at epoch 1, and finds nothing of an earlier one."""
    key = (name, drafter, runner)
    if key not in _kept:
        _kept[key] = backend(name, drafter=drafter, runner=runner, num_slots=1, max_model_len=MAX_MODEL_LEN)
    phases_of(_kept[key]).windows.scrub(0)
    return _kept[key]


@pytest.mark.parametrize("name", BLOCKS)
def test_a_position_at_the_limit_is_a_typed_fault(name: str) -> None:
    one = house(name, num_slots=2)
    one.begin(0, [3] * (MAX_MODEL_LEN - 3))
    one.seed_all(0)
    epoch = one.tenants[0].epoch
    answer = one.driver.one(wire.Decode(0, epoch, 3, 0))
    assert (answer.code, "draft_len 3 at 61 of 64" in answer.message) == ("LIMIT", True)
    assert isinstance(one.driver.one(wire.Decode(0, epoch, 2, 0)), wire.Emitted)  # positions 61, 62, 63
    while one.driver.window(0).length < MAX_MODEL_LEN:
        one.driver.one(wire.Decode(0, epoch, 0, 0))
    assert one.driver.one(wire.Decode(0, epoch, 0, 0)).code == "LIMIT"
    one.begin(1, [3] * (MAX_MODEL_LEN + 1))
    assert one.driver.one(one.chunk(1, MAX_MODEL_LEN + 1)).code == "LIMIT"


@pytest.mark.parametrize("name", BLOCKS)
def test_rotary_tables_reach_as_far_as_any_row_may(name: str) -> None:
    """A block drafted after the very last position is the furthest that anything reaches."""
    made = backend(name, num_slots=1, max_model_len=MAX_MODEL_LEN)
    for model in (made.target, made.drafter):
        assert model is not None
        assert model.rotary is not None
        assert model.rotary.max_positions == MAX_MODEL_LEN + BLOCKS[name] + 1
    one = house(name, num_slots=1)
    one.begin(0, [3] * MAX_MODEL_LEN)
    one.seed_all(0)
    assert len(one.driver.window(0).held) == BLOCKS[name]


def edited(tmp_path: Path, **changes: object) -> tuple[str, str]:
    """The vanilla pair with other words in its drafter's configuration."""
    shutil.copytree(GOLDEN / "vanilla", tmp_path / "pair", copy_function=shutil.copyfile)
    path = tmp_path / "pair" / "draft" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return str(tmp_path / "pair" / "target"), str(tmp_path / "pair" / "draft")


def test_serving_longer_than_the_drafter_was_trained_for_warns_with_both_numbers(tmp_path: Path) -> None:
    pair = edited(tmp_path, max_position_embeddings=48)
    made = TorchBackend()
    made.load(wire.Init(1, *pair, 1, 48, 64))
    assert made.warnings == []
    made = TorchBackend()
    made.load(wire.Init(1, *pair, 1, 64, 64))
    (warning,) = made.warm().warnings
    assert "max_model_len = 64" in warning
    assert "(48)" in warning


def test_a_checkpoint_with_a_sliding_window_is_served_with_its_ring(tmp_path: Path) -> None:
    slides = {"use_sliding_window": True, "sliding_window": 9, "layer_types": ["sliding_attention"] * 2}
    pair = edited(tmp_path, **slides)
    made = TorchBackend()
    made.load(wire.Init(1, *pair, 1, MAX_MODEL_LEN, 64, paranoid=True))
    assert made.warm().drafter_window == 9
    one = House("vanilla", Driver(made))
    one.begin(0, prompt_of("vanilla", 40))
    one.seed_all(0)
    while len(one.contents[0]) < MAX_MODEL_LEN:
        one.check_draft(0)
        one.step(one.decode(0))
    one.check()
    other = TorchBackend()
    with pytest.raises(Refused, match="drafter_window = 12: expected the checkpoint's sliding window 9"):
        other.load(wire.Init(1, *pair, 1, MAX_MODEL_LEN, 64, drafter_window=12))
