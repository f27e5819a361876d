"""An engine without sockets between clients without sockets: the real edge and core, and channels that lose, repeat and
break as they are told. Only the router, the worker and the clock are fakes."""

from collections import deque
from typing import Any

import attrs
from dsparkd.scheduler.core import results
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.service.clients import ClientEdge
from dsparkd.scheduler.service.promises import Promises
from dsparkd.scheduler.service.translate import Client, Translate
from dsparkd.scheduler.testing import Bench
from dsparkd.scheduler.wire import codec
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.conversation import Conversation
from dsparkd.scheduler.wire.frames import submit_frame
from dsparkd.statemachine.errors import EngineError
from hypothesis import note

LIMITS = Limits(num_slots=2, max_model_len=96, max_queue=64)
FOR_CLIENTS = (
    results.Welcome | results.ForgetClient | results.Accepted | results.Refusal | results.Tokens | results.Ended
    | results.CancelAck
)  # fmt: skip
PATIENCE = 400  # turns without any fault after which every stream must be over


class Unheard(Bench):
    """A bench that leaves it to others to hear what requests say."""

    def _take(self, outputs: list[results.Output]) -> None:
        for output in outputs:
            if isinstance(output, results.Command):
                self.in_flight = output


class Wire:
    """What the edge takes for its router: frames by identity, in and out."""

    def __init__(self) -> None:
        self.arrived: deque[tuple[bytes, list[bytes]]] = deque()
        self.sent: dict[bytes, deque[bytes]] = {}
        self.waits = False

    def receive(self, limit: int = 256) -> list[tuple[bytes, list[bytes]]]:
        found, self.arrived = list(self.arrived), deque()
        return found

    def send(self, identity: bytes, frame: bytes) -> None:
        self.sent.setdefault(identity, deque()).append(frame)

    def take_lost(self) -> dict[bytes, str]:
        return {}

    def flush(self) -> None: ...


class Engine:
    """One scheduler's life. `promises` is what an earlier one left, or empty."""

    def __init__(self, promises: Promises, **worker: Any) -> None:
        self.wire, self.promises = Wire(), promises
        self.bench = Unheard(limits=LIMITS, **worker)
        self.edge = ClientEdge(
            self.wire,  # type: ignore[arg-type]
            Translate(max_model_len=LIMITS.max_model_len),
            keep_alive_s=1e6,
            max_early=64,
            questions=lambda question: wire.Stats(values={}),
            welcome=self._welcome,
            promises=promises,
            keep=promises.add,
        )
        self.edge.ready = True
        self._feed(self.edge.recover(0))

    def turn(self) -> None:
        self._feed(self.edge.receive(0))
        self._hear(self.bench.tick())
        self._hear(self.bench.answer())
        self.edge.send()

    def _feed(self, inputs: Any) -> None:
        for event in inputs:
            self._hear(self.bench.send(event))

    def _hear(self, outputs: list[results.Output]) -> None:
        for output in outputs:
            if isinstance(output, FOR_CLIENTS):
                self.edge.take(output)

    def _welcome(self, client: Client) -> wire.Welcome:
        return wire.Welcome(client.number, client.token, 1.0, 2, 96, has_text=False, resumed=client.resumed)


@attrs.define
class Heard:
    """A stream's sink: its tokens, each at its index, and how it ended."""

    token_ids: list[int] = attrs.field(factory=list)
    ends: list[Any] = attrs.field(factory=list)
    num_accepted: int = 0

    def put(self, item: Any) -> None:
        assert not self.ends, f"{item} comes after {self.ends}"
        if isinstance(item, wire.Tokens):
            assert item.index == len(self.token_ids), f"tokens at {item.index} after {len(self.token_ids)}"
            self.token_ids += item.token_ids
        elif isinstance(item, wire.Accepted):
            self.num_accepted += 1
        elif isinstance(item, wire.Finished | EngineError):
            self.ends.append(item)


