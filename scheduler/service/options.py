"""A request's options, judged: every problem of one request in one refusal, each with key, value and expectation.

Owns the reading; the rules are the wire's, `translate.py` turns what passed into the core's `Options`. Nothing is
clamped or ignored.
"""

import msgspec

from ...statemachine.errors import Refused
from ..wire.messages import RequestOptions
from ..wire.option_rules import judge, shown


def read_options(raw: msgspec.Raw) -> RequestOptions:
    """Return the options in `raw`. Raises `Refused`: UNSUPPORTED_OPTION when a name is unknown, else BAD_OPTION."""
    try:
        given = msgspec.msgpack.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError, TypeError) as error:
        raise Refused("BAD_OPTION", f"options cannot be read: {error}") from error
    if type(given) is not dict:
        raise Refused("BAD_OPTION", f"options = {shown(given)}: expected a map of names to values")
    unknown, problems = judge(given)
    if problems:
        raise Refused("UNSUPPORTED_OPTION" if unknown else "BAD_OPTION", "; ".join(problems))
    return RequestOptions(**given)
