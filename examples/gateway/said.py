"""What a caller hears: answers, pieces of a stream and errors in the shapes of the OpenAI API.

Owns those shapes. Token texts of log-probabilities are `token_id:N`: the engine tells ids, and text only where it is
certain, which a single token's need not be.
"""

import json
import logging
import re
import secrets
import time
from typing import Any

import attrs
from asked import Bad
from dsparkd import EngineError, EngineLost, Refused
from starlette.exceptions import HTTPException

Told = list[tuple[int, float, list[tuple[int, float]]]]  # token id, log-probability, the best tokens
_LATER = {"DRAINING", "NO_WORKER", "ENGINE_GONE", "ENGINE_RESTARTED", "DRAIN_DEADLINE", "ENGINE_STOPPED", "WORKER_LOST"}
_log = logging.getLogger("gateway")
_FULL = {"QUEUE_FULL", "CLIENT_LIMIT"}
_LATE = "DEADLINE"  # the request's own `deadline_ms` passed
_OURS = {"INTERNAL", "ROW_FAULT"}
_PROMPT = {"BAD_TOKEN", "EMPTY_PROMPT", "PROMPT_TOO_LONG", "TEXT_UNAVAILABLE"}  # what they are said of


@attrs.frozen
class Usage:
    prompt_tokens: int
    completion_tokens: int

    def said(self) -> dict[str, int]:
        return {**attrs.asdict(self), "total_tokens": self.prompt_tokens + self.completion_tokens}


class Completion:
    """Answers of /v1/completions."""

    prefix, whole_object, piece_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str) -> None:
        self._head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def whole(self, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return {**self._head, "object": self.whole_object, "choices": choices, "usage": usage.said()}

    def piece(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        """`usage`: the key with its value, or nothing."""
        return {**self._head, "object": self.piece_object, "choices": choices, **usage}

    def choice(self, index: int, text: str, told: Told | None, reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": told and self._logprobs(told), "finish_reason": reason}

    def first(self, index: int) -> dict[str, Any] | None:
        """What a stream says of a choice before it has text."""
        return None

    part = choice  # of a stream

    def _logprobs(self, told: Told) -> dict[str, Any]:
        return {
            "tokens": [_token(one) for one, _, _ in told],
            "token_logprobs": [logprob for _, logprob, _ in told],
            "top_logprobs": [{_token(one): logprob for one, logprob in best} for _, _, best in told],
        }


class Chat(Completion):
    """Answers of /v1/chat/completions."""

    prefix, whole_object, piece_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, index: int, text: str, told: Told | None, reason: str | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": told and self._logprobs(told), "finish_reason": reason}

    def first(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def part(self, index: int, text: str, told: Told | None, reason: str | None) -> dict[str, Any]:
        delta = {"content": text} if text else {}
        return {"index": index, "delta": delta, "logprobs": told and self._logprobs(told), "finish_reason": reason}

    def _logprobs(self, told: Told) -> dict[str, Any]:
        def one(token_id: int, logprob: float) -> dict[str, Any]:
            return {"token": _token(token_id), "logprob": logprob, "bytes": None}

        best = [[one(*pair) for pair in pairs] for _, _, pairs in told]
        return {
            "content": [{**one(token_id, logprob), "top_logprobs": best[at]}
                        for at, (token_id, logprob, _) in enumerate(told)],
            "refusal": None,
        }  # fmt: skip


def event(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def error_of(error: Exception, *, address: str = "", given: str = "prompt") -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the body of what went wrong.

    `address`: of the engine, which is no affair of the caller's. `given`: what the caller calls its prompt.
    """
    message, code = _without_our_names(str(error), address), getattr(error, "code", None)
    if isinstance(error, Bad):
        return error.status, _error(str(error), "invalid_request_error", error.param, error.code)
    if isinstance(error, HTTPException):
        return error.status_code, _error(error.detail, "invalid_request_error", None, code)
    if isinstance(error, EngineLost):
        return 503, _error("the engine does not answer", "server_error", None, "ENGINE_LOST")
    if not isinstance(error, Refused):
        if isinstance(error, EngineError):  # all others are logged by the server
            _log.error("a fault of the engine or its client", exc_info=error)
        return 500, _error("a fault of the gateway or the engine; its log has the whole", "server_error", None, code)
    if code in _FULL:
        return 429, _error(message, "rate_limit_error", None, code)
    if code in _LATER:
        return 503, _error(message, "server_error", None, code)
    if code == _LATE:
        return 504, _error(message, "server_error", None, code)
    if code in _OURS:
        return 500, _error(message, "server_error", None, code)
    named = re.match(r"(\w+) = ", message)
    return 400, _error(message, "invalid_request_error", given if code in _PROMPT else named and named[1], code)


def _without_our_names(message: str, address: str) -> str:
    """A message of the client's without the engine's address and the ids that this gateway gave its requests."""
    message = re.sub(r"^request \S+: ", "", message.removeprefix(f"{address}: "))
    return message.replace(address, "the engine") if address else message


def _error(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    """What a caller sent may be quoted in it, and UTF-8 cannot say all that JSON can."""
    said = {"message": message, "type": kind, "param": param, "code": code}
    return {"error": {key: value and value.encode("utf-8", "backslashreplace").decode() for key, value in said.items()}}


def _token(token_id: int) -> str:
    return f"token_id:{token_id}"
