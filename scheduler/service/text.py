"""Text at the edge: prompts to token ids, output ids to text that never ends in half a character.

Owns the tokenizer and the bytes held back; the core sees token ids only. `translate.py` calls it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from ...statemachine.errors import Refused

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what half a character decodes to
_CHARACTER = 4  # bytes of the longest one, so at least as many as the tokens that it takes
_LONGEST_WAIT = 16  # ids


class Tokenizer(Protocol):
    """What the service needs of a tokenizer."""

    def encode(self, text: str, *, whole: bool = True) -> list[int]:
        """whole: with the special tokens that begin or end a text; else it has them already."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


class FileTokenizer:
    """A `tokenizer.json`, through the `tokenizers` library."""

    def __init__(self, path: Path) -> None:
        try:
            import tokenizers
        except ImportError:
            raise Refused("BAD_CONFIG", f"{path}: reading text needs `pip install dsparkd[text]`") from None
        try:
            self._inner: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for a bad file
            raise Refused("BAD_CONFIG", f"{path}: no tokenizer: {error}") from error

    def encode(self, text: str, *, whole: bool = True) -> list[int]:
        return list(self._inner.encode(text, add_special_tokens=whole).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._inner.decode(list(token_ids), skip_special_tokens=True))


def tokenizer_beside(target: str) -> Tokenizer | None:
    """Return the tokenizer in the target's folder, or None when there is none (token ids only, then)."""
    path = Path(target) / "tokenizer.json"
    return FileTokenizer(path) if path.is_file() else None


class TextPieces:
    """The text of one growing output. The pieces that `push` and `flush` return, joined, are the whole text.

    It decodes the last piece's ids together with the new ones, for a token's text may depend on the one before it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._told: list[int] = []  # ids of the last piece: context, already told
        self._waiting: list[int] = []
        self.is_whole = True  # the last push left no half a character behind

    def copy(self) -> "TextPieces":
        """One that goes on from here on its own."""
        twin = TextPieces(self._tokenizer)
        twin._told, twin._waiting, twin.is_whole = self._told, self._waiting.copy(), self.is_whole
        return twin

    def push(self, token_ids: Sequence[int]) -> str:
        """Add ids and return the text that is certain now; perhaps nothing."""
        self._waiting.extend(token_ids)
        piece = self._piece()
        self.is_whole = not piece.endswith(_UNFINISHED)
        if self.is_whole:
            return self._tell(piece)
        if len(token_ids) < 2:
            return self._release()
        del self._waiting[-len(token_ids) :]  # what comes before the half is certain, however tokens were divided
        return "".join([TextPieces.push(self, [token_id]) for token_id in token_ids])

    def flush(self) -> str:
        """Return what was held back: the output is over, so half a character stays half."""
        return self._tell(self._piece())

    def _release(self) -> str:
        """What may be told of a text that does not end whole."""
        return ""

    def _piece(self) -> str:
        before = self._tokenizer.decode(self._told)
        return self._tokenizer.decode([*self._told, *self._waiting])[len(before) :]

    def _tell(self, piece: str) -> str:
        if piece:
            self._told, self._waiting = self._waiting, []
        return piece


class IncrementalText(TextPieces):
    """Pieces that can be told again from an earlier index on."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self._all: list[int] = []

    @property
    def num_ids(self) -> int:
        """How many ids were pushed."""
        return len(self._all)

    def push(self, token_ids: Sequence[int]) -> str:
        self._all.extend(token_ids)
        return super().push(token_ids)

    def _release(self) -> str:
        """A run of ids that never ends a character is told but for the last few: no byte waits for more than three.

        Otherwise it would wait, and be decoded anew with each token, until the output is over.
        """
        if len(self._waiting) <= _LONGEST_WAIT:
            return ""
        before, whole = (self._tokenizer.decode(ids) for ids in (self._told, [*self._told, *self._waiting]))
        for cut in range(len(self._waiting) - _CHARACTER, len(self._waiting) - 2 * _CHARACTER, -1):
            head = self._tokenizer.decode([*self._told, *self._waiting[:cut]])
            if whole.startswith(head):  # no character lies across the cut
                self._told, self._waiting = self._waiting[:cut], self._waiting[cut:]
                return head[len(before) :]
        return ""

    def rewind(self, index: int) -> None:
        """Go back to before output `index`: what is pushed next repeats what has been told from there on."""
        before, self._all, self._told, self._waiting = self._all[:index], [], [], []
        self.push_each(before)

    def push_each(self, token_ids: Sequence[int]) -> None:
        """Add ids that were told before: a half character that was held back after them is held back again."""
        for token_id in token_ids:
            self.push([token_id])
