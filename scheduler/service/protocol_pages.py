"""docs/protocol.md, made of the message definitions, the notes on their fields and the list of codes.

Owns the tables and their order; words are those of `protocol_words.py`. `dsparkd docs` writes the page.
"""

import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from ...statemachine.errors import LocalError
from ..wire import messages as wire
from ..wire.option_rules import expected_of
from . import protocol_words as words
from .client_field_notes import CLIENT_FIELDS, Note
from .codes import RAISED_LOCALLY, REASONS, REFUSALS, WORKER_FAULTS
from .worker_field_notes import WORKER_FIELDS

FIELDS = CLIENT_FIELDS | WORKER_FIELDS
_TO_SCHEDULER, _TO_CLIENT = get_args(wire.ToScheduler), get_args(wire.ToClient)
_TO_WORKER, _FROM_WORKER = get_args(wire.ToWorker), get_args(wire.FromWorker)
REFUSED_WITH: dict[type, tuple[str, ...]] = {
    wire.ClientHello: ("BAD_VERSION",),
    wire.Submit: (
        "BAD_PROMPT", "EMPTY_PROMPT", "PROMPT_TOO_LONG", "BAD_TOKEN", "TEXT_UNAVAILABLE", "TEMPLATE_UNAVAILABLE",
        "UNSUPPORTED_OPTION",
        "BAD_OPTION", "DUPLICATE_ID", "QUEUE_FULL", "CLIENT_LIMIT", "DRAINING", "NO_WORKER", "UNKNOWN_CLIENT",
        "CANCELLED",
    ),
    wire.ResumeRequest: ("UNKNOWN_ID", "UNKNOWN_REQUEST", "BAD_INDEX", "BAD_OPTION", "ENGINE_RESTARTED"),
}  # fmt: skip
_ROWS: list[type] = [wire.Seed, wire.Params, wire.Open, wire.Decode, wire.Scrub]
_WORDS: dict[Any, str] = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "boolean",
    Any: "anything",
    msgspec.Raw: "map: [RequestOptions](#requestoptions)",
}


def protocol_page() -> str:
    """Return the whole page. Raises `LocalError` for a field without a note, and a note without a field."""
    sections = [
        words.HEAD,
        words.CONVERSATIONS,
        "## What a client says\n\n"
        + _messages(_TO_SCHEDULER, parts={wire.Submit: [wire.ChatMessage, wire.RequestOptions]}),
        "## What a client hears\n\n"
        + _messages(_TO_CLIENT, parts={wire.Tokens: [wire.Pass], wire.Finished: [wire.RequestCounts]}),
        _codes(),
        words.WORKERS,
        "### What a worker hears\n\n"
        + _messages(
            _TO_WORKER,
            level=4,
            parts={
                wire.Init: [wire.CostTable],
                wire.Step: [wire.Seed, wire.Params, wire.Open, wire.Decode, wire.Scrub],
            },
        ),
        "### What a worker says\n\n"
        + _messages(
            [one for one in _FROM_WORKER if one not in _TO_SCHEDULER],
            level=4,
            parts={wire.Report: [wire.Emitted, wire.Seeded, wire.Scrubbed, wire.RowFault]},
        )
        + "\nand [Goodbye](#goodbye), which clients say too.\n",
        "### Faults of a worker\n\n" + _table(("code", "when"), ((f"`{a}`", b) for a, b in WORKER_FAULTS.items())),
        words.VERSIONS,
    ]
    return "\n".join(sections)


def _messages(kinds: Iterable[type], *, parts: Mapping[type, list[type]], level: int = 3) -> str:
    """Each message, and behind it the structs that only it holds."""
    return "\n".join(_message(one, level) for kind in kinds for one in (kind, *parts.get(kind, ())))


def _message(kind: Any, level: int) -> str:
    hints, notes = get_type_hints(kind, include_extras=True), FIELDS.get(kind)
    if notes is None or notes.keys() != hints.keys():
        raise LocalError(f"{kind.__name__}: notes on {sorted(notes or ())}, expected {sorted(hints)}")
    about = " ".join((kind.__doc__ or "").split())
    if kind.__struct_config__.tag is None:
        about = f"A map without `type`. {about}".rstrip()
    codes = ", ".join(f"`{code}`" for code in REFUSED_WITH.get(kind, ()))
    about += f" Refused with {codes}." if codes else ""
    text = f"{'#' * level} {kind.__name__}\n\n{about}\n"
    if not hints:
        return text
    fields = msgspec.structs.fields(kind)
    rows = (
        (f"`{one.name}`", type_words(hints[one.name]), _default(one, hints), *_note(kind, one.name, notes[one.name]))
        for one in fields
    )
    return f"{text}\n" + _table(("field", "type", "default", "unit", "limits", "meaning"), rows)


def _note(kind: type, name: str, note: Note) -> tuple[str, str, str]:
    limits = [expected_of(name).replace("**", "^")] if kind is wire.RequestOptions else []
    length = next((one.max_length for one in _metas(kind, name) if one.max_length is not None), None)
    limits += [] if length is None else [f"at most {length} characters"]
    limits += [note.limit] if note.limit else []
    return note.unit, "; ".join(limits), note.meaning


def _metas(kind: type, name: str) -> list[msgspec.Meta]:
    hint = get_type_hints(kind, include_extras=True)[name]
    return [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, msgspec.Meta)]


def _default(field: Any, hints: Mapping[str, Any]) -> str:
    if field.required:
        return "required, or nil" if type(None) in get_args(hints[field.name]) else "required"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if value is None:
        return "absent"
    if isinstance(value, msgspec.Raw):
        return "empty"
    return "empty" if value in ("", []) else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def type_words(hint: Any) -> str:
    """A type as a reader of msgpack knows it."""
    if hint in _WORDS:
        return _WORDS[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return type_words(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(type_words(one) for one in arguments if one is not type(None))
    if origin is list:
        one = type_words(arguments[0])
        return f"list of ({one})" if get_args(arguments[0]) else f"list of {one}{'s' * (arguments[0] in _WORDS)}"
    if origin is tuple:
        return f"[{', '.join(map(type_words, arguments))}]"
    if origin is dict:
        return f"map of {type_words(arguments[0])} to {type_words(arguments[1])}"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    raise LocalError(f"{hint!r}: no words for this type")


def _codes() -> str:
    return "\n".join(
        [
            "## Refusals\n",
            "`Refused.code`, of the engine. Codes are stable; messages are for people.\n",
            _table(("code", "when", "then"), ((f"`{code}`", *about) for code, about in REFUSALS.items())),
            "The same error class, `Refused`, with these codes is raised by clients of this package and by commands:\n",
            _table(("code", "when"), ((f"`{code}`", about) for code, about in RAISED_LOCALLY.items())),
            "## How requests end\n",
            _table(("`Finished.reason`", "`state`", "when"), ((f"`{a}`", *about) for a, about in REASONS.items())),
        ]
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(one)} |" for one in lines) + "\n"
