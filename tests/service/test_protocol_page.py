"""The protocol's page and the code say the same: every message, every field, every code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from dsparkd.scheduler.service import protocol_pages
from dsparkd.scheduler.service.client_field_notes import CLIENT_FIELDS, Note
from dsparkd.scheduler.service.codes import RAISED_LOCALLY, REASONS, REFUSALS, WORKER_FAULTS
from dsparkd.scheduler.wire import base, client_messages, messages, worker_messages
from dsparkd.statemachine.errors import LocalError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/protocol.md").read_text()
STRUCTS = [
    one
    for module in (client_messages, worker_messages)
    for one in vars(module).values()
    if isinstance(one, type) and issubclass(one, msgspec.Struct) and one is not base.Message
]


def section(kind: type) -> str:
    """What the page says of one struct."""
    found = re.findall(rf"^#{{3,4}} {kind.__name__}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert len(found) == 1, f"{kind.__name__} has {len(found)} sections"
    return str(found[0])


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_every_message_has_its_section_and_every_field_its_row_with_type_and_meaning(kind: Any) -> None:
    text = section(kind)
    assert text.strip().split("\n")[0], "a sentence on the whole"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `"]
    assert [row[0].strip("`") for row in rows] == list(kind.__struct_fields__)
    for _, spelt, default, _, _, meaning in rows:
        assert spelt
        assert default
        assert len(meaning) > 5


def test_everything_that_either_side_may_say_is_on_the_page() -> None:
    unions = (messages.ToClient, messages.ToScheduler, messages.ToWorker, messages.FromWorker)
    assert {one for union in unions for one in get_args(union)} <= set(STRUCTS)


def test_a_field_without_a_note_and_a_note_without_a_field_end_the_making_of_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes = CLIENT_FIELDS[messages.Tokens]
    for wrong in ({**notes, "more": Note("x")}, {"index": notes["index"]}):
        monkeypatch.setitem(protocol_pages.FIELDS, messages.Tokens, wrong)
        with pytest.raises(LocalError, match="Tokens"):
            protocol_pages.protocol_page()


# ---- codes --------------------------------------------------------------------------------------------------------

SAYS_NO = {"Refused", "Refusal", "Verdict", "_refuse", "refuse_all"}
ENDS = {"Ending"}
FAULTS = {"RowRefused", "StepFailed", "RowFault", "StepFault", "_fault"}
CODE = r"[A-Z][A-Z_]{3,}"


def said(names: set[str], *folders: str) -> set[str]:
    """Literal codes in calls of these names."""
    return {code for folder in folders for path in sorted((ROOT / folder).rglob("*.py")) for code in _of(path, names)}


def _of(path: Path, names: set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or getattr(node.func, "id", getattr(node.func, "attr", "")) not in names:
            continue
        for argument in (*node.args, *(one.value for one in node.keywords if one.arg in (None, "code"))):
            either = (argument.body, argument.orelse) if isinstance(argument, ast.IfExp) else (argument,)
            for one in either:
                if isinstance(one, ast.Constant) and isinstance(one.value, str) and re.fullmatch(CODE, one.value):
                    yield one.value


def test_every_code_of_a_refusal_is_listed_and_every_listed_one_is_said() -> None:
    engine = said(SAYS_NO, "scheduler/core", "scheduler/service", "scheduler/wire")
    every = said(SAYS_NO, "scheduler", "statemachine", "worker", "models") | {"BAD_CONFIG"}  # that of refuse_all
    assert every == REFUSALS.keys() | RAISED_LOCALLY.keys()
    assert engine >= REFUSALS.keys()


def test_every_reason_of_an_end_is_listed_and_every_listed_one_is_said() -> None:
    words = {"stop", "length", "cancelled", "client_gone"}  # that are no failures
    assert said(ENDS, "scheduler") | words == REASONS.keys()
    assert {one for one, (state, _) in REASONS.items() if state != "FAILED"} == words


def test_every_code_of_a_workers_fault_is_listed_and_every_listed_one_is_said() -> None:
    raised = {"STALE_WINDOW"}  # by an error class of its own
    assert said(FAULTS, "worker", "scheduler/wire") | raised == WORKER_FAULTS.keys()


@pytest.mark.parametrize("codes", [REFUSALS, RAISED_LOCALLY, REASONS, WORKER_FAULTS])
def test_every_code_is_on_the_page(codes: dict[str, Any]) -> None:
    for code in codes:
        assert f"| `{code}` | " in PAGE


def test_what_a_message_is_refused_with_is_listed() -> None:
    named = {code for codes in protocol_pages.REFUSED_WITH.values() for code in codes}
    assert named <= REFUSALS.keys()
    told = {"BAD_MESSAGE", "ENGINE_GONE", "HELLO_FIRST"}  # to anything
    assert named | told == REFUSALS.keys()
