"""Messages of a chat to one prompt: through the checkpoint's own template, or as plain lines for who asked for that.

Owns the rendering; `asked.py` judges what messages may hold. Templates come with checkpoints, so they run in a sandbox.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

Messages = list[dict[str, str]]
Render = Callable[[Messages], str]


class Unrenderable(Exception):
    """The template does not take these messages, and says why."""


class Template:
    """A `chat_template` as Hugging Face checkpoints carry it."""

    def __init__(self, text: str, tokens: dict[str, Any]) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _raise
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
        self._template = environment.from_string(text)
        self._tokens = tokens  # bos_token and the like, which templates write down

    @classmethod
    def of(cls, checkpoint: str) -> "Template":
        """Read chat_template.jinja, or `chat_template` of tokenizer_config.json. Raises SystemExit for neither."""
        folder = Path(checkpoint)
        path = folder / "tokenizer_config.json"
        config = json.loads(path.read_text()) if path.is_file() else {}
        beside = folder / "chat_template.jinja"
        text = beside.read_text() if beside.is_file() else config.get("chat_template")
        if isinstance(text, list):  # several, by name
            text = {one["name"]: one["template"] for one in text}.get("default")
        if not isinstance(text, str):
            raise SystemExit(f"--checkpoint {folder}: no chat template in it; --plain-chat does without one")
        tokens = {name: _text_of(value) for name, value in config.items() if name.endswith("_token") and value}
        try:
            return cls(text, tokens)
        except jinja2.TemplateSyntaxError as error:
            raise SystemExit(f"--checkpoint {folder}: its chat template cannot be read: {error}") from error

    def __call__(self, messages: Messages) -> str:
        try:
            return self._template.render(**self._tokens, messages=messages, add_generation_prompt=True)
        except jinja2.TemplateError as error:
            raise Unrenderable(str(error)) from error


def plain_chat(messages: Messages) -> str:
    """`role: content` a line, then `assistant:`. No checkpoint was trained on this: it is for trying things out."""
    return "".join(f"{one['role']}: {one['content']}\n" for one in messages) + "assistant:"


def _text_of(token: Any) -> str:
    return token["content"] if isinstance(token, dict) else token


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
