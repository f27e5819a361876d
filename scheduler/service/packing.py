"""The core's inputs and outputs as plain values and back: what traces hold, and what their digests are taken of.

Owns the spelling: an object is `[class name, field, field, ...]` in the order of its fields, a frozen set is a sorted
list. Reading back judges every field by its type: whatever a file holds, it becomes such an object or a `Refused`.
"""

import types
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Union, get_args, get_origin

import attrs
import msgspec

from ...statemachine.errors import Refused
from ..core import acceptance, costs, events, limits, results, step_costs

Pack = Callable[[Any], Any]

MODULES = (events, results, limits, costs, acceptance, step_costs)
CLASSES: dict[str, type[Any]] = {
    made.__name__: made
    for module in MODULES
    for made in vars(module).values()
    if isinstance(made, type) and attrs.has(made)
}
PLAIN = (int, float, str, bool, type(None))
TOKEN_FIELDS = ("prompt", "token_ids", "stop_token_ids", "draft_token_ids", "masked_token_ids", "top_token_ids")
TEXT_FIELDS = ("salt", "stop")  # of a client's own choice
# How many fields these always spell out; later ones are left out at their defaults, as in traces from before them.
FIRST_FIELDS = {"Params": 8, "Options": 5, "PassDetail": 3, "Emitted": 7, "Limits": 17}


def pack(value: Any) -> Any:
    """Return an object as lists and plain values."""
    return _PLAIN[type(value)](value)


class Packing:
    """`pack` with every token id replaced by `rename(id)`, and every text of a client's by `hide(text)`."""

    def __init__(self, rename: Callable[[int], int], hide: Callable[[str], str]) -> None:
        self._rename, self._hide = rename, hide
        self._packers = _packers(self)

    def pack(self, value: Any) -> Any:
        return self._packers[type(value)](value)

    def renamed(self, ids: Any) -> Any:
        """`ids` is None or a list, tuple or frozen set of token ids, or of such lists."""
        if isinstance(ids, int):
            return self._rename(ids)
        return None if ids is None else type(ids)(self.renamed(one) for one in ids)

    def hidden(self, text: Any) -> Any:
        """`text` is a text or a tuple of texts."""
        return self._hide(text) if isinstance(text, str) else tuple(map(self._hide, text))


def as_map(value: Any) -> Any:
    """Return an object as a map for people: its class under `type`, then its fields by name."""
    if attrs.has(type(value)):
        fields = {field.name: as_map(getattr(value, field.name)) for field in attrs.fields(type(value))}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, list | tuple):
        return [as_map(one) for one in value]
    return sorted(value) if isinstance(value, frozenset) else value


def unpack(value: Any) -> Any:
    """Return the object that `pack` made `value` of. Raises `Refused` (BAD_FILE) naming what is wrong."""
    if type(value) is not list or not value or type(value[0]) is not str or value[0] not in CLASSES:
        raise Refused("BAD_FILE", f"{_glance(value)}: expected [class name, fields ...]")
    made, shape, deep, names = _FORMS[value[0]]
    try:
        fields = msgspec.convert([*value[1:], *_left_out(value)], shape)
        if deep:
            fields = list(fields)
            for index, read in deep:
                fields[index] = read(fields[index])
        return made(*fields) if names is None else made(**dict(zip(names, fields, strict=True)))
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise Refused("BAD_FILE", f"{made.__name__}: {error}") from error


def _left_out(value: list[Any]) -> tuple[Any, ...]:
    """The defaults of the fields that `value` was spelled without."""
    first = FIRST_FIELDS.get(value[0])
    return () if first is None else _DEFAULTS[value[0]][max(0, len(value) - 1 - first) :]


# ---- packing ------------------------------------------------------------------------------------------------------


Packers = dict[type[Any], Pack]


def _packers(redacting: Packing | None = None) -> Packers:
    packers: Packers = {}
    for made in CLASSES.values():
        packers[made] = _packer(made, packers, redacting)
    return packers


