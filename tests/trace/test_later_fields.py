"""Fields that records got later: traces from before them read and replay as ever, and redaction knows them."""

from dsparkd.scheduler.core import events
from dsparkd.scheduler.service.packing import FIRST_FIELDS, Packing, pack, unpack

FULL = [
    events.Params(min_tokens=3, masked_token_ids=(4, 5), logprobs=True, top_logprobs=2),
    events.Options(priority=-1, stop=("a", "b"), params=events.Params(min_tokens=3)),
    events.PassDetail(logprobs=[-0.5], top_token_ids=[[4, 5]], top_logprobs=[[-0.5, -1.0]]),
    events.Emitted(0, 1, [4], 0, 7, hold_len=1, text_stop=events.TextStop(1, 0)),
    events.Emitted(0, 1, [4], 0, 7, text_stop=events.TextStop(1, 0)),
]
BARE = [events.Params(), events.Options(), events.PassDetail([4], [0.5], None), events.Emitted(0, 1, [4], 0, 7)]


def test_at_their_defaults_later_fields_take_no_place_and_come_back_all_the_same() -> None:
    for one in BARE:
        packed = pack(one)
        assert len(packed) == 1 + FIRST_FIELDS[type(one).__name__], "as a trace from before them has it"
        assert unpack(packed) == one


def test_with_other_values_they_come_back() -> None:
    for one in FULL:
        assert len(pack(one)) > 1 + FIRST_FIELDS[type(one).__name__]
        assert unpack(pack(one)) == one


def test_redacting_renames_later_token_ids_and_hides_stop_strings() -> None:
    packing = Packing(lambda one: one + 100, lambda text: text.upper())
    params, options, detail, *_ = [unpack(packing.pack(one)) for one in FULL]
    assert params.masked_token_ids == (104, 105)
    assert options.stop == ("A", "B")
    assert (detail.top_token_ids, detail.top_logprobs) == ([[104, 105]], [[-0.5, -1.0]])
