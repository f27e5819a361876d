"""Chats through the template of a checkpoint, which anybody may have written."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="the gateway's own extra is not installed")

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why <a>?"}]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def chat(gateway_folder: Path) -> ModuleType:
    return importlib.import_module("chat")


def checkpoint(folder: Path, **config: Any) -> str:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize("form", ["text", "named", "file"])
def test_messages_become_what_the_checkpoints_template_makes_of_them(chat: Any, tmp_path: Path, form: str) -> None:
    kept = {"text": CHATML, "named": [{"name": "default", "template": CHATML}], "file": None}[form]
    if form == "file":
        (tmp_path / "chat_template.jinja").write_text(CHATML)
    template = chat.Template.of(checkpoint(tmp_path, chat_template=kept))
    assert template(MESSAGES) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy <a>?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_templates_write_special_tokens_and_json_and_may_refuse(chat: Any, tmp_path: Path) -> None:
    refusal = "{% if messages | length > 1 %}{{ raise_exception('one only') }}{% endif %}"
    text = "{{ bos_token }}{{ messages | tojson }}" + refusal
    template = chat.Template.of(checkpoint(tmp_path, chat_template=text, bos_token={"content": "<s>"}, eos_token=None))
    assert template(MESSAGES[1:]) == '<s>[{"role": "user", "content": "Why <a>?"}]'
    with pytest.raises(chat.Unrenderable, match="one only"):
        template(MESSAGES)


@pytest.mark.parametrize("text", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"])
def test_a_template_reaches_nothing_but_the_messages(chat: Any, tmp_path: Path, text: str) -> None:
    with pytest.raises(chat.Unrenderable):
        chat.Template.of(checkpoint(tmp_path, chat_template=text))(MESSAGES)


@pytest.mark.parametrize("config", [{}, {"chat_template": "{% for %}"}])
def test_a_checkpoint_without_a_readable_template_ends_the_start(chat: Any, tmp_path: Path, config: Any) -> None:
    with pytest.raises(SystemExit, match="template"):
        chat.Template.of(checkpoint(tmp_path, **config))


def test_without_a_template_a_chat_is_refused_and_nothing_is_made_up(chat: Any) -> None:
    asked = importlib.import_module("asked")
    with pytest.raises(asked.Bad, match="without one") as caught:
        asked.chat({"model": "m", "messages": MESSAGES}, model="m", render=None, max_model_len=64)
    assert caught.value.code == "no_template"
