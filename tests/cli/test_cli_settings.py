"""`config` and `doctor`: a file with every key, every fault of a file, and what a machine lacks."""

import json
import re
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from dsparkd.__main__ import main
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.service.setting_pages import example_toml, toml
from dsparkd.scheduler.service.setting_sources import OTHERS, read_environment, variable_of
from dsparkd.scheduler.service.supervisor import TOKEN_VARIABLE
from dsparkd.statemachine.errors import Refused
from hypothesis import given
from hypothesis import strategies as st

Dsparkd = Callable[..., str]
FIELDS = {field.name: field for field in attrs.fields(Settings)}
PAIR = {"target": "shipped/target", "drafter": "shipped/drafter"}


@pytest.fixture
def dsparkd(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """Run one command in this process and return what it printed, errors included."""
    handler = signal.getsignal(signal.SIGTERM)

    def command(*arguments: str, status: int = 0) -> str:
        found = main(arguments)
        printed = "".join(capsys.readouterr())
        assert found == status, printed
        return printed

    yield command
    signal.signal(signal.SIGTERM, handler)


# ---- the list of keys -------------------------------------------------------------------------------------------


def test_the_example_file_loads_and_equals_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text(example_toml())
    assert Settings.load(path, pair=PAIR) == Settings.load(None, pair=PAIR)
    shown = {line.lstrip("# ").partition(" = ")[0] for line in example_toml().splitlines() if " = " in line}
    assert set(FIELDS) <= shown


@pytest.mark.parametrize("field", FIELDS.values(), ids=lambda field: field.name)
def test_every_key_says_what_it_means_and_its_example_is_lawful(field: "attrs.Attribute[Any]") -> None:
    about = field.metadata
    assert len(about["meaning"]) > 8
    assert "|" not in about["meaning"], "it stands in a table"
    unset = field.default in (None, attrs.NOTHING)
    assert (about["example"] is not None) == unset
    if unset:
        read = tomllib.loads(f"value = {toml(about['example'])}")["value"]
        assert about["check"][0](field.converter(read) if field.converter else read)


WINNERS = st.fixed_dictionaries(
    {}, optional={key: st.integers(1, 999) for key in ("num_slots", "max_queue", "max_restarts")}
)


@given(in_file=WINNERS, in_environment=WINNERS, in_flags=WINNERS)
def test_flags_win_over_the_environment_and_that_over_the_file(
    tmp_path_factory: pytest.TempPathFactory,
    in_file: dict[str, int],
    in_environment: dict[str, int],
    in_flags: dict[str, int],
) -> None:
    path = tmp_path_factory.getbasetemp() / "winners.toml"
    path.write_text("".join(f"{key} = {value}\n" for key, value in in_file.items()))
    environment = {variable_of(key): str(value) for key, value in in_environment.items()}
    settings = Settings.load(path, in_flags, pair=PAIR, environment={"PATH": "/bin", **environment})
    for key in ("num_slots", "max_queue", "max_restarts"):
        expected = {**in_file, **in_environment, **in_flags}.get(key, FIELDS[key].default)
        assert getattr(settings, key) == expected


def test_variables_that_are_no_settings_are_refused_by_name_with_a_suggestion_and_our_own_are_left_alone() -> None:
    environment = {
        "DSPARKD_NUM_SLOT": "3",
        "DSPARKD_MAX_QUEUE": "few",
        TOKEN_VARIABLE: "secret",
        "OTHER_DSPARKD_X": "1",
    }
    with pytest.raises(Refused) as caught:
        Settings.load(None, pair=PAIR, environment=environment)
    text = str(caught.value)
    assert "DSPARKD_NUM_SLOT (environment): unknown, did you mean DSPARKD_NUM_SLOTS?" in text
    assert "max_queue = 'few': expected an integer, 1 or more (from DSPARKD_MAX_QUEUE)" in text
    assert "2 problem(s)" in text
    assert "secret" not in text


def test_every_variable_of_our_prefix_that_the_code_uses_is_a_setting_or_known_as_another() -> None:
    """A new one that nobody listed would be refused by `serve` in its own children's environment."""
    root = Path(__file__).parents[2]
    sources = [path for part in ("scheduler", "worker", "models") for path in (root / part).rglob("*.py")]
    named = {name for path in sources for name in re.findall(r"\bDSPARKD_[A-Z_]+\b", path.read_text())}
    known = {variable_of(key) for key in FIELDS} | OTHERS
    assert TOKEN_VARIABLE in named
    assert named <= known


def test_a_variable_holds_any_value_that_a_file_may_hold() -> None:
    environment = {"DSPARKD_DRAFT_LEN_SCHEDULE": "{1 = 7, 4 = 3}", "DSPARKD_PREFIX_REUSE": "false"}
    values, strange = read_environment({**environment, "DSPARKD_TRACE": "a folder/"}, FIELDS)
    assert values == {"draft_len_schedule": {"1": 7, "4": 3}, "prefix_reuse": False, "trace": "a folder/"}
    assert strange == []
    assert Settings.load(None, pair=PAIR, environment={"DSPARKD_DRAFTER": "none", **environment}).drafter is None


# ---- as a user types it -----------------------------------------------------------------------------------------


def test_config_prints_an_example_that_its_own_check_finds_fine(
    dsparkd: Dsparkd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "engine.toml"
    path.write_text(dsparkd("config", "--example"))
    assert path.read_text() == example_toml()
    monkeypatch.setenv("DSPARKD_NUM_SLOTS", "none")
    assert f"{path}: fine" in dsparkd("config", "--check", str(path)), "the file alone is judged"


def test_config_lists_every_fault_of_a_file_with_status_1(dsparkd: Dsparkd, tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text('num_slot = 3\nmax_queue = 0\nmetrics = "0.0.0.0:9464"\n')
    told = dsparkd("config", "--check", str(path), status=1)
    for part in (str(path), "3 problem(s)", "did you mean num_slots?", "max_queue = 0", "anybody who reaches 0.0.0.0"):
        assert part in told
    path.write_text("num_slots = = 3")
    assert "cannot be read" in dsparkd("config", "--check", str(path), status=1)
    dsparkd("config", status=1)


NAMED = {
    "target": "nowhere",
    "drafter": "nowhere",
    "cost_table": "nowhere/costs.json",
    "confidence_calibration": "nowhere/fitted.json",
    "curve_secret": "nowhere/engine.key",
    "trace": "a file/traces/",
    "trace_redact": "nowhere/key",
    "journal": "a file/journal",
}


def test_each_file_that_settings_name_is_looked_for_before_an_engine_would(dsparkd: Dsparkd, tmp_path: Path) -> None:
    """By `config --check` and by `doctor`, all of them at once, and nothing is made by looking."""
    (tmp_path / "a file").touch()
    lines = [f"{key} = {toml(f'{tmp_path}/{name}')}" for key, name in NAMED.items()]
    lines += [f"curve_clients = {toml(str(tmp_path / 'nowhere'))}", 'policy = "confidence"']
    path = tmp_path / "own.toml"
    path.write_text("\n".join(lines))
    shown = dsparkd("config", "--check", str(path), status=1)
    told = json.loads(dsparkd("doctor", "--json", "--config", str(path), status=1))
    missing = {one["name"] for one in told["findings"] if one["verdict"] == "missing"}
    for key in NAMED:
        assert f"{key} = " in shown
        assert key in missing
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a file", "own.toml"]


def test_an_address_is_judged_whatever_else_is_wrong(dsparkd: Dsparkd, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('bind = "bogus://x"\nmax_queue = "x"\n')
    shown = dsparkd("config", "--check", str(path), status=1)
    assert "bogus://x" in shown
    assert "max_queue = 'x'" in shown


def test_doctor_judges_no_files_and_addresses_that_nobody_asked_about(dsparkd: Dsparkd, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('target = "elsewhere"\nmax_queue = "x"\n')
    told = json.loads(dsparkd("doctor", "--json", "--config", str(path), status=1))
    assert not {"target", "drafter", "bind"} & {one["name"] for one in told["findings"]}


def test_doctor_finds_what_is_there_and_names_each_thing_that_is_missing(dsparkd: Dsparkd, tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        path.write_text(
            f'target = "{tmp_path}/no"\ndrafter = "none"\nmetrics = "{address}"\nbind = "tcp://{address}"\n'
        )
        told = json.loads(dsparkd("doctor", "--json", "--config", str(path), status=1))
    verdicts = {one["name"]: one["verdict"] for one in told["findings"]}
    assert not told["serves"]
    assert {name for name, verdict in verdicts.items() if verdict == "missing"} == {"target", "bind", "metrics"}
    assert {"python", "zmq", "tokenizers", "torch", "cuda", "open_files", "private_folders"} <= set(verdicts)
    path.write_text(f'target = "scripted"\nbind = "ipc://{tmp_path}/a/b/engine"\n')
    shown = dsparkd("doctor", "--config", str(path))
    assert re.search(rf"^good\s+bind\s+ipc://{tmp_path}/a/b/engine is free$", shown, re.MULTILINE)
    assert not (tmp_path / "a").exists(), "it leaves nothing behind"


WITHOUT_TORCH = """
import importlib.util, sys
HIDDEN = ("torch", "safetensors", "numpy", "tokenizers")
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in HIDDEN else find(name, package)
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from dsparkd.__main__ import main
sys.exit(main(["doctor", "--json", "--config", sys.argv[1]]))
"""


def test_doctor_works_where_torch_is_not_installed_and_whatever_the_settings_are(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text("wibble = 1\n")
    command = [sys.executable, "-c", WITHOUT_TORCH, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    told = {one["name"]: one for one in json.loads(done.stdout)["findings"]}
    assert "wibble: unknown" in told["settings"]["detail"]
    assert "dsparkd[worker]" in told["torch"]["detail"]
    verdicts = [told[name]["verdict"] for name in ("torch", "safetensors", "tokenizers", "cuda")]
    assert verdicts == ["missing", "missing", "note", "note"]
