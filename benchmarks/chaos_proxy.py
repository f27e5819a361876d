"""A proxy between clients and an engine that loses, delays and repeats frames, and breaks connections, by dice.

Owns one thread. Each client connection gets a connection of its own to the engine, as it would have without a proxy.
The frames of a handshake pass: a real connection that lost them would be broken off, which the proxy does on its own.
"""

import random
import threading
import time
from collections import deque
from typing import Any, Self

import zmq
from dsparkd.scheduler.wire import codec
from dsparkd.scheduler.wire import messages as wire
from dsparkd.statemachine.errors import PeerError

LOSS, REPEAT, DELAY = 0.002, 0.004, 0.01  # of frames
MOST_DELAY_S = 0.2
HANDSHAKE = (wire.ClientHello, wire.Connected, wire.Welcome)


class Proxy:
    """`address` is where clients connect."""

    def __init__(self, behind: str, *, seed: int) -> None:
        self.behind, self.address = behind, behind + "-proxied"
        self.num_faults = 0
        self._dice = random.Random(seed)
        self._context: zmq.Context[Any] = zmq.Context()
        self._front = self._context.socket(zmq.ROUTER)
        self._front.bind(self.address)
        self._ends: dict[bytes, Any] = {}  # by client connection: ours to the engine
        self._late: deque[tuple[float, Any, list[bytes]]] = deque()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._decoders = (codec.from_client(), codec.for_client())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._front, zmq.POLLIN)
        while not self._over.is_set():
            ready = dict(poller.poll(5))
            if self._front in ready:
                identity, frame = self._front.recv_multipart()
                self._pass(self._end(identity, poller), [frame], frame, 0)
            for identity, end in list(self._ends.items()):
                if end in ready:
                    frame = end.recv()
                    self._pass(self._front, [identity, frame], frame, 1)
            self._deliver_late()

    def _end(self, identity: bytes, poller: zmq.Poller) -> Any:
        """Ours to the engine for a client's connection. The engine's probe answer comes by it, as ours probes too."""
        if identity not in self._ends:
            end = self._context.socket(zmq.DEALER)
            end.setsockopt(zmq.LINGER, 0)
            end.setsockopt(zmq.PROBE_ROUTER, 1)
            end.connect(self.behind)
            self._ends[identity] = end
            poller.register(end, zmq.POLLIN)
        return self._ends[identity]

    def _pass(self, to: Any, parts: list[bytes], frame: bytes, way: int) -> None:
        if frame == b"":
            return  # a client's probe: our own connection to the engine has probed already
        roll = self._dice.random()
        if self._is_handshake(frame, way) or roll > LOSS + REPEAT + DELAY:
            self._send(to, parts)
            return
        self.num_faults += 1
        if roll < LOSS:
            return
        if roll < LOSS + REPEAT:
            self._send(to, parts)
            self._send(to, parts)
            return
        self._late.append((time.monotonic() + self._dice.uniform(0, MOST_DELAY_S), to, parts))

    def _deliver_late(self) -> None:
        now = time.monotonic()
        due, self._late = [one for one in self._late if one[0] <= now], deque(x for x in self._late if x[0] > now)
        for _, to, parts in due:
            self._send(to, parts)

    def _send(self, to: Any, parts: list[bytes]) -> None:
        try:
            to.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            self.num_faults += 1  # a full pipe loses it

    def _is_handshake(self, frame: bytes, way: int) -> bool:
        try:
            return isinstance(self._decoders[way].decode(frame), HANDSHAKE)
        except PeerError:
            return False
