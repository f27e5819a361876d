"""What goes wrong around an engine: junk on its sockets, dying and hanging workers, signals, silent clients."""

import os
import random
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq
from dsparkd import Client, EngineLost, Refused, local
from dsparkd.scheduler.trace.scripted import ScriptedModel
from dsparkd.scheduler.wire import codec
from dsparkd.scheduler.wire import messages as wire

Serve = Callable[..., Any]
PROMPT = [2, 7, 1, 8]


def reference(prompt: list[int], length: int) -> list[int]:
    return ScriptedModel(num_slots=1, max_model_len=4096).continuation(prompt, length)


def worker_address(engine: Any) -> str:
    arguments = Path(f"/proc/{engine.worker_pid()}/cmdline").read_bytes().split(b"\0")
    return arguments[arguments.index(b"--connect") + 1].decode()


def pour_junk(address: str) -> None:
    """Everything that a scraper, a fuzzer or a confused peer might send."""
    path = address.removeprefix("ipc://")
    for data in (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", random.Random(1).randbytes(5000), b"\xff", b""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
            raw.connect(path)
            try:
                raw.sendall(data)
            except BrokenPipeError:
                continue  # it hung up on us, which is a lawful answer
    context: zmq.Context[Any] = zmq.Context()
    whole = codec.encode(wire.Submit(request_id="x", prompt_token_ids=[1, 2, 3]))
    frames: list[list[bytes]] = [[whole[:cut]] for cut in range(0, len(whole), 3)]
    frames += [[b""], [b"", b""], [whole, whole], [codec.HEADER + b"\x91" * 50_000], [random.Random(2).randbytes(900)]]
    frames += [[codec.encode(message)] for message in _forgeries()]
    frames += [[bytes(codec.MAX_FRAME_BYTES + 1)]]
    for parts in frames:
        dealer = context.socket(zmq.DEALER)
        dealer.connect(address)
        dealer.send_multipart(parts)
        dealer.close(linger=2000)
    context.term()


def _forgeries() -> list[wire.Message]:
    """Well-formed words of somebody who proved nothing."""
    report = wire.Report(session=1, step_id=1, rows=[wire.Emitted(0, 1, [1], 0, 0)])
    return [
        wire.Hello(session=1, token="guess", pid=1),
        wire.Ready(session=1, num_slots=99, max_model_len=9999, vocab_size=10),
        report,
        wire.Goodbye(session=1),
        wire.Submit(request_id="x", prompt_token_ids=[1]),
        wire.GetStats(),
    ]


@pytest.mark.parametrize("moment", ["before-ready", "after-ready"])
def test_l092_junk_on_either_socket_is_dropped_and_counted_and_never_fatal(
    serve: Serve, tmp_path: Path, eventually: Any, moment: str
) -> None:
    gate = tmp_path / "gate"
    engine = serve(target=f"scripted:gate={gate}")
    if moment == "after-ready":
        gate.touch()
    client = engine.client(ready=moment == "after-ready")
    pour_junk(engine.address)
    pour_junk(worker_address(engine))
    gate.touch()
    client.wait_ready(60)
    assert client.generate(PROMPT, max_tokens=20).token_ids == reference(PROMPT, 20)
    stats = client.stats()
    assert stats["client_frames_dropped"] > 10
    assert stats["worker_frames_dropped"] > 10
    assert stats["respawns"] == 0, "no junk counts as the worker's"
    assert "client_frame_dropped" in engine.log()


def test_a_client_that_sends_junk_is_told_and_keeps_its_requests(serve: Serve) -> None:
    engine = serve(target="scripted:step_us=1000,mean=1")
    engine.client()
    context: zmq.Context[Any] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(engine.address)
    decoder = codec.for_client()
    for frame in (
        codec.encode(wire.ClientHello()),
        codec.encode(wire.Submit(request_id="x", prompt_token_ids=PROMPT)),
        b"junk",
    ):
        dealer.send(frame)
    received = []
    while not (received and isinstance(received[-1], wire.Finished)):
        assert dealer.poll(60_000)
        received.append(decoder.decode(dealer.recv()))
    assert [one.code for one in received if isinstance(one, wire.Refused)] == ["BAD_MESSAGE"]
    assert received[-1].state == "FINISHED"
    dealer.close(linger=0)
    context.term()


def test_requests_survive_the_workers_sigkill_token_for_token(serve: Serve, is_alive: Callable[[int], bool]) -> None:
    engine = serve(target="scripted:mean=2,step_us=2000")
    client = engine.client()
    streams = [client.submit([n, 5], max_tokens=150) for n in range(12)]
    for stream in streams[:8]:
        next(stream)
        next(stream)
    killed = engine.worker_pid()
    engine.kill_worker()
    results = [_tokens_of(stream) for stream in streams]
    assert [end.state for _, end in results] == ["FINISHED"] * 12
    for n, (tokens, _) in enumerate(results):
        expected = reference([n, 5], 150)
        assert tokens == {index: expected[index] for index in tokens}
        assert max(tokens) == 149
    assert client.stats()["respawns"] == 1
    assert not is_alive(killed)
    assert engine.worker_pid() != killed
    assert "killed by SIGKILL" in engine.log()


def _tokens_of(stream: Any) -> tuple[dict[int, int], Any]:
    tokens: dict[int, int] = {}
    ends = []
    for message in stream:
        if isinstance(message, wire.Tokens):
            assert not tokens.keys() & range(message.index, message.index + len(message.token_ids)), "told twice"
            tokens.update(enumerate(message.token_ids, message.index))
        elif isinstance(message, wire.Finished):
            ends.append(message)
    (end,) = ends
    return tokens, end


@pytest.mark.parametrize("how", ["exit_at=5", "hang_at=5", "fault_at=5"])
def test_a_worker_that_dies_hangs_or_faults_in_a_step_costs_no_token(serve: Serve, how: str) -> None:
    client = serve(target=f"scripted:mean=2,{how}", step_deadline_s=0.5).client()
    result = client.generate(PROMPT, max_tokens=60)
    assert result.token_ids == reference(PROMPT, 60)
    assert result.state == "FINISHED"
    assert result.counts.num_restarts == 1, "a step of one row that faults is a row fault"


def test_a_stopped_worker_is_noticed_by_its_silence_although_it_is_idle(serve: Serve, eventually: Any) -> None:
    engine = serve(heartbeat_s=0.05)
    client = engine.client()
    os.kill(engine.worker_pid(), signal.SIGSTOP)
    eventually(lambda: client.stats()["respawns"] == 1, "a new worker")
    client.wait_ready(60)
    assert client.generate(PROMPT, max_tokens=5).token_ids == reference(PROMPT, 5)


def test_l088_an_engine_whose_worker_never_gets_ready_ends_with_status_1_and_says_why(
    serve: Serve, is_alive: Callable[[int], bool]
) -> None:
    engine = serve(target="scripted:fail_load=1", restart_budget=1)
    client = engine.client(ready=False)
    with pytest.raises(Refused) as caught:
        client.generate(PROMPT)
    assert caught.value.code == "NO_WORKER"
    assert engine.process.wait(60) == 1
    assert "was told to fail at loading" in engine.log()


def test_a_load_that_takes_too_long_is_ended(serve: Serve, children: Callable[[int], list[int]]) -> None:
    engine = serve(target="scripted:gate=/nonexistent", load_deadline_s=0.2, restart_budget=0)
    assert engine.process.wait(60) == 1
    assert "no progress within the deadline" in engine.log()


def test_sigterm_finishes_what_is_live_refuses_what_is_new_and_exits_0(serve: Serve, eventually: Any) -> None:
    engine = serve(target="scripted:mean=2,step_us=2000")
    client = engine.client()
    live = client.submit(PROMPT, max_tokens=200)
    next(live)
    worker = engine.worker_pid()
    engine.process.send_signal(signal.SIGTERM)
    eventually(lambda: client.health().engine == "DRAINING")
    with pytest.raises(Refused) as caught:
        client.generate(PROMPT)
    assert caught.value.code == "DRAINING"
    assert live.result().token_ids == reference(PROMPT, 200)
    assert engine.process.wait(60) == 0
    assert not Path(f"/proc/{worker}").exists()
    assert "worker_killed" not in engine.log(), "a drained worker leaves by itself"


def test_a_second_signal_stops_at_once_and_live_requests_are_told(serve: Serve, eventually: Any) -> None:
    engine = serve(target="scripted:mean=1,step_us=2000", max_model_len=4096)
    client = engine.client()
    live = client.submit(PROMPT, max_tokens=4000)
    next(live)
    engine.process.send_signal(signal.SIGTERM)
    eventually(lambda: client.health().engine == "DRAINING")
    engine.process.send_signal(signal.SIGTERM)
    result = live.result()
    assert (result.state, result.finish_reason) == ("FAILED", "ENGINE_STOPPED")
    assert engine.process.wait(60) == 0


def test_a_silent_client_is_given_up_after_its_grace_and_its_requests_are_cancelled(
    serve: Serve, eventually: Any
) -> None:
    engine = serve(target="scripted:mean=1,step_us=1000", max_model_len=4096, heartbeat_s=0.1, client_grace_s=0.1)
    watcher = engine.client()
    context: zmq.Context[Any] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(engine.address)
    dealer.send(codec.encode(wire.ClientHello()))
    dealer.send(codec.encode(wire.Submit(request_id="x", prompt_token_ids=PROMPT)))
    eventually(lambda: watcher.stats()["accepted"] == 1)
    eventually(lambda: watcher.stats()["clients"] == {"CONNECTED": 1}, "the silent client's end")
    dealer.send(codec.encode(wire.KeepAlive()))
    received: list[Any] = []
    while not (received and isinstance(received[-1], wire.Refused)):
        assert dealer.poll(60_000)
        received.append(codec.for_client().decode(dealer.recv()))
    assert received[-1].code == "HELLO_FIRST"
    dealer.close(linger=0)
    context.term()


def test_a_client_that_says_goodbye_leaves_no_request_behind(serve: Serve, eventually: Any) -> None:
    engine = serve(target="scripted:mean=1,step_us=1000", max_model_len=4096)
    watcher, leaver = engine.client(), engine.client()
    stream = leaver.submit(PROMPT, max_tokens=4000)
    next(stream)
    leaver.close()
    with pytest.raises(EngineLost):
        list(stream)
    eventually(lambda: watcher.stats()["ended"] == {"CANCELLED": 1})
    eventually(lambda: watcher.stats()["slots"] == {"FREE": 8})  # one is RETIRING until the step in flight is reported


def test_an_address_where_no_engine_answers_is_named_in_the_error() -> None:
    with pytest.raises(EngineLost, match="ipc:///tmp/nobody-serves-here"):
        Client("ipc:///tmp/nobody-serves-here", timeout_s=0.2)


def test_a_client_notices_that_its_engine_died(serve: Serve) -> None:
    engine = serve(target="scripted:mean=1,step_us=2000", max_model_len=4096)
    client = engine.client(timeout_s=2.0)
    stream = client.submit(PROMPT, request_id="x", max_tokens=4000)
    next(stream)
    engine.process.kill()
    engine.process.wait()
    with pytest.raises(EngineLost, match="no engine answered"):
        list(stream)


def test_a_dead_engines_socket_is_taken_over_and_a_live_ones_is_refused(serve: Serve) -> None:
    first = serve()
    first.client()
    second = serve(bind=first.address)
    assert second.process.wait(60) == 1
    assert "another instance serves there" in second.log()
    first.process.kill()
    first.process.wait()
    third = serve(bind=first.address)
    assert third.client().generate(PROMPT, max_tokens=3).token_ids == reference(PROMPT, 3)


def test_a_local_engine_serves_and_leaves_nothing_behind(children: Callable[[int], list[int]]) -> None:
    with (
        open(os.devnull, "wb") as log,  # noqa: PTH123
        local(target="scripted", drafter="x", num_slots=2, log=log) as client,
    ):
        assert client.generate(PROMPT, max_tokens=4).token_ids == reference(PROMPT, 4)
        folder = Path(client.address.removeprefix("ipc://")).parent
        engines = [pid for pid in children(os.getpid()) if str(folder) in Path(f"/proc/{pid}/cmdline").read_text()]
        workers = [worker for engine in engines for worker in children(engine)]
        assert (len(engines), len(workers)) == (1, 1)
    assert not folder.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in (*engines, *workers))
    with pytest.raises(Refused, match="num_slots"), local(target="scripted", num_slots=0):
        pass


def test_importing_the_package_and_its_client_loads_no_torch(run_python: Callable[[str], Any]) -> None:
    done = run_python(
        "import sys, dsparkd\n"
        "assert 'zmq' not in sys.modules, 'the package itself is lazy'\n"
        "for name in dsparkd.__all__: getattr(dsparkd, name)\n"
        "import dsparkd.__main__\n"
        "assert 'torch' not in sys.modules and 'tokenizers' not in sys.modules\n"
    )
    assert done.returncode == 0, done.stderr
