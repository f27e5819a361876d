"""Every command that README and docs show is run as it stands there, in the order of each page, in a folder of its own.

Names in capitals stand for what a reader has; sockets and ports are moved to free ones. A `serve` goes on while the
page's next commands run. What takes minutes is run elsewhere, and that place must exist. All this takes two minutes and
more, so it is not among the tests of `make test`; CI runs it before them.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from dsparkd import Client, EngineLost, curve_keys
from dsparkd.models.shipped import shipped_pair

pytestmark = pytest.mark.commands
ROOT = Path(__file__).parent.parent.parent
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
ELSEWHERE = {
    "make demo": "test_demo_writes_the_documented_figures_and_finds_no_difference",
    "make test": ".ci/run",
    "dsparkd check": "test_nothing_forbidden_happens_in_any_small_scope",
    "dsparkd check --quick": "test_no_mutant_survives_but_the_listed_equivalents",
    "dsparkd docs": ".ci/run",
    "python examples/gateway": "tests/examples",
}
BESIDE = ("config", "doctor", "generate", "keys", "top")  # what one runs while an engine serves
QUICK = {"bench": ["--rounds", "1", "--max-tokens", "8", "--concurrency", "1"], "simulate": []}
TEXTS = ("def main():\n", "class Queue:\n", "import os\n", "for name in sorted(", "    def __init__(self")
PROMPTS = "".join(json.dumps({"prompt": text, "max_tokens": 60}) + "\n" for text in TEXTS)
ARRIVALS = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00.0,20,5\n2023-11-16 18:00:01.5,30,9\n"


def commands_of(page: str) -> list[str]:
    found = []
    for block in re.findall(r"```\w*\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        for line in block.splitlines():
            command = re.split(r"\s+#", line)[0].strip()
            if re.match(r"([A-Z_]+=\S+ )*(dsparkd|make|python) ", command):
                found.append(command)
    return found


@attrs.define
class Reader:
    """Somebody who types a page's commands one after another."""

    folder: Path
    port: int
    serving: "subprocess.Popen[bytes] | None" = None
    address: str = ""

    def run(self, command: str) -> None:
        for shown, place in ELSEWHERE.items():
            if command == shown or command.startswith(f"{shown} --connect"):
                assert place in everything_run(), f"{command} is said to be run by {place}"
                return
        words = shlex.split(self.here(command))
        environment = dict(os.environ)
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            environment[name] = value
        assert words[0] == "dsparkd", f"{command}: no test knows how to run it"
        target = None
        if ">" in words:
            target = self.folder / words[words.index(">") + 1]
            words = words[: words.index(">")]
        if words[1] == "serve":
            self.serve(words, environment)
            return
        if words[1] not in BESIDE:
            self.stop()
        words += ["--once"] if words[1] == "top" else QUICK.get(words[1], [])
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
        if target is not None:
            target.write_text(done.stdout)

    def here(self, command: str) -> str:
        pair = shipped_pair()
        moved = {
            "ipc:///tmp/me/engine": f"ipc://{self.folder}/engine",
            "tcp://0.0.0.0:5599": f"tcp://0.0.0.0:{self.port}",
            "tcp://host:5599": f"tcp://127.0.0.1:{self.port}",
            "127.0.0.1:9464": f"127.0.0.1:{self.port}",
            "TARGET": str(pair.target),
            "DRAFTER": str(pair.drafter),
            " PATH ": f" {pair.target} ",
            "--max-model-len 8192": "--max-model-len 500",
            "ADDRESS": f"ipc://{self.folder}/engine",
        }
        for shown, place in moved.items():
            command = command.replace(shown, place)
        return command

    def serve(self, words: list[str], environment: dict[str, str]) -> None:
        self.stop()
        if "--bind" in words:
            self.address = words[words.index("--bind") + 1].replace("0.0.0.0", "127.0.0.1")
        else:
            self.address = f"ipc://{self.folder}/engine"
            words += ["--bind", self.address]
        if "--trace" in words:
            (self.folder / words[words.index("--trace") + 1]).unlink(missing_ok=True)
        log = (self.folder / "log").open("wb")
        command = [sys.executable, "-m", *words]
        self.serving = subprocess.Popen(command, cwd=self.folder, env=environment, stderr=log)
        keys = None
        if "curve_secret=keys/engine.key_secret" in words:
            keys = curve_keys(self.folder / "keys/engine.key", self.folder / "keys/clients/anna.key_secret")
        try:
            with Client(self.address, timeout_s=20, keys=keys) as client:
                client.wait_ready()
                for text in TEXTS:
                    client.generate(text, max_tokens=60, passes=True)
        except EngineLost:
            raise AssertionError((self.folder / "log").read_text()) from None

    def stop(self) -> None:
        if self.serving is not None:
            self.serving.send_signal(signal.SIGTERM)
            assert self.serving.wait(60) == 0
            self.serving = None


def everything_run() -> str:
    """All names of tests, and of what CI runs besides."""
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    return tests + (ROOT / ".ci/run").read_text() + ".ci/run tests/examples"


@pytest.fixture
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("me")
    for name in ("rows.jsonl", "PROMPTS.jsonl"):
        (folder / name).write_text(PROMPTS)
    (folder / "arrivals.csv").write_text(ARRIVALS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        made = Reader(folder, free.getsockname()[1])
    config = subprocess.run([sys.executable, "-m", "dsparkd", "config", "--example"], capture_output=True, text=True)
    (folder / "engine.toml").write_text(config.stdout)
    yield made
    if made.serving is not None:
        made.serving.kill()
        made.serving.wait()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)])
def test_every_command_of_the_page_does_what_it_is_shown_for(page: str, reader: Reader) -> None:
    for command in commands_of(page):
        began = time.monotonic()
        reader.run(command)
        print(f"{time.monotonic() - began:6.1f} s  {command}")
    reader.stop()


def test_a_wrong_command_is_noticed(reader: Reader) -> None:
    """As if a page still showed a flag of yesterday."""
    for command in ("dsparkd generate x --speed 9", "dsparkd nonsense", "dsparkd config --check nowhere.toml"):
        with pytest.raises(AssertionError, match=command.split()[1]):
            reader.run(command)
