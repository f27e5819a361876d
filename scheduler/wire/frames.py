"""What a caller says, as frames: judged by the engine's own reader before anything is sent.

Owns the refusal of what cannot be said, each fault with its key, its value and what was expected. `client.py` and
`client_async.py` call it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ...statemachine.errors import EngineError, Refused, refuse_all
from . import codec, messages
from .base import MAX_ID_LEN
from .curve import ClientKeys
from .sockets import endpoint_problems

MAX_TIMEOUT_S = 1e8  # three years: beyond that, clocks of 32 bits of milliseconds are only one of the troubles
_MAX_SHOWN = 5  # bad entries of one prompt that a refusal lists
_ENTRY_ERRORS = (TypeError, OverflowError, ValueError, RecursionError, msgspec.MsgspecError)
_reader = codec.from_client()  # as the engine reads


Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]  # text, token ids, or messages of a chat


def submit_frame(address: str, prompt: Prompt, *, request_id: str, options: dict[str, Any]) -> bytes:
    """Return the frame of a Submit; what cannot be said is refused here, what may not be, by the engine."""
    try:
        if request_id == "" or not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
            raise TypeError("it is not of a kind that is sent")
        raw = msgspec.Raw(msgspec.msgpack.encode(options))
        if isinstance(prompt, str):
            made = messages.Submit(request_id=request_id, prompt=prompt, options=raw)
        elif any(isinstance(one, Mapping) for one in prompt):
            turns = msgspec.convert(list(prompt), list[messages.ChatMessage])
            made = messages.Submit(request_id=request_id, messages=turns, options=raw)
        else:
            made = messages.Submit(request_id=request_id, prompt_token_ids=list(prompt), options=raw)  # type: ignore[arg-type]
        return _frame(made)
    except (EngineError, *_ENTRY_ERRORS) as error:
        raise _unsayable(address, prompt, request_id, options, error) from error


def resume_frame(address: str, request_id: str, from_index: int) -> bytes:
    problems = [*id_problems(request_id, least=0)]
    if type(from_index) is not int or not 0 <= from_index < 2**63:
        problems.append(f"from_index = {_shown(from_index)}: expected an integer in 0..2**63 - 1")
    _refuse(address, "a resume", problems)
    return _frame(messages.ResumeRequest(request_id=request_id, from_index=from_index))


def cancel_frame(address: str, request_id: str) -> bytes:
    _refuse(address, "a cancel", [*id_problems(request_id, least=0)])
    return _frame(messages.CancelRequest(request_id=request_id))


def id_of(address: str, request_id: str | None) -> str | None:
    """Return a caller's own id, or None where it wants any. Raises `Refused` for what is none."""
    _refuse(address, "samples", [] if request_id is None else [*id_problems(request_id)])
    return request_id


def id_problems(request_id: Any, *, least: int = 1) -> Iterator[str]:
    """least: characters. An id that somebody else made may be empty."""
    if not _is_text(request_id) or not least <= len(request_id) <= MAX_ID_LEN:
        yield f"request_id = {_shown(request_id)}: expected text of {least}..{MAX_ID_LEN} characters"


