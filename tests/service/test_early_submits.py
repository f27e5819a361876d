"""Submits that wait for the first worker: the queue of them is a list, whatever is said and taken back."""

from dsparkd.scheduler.service.early import Early, EarlySubmits
from dsparkd.scheduler.wire import messages as wire
from hypothesis import given
from hypothesis import strategies as st

CLIENTS, IDS = st.integers(0, 1), st.sampled_from(["a", "b"])
MOVES = st.lists(
    st.tuples(st.just("add"), CLIENTS, IDS, st.integers(0, 1))
    | st.tuples(st.sampled_from(["pop", "cancel", "drop"]), CLIENTS, IDS, st.just(0)),
    max_size=20,
)


@given(moves=MOVES)
def test_what_waits_is_what_was_added_and_neither_taken_nor_cancelled(moves: list[tuple[str, int, str, int]]) -> None:
    early, model = EarlySubmits(6), list[Early]()
    order: list[tuple[int, str]] = []  # ids, as they came
    for serial, (move, client, request_id, token) in enumerate(moves):
        message = wire.Submit(request_id=request_id, prompt_token_ids=[token])
        mine = [one for one in model if (one.client, one.message.request_id) == (client, request_id)]
        assert early.find(client, request_id) == (mine[0] if mine else None)
        assert early.repeats(client, message) == (message in [one.message for one in mine])
        if move == "add" and not early.is_full and not early.repeats(client, message):
            model.append(Early(serial, client, message))
            early.add(model[-1])
        elif move == "pop" and model:
            first = early.pop()
            same = [one for one in model if (one.client, one.message.request_id) == order[0]]
            assert first == same[0]
            model.remove(first)
        elif move == "cancel" and mine:
            early.remove(mine[0])
            model.remove(mine[0])
        elif move == "drop":
            early.drop(client)
            model = [one for one in model if one.client != client]
        waiting = {(one.client, one.message.request_id): None for one in model}
        order = [key for key in order if key in waiting] + [key for key in waiting if key not in order]
        assert len(early) == len(model)
        assert early.is_full == (len(model) == 6)
