"""Between the wire and the core: client messages to events, outputs to client messages.

Owns the names: client identities and tokens, request ids, and the integers that the core knows them by; and each
request's text. Never a socket, and no decision that is the core's: what is refused here cannot be said to the core at
all. `clients.py` calls it; `worker_rows.py` does the same for commands and reports.
"""

import secrets
from collections.abc import Iterable, Sequence

import attrs
import msgspec

from ...statemachine.errors import Refused
from ..core import events, results
from ..core.ledger import Ledger
from ..wire import messages as wire
from .chat import ChatTemplate
from .core_options import core_options
from .options import read_options
from .promises import Promise
from .stops import StopFinder, mark_stops
from .telling import Record, RequestOutput, tell_again
from .text import IncrementalText, Tokenizer
from .told_logprobs import LogprobsTold

MAX_CHARACTERS_A_TOKEN = 64  # a text longer than this for each position is no prompt, whatever its tokens are


@attrs.define
class Client:
    """One client: `identity` is its present connection, None while it is away."""

    number: int
    token: str
    identity: bytes | None
    heard_ns: int
    outlived: bool = False  # it came with the token of an engine that is gone
    resumed: bool = False  # it was here before its present connection
    ids: dict[str, int] = attrs.field(factory=dict)  # request id -> request