def _packer(made: type[Any], packers: Packers, redacting: Packing | None) -> Pack:
    """Fields that hold nothing but plain values go as they are; those that may hold objects are looked at."""
    name = made.__name__
    fields = attrs.fields(made)
    names = [one.name for one in fields]
    deep = [index + 1 for index, one in enumerate(fields) if _holds_objects(one.type)]
    changed: list[tuple[int, Pack]] = []
    if redacting is not None:
        changed += [(index + 1, redacting.renamed) for index, one in enumerate(names) if one in TOKEN_FIELDS]
        changed += [(index + 1, redacting.hidden) for index, one in enumerate(names) if one in TEXT_FIELDS]
    get = attrgetter(*names) if len(names) > 1 else None
    later = _DEFAULTS.get(name, ())

    def packed(value: Any) -> list[Any]:
        line = [name, *(get(value) if get is not None else [getattr(value, one) for one in names])]
        for index, change in changed:
            line[index] = change(line[index])
        for index in deep:
            line[index] = _deep(line[index], packers)
        for default in reversed(later):
            if line[-1] != default:
                break
            line.pop()
        return line

    return packed


def _deep(value: Any, packers: Packers) -> Any:
    kind = type(value)
    if kind in PLAIN or kind is dict:
        return value
    if kind is list or kind is tuple:
        return [_deep(one, packers) for one in value]
    if kind is frozenset:
        return sorted(value)
    return packers[kind](value)


def _holds_objects(kind: Any) -> bool:
    parts = get_args(kind)
    if parts:
        return get_origin(kind) is frozenset or any(map(_holds_objects, parts))
    return attrs.has(kind) if isinstance(kind, type) else False


# ---- reading back -------------------------------------------------------------------------------------------------


def _form(made: type[Any]) -> tuple[type[Any], Any, list[tuple[int, Pack]], list[str] | None]:
    """The class, the type of its plain fields together (one judgement for all), readers of the others, and its fields'
    names where it takes them by name."""
    fields = attrs.fields(made)
    plain = [Any if _is_deep(one.type) else one.type for one in fields]
    deep = [(index, _reader(one.type)) for index, one in enumerate(fields) if _is_deep(one.type)]
    names = [one.name for one in fields] if any(one.kw_only for one in fields) else None
    return made, tuple[tuple(plain)] if plain else tuple[()], deep, names  # type: ignore[misc]


def _is_deep(kind: Any) -> bool:
    return _holds_objects(kind) and get_origin(kind) is not frozenset


def _reader(kind: Any) -> Pack:
    """A function that makes a field of this type, which may hold objects, of plain values."""
    parts, origin = get_args(kind), get_origin(kind)
    if not _is_deep(kind):
        return lambda value: msgspec.convert(value, kind)
    if origin is list or origin is tuple:
        one = _reader(parts[0])
        many = list if origin is list else tuple
        return lambda value: many([one(part) for part in _as_list(value)])
    if origin is Union or isinstance(kind, types.UnionType):
        optional = type(None) in parts
        return lambda value: None if optional and value is None else _of(value, parts)
    return lambda value: _of(value, (kind,))


def _of(value: Any, kinds: tuple[Any, ...]) -> Any:
    made = unpack(value)
    if type(made) not in kinds:
        raise TypeError(f"found {type(made).__name__}, expected {' or '.join(one.__name__ for one in kinds)}")
    return made


def _as_list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError(f"found {_glance(value)}, expected a list")
    return value


def _glance(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:80] + "..."


for _made in CLASSES.values():
    attrs.resolve_types(_made)
_DEFAULTS = {
    name: tuple(one.default for one in attrs.fields(CLASSES[name])[first:]) for name, first in FIRST_FIELDS.items()
}
_PLAIN = _packers()
_FORMS = {name: _form(made) for name, made in CLASSES.items()}
