"""Between the wire and the core: client messages to events, outputs to client messages.

Owns the names: client identities and tokens, request ids, and the integers that the core knows them by; and each
request's text. Never a socket, and no decision that is the core's: what is refused here cannot be said to the core at
all. `clients.py` calls it; `worker_rows.py` does the same for commands and reports.
"""

import secrets

import attrs

from ...statemachine.errors import Refused
from ..core import events, results
from ..wire import messages as wire
from .options import read_options
from .text import IncrementalText, Tokenizer

RequestOutput = results.Tokens | results.Accepted | results.Ended | results.CancelAck | results.Refusal

MAX_CHARACTERS_A_TOKEN = 64  # a text longer than this for each position is no prompt, whatever its tokens are


@attrs.define
class Record:
    """One interned request, until its terminal output."""

    client: int
    request_id: str
    prompt_len: int
    seed: int
    passes: bool
    label: str | None
    arrived_ns: int
    text: IncrementalText | None
    accepted: bool = False


@attrs.define
class Client:
    """One client: `identity` is its present connection, None while it is away."""

    number: int
    token: str
    identity: bytes | None
    heard_ns: int
    ids: dict[str, int] = attrs.field(factory=dict)  # request id -> request


class Translate:
    """The tables of names. `vocab_size` and `eos_token_ids` come with the first READY."""

    def __init__(self, tokenizer: Tokenizer | None = None, *, max_model_len: int = 512) -> None:
        self.tokenizer = tokenizer
        self.max_model_len = max_model_len
        self.vocab_size: int | None = None
        self.eos_token_ids: frozenset[int] = frozenset()
        self.clients: dict[int, Client] = {}
        self.records: dict[int, Record] = {}
        self._by_identity: dict[bytes, Client] = {}
        self._by_token: dict[str, Client] = {}
        self._num_clients = 0
        self._num_requests = 0

    # ---- clients ------------------------------------------------------------------------------------------------

    def client_of(self, identity: bytes) -> Client | None:
        return self._by_identity.get(identity)

    def hello(self, identity: bytes, message: wire.ClientHello, now_ns: int) -> events.ClientHello:
        """Intern a client; a known resume token makes it the one that it was, on its new connection."""
        client = self._by_identity.get(identity)
        if client is None and message.resume_token is not None:
            client = self._by_token.get(message.resume_token)
        if client is None:
            self._num_clients += 1
            client = Client(self._num_clients, secrets.token_urlsafe(16), None, now_ns)
            self.clients[client.number] = client
            self._by_token[client.token] = client
        self.part(client)
        client.identity, client.heard_ns = identity, now_ns
        self._by_identity[identity] = client
        return events.ClientHello(client.number)

    def part(self, client: Client) -> None:
        """Its connection is gone; its name and requests stay."""
        if client.identity is not None:
            self._by_identity.pop(client.identity, None)
            client.identity = None

    def forget(self, number: int) -> None:
        client = self.clients.pop(number, None)
        if client is not None:
            self.part(client)
            self._by_token.pop(client.token, None)

    # ---- requests: in -------------------------------------------------------------------------------------------

    def submit(self, client: Client, message: wire.Submit, now_ns: int) -> events.Submit:
        """Return the event. Raises `Refused` for what the core could not be told; a duplicate id is its affair."""
        options = read_options(message.options)
        prompt = self._prompt(message)
        seed = secrets.randbelow(2**63) if options.seed is None else options.seed
        request = client.ids.get(message.request_id)
        if request is None:
            self._num_requests += 1
            request = client.ids[message.request_id] = self._num_requests
            self.records[request] = Record(
                client=client.number,
                request_id=message.request_id,
                prompt_len=len(prompt),
                seed=seed,
                passes=options.passes,
                label=options.label,
                arrived_ns=now_ns,
                text=IncrementalText(self.tokenizer) if self.tokenizer else None,
            )
        deadline_ns = None if options.deadline_ms is None else now_ns + options.deadline_ms * 1_000_000
        return events.Submit(client.number, request, prompt, self._options(options, seed), deadline_ns)

    def cancel(self, client: Client, message: wire.CancelRequest) -> events.Cancel | None:
        """Return the event, or None when this client has no such request: there is nothing to cancel."""
        request = client.ids.get(message.request_id)
        return None if request is None else events.Cancel(client.number, request)

    def resume(self, client: Client, message: wire.ResumeRequest) -> events.Resume:
        request = client.ids.get(message.request_id)
        if request is None:
            raise Refused("UNKNOWN_ID", f"{message.request_id!r}: no live request of this client has this id")
        if message.from_index < 0:
            raise Refused("BAD_OPTION", f"from_index = {message.from_index}: expected 0 or more")
        return events.Resume(client.number, request, message.from_index)

    def _prompt(self, message: wire.Submit) -> tuple[int, ...]:
        if (message.prompt is None) == (message.prompt_token_ids is None):
            raise Refused("BAD_PROMPT", "expected exactly one of prompt and prompt_token_ids")
        if message.prompt is not None:
            if self.tokenizer is None:
                raise Refused("TEXT_UNAVAILABLE", "prompt is text, but this engine has no tokenizer: send token ids")
            length, longest = len(message.prompt), MAX_CHARACTERS_A_TOKEN * self.max_model_len
            if length > longest:  # tokenising a book would hold up everybody
                raise Refused("PROMPT_TOO_LONG", f"prompt of {length} characters: expected at most {longest}")
            prompt = tuple(self.tokenizer.encode(message.prompt))
        else:
            prompt = tuple(message.prompt_token_ids or ())
        if not prompt:
            raise Refused("EMPTY_PROMPT", "the prompt is empty: expected one token or more")
        if min(prompt) < 0 or (self.vocab_size is not None and max(prompt) >= self.vocab_size):
            bad = min(prompt) if min(prompt) < 0 else max(prompt)
            raise Refused("BAD_TOKEN", f"token id {bad} at {prompt.index(bad)}: expected 0..{_top(self.vocab_size)}")
        return prompt

    def _options(self, options: wire.RequestOptions, seed: int) -> events.Options:
        stops = frozenset(options.stop_token_ids)
        return events.Options(
            max_tokens=options.max_tokens,
            stop_token_ids=stops if options.ignore_eos else stops | self.eos_token_ids,
            max_draft_len=options.max_draft_len,
            salt=options.cache_salt or "",
            params=events.Params(
                temperature=float(options.temperature),
                top_k=options.top_k,
                top_p=float(options.top_p),
                min_p=float(options.min_p),
                seed=seed,
                sample_index=options.sample_index,
                margins=options.margins,
                passes=options.passes,
            ),
        )

    # ---- requests: out ------------------------------------------------------------------------------------------

    def settle(self, output: RequestOutput) -> Record:
        """Return the record that `output` is about, and give its name free when this output is its last.

        Called at once, in the order of outputs, so that the same id may be submitted again in the same poll.
        """
        record = self.records[output.request]
        if type(output) is results.Tokens:  # nearly all of them
            return record
        if isinstance(output, results.Accepted):
            record.accepted = True
        elif isinstance(output, results.Ended) or (isinstance(output, results.Refusal) and not record.accepted):
            del self.records[output.request]
            client = self.clients.get(record.client)
            if client is not None:
                client.ids.pop(record.request_id, None)
        return record

    def tell(self, record: Record, output: RequestOutput) -> wire.Message:
        """Return what the client hears of `output`. Called in the order of outputs too, for the text's sake."""
        if isinstance(output, results.Tokens):
            return self._tokens(record, output)
        if isinstance(output, results.Accepted):
            return wire.Accepted(request_id=record.request_id, prompt_len=record.prompt_len, seed=record.seed)
        if isinstance(output, results.Ended):
            return self._finished(record, output)
        if isinstance(output, results.CancelAck):
            return wire.CancelAck(request_id=record.request_id, live=output.live)
        return wire.Refused(code=output.code, message=output.message, request_id=record.request_id)

    def _tokens(self, record: Record, output: results.Tokens) -> wire.Tokens:
        detail = output.detail
        verify = None
        if record.passes and output.draft_len is not None:
            verify = wire.Pass(
                start_pos=output.start_pos,
                draft_len=output.draft_len,
                accepted_len=output.accepted_len,
                emitted_token_ids=output.token_ids,
                draft_token_ids=detail.draft_token_ids if detail else None,
                confidence_logits=detail.confidence_logits if detail else None,
            )
        return wire.Tokens(
            request_id=record.request_id,
            index=output.index,
            token_ids=output.token_ids,
            accepted_len=output.accepted_len,
            text=_text(record.text, output) if record.text else None,
            verify=verify,
            margins=detail.margins if detail else None,
        )

    def _finished(self, record: Record, output: results.Ended) -> wire.Finished:
        counts = attrs.asdict(output.counts)
        counts |= {name: list(counts[name]) for name in ("accepted_at", "verified_at")}
        return wire.Finished(
            request_id=record.request_id,
            state=output.state,
            reason=output.reason,
            prompt_len=output.prompt_len,
            output_len=output.output_len,
            counts=wire.RequestCounts(**counts),
            transitions=output.transitions,
            text=record.text.flush() if record.text else None,
            message=output.message,
        )


def _text(text: IncrementalText, output: results.Tokens) -> str:
    """The text of `output`; a resumed stream hears some of it again."""
    if output.draft_len is None and output.index < text.num_ids:
        text.rewind(output.index)
    return text.push(output.token_ids)


def _top(vocab_size: int | None) -> str:
    return "" if vocab_size is None else str(vocab_size - 1)
