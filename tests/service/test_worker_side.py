"""The worker's loop, with the scheduler's end of the channel in the test's hands."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import zmq
from dsparkd.scheduler.trace.scripted import Faults, ScriptedModel
from dsparkd.scheduler.trace.scripted_backend import ScriptedBackend
from dsparkd.scheduler.wire import codec
from dsparkd.scheduler.wire import messages as wire
from dsparkd.scheduler.wire.sockets import Router

Link = Callable[..., Any]
OPEN = wire.Open()


def seed(slot: int = 0, *, epoch: int = 1) -> wire.Seed:
    return wire.Seed(slot, epoch, 0, [1, 2, 3], True, 7, wire.Params(), 0, OPEN)


def step(step_id: int, *rows: Any, session: int = 1) -> wire.Step:
    return wire.Step(session, step_id, list(rows))


def test_a_worker_introduces_itself_then_loads_then_is_ready(link: Link) -> None:
    worker = link()
    hello = worker.receive()
    assert hello == wire.Hello(session=1, token="secret", pid=os.getpid())
    init = wire.Init(1, "scripted:block=5,stop=9,vocab=77", "x", 2, 128, 64)
    assert worker.ask(init) == wire.Loaded(session=1)
    ready = worker.receive()
    assert (ready.num_slots, ready.max_model_len, ready.vocab_size, ready.block_len) == (2, 128, 77, 5)
    assert ready.eos_token_ids == [9]


def test_steps_are_run_in_order_and_a_repeat_is_answered_with_the_stored_report(link: Link) -> None:
    backend = ScriptedBackend()
    worker = link(backend)
    worker.shake_hands()
    first = worker.ask(step(1, seed()))
    second = worker.ask(step(2, wire.Decode(0, 1, 7, 7)))
    text = list(backend.model.slots[0].text)
    assert worker.ask(step(2, wire.Decode(0, 1, 7, 7))) == second != first
    assert backend.model.slots[0].text == text, "a repeat runs nothing"
    assert second.step_id == 2
    assert len(second.rows[0].token_ids) == second.rows[0].accepted_len + 1


def test_a_gap_in_the_step_numbers_is_a_fault_and_moves_nothing(link: Link) -> None:
    backend = ScriptedBackend()
    worker = link(backend)
    worker.shake_hands()
    fault = worker.ask(step(2, seed()))
    assert (fault.code, fault.step_id) == ("STEP_GAP", 2)
    assert backend.model.slots[0].text == []
    assert isinstance(worker.ask(step(1, seed())), wire.Report)


def test_a_failed_step_is_told_by_its_code_and_the_next_one_runs(link: Link) -> None:
    model = ScriptedModel(num_slots=2, max_model_len=128, faults=Faults(steps=frozenset({1})))
    worker = link(ScriptedBackend(model))
    worker.shake_hands()
    fault = worker.ask(step(1, seed()))
    assert (fault.code, fault.step_id) == ("SCRIPTED", 1)
    assert worker.ask(step(1, seed())) == fault, "a repeat of a failed step is answered, not run"
    assert isinstance(worker.ask(step(2, seed())), wire.Report)


def test_an_unexpected_exception_becomes_a_fault_with_its_last_line(link: Link) -> None:
    class Raises(ScriptedBackend):
        def run(self, step: wire.Step) -> wire.Report:
            raise ZeroDivisionError("by surprise")

    worker = link(Raises())
    worker.shake_hands()
    fault = worker.ask(step(1, seed()))
    assert (fault.code, fault.message) == ("INTERNAL", "ZeroDivisionError: by surprise")
    assert worker.ask(wire.Ping(session=1)) == wire.Pong(session=1, last_step_id=1)


def test_a_ping_is_answered_with_the_last_finished_step(link: Link) -> None:
    worker = link()
    worker.shake_hands()
    assert worker.ask(wire.Ping(session=1)) == wire.Pong(session=1, last_step_id=0)
    worker.ask(step(1, seed()))
    assert worker.ask(wire.Ping(session=1)).last_step_id == 1


def test_messages_of_another_session_are_not_obeyed(link: Link) -> None:
    worker = link()
    worker.shake_hands()
    worker.send(step(1, seed(), session=7))
    assert worker.ask(wire.Ping(session=1)) == wire.Pong(session=1, last_step_id=0)


def test_leave_is_answered_with_goodbye_and_exit_code_0(link: Link) -> None:
    worker = link()
    worker.shake_hands()
    assert isinstance(worker.ask(wire.Leave(session=1)), wire.Goodbye)
    assert worker.join() == 0


@pytest.mark.parametrize(
    "init",
    [
        {"target": "scripted:fail_load=1"},
        {"target": "scripted:mean=x,colour=red"},
        {"target": "scripted:mean=99"},
    ],
    ids=["load", "target", "model"],
)
def test_a_failure_before_ready_is_a_goodbye_with_the_reason_and_exit_code_1(link: Link, init: dict[str, Any]) -> None:
    worker = link()
    worker.receive()
    settings = {"drafter": "x", "num_slots": 2, "max_model_len": 128, "max_step_tokens": 64}
    goodbye = worker.ask(wire.Init(session=1, **settings, **init))
    assert isinstance(goodbye, wire.Goodbye)
    assert init["target"].split("=")[0].split(":")[1] in goodbye.reason
    assert worker.join() == 1


def test_undecodable_bytes_end_the_worker_with_the_reason(link: Link) -> None:
    worker = link()
    worker.shake_hands()
    worker.router.send(worker.identity, b"DSPK\x01\xc1")
    assert "message to a worker" in worker.receive().reason
    assert worker.join() == 1


@pytest.mark.parametrize("moment", ["waiting", "hanging", "waiting-elsewhere"])
def test_a_worker_dies_with_its_parent(moment: str, eventually: Any, is_alive: Callable[[int], bool]) -> None:
    """The parent is a process of its own, killed while its worker waits for a message or hangs in a step.

    Elsewhere than on Linux no signal comes, and an idle worker looks by itself.
    """
    platform = "elsewhere" if moment == "waiting-elsewhere" else "linux"
    context: zmq.Context[Any] = zmq.Context()
    with tempfile.TemporaryDirectory(prefix="dsparkd-test-") as folder:
        router = Router(context, f"ipc://{folder}/w")
        code = (
            "import os, subprocess, sys\n"
            "code = 'import sys; from dsparkd.__main__ import main; "
            f'sys.platform = "{platform}"; sys.exit(main())\'\n'
            f"subprocess.Popen([sys.executable, '-c', code, 'worker', '--connect', {router.address!r},"
            " '--session', '1', '--parent-pid', str(os.getpid())])\n"
            "sys.stdin.read()\n"
        )
        parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        try:
            assert router.socket.poll(60_000)
            identity, (frame,) = router.receive(1)[0]
            pid = codec.from_worker().decode(frame).pid
            router.send(identity, codec.encode(wire.Init(1, "scripted:hang_at=1", None, 2, 128, 64)))
            if moment == "hanging":
                router.send(identity, codec.encode(step(1, seed())))
                for _ in range(2):  # Loaded and Ready
                    assert router.socket.poll(60_000)
                    router.receive(1)
            parent.send_signal(signal.SIGKILL)
            parent.wait()
            eventually(lambda: not is_alive(pid), "the worker's end")
        finally:
            parent.kill()
            parent.communicate()
            router.close()
            context.term()
