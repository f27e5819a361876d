"""Addresses that are refused, sockets of dead instances, and peers that do not read."""

import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from dsparkd.scheduler.wire.sockets import MAX_IPC_PATH_BYTES, Router, dealer, endpoint_problems
from dsparkd.statemachine.errors import Refused


@pytest.fixture
def context() -> Iterator[Any]:
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dsparkd-test-") as made:
        yield Path(made)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ipc:///" + "x" * MAX_IPC_PATH_BYTES, "108 bytes, expected 107"),
        ("ipc:///tmp/" + "é" * 60, "expected 107 or less"),
        ("ipc://", "expected a path"),
        ("ipc://@abstract", "expected a path"),
        ("ipc://*", "expected a path"),
        ("ipc:///tmp/a\0b", "zero byte"),
        ("tcp://0.0.0.0:5000", "CURVE"),
        ("tcp://*:5000", "CURVE"),
        ("tcp://example.org:5000", "CURVE"),
        ("tcp://[::2]:5000", "CURVE"),
        ("tcp://127.0.0.1", "port"),
        ("tcp://127.0.0.1:70000", "port"),
        ("inproc://x", "expected ipc://PATH or tcp://"),
        ("udp://127.0.0.1:1", "expected ipc://PATH or tcp://"),
        ("", "expected ipc://PATH or tcp://"),
    ],
)
def test_an_address_that_is_not_ours_to_serve_is_refused_with_the_reason(context: Any, address: str, said: str) -> None:
    assert any(said in problem for problem in endpoint_problems(address))
    for connect in (lambda: Router(context, address), lambda: dealer(context, address)):
        with pytest.raises(Refused) as caught:
            connect()
        assert said in str(caught.value)


@pytest.mark.parametrize(
    "address", ["ipc:///" + "x" * (MAX_IPC_PATH_BYTES - 1), "tcp://127.0.0.1:5", "tcp://[::1]:*", "tcp://localhost:80"]
)
def test_an_address_on_this_machine_is_taken(address: str) -> None:
    assert endpoint_problems(address) == []


def test_the_sockets_folder_and_file_are_for_us_alone(context: Any, folder: Path) -> None:
    router = Router(context, f"ipc://{folder}/new/deep/s")
    assert stat.S_IMODE((folder / "new/deep").stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "new/deep/s").stat().st_mode) == 0o600
    router.close()
    assert not (folder / "new/deep/s").exists()


def test_a_folder_where_anyone_may_replace_the_socket_is_refused(context: Any, folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(Refused, match="anyone may replace"):
        Router(context, f"ipc://{folder}/s")


def test_the_socket_of_a_dead_instance_is_taken_over(context: Any, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(folder / "s"))
    assert (folder / "s").exists()
    Router(context, f"ipc://{folder}/s").close()


def test_a_port_that_somebody_has_is_refused_as_taken(context: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(Refused) as caught:
        Router(context, f"tcp://127.0.0.1:{other.getsockname()[1]}")
    assert caught.value.code == "ADDRESS_IN_USE"


def test_the_socket_of_a_live_instance_and_any_other_file_are_refused(context: Any, folder: Path) -> None:
    router = Router(context, f"ipc://{folder}/s")
    with pytest.raises(Refused) as caught:
        Router(context, f"ipc://{folder}/s")
    assert caught.value.code == "ADDRESS_IN_USE"
    assert (folder / "s").exists()
    (folder / "file").write_text("precious")
    with pytest.raises(Refused, match="is no socket"):
        Router(context, f"ipc://{folder}/file")
    assert (folder / "file").read_text() == "precious"
    router.close()


def test_l090_a_peer_that_does_not_read_fills_its_outbox_and_is_lost_while_others_are_served(
    context: Any, folder: Path, eventually: Any
) -> None:
    """No send blocks; the outbox is bounded; what was sent arrives in order."""
    router = Router(context, f"ipc://{folder}/s", high_water=2, max_outbox=5)
    lazy, eager = (dealer(context, router.address, high_water=2) for _ in range(2))
    identities = {}
    for name, one in (("lazy", lazy), ("eager", eager)):
        one.send(name.encode())
        assert router.socket.poll(60_000)
        identities[name] = router.receive()[0][0]
    frame = bytes(1_000_000)  # more than the kernel keeps for a pipe
    lost: dict[bytes, str] = {}
    for count in range(200):
        router.send(identities["lazy"], frame)
        router.send(identities["eager"], b"%d" % count)
        eventually(lambda: router.flush() or eager.poll(10), "the eager peer's frame")
        assert eager.recv() == b"%d" % count
        lost |= router.take_lost()
        if lost:
            break
    assert list(lost) == [identities["lazy"]]
    assert "wait in its outbox" in lost[identities["lazy"]]
    assert not router.waits


def test_frames_that_waited_in_the_outbox_arrive_in_order(context: Any, folder: Path) -> None:
    router = Router(context, f"ipc://{folder}/s", high_water=1, max_outbox=1000)
    peer = dealer(context, router.address, high_water=1)
    peer.send(b"hello")
    assert router.socket.poll(60_000)
    identity = router.receive()[0][0]
    frames = [b"%d" % index + bytes(300_000) for index in range(40)]
    for frame in frames:
        router.send(identity, frame)
    assert router.waits
    received = []
    while len(received) < len(frames):
        router.flush()
        if peer.poll(10):
            received.append(peer.recv())
    assert received == frames
    router.flush()
    assert not router.waits
    assert not router.take_lost()


def test_a_peer_without_a_route_is_reported_once(context: Any, folder: Path) -> None:
    router = Router(context, f"ipc://{folder}/s")
    router.send(b"nobody", b"frame")
    assert router.take_lost() == {b"nobody": "no route to it"}
    assert router.take_lost() == {}
