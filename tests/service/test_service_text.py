"""Text with a real tokenizer."""

from pathlib import Path

import dsparkd
from dsparkd.scheduler.service.text import IncrementalText, tokenizer_beside
from hypothesis import given, settings
from hypothesis import strategies as st

TARGET = Path(dsparkd.__file__).parent / "models/pairs/stdlib-small/target"


def test_pieces_of_real_tokens_join_to_the_whole_text_and_are_never_half_characters() -> None:
    tokenizer = tokenizer_beside(str(TARGET))
    assert tokenizer is not None
    for whole in ("def grüße(self):\n    return '€ – 你好 🙂'\n", "  leading spaces", "\n\n\tx", "🙂🙂"):
        token_ids = tokenizer.encode(whole)
        text = IncrementalText(tokenizer)
        pieces = [text.push([token_id]) for token_id in token_ids]
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
        assert "".join(pieces) + text.flush() == tokenizer.decode(token_ids) == whole
        half = IncrementalText(tokenizer)
        cut = "".join(half.push([token_id]) for token_id in token_ids[:-1]) + half.flush()
        assert cut == tokenizer.decode(token_ids[:-1])


def test_a_target_without_a_tokenizer_serves_token_ids_only(tmp_path: Path) -> None:
    assert tokenizer_beside(str(tmp_path)) is None
    assert tokenizer_beside("scripted") is None


def test_text_that_is_told_again_from_an_index_is_the_rest_of_the_whole() -> None:
    tokenizer = tokenizer_beside(str(TARGET))
    assert tokenizer is not None
    token_ids = tokenizer.encode("def f(self):\n    return '€ 你好'\n")
    whole = tokenizer.decode(token_ids)
    for index in range(len(token_ids)):
        before = tokenizer.decode(token_ids[:index])
        text = IncrementalText(tokenizer)
        for token_id in token_ids[: index + 2]:
            text.push([token_id])
        text.rewind(index)
        assert text.num_ids == index
        told = "".join(text.push([token_id]) for token_id in token_ids[index:]) + text.flush()
        if whole.startswith(before):  # not in the middle of a character
            assert told == whole[len(before) :]


@settings(deadline=None)
@given(data=st.data())
def test_text_that_never_ends_a_character_is_told_as_it_comes_and_joins_to_the_whole(data: st.DataObject) -> None:
    """Halves of characters, in any order, among whole ones and U+FFFD itself, in long runs."""
    tokenizer = tokenizer_beside(str(TARGET))
    assert tokenizer is not None
    halves = [token_id for token_id in range(300) if tokenizer.decode([token_id]) == "\ufffd"]
    assert len(halves) > 100
    pool = st.sampled_from([*halves, *tokenizer.encode("a\ufffd€"), *tokenizer.encode("\ufffd")])
    ids = data.draw(st.lists(pool, max_size=30)) * data.draw(st.integers(1, 4))
    size = data.draw(st.integers(1, 40))
    text, pieces = IncrementalText(tokenizer), list[str]()
    for begin in range(0, len(ids), size):
        pieces.append(text.push(ids[begin : begin + size]))
        assert len(text._waiting) <= 16 + 8
    assert "".join([*pieces, text.flush()]) == tokenizer.decode(ids)
