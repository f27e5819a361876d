"""The load of `chaos.py`: users that keep streams going, are killed, and come back as who they were.

Owns what each request was asked and has heard; `chaos.py` kills and judges.
"""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import attrs
from dsparkd import Client, Refused
from dsparkd.scheduler.wire import messages as wire

PATIENCE_S = 90.0  # after the last kill; whoever is not over by then hangs
NUM_STREAMS = 4  # of each user
ANSWER_S = 16.0  # a quarter of it passes before a user asks what became of a stream


@attrs.define
class Asked:
    """One request of the load, what the undisturbed run said to it, and what was said in the chaos."""

    name: str
    prompt: list[int]
    options: dict[str, Any]
    expected: list[int] = attrs.field(factory=list)
    margins: list[float] = attrs.field(factory=list)
    heard: list[int] = attrs.field(factory=list)
    problem: str = ""  # duplicated, lost, or how it ended
    was_accepted: bool = False  # as far as its user has heard: from then on it is promised
    never_came: bool = False
    is_over: bool = False


def asked(number: int, *, pair: bool) -> Asked:
    """Greedy and coupled in turn; the prompt follows from the number."""
    dice = random.Random(number)
    prompt = [dice.randrange(4, 200 if pair else 500) for _ in range(dice.randrange(4, 40))]
    options: dict[str, Any] = {"max_tokens": dice.randrange(20, 120), "ignore_eos": True}
    options |= {"temperature": 0.8, "seed": number, "top_k": 40} if number % 2 else {}
    return Asked(f"r{number}", prompt, options | ({"margins": True} if pair else {}))


class Load(threading.Thread):
    """One user: keeps some streams going, and is sometimes killed and comes back as the same client."""

    def __init__(self, address: str, numbers: Iterator[int], ended: threading.Event, *, pair: bool) -> None:
        super().__init__(daemon=True)
        self.address, self.numbers, self.ended, self.pair = address, numbers, ended, pair
        self.asked: list[Asked] = []
        self.killed = threading.Event()
        self.num_kills = 0
        self.left: list[Any] = []  # streams of a killed client: a dead process does not close them
        self.recovery_ms: list[float] = []
        self.last_kill: float | None = None  # of anybody; told by the killer

    def run(self) -> None:
        token: str | None = None
        live: dict[str, Asked] = {}
        while True:
            client = Client(self.address, timeout_s=ANSWER_S, resume_token=token)
            token = client.welcome.resume_token
            self.killed.clear()
            readers = [threading.Thread(target=self.read, args=(client, live), daemon=True) for _ in range(NUM_STREAMS)]
            waiting = list(live.values())
            self.resuming = waiting
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            if not self.killed.is_set():
                client.close()
                return
            self.num_kills += 1
            abandon(client)
            self.left.clear()

    def read(self, client: Client, live: dict[str, Asked]) -> None:
        """One stream after another, until there is no more to do or the client is killed."""
        while not self.killed.is_set():
            with suppress(IndexError):
                one = self.resuming.pop()
                self.hear(client.resume(one.name, from_index=len(one.heard)), one, live)
                continue
            if self.ended.is_set():
                return
            one = asked(next(self.numbers), pair=self.pair)
            self.asked.append(one)
            live[one.name] = one
            self.hear(client.submit(one.prompt, request_id=one.name, **one.options), one, live)

    def hear(self, stream: Any, one: Asked, live: dict[str, Asked]) -> None:
        self.left.append(stream)
        try:
            for message in stream:
                one.was_accepted = True
                if isinstance(message, wire.Tokens):
                    self.take(one, message)
                elif isinstance(message, wire.Finished):
                    one.is_over = True
                    one.problem = one.problem or ("" if message.state == "FINISHED" else message.reason)
                    live.pop(one.name)
                if self.killed.is_set():
                    return
        except Refused as refused:
            # Its user was killed before the submit arrived: nothing was promised.
            one.never_came = refused.code == "UNKNOWN_ID" and self.num_kills > 0 and not one.was_accepted
            one.problem, one.is_over = refused.code, True
            live.pop(one.name, None)

    def take(self, one: Asked, message: wire.Tokens) -> None:
        if message.index < len(one.heard):
            one.problem = "duplicated"
        elif message.index > len(one.heard):
            one.problem = "lost"
        one.heard += message.token_ids
        if self.last_kill is not None:
            self.recovery_ms.append(1e3 * (time.monotonic() - self.last_kill))
            self.last_kill = None


def abandon(client: Client) -> None:
    """As if its process were killed: its socket is gone, and it has said nothing."""
    client._closing = True
    client._outgoing.clear()
    client._wake()
    client._thread.join()
