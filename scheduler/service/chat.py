"""Messages of a chat to the text of a prompt, by the template that a checkpoint carries.

Owns the reading and the rendering; what messages may hold is the template's affair. Templates are programs that come
with checkpoints, so they run in a sandbox. `translate.py` calls it; the text goes to the tokenizer as it is, since
templates write their special tokens themselves.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ...statemachine.errors import Refused
from ..wire.messages import ChatMessage


class ChatTemplate:
    """A Jinja template as Hugging Face checkpoints have it. tokens: `bos_token` and the like, which it may name.

    Raises `Refused` (BAD_CONFIG) for one that cannot be read.
    """

    def __init__(self, text: str, tokens: dict[str, Any] | None = None, *, source: str = "chat template") -> None:
        try:
            import jinja2
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise Refused("BAD_CONFIG", f"{source}: chats need `pip install dsparkd[text]`") from None

        def refuse(message: str) -> NoReturn:
            raise jinja2.TemplateError(message)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = refuse
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
        self._tokens = tokens or {}
        try:
            self._template = environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise Refused("BAD_CONFIG", f"{source}: no template: {error}") from error

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The prompt, up to where the assistant is to speak. Raises `Refused` (BAD_PROMPT) in the template's words."""
        plain = [{"role": one.role, "content": one.content} for one in messages]
        try:
            return self._template.render(**self._tokens, messages=plain, add_generation_prompt=True)
        except Exception as error:  # whatever a foreign program does with what it is given
            raise Refused("BAD_PROMPT", f"messages: the checkpoint's template refuses them: {error}") from error


def chat_template_beside(target: str) -> ChatTemplate | None:
    """The template in the target's folder: chat_template.jinja, or in tokenizer_config.json; None without one."""
    folder = Path(target)
    beside, path = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        text = beside.read_text(encoding="utf-8") if beside.is_file() else config.get("chat_template")
        if isinstance(text, list):  # several, by name
            text = {one["name"]: one["template"] for one in text}.get("default")
        if text is None:
            return None
        tokens = {name: _text_of(value) for name, value in config.items() if name.endswith("_token") and value}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused("BAD_CONFIG", f"{folder}: its chat template cannot be read: {error}") from error
    return ChatTemplate(str(text), tokens, source=str(folder))


def _text_of(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)
