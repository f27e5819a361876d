"""Engines for the examples to talk to, and the examples as a user starts them: as programs of their own."""

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from dsparkd import Client, local
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.service.loop import Service
from dsparkd.scheduler.service.text import tokenizer_beside
from dsparkd.scheduler.trace.scripted import ScriptedModel

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SCRIPTED = {"target": "scripted:mean=3.2", "drafter": "scripted"}
DEADLINE_S = 60


@pytest.fixture
def examples() -> Path:
    return EXAMPLES


@pytest.fixture
def gateway_folder(examples: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The gateway's modules can be imported, as they import each other; they are no package."""
    folder = examples / "gateway"
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for path in folder.glob("*.py"):
        if path.stem != "__main__":
            sys.modules.pop(path.stem, None)


@pytest.fixture(scope="session")
def engine() -> Iterator[Client]:
    """A client of an engine with the scripted worker: token ids only."""
    with local(**SCRIPTED, num_slots=8, timeout_s=DEADLINE_S) as client:
        yield client


@pytest.fixture(scope="session")
def talking() -> Iterator[Client]:
    """The same with the shipped pair's tokenizer, so that its tokens have texts; in this process."""
    tokenizer = tokenizer_beside(str(ROOT / "models/pairs/stdlib-small/target"))
    assert tokenizer is not None
    size = json.loads((ROOT / "models/pairs/stdlib-small/target/config.json").read_text())["vocab_size"]
    with tempfile.TemporaryDirectory(prefix="dsparkd-test-") as folder:
        bind = f"ipc://{folder}/engine"
        target = f"scripted:mean=3.2,vocab={size},step_us=2000"
        service = Service(
            Settings.from_mapping({**SCRIPTED, "target": target, "bind": bind, "max_queue": 24}), tokenizer=tokenizer
        )
        thread = threading.Thread(target=service.run)
        thread.start()
        with Client(bind, timeout_s=DEADLINE_S) as client:
            client.wait_ready()
            yield client
        service.stop_from_signal(2, None)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


@pytest.fixture
def reference() -> Callable[[Sequence[int], int], list[int]]:
    """What any lawful engine answers, greedily."""
    return lambda prompt, length: ScriptedModel(num_slots=1, max_model_len=4096).continuation(list(prompt), length)


def ran(arguments: Sequence[Any], status: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == status, done.stderr + done.stdout
    return done


@pytest.fixture
def program() -> Callable[..., str]:
    """Run a Python example to its end and return what it printed."""
    return lambda *arguments, status=0: ran(arguments, status).stdout


@pytest.fixture
def complaint() -> Callable[..., str]:
    """Run a Python example that refuses its input with status 1, and return what it said of it."""
    return lambda *arguments: ran(arguments, 1).stderr
