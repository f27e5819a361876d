"""Messages of a chat to one prompt: through the checkpoint's own template, or as plain lines for who asked for that.

Owns the choice; the engine's own reader renders the template, and `asked.py` judges what messages may hold.
"""

from collections.abc import Callable

from dsparkd.scheduler.service.chat import ChatTemplate, chat_template_beside
from dsparkd.scheduler.wire.messages import ChatMessage
from dsparkd.statemachine.errors import Refused

Messages = list[dict[str, str]]
Render = Callable[[Messages], str]


class Unrenderable(Exception):
    """The template does not take these messages, and says why."""


class Template:
    """A `chat_template` as Hugging Face checkpoints carry it."""

    def __init__(self, inner: ChatTemplate) -> None:
        self._inner = inner

    @classmethod
    def of(cls, checkpoint: str) -> "Template":
        """Read the checkpoint's. Raises SystemExit when there is none, or none that can be read."""
        try:
            inner = chat_template_beside(checkpoint)
        except Refused as refused:
            raise SystemExit(f"--checkpoint {refused}") from refused
        if inner is None:
            raise SystemExit(f"--checkpoint {checkpoint}: no chat template in it; --plain-chat does without one")
        return cls(inner)

    def __call__(self, messages: Messages) -> str:
        try:
            return self._inner.render([ChatMessage(one["role"], one["content"]) for one in messages])
        except Refused as refused:
            raise Unrenderable(str(refused)) from refused


def plain_chat(messages: Messages) -> str:
    """`role: content` a line, then `assistant:`. No checkpoint was trained on this: it is for trying things out."""
    return "".join(f"{one['role']}: {one['content']}\n" for one in messages) + "assistant:"
