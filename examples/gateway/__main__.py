"""`python examples/gateway --connect ADDRESS`: the HTTP server. Needs `pip install dsparkd[gateway]`.

Owns the flags and the listening socket; `app.py` answers. It is an example to build on: there is no authentication, so
it listens on loopback unless told otherwise.
"""

import argparse
import socket

import uvicorn
from app import make_app
from chat import Template, plain_chat


def main() -> None:
    parser = argparse.ArgumentParser(prog="gateway", description=__doc__)
    parser.add_argument("--connect", required=True, help="the engine's address")
    parser.add_argument("--model", default="dsparkd", help="the name that callers must ask for")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one and prints it")
    chats = parser.add_mutually_exclusive_group()
    chats.add_argument("--checkpoint", metavar="FOLDER", help="chat with the template of this checkpoint's tokenizer")
    chats.add_argument(
        "--plain-chat", action="store_true", help="chat as lines `role: content`, for checkpoints without a template"
    )
    flags = parser.parse_args()
    template = plain_chat if flags.plain_chat else Template.of(flags.checkpoint) if flags.checkpoint else None
    listening = socket.create_server((flags.host, flags.port))
    print(f"http://{flags.host}:{listening.getsockname()[1]}/v1", flush=True)
    app = make_app(flags.connect, model=flags.model, template=template)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main()
