"""Text with a real tokenizer."""

from pathlib import Path

import dsparkd
from dsparkd.scheduler.service.text import IncrementalText, tokenizer_beside

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
