"""Under load: limits are told with their numbers, a long queue costs a step nothing, and nothing is left behind."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dsparkd import Refused
from dsparkd.scheduler.core import events
from dsparkd.scheduler.core.limits import Limits
from dsparkd.scheduler.testing import Bench

Serve = Callable[..., Any]
SLOW = "scripted:mean=3.2,step_us=3000"


class Unlooked(list[Any]):
    """A queue whose ends may be looked at, and which nobody may walk through."""

    def __iter__(self) -> Any:
        raise AssertionError("somebody walks through the whole queue")

    __reversed__ = __iter__

    def index(self, *arguments: Any) -> int:
        raise AssertionError("somebody searches the whole queue")


def test_a_step_never_walks_through_the_queue() -> None:
    """Neither planning nor settling, with seats that become free and are taken."""
    bench = Bench(limits=Limits(num_slots=4, max_model_len=64, max_queue=600))
    for number in range(500):
        bench.submit(number, [1, 2, 3], max_tokens=3 + number % 9)
    bench.core.ledger.queue = Unlooked(bench.core.ledger.queue)
    for _ in range(200):
        bench.now_ns += 1_000_000
        outputs = bench.core.handle(events.Tick(bench.now_ns))
        command = outputs[-1]
        bench.core.handle(events.Report(command.session, command.step_id, bench.worker.run_rows(command.rows)))
    assert len(bench.core.ledger.queue) < 450


def test_a_client_has_its_share_and_others_theirs(serve: Serve) -> None:
    engine = serve(target=SLOW, num_slots=2, max_client_requests=3)
    greedy, modest = engine.client(), engine.client()
    streams = [greedy.submit([1, 2], max_tokens=300) for _ in range(3)]
    for stream in streams:
        next(stream)
    with pytest.raises(Refused, match=r"3 requests of this client are live: max_client_requests = 3") as caught:
        greedy.submit([1, 2]).result()
    assert caught.value.code == "CLIENT_LIMIT"
    assert modest.generate([1, 2], max_tokens=3).state == "FINISHED"
    assert greedy.stats()["refused"] == {"CLIENT_LIMIT": 1}


def test_what_ends_leaves_no_record_file_or_slot_behind(serve: Serve, eventually: Any, tmp_path: Path) -> None:
    engine = serve(num_slots=4, max_kept=8, journal=str(tmp_path / "journal"), journal_segment_mb=1)
    client = engine.client()
    pid = engine.scheduler_pid()

    def wave() -> None:
        with engine.client() as visitor:
            streams = [one.submit([1, n], max_tokens=40) for n in range(20) for one in (client, visitor)]
            for stream in streams[::7]:
                stream.cancel()
            for stream in streams[: len(streams) // 2]:
                stream.result()

    wave()
    before = list(Path(f"/proc/{pid}/fd").iterdir())
    for _ in range(8):
        wave()
    idle = {"slots": {"FREE": 4}, "requests": {}, "queue_len": 0, "clients": {"CONNECTED": 1}}
    eventually(lambda: idle.items() <= client.stats().items(), "an idle engine")  # a last step may be in flight
    assert len(list(Path(f"/proc/{pid}/fd").iterdir())) <= len(before)


def test_l086_a_stopped_worker_turns_health_bad_and_what_it_held_goes_on_elsewhere(
    serve: Serve, eventually: Any
) -> None:
    """Alive is not progressing. Those that wait are not failed: another worker takes them over."""
    engine = serve(target=SLOW, step_deadline_s=1.0)
    client = engine.client()
    expected = client.generate([4, 5, 6], max_tokens=200).token_ids
    stream = client.submit([4, 5, 6], max_tokens=200)
    next(stream)
    next(stream)
    os.kill(engine.worker_pid(), signal.SIGSTOP)
    reasons = eventually(lambda: client.health().reasons, "a reason to worry")
    assert any("step" in reason or "worker" in reason for reason in reasons)
    assert stream.result().token_ids == expected
    assert client.wait_ready().ok