class Translate:
    """The tables of names. `vocab_size` and `eos_token_ids` come with the first READY."""

    def __init__(
        self, tokenizer: Tokenizer | None = None, *, max_model_len: int = 512, chat: ChatTemplate | None = None
    ) -> None:
        self.tokenizer, self.chat = tokenizer, chat
        self.max_model_len = max_model_len
        self.vocab_size: int | None = None
        self.eos_token_ids: frozenset[int] = frozenset()
        self.clients: dict[int, Client] = {}
        self.records: dict[int, Record] = {}
        self.num_with_stops = 0  # of them
        self._by_identity: dict[bytes, Client] = {}
        self._by_token: dict[str, Client] = {}
        self._num_clients = 0
        self._num_requests = 0

    # ---- clients ------------------------------------------------------------------------------------------------

    def client_of(self, identity: bytes) -> Client | None:
        return self._by_identity.get(identity)

    def hello(self, identity: bytes, message: wire.ClientHello, now_ns: int) -> events.ClientHello:
        """Intern a client; a known resume token makes it the one that it was, on its new connection."""
        client = self._by_token.get(message.resume_token or "") or self._by_identity.get(identity)
        if client is not None:
            client.resumed = True
        else:
            self._num_clients += 1
            outlived = message.resume_token is not None
            client = Client(self._num_clients, secrets.token_urlsafe(16), None, now_ns, outlived)
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
        asked = core_options(options, seed=seed, eos_token_ids=self.eos_token_ids, vocab_size=self.vocab_size)
        deadline_ns = None if options.deadline_ms is None else now_ns + options.deadline_ms * 1_000_000
        request = client.ids.get(message.request_id)
        if request is not None:
            return events.Submit(client.number, request, prompt, asked, deadline_ns)
        submit = events.Submit(client.number, self._num_requests + 1, prompt, asked, deadline_ns)
        record = self._record(submit, message.request_id, bytes(message.options), now_ns)
        self._intern(client, record)
        return submit

    def _record(
        self, submit: events.Submit, request_id: str, raw: bytes, now_ns: int, told: LogprobsTold | None = None
    ) -> Record:
        options = read_options(msgspec.Raw(raw))
        return Record(
            client=submit.client,
            request_id=request_id,
            prompt_len=len(submit.prompt),
            seed=submit.options.params.seed,
            passes=options.passes,
            label=options.label,
            arrived_ns=now_ns,
            text=IncrementalText(self.tokenizer) if self.tokenizer else None,
            submit=submit,
            options=raw,
            stops=self._stops(options),
            told=(told or LogprobsTold()) if options.logprobs else None,
        )

    def _intern(self, client: Client, record: Record) -> None:
        request = record.submit.request
        self.skip_numbers([request])
        self.records[request] = record
        client.ids[record.request_id] = request
        self.num_with_stops += record.stops is not None

    def cancel(self, client: Client, message: wire.CancelRequest) -> events.Cancel | None:
        """Return the event, or None when this client has no such request: there is nothing to cancel."""
        request = client.ids.get(message.request_id)
        return None if request is None else events.Cancel(client.number, request)

    def resume(self, client: Client, message: wire.ResumeRequest) -> events.Resume:
        request = client.ids.get(message.request_id)
        if request is None and client.outlived:
            text = f"{message.request_id!r}: the engine was restarted and knows nothing of it"
            raise Refused("ENGINE_RESTARTED", text)
        if request is None:
            raise Refused("UNKNOWN_ID", f"{message.request_id!r}: no request of this client has this id")
        if message.from_index < 0:
            raise Refused("BAD_OPTION", f"from_index = {message.from_index}: expected 0 or more")
        return events.Resume(client.number, request, message.from_index)

    # ---- what an earlier scheduler left -------------------------------------------------------------------------

    def skip_numbers(self, requests: Iterable[int]) -> None:
        """Numbers that are taken, by requests that have ended too."""
        self._num_requests = max(self._num_requests, *requests, 0)

    def recover_client(self, number: int, token: str, now_ns: int) -> events.ClientHello:
        """A client that is away: whoever brings its token is it."""
        client = Client(number, token, None, now_ns)
        self._num_clients = max(self._num_clients, number)
        self.clients[number], self._by_token[token] = client, client
        return events.ClientHello(number)

    def recover(self, promise: Promise, deadline_ns: int | None, now_ns: int) -> events.Recover:
        """A live request of a client that is known again. deadline_ns: on the clock of this process."""
        submit = attrs.evolve(promise.submit, deadline_ns=deadline_ns)
        record = self._record(submit, promise.request_id, promise.options, now_ns, promise.logprobs)
        record.accepted = True
        if record.text is not None:
            record.text.push_each(promise.token_ids)
        self._intern(self.clients[submit.client], record)
        return events.Recover(submit, tuple(promise.token_ids))

    def again(self, promise: Promise, from_index: int, now_ns: int) -> list[wire.Message]:
        """What a request that has ended said, from output `from_index` on. Raises `Refused` for an index beyond it."""
        if not 0 <= from_index <= len(promise.token_ids):
            raise Refused("BAD_INDEX", f"from_index = {from_index}: expected 0..{len(promise.token_ids)}")
        record = self._record(promise.submit, promise.request_id, promise.options, now_ns, promise.logprobs)
        return tell_again(record, promise, from_index)

    # ---- requests: what they say -----------------------------------------------------------------------------------

    def _prompt(self, message: wire.Submit) -> tuple[int, ...]:
        given = [one for one in (message.prompt, message.prompt_token_ids, message.messages) if one is not None]
        if len(given) != 1:
            raise Refused("BAD_PROMPT", "expected exactly one of prompt, prompt_token_ids and messages")
        if message.prompt_token_ids is not None:
            prompt = tuple(message.prompt_token_ids)
        else:
            prompt = self._tokens_of(message.prompt, message.messages or [])
        if not prompt:
            raise Refused("EMPTY_PROMPT", "the prompt is empty: expected one token or more")
        if min(prompt) < 0 or (self.vocab_size is not None and max(prompt) >= self.vocab_size):
            bad = min(prompt) if min(prompt) < 0 else max(prompt)
            raise Refused("BAD_TOKEN", f"token id {bad} at {prompt.index(bad)}: expected 0..{_top(self.vocab_size)}")
        return prompt

    def _tokens_of(self, text: str | None, messages: Sequence[wire.ChatMessage]) -> tuple[int, ...]:
        """Of a text, or of a chat's messages, whose template writes special tokens itself."""
        if self.tokenizer is None:
            raise Refused("TEXT_UNAVAILABLE", "prompt is text, but this engine has no tokenizer: send token ids")
        longest = MAX_CHARACTERS_A_TOKEN * self.max_model_len
        length = len(text or "") + sum(len(one.role) + len(one.content) for one in messages)
        if length > longest:  # tokenising a book would hold up everybody
            raise Refused("PROMPT_TOO_LONG", f"prompt of {length} characters: expected at most {longest}")
        if text is not None:
            return tuple(self.tokenizer.encode(text))
        if self.chat is None:
            raise Refused(
                "TEMPLATE_UNAVAILABLE", "messages: the target's checkpoint has no chat template: send a prompt"
            )
        return tuple(self.tokenizer.encode(self.chat.render(messages), whole=False))

    def _stops(self, options: wire.RequestOptions) -> StopFinder | None:
        if not options.stop:
            return None
        if self.tokenizer is None:
            raise Refused("TEXT_UNAVAILABLE", "stop is text, but this engine has no tokenizer: send stop_token_ids")
        return StopFinder(self.tokenizer, options.stop, min_tokens=options.min_tokens)

    def mark_stops(self, event: events.Input, ledger: Ledger) -> events.Input:
        """Return a worker's event, a report with what its texts mean for the requests that have stop strings."""
        if type(event) is events.Report and self.num_with_stops:
            mark_stops(event, ledger, lambda request: self.records[request].stops)
        return event

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
            self.num_with_stops -= record.stops is not None
            client = self.clients.get(record.client)
            if client is not None:
                client.ids.pop(record.request_id, None)
        return record


def _top(vocab_size: int | None) -> str:
    return "" if vocab_size is None else str(vocab_size - 1)
