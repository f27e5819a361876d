"""The smallest embedding: stream, cancel, and go on in another process.

    python examples/embed.py stream 3,1,4                             # an engine of its own, with the shipped pair
    python examples/embed.py --connect ADDRESS stream "def main():"   # an engine that `dsparkd serve` runs
    python examples/embed.py --connect ADDRESS cancel "def main():"
    python examples/embed.py --connect ADDRESS die place.json "def main():"   # ends in the middle, as if it were killed
    python examples/embed.py --connect ADDRESS resume place.json              # goes on where that one was

Token ids of the output come on stdout, with their text where the engine has a tokenizer.
"""

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import dsparkd
from dsparkd import Client, Stream
from dsparkd.scheduler.wire.messages import Finished, Tokens

PAIR = Path(dsparkd.__file__).parent / "models/pairs/stdlib-small"
OPTIONS = {"max_tokens": 40, "temperature": 0.8, "seed": 7}


def engine(connect: str | None) -> AbstractContextManager[Client]:
    """A client of a running engine, or of one that lives as long as the block."""
    if connect is not None:
        return Client(connect)
    return dsparkd.local(target=str(PAIR / "target"), drafter=str(PAIR / "drafter"))


def prompt_of(text: str) -> str | list[int]:
    ids = text.split(",")
    return [int(one) for one in ids] if all(one.isdigit() for one in ids) else text


def tokens(stream: Stream) -> Iterator[Tokens]:
    """Print what comes and hand it on."""
    for message in stream:
        if isinstance(message, Tokens):
            print(*message.token_ids, message.text or "", flush=True)
            yield message
        elif isinstance(message, Finished):
            print(f"{message.state}: {message.reason}, {message.output_len} tokens", flush=True)


def run_stream(client: Client, text: str) -> None:
    for _ in tokens(client.submit(prompt_of(text), **OPTIONS)):
        pass


def run_cancel(client: Client, text: str) -> None:
    stream = client.submit(prompt_of(text), **{**OPTIONS, "max_tokens": 300})
    for count, _ in enumerate(tokens(stream)):
        if count == 1:
            print("cancelled:", stream.cancel(), flush=True)  # the end still comes, and the loop sees it


def run_die(client: Client, place: Path, text: str) -> None:
    """Note who we are and how far the stream is, then end without a word."""
    stream = client.submit(prompt_of(text), request_id="embed", **{**OPTIONS, "max_tokens": 120})
    for message in tokens(stream):
        index = message.index + len(message.token_ids)
        place.write_text(json.dumps({"token": client.welcome.resume_token, "request": "embed", "index": index}))
        if index >= 10:
            os._exit(9)


def run_resume(connect: str, place: Path) -> None:
    noted = json.loads(place.read_text())
    with Client(connect, resume_token=noted["token"]) as client:
        for _ in tokens(client.resume(noted["request"], from_index=noted["index"])):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connect", metavar="ADDRESS")
    parser.add_argument("what", choices=["stream", "cancel", "die", "resume"])
    parser.add_argument("rest", nargs="+", help="[PLACE] [PROMPT]")
    flags = parser.parse_args()
    if flags.what in ("die", "resume") and flags.connect is None:
        parser.error(f"{flags.what}: expected --connect ADDRESS, an engine that outlives this process")
    if len(flags.rest) != (2 if flags.what == "die" else 1):
        parser.error(f"{flags.what}: expected {'PLACE PROMPT' if flags.what == 'die' else 'one argument'}")
    if flags.what == "resume":
        run_resume(flags.connect, Path(flags.rest[0]))
        return
    with engine(flags.connect) as client:
        client.wait_ready()
        if flags.what == "stream":
            run_stream(client, flags.rest[0])
        elif flags.what == "cancel":
            run_cancel(client, flags.rest[0])
        else:
            run_die(client, Path(flags.rest[0]), flags.rest[1])


if __name__ == "__main__":
    main()