class Speaker:
    """A client's conversation over one connection after another; frames wait until somebody carries them."""

    def __init__(self, resume_token: str | None = None) -> None:
        self.conversation = Conversation("here", resume_token=resume_token)
        self.num_connections = 0
        self.outgoing: deque[bytes] = deque()
        self.connect()

    @property
    def identity(self) -> bytes:
        return b"connection %d of %d" % (self.num_connections, id(self))

    def connect(self) -> None:
        """A new connection, whose probe goes ahead. What waited is sent on it, but for an older one's hello."""
        self.num_connections += 1
        decode = codec.from_client().decode
        self.outgoing = deque(one for one in self.outgoing if one and not isinstance(decode(one), wire.ClientHello))
        self.outgoing.appendleft(b"")

    def submit(self, request_id: str, prompt: list[int], **options: Any) -> Heard:
        frame, sink = submit_frame("here", prompt, request_id=request_id, options=options), Heard()
        self.outgoing.append(frame)
        self.conversation.submit(request_id, sink, frame)
        return sink

    def resume(self, request_id: str, sink: Heard) -> None:
        from_index = len(sink.token_ids)
        self.outgoing.extend(self.conversation.resume(request_id, sink, from_index))

    def hear(self, frame: bytes) -> None:
        self.outgoing.extend(self.conversation.feed(codec.for_client().decode(frame)))


@attrs.frozen
class Fault:
    kind: str
    turn: int
    which: int


class World:
    """One client, one engine after another."""

    def __init__(self, faults: list[Fault], *, journal: bool = True) -> None:
        self.faults, self.journal, self.turn = faults, journal, 0
        self.promises = Promises(most_kept=64)
        self.engine = Engine(self.promises, mean=2.5)
        self.speaker = Speaker()
        self._echoes = False  # a submit was told twice
        self.late: dict[str, list[bytes]] = {"up": [], "down": []}  # frames that come a turn or more after theirs

    def step(self) -> None:
        """Frames up, a turn of the engine, frames down; each of this turn's faults strikes once."""
        due = [one for one in self.faults if one.turn == self.turn]
        kinds = {one.kind for one in due}
        if due:
            note(f"turn {self.turn}: {due}")
        if "die" in kinds:
            self.promises = self.promises if self.journal else Promises(most_kept=64)
            self.engine = Engine(self.promises, mean=2.5)
            self.speaker.connect()
        if "break" in kinds:
            self.speaker.connect()
        if {"die", "break"} & kinds:
            self.late = {"up": [], "down": []}
        if "nudge" in kinds or self.turn % 20 == 19:
            self.speaker.outgoing.extend(self.speaker.conversation.nudge())
        self._carry_up(due)
        self.engine.turn()
        self._carry_down(due)
        self.turn += 1

    def _carry_up(self, due: list[Fault]) -> None:
        frames = self._strike(list(self.speaker.outgoing), due, "up", spared=b"")
        self.speaker.outgoing.clear()
        self.engine.wire.arrived.extend((self.speaker.identity, [frame]) for frame in frames)

    def _carry_down(self, due: list[Fault]) -> None:
        frames = self._strike(list(self.engine.wire.sent.pop(self.speaker.identity, ())), due, "down", spared=CONNECTED)
        self.engine.wire.sent.clear()  # of connections that are gone
        for frame in frames:
            self.speaker.hear(frame)

    def _strike(self, frames: list[bytes], due: list[Fault], way: str, *, spared: bytes) -> list[bytes]:
        """Lose, repeat or hold back a frame. The handshake of a connection is not struck: one that lost it would be
        broken off. Nor are answers once a submit was told twice: a client that gets the second answer alone cannot tell
        its own echo from an id that is taken."""
        held, self.late[way] = self.late[way], []
        for fault in due:
            at = fault.which % len(frames) if frames else None
            if at is None or frames[at] == spared or is_handshake(frames[at], way):
                continue
            if self._echoes and fault.kind in ("lose down", "late down"):
                continue
            self._echoes |= way == "up" and fault.kind == "repeat up" and is_submit(frames[at])
            if fault.kind == f"lose {way}":
                del frames[at]
            elif fault.kind == f"repeat {way}":
                frames.insert(at, frames[at])
            elif fault.kind == f"late {way}":
                self.late[way].append(frames.pop(at))
        return frames + held

    def run(self, heard: list[Heard]) -> None:
        while not all(one.ends for one in heard):
            self.step()
            assert self.turn < 40 + PATIENCE, "a stream hangs"


CONNECTED = codec.encode(wire.Connected())
HELLOS = (wire.ClientHello, wire.Welcome)


def is_submit(frame: bytes) -> bool:
    return bool(frame) and isinstance(codec.from_client().decode(frame), wire.Submit)


def is_handshake(frame: bytes, way: str) -> bool:
    decoder: Any = codec.from_client() if way == "up" else codec.for_client()
    return isinstance(decoder.decode(frame), HELLOS)
