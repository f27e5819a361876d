"""Messages of a chat become the prompt that the checkpoint's own template makes of them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dsparkd import Refused
from dsparkd.models.shipped import shipped_pair
from dsparkd.scheduler.service.chat import chat_template_beside
from dsparkd.scheduler.service.text import FileTokenizer
from dsparkd.scheduler.service.translate import Client, Translate
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.frames import submit_frame

TURNS = [{"role": "user", "content": "class Queue:\n"}, {"role": "assistant", "content": "    def put("}]
EACH = "{% for one in messages %}# {{ one.role }}\n{{ one.content }}{% endfor %}"
TEMPLATE = EACH + "{% if add_generation_prompt %}# go\n{% endif %}"
RENDERED = "# user\nclass Queue:\n# assistant\n    def put(# go\n"


def translate(folder: Path) -> Translate:
    tokenizer = FileTokenizer(shipped_pair().target / "tokenizer.json")
    return Translate(tokenizer, max_model_len=512, chat=chat_template_beside(str(folder)))


def submit(made: Translate, turns: Any = TURNS) -> Any:
    from dsparkd.scheduler.wire import codec

    client = Client(1, "token", b"here", 0)
    made.clients[1] = client
    frame = submit_frame("here", turns, request_id="a", options={})
    message = codec.from_client().decode(frame)
    assert isinstance(message, wire.Submit)
    return made.submit(client, message, 0)


@pytest.mark.parametrize("where", ["chat_template.jinja", "tokenizer_config.json", "the default of several"])
def test_a_chat_is_the_prompt_that_the_template_makes_of_it(tmp_path: Path, where: str) -> None:
    if where == "chat_template.jinja":
        (tmp_path / where).write_text(TEMPLATE)
    else:
        several = [{"name": "tools", "template": "no"}, {"name": "default", "template": TEMPLATE}]
        config = {"chat_template": TEMPLATE if where == "tokenizer_config.json" else several}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    made = translate(tmp_path)
    assert made.tokenizer is not None
    assert submit(made).prompt == tuple(made.tokenizer.encode(RENDERED, whole=False))


@pytest.mark.parametrize(
    ("template", "code", "said"),
    [
        (None, "TEMPLATE_UNAVAILABLE", "no chat template"),
        ("{{ raise_exception('users speak first') }}", "BAD_PROMPT", "users speak first"),
        ("{{ messages[0].__class__.__mro__ }}", "BAD_PROMPT", "template refuses"),
        ("{{ messages.append(1) }}", "BAD_PROMPT", "template refuses"),
        ("{{ 1 // 0 }}", "BAD_PROMPT", "template refuses"),
        ("", "EMPTY_PROMPT", "empty"),
    ],
)
def test_a_chat_that_cannot_be_a_prompt_is_refused_and_the_template_does_no_harm(
    tmp_path: Path, template: str | None, code: str, said: str
) -> None:
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(Refused, match=said) as caught:
        submit(translate(tmp_path))
    assert caught.value.code == code


def test_a_chat_without_end_is_refused_before_it_is_rendered(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    with pytest.raises(Refused, match="characters"):
        submit(translate(tmp_path), [{"role": "user", "content": "x" * 40_000}])


@pytest.mark.parametrize(
    "turns", [[{"role": "user"}], [{"role": "user", "content": 5}], [{"role": "u", "content": "x"}, 7]]
)
def test_what_is_no_message_is_refused_to_its_caller(turns: Any) -> None:
    with pytest.raises(Refused, match="cannot be sent"):
        submit_frame("here", turns, request_id="a", options={})


def test_a_template_that_cannot_be_read_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(Refused, match="no template"):
        chat_template_beside(str(tmp_path))
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(Refused, match="cannot be read"):
        chat_template_beside(str(tmp_path))


def test_an_engine_answers_a_chat_like_the_prompt_that_it_stands_for(serve: Callable[..., Any], tmp_path: Path) -> None:
    pair = shipped_pair()
    target = tmp_path / "target"
    shutil.copytree(pair.target, target)
    (target / "chat_template.jinja").write_text(TEMPLATE)
    client = serve(target=str(target), drafter=str(pair.drafter), measure_costs=False, policy="fixed:7").client()
    assert client.generate(TURNS, max_tokens=20).text == client.generate(RENDERED, max_tokens=20).text
