"""Beyond this machine only those speak whom the allow-list names, and no key is shown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dsparkd import Client, EngineLost, Refused, curve_keys
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.wire.curve import make_keys, server_keys

Serve = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Keys of an engine, of two clients that it knows, and of a stranger."""
    make_keys(tmp_path, "engine")
    for name in ("anna", "otto"):
        make_keys(tmp_path / "clients", name)
    make_keys(tmp_path, "stranger")
    return tmp_path


def guarded(serve: Serve, folder: Path, **settings: Any) -> Any:
    keys = {"curve_secret": str(folder / "engine.key_secret"), "curve_clients": str(folder / "clients")}
    return serve(**keys, **settings)


def test_who_is_on_the_list_is_served_and_nobody_else_hears_a_word(serve: Serve, folder: Path, eventually: Any) -> None:
    engine = guarded(serve, folder)
    server = folder / "engine.key"
    with Client(engine.address, keys=curve_keys(server, folder / "clients" / "anna.key_secret")) as anna:
        anna.wait_ready()
        assert len(anna.generate([1, 2, 3], max_tokens=9).token_ids) == 9
        strangers = {
            "another key": curve_keys(server, folder / "stranger.key_secret"),
            "none": None,
            "the wrong engine's": curve_keys(folder / "stranger.key", folder / "clients" / "otto.key_secret"),
        }
        for keys in strangers.values():
            with pytest.raises(EngineLost):
                Client(engine.address, keys=keys, timeout_s=0.5)
        assert anna.stats()["clients_turned_away"] >= 1
        assert anna.generate([1, 2, 3], max_tokens=9).state == "FINISHED"
    for path in folder.rglob("*.key_secret"):
        secret = path.read_text().split('secret-key = "')[1].split('"')[0]
        assert secret not in engine.log()
        assert secret not in repr(strangers)


def test_beyond_loopback_keys_are_asked_for(folder: Path) -> None:
    anywhere = {"target": "scripted", "bind": "tcp://0.0.0.0:5600"}
    with pytest.raises(Refused, match=r"bind: .*expected loopback or CURVE keys"):
        Settings.from_mapping(anywhere)
    for key in ("curve_secret", "curve_clients"):
        with pytest.raises(Refused, match=rf"{key} = 'x': expected curve_\w+ with it"):
            Settings.from_mapping({**anywhere, key: "x"})
    Settings.from_mapping({**anywhere, "curve_secret": "x", "curve_clients": "y"})


def spoiled(folder: Path, what: str) -> tuple[Path, Path]:
    secret, clients = folder / "engine.key_secret", folder / "clients"
    if what == "others may read it":
        secret.chmod(0o640)
    elif what == "cannot be read":
        secret = folder / "nowhere"
    elif what == "holds no secret key":
        secret = folder / "engine.key"
        secret.chmod(0o600)
    elif what == "expected a folder":
        clients = folder / "nobody"
    else:
        (clients / "odd.key").write_text("no key")
    return secret, clients


@pytest.mark.parametrize(
    "what", ["others may read it", "cannot be read", "holds no secret key", "expected a folder", r"odd.key.*cannot be"]
)
def test_keys_that_cannot_serve_are_refused_by_key_and_file(folder: Path, what: str) -> None:
    secret, clients = spoiled(folder, what)
    with pytest.raises(Refused, match=what):
        server_keys(secret, clients)


def test_keys_are_made_for_their_owner_alone_and_never_replaced(tmp_path: Path) -> None:
    public, secret = make_keys(tmp_path / "new", "anna")
    assert secret.stat().st_mode & 0o777 == 0o600
    assert 'secret-key = "' in secret.read_text()
    assert "secret-key" not in public.read_text()
    with pytest.raises(Refused, match="exists already"):
        make_keys(tmp_path / "new", "anna")