def check_client(address: Any, *, timeout_s: Any, resume_token: Any, keys: Any) -> None:
    """Judge what a client is made of, before anything is opened. Raises `Refused` listing every fault."""
    problems: list[str] = []
    if not _is_text(address):
        problems.append(f"address = {_shown(address)}: expected text, such as ipc:///run/me/engine")
    else:
        problems += endpoint_problems(address, has_keys=keys is not None)
    if not _is_number(timeout_s) or not 0 < timeout_s <= MAX_TIMEOUT_S:
        problems.append(f"timeout_s = {_shown(timeout_s)}: expected seconds, a number above 0, up to {MAX_TIMEOUT_S:g}")
    if resume_token is not None and not (_is_text(resume_token) and len(resume_token) < codec.MAX_FRAME_BYTES // 8):
        problems.append(f"resume_token = {_shown(resume_token)}: expected that of a welcome, text, or none")
    if keys is not None and not isinstance(keys, ClientKeys):
        problems.append(f"keys = {_shown(keys)}: expected those of curve_keys(...), or none")
    refuse_all(f"connect {address}" if isinstance(address, str) else "connect", problems)


def check_wait(address: str, timeout_s: Any) -> float:
    """Return how long a caller waits for a worker. Raises `Refused`."""
    if _is_number(timeout_s) and timeout_s >= 0:
        return float(min(timeout_s, MAX_TIMEOUT_S))
    raise Refused("BAD_CONFIG", f"{address}: timeout_s = {_shown(timeout_s)}: expected seconds, 0 or more")


def _frame(message: messages.ToScheduler) -> bytes:
    """Encode what a caller said, and read it as the engine will.

    A frame that it could not read has no request id that its answer could carry, so it would cost every stream of the
    client.
    """
    frame = codec.encode(message)
    _reader.decode(frame)
    return frame


def _refuse(address: str, what: str, problems: list[str], code: str = "BAD_OPTION") -> None:
    if problems:
        raise Refused(code, f"{address}: {what} cannot be sent: {'; '.join(problems)}")


def _unsayable(address: str, prompt: Any, request_id: Any, options: dict[str, Any], error: Exception) -> Refused:
    """Everything that is wrong with a request that cannot be sent, and what the engine would say of its options."""
    from .option_rules import judge

    about_prompt, about_id = [*_prompt_problems(prompt)], [*id_problems(request_id)]
    reasons = {name: reason for name, value in options.items() if (reason := _why_not({name: value}))}
    given = {name: value if name in reasons else _as_read(value) for name, value in options.items()}
    unknown, about_options = judge(given, reasons)
    problems = [*about_id, *about_prompt, *about_options]
    if not problems:  # one by one all is well: the whole is too large
        return Refused("BAD_MESSAGE", f"{address}: request {request_id}: cannot be sent: {error}")
    code = "UNSUPPORTED_OPTION" if unknown else "BAD_OPTION" if about_options or about_id else "BAD_PROMPT"
    return Refused(code, f"{address}: request {_shown(request_id)}: cannot be sent: {'; '.join(problems)}")


def _prompt_problems(prompt: Any) -> Iterator[str]:
    if isinstance(prompt, str):
        if not _is_text(prompt):
            yield f"prompt = {_shown(prompt)}: expected text that is whole, without half of a surrogate pair"
    elif not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
        yield f"prompt = {_shown(prompt)}: expected text, a list of token ids, or a list of messages"
    else:
        is_chat = any(isinstance(one, Mapping) for one in prompt)
        expected = "a message, {role: text, content: text}" if is_chat else "a token id"
        bad = [at for at, one in enumerate(prompt) if not (_is_message(one) if is_chat else _is_id(one))]
        yield from (f"prompt[{at}] = {_shown(prompt[at])}: expected {expected}" for at in bad[:_MAX_SHOWN])
        if len(bad) > _MAX_SHOWN:
            yield f"prompt: and {len(bad) - _MAX_SHOWN} more like these"


def _is_id(one: Any) -> bool:
    # The engine says which of these are ids.
    return isinstance(one, int) and not isinstance(one, bool) and -(2**63) <= one < 2**64


def _is_message(one: Any) -> bool:
    return isinstance(one, Mapping) and set(one) == {"role", "content"} and all(map(_is_text, one.values()))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and _why_not(value) is None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # not NaN


def _why_not(value: Any) -> str | None:
    """Why msgpack cannot carry it, or None."""
    try:
        msgspec.msgpack.encode(value)
    except _ENTRY_ERRORS as error:
        return str(error)
    return None


def _as_read(value: Any) -> Any:
    """As the engine will see it: a tuple is a list."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


def _shown(value: Any) -> str:
    from .option_rules import shown

    return shown(value)
