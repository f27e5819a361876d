"""What a caller says, as frames: judged by the engine's own reader before anything is sent.

Owns the refusal of what cannot be said. `client.py` and `client_async.py` call it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...statemachine.errors import EngineError, Refused
from . import codec, messages

_reader = codec.from_client()  # as the engine reads


Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]  # text, token ids, or messages of a chat


def submit_frame(address: str, prompt: Prompt, *, request_id: str, options: dict[str, Any]) -> bytes:
    """Return the frame of a Submit; what cannot be said is refused here, what may not be, by the engine."""
    try:
        raw = msgspec.Raw(msgspec.msgpack.encode(options))
        if isinstance(prompt, str):
            made = messages.Submit(request_id=request_id, prompt=prompt, options=raw)
        elif any(isinstance(one, Mapping) for one in prompt):
            turns = msgspec.convert(list(prompt), list[messages.ChatMessage])
            made = messages.Submit(request_id=request_id, messages=turns, options=raw)
        else:
            made = messages.Submit(request_id=request_id, prompt_token_ids=list(prompt), options=raw)  # type: ignore[arg-type]
    except (TypeError, OverflowError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise Refused("BAD_OPTION", f"{address}: request {request_id}: cannot be sent: {error}") from error
    return frame_of(address, made)


def frame_of(address: str, message: messages.ToScheduler) -> bytes:
    """Encode what a caller said. Raises `Refused` for what the engine could not read.

    Such a frame has no request id that its answer could carry, so it would cost every stream of the client.
    """
    try:
        frame = codec.encode(message)
        _reader.decode(frame)
    except EngineError as error:
        raise Refused("BAD_MESSAGE", f"{address}: {type(message).__name__} cannot be sent: {error}") from error
    return frame
