"""Processes that are killed: the next scheduler goes on from the journal, and nobody outlives what it belongs to."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from dsparkd import Client, EngineLost, Refused
from dsparkd.scheduler.trace.scripted import ScriptedModel
from dsparkd.scheduler.trace.scripted_details import logprob_at
from dsparkd.scheduler.wire import messages as wire

SLOW = "scripted:mean=3.2,step_us=3000"  # a request of 200 tokens takes a quarter of a second and more
Serve = Callable[..., Any]


def reference(prompt: Sequence[int], length: int) -> list[int]:
    model = ScriptedModel(num_slots=1, max_model_len=512, block_len=7, mean=3.2)
    return model.continuation(list(prompt), length)


def prompt(number: int) -> list[int]:
    return [number + 1, 5, 9]


@pytest.fixture
def durable(serve: Serve, tmp_path: Path) -> Callable[..., Any]:
    def make(**settings: Any) -> Any:
        return serve(**{"target": SLOW, "journal": str(tmp_path / "journal"), "num_slots": 4, **settings})

    return make


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)


def test_streams_go_on_where_they_were_through_killed_schedulers_and_workers(
    durable: Serve, eventually: Any, is_alive: Any
) -> None:
    engine = durable()
    client = engine.client()
    streams = [client.submit(prompt(number), request_id=f"r{number}", max_tokens=200) for number in range(8)]
    for stream in streams[:2]:
        assert isinstance(next(stream), wire.Accepted)
    worker = engine.worker_pid()
    kill(engine.scheduler_pid())
    eventually(lambda: not is_alive(worker), "the end of the dead scheduler's worker")
    for stream in streams[:2]:
        next(stream)
    kill(engine.worker_pid())
    next(streams[1])
    kill(engine.scheduler_pid())
    for number, stream in enumerate(streams):
        result = stream.result()
        assert (result.state, result.token_ids) == ("FINISHED", reference(prompt(number), 200))
    assert engine.log().count("scheduler_died") == 2


def test_a_client_that_dies_resumes_by_its_token_in_another_process_what_has_ended_too(durable: Serve) -> None:
    engine = durable()
    client = engine.client()
    client.generate(prompt(7), request_id="heard", max_tokens=5)
    ends, goes_on = (client.submit(prompt(n), request_id=f"r{n}", max_tokens=m) for n, m in ((0, 4), (1, 300)))
    token, text = client.welcome.resume_token, [next(goes_on) for _ in range(3)]
    assert text
    abandon(client)
    del ends, goes_on
    again = Client(engine.address, resume_token=token)
    assert again.welcome.resumed
    assert again.resume("r0", from_index=1).result().token_ids == reference(prompt(0), 4)[1:]
    assert again.resume("r1").result().token_ids == reference(prompt(1), 300)
    with pytest.raises(Refused, match="no request of this client"):
        again.resume("heard").result()
    again.close()


def test_log_probabilities_are_told_again_by_a_next_scheduler_of_what_has_ended_too(durable: Serve) -> None:
    engine = durable()
    client = engine.client()
    asked = {"logprobs": True, "top_logprobs": 2}
    undisturbed = client.generate(prompt(0), max_tokens=200, **asked)
    assert undisturbed.top_logprobs is not None
    assert undisturbed.logprobs == [logprob_at(3 + index) for index in range(200)]
    ends, goes_on = (client.submit(prompt(0), request_id=f"r{most}", max_tokens=most, **asked) for most in (4, 200))
    token, heard = client.welcome.resume_token, 0
    while heard < 20:
        heard = getattr(next(goes_on), "index", 0)
    abandon(client)
    del ends, goes_on
    kill(engine.scheduler_pid())
    engine.client()
    kill(engine.scheduler_pid())
    with Client(engine.address, resume_token=token) as again:
        for most in (4, 200):
            result = again.resume(f"r{most}", from_index=1).result()
            assert result.token_ids == reference(prompt(0), most)[1:]
            assert result.logprobs == undisturbed.logprobs[1:most]
            assert result.top_logprobs == undisturbed.top_logprobs[1:most]


def abandon(client: Client) -> None:
    """As if its process were killed: nothing is said, nothing is heard any more."""
    client._closing = True  # its thread ends without a goodbye
    client._outgoing.clear()
    client._wake()
    client._thread.join()


def test_a_journal_outlives_a_stop_of_everything(durable: Serve) -> None:
    """Also the small parent is killed; whoever starts the engine again finds what was promised."""
    engine = durable(client_grace_s=60.0)
    client = engine.client()
    stream = client.submit(prompt(3), request_id="a", max_tokens=250)
    next(stream)
    token = client.welcome.resume_token
    kill(engine.process.pid)
    engine.process.wait()
    with pytest.raises(EngineLost):
        abandon(client) or Client(engine.address, timeout_s=0.3)
    later = durable(client_grace_s=60.0, bind=engine.address)
    again = Client(later.address, resume_token=token, timeout_s=60)
    assert again.resume("a").result().token_ids == reference(prompt(3), 250)
    again.close()


def test_requests_of_a_client_that_does_not_come_back_are_cancelled_after_the_grace_time(
    durable: Serve, eventually: Any
) -> None:
    engine = durable(client_grace_s=0.2, target="scripted:mean=1,step_us=50000")
    client = engine.client()
    stream = client.submit(prompt(3), request_id="a", max_tokens=500)
    next(stream)
    other = engine.client()
    abandon(client)
    kill(engine.scheduler_pid())
    eventually(lambda: other.stats()["ended"].get("CANCELLED") == 1, "the end of the abandoned request")


def test_without_a_journal_each_live_id_hears_that_the_engine_was_restarted(serve: Serve) -> None:
    engine = serve(target=SLOW)
    client = engine.client()
    streams = [client.submit(prompt(number), max_tokens=400) for number in range(3)]
    for stream in streams:
        next(stream)
    kill(engine.process.pid)
    engine.process.wait()
    serve(target=SLOW, bind=engine.address)
    for stream in streams:
        with pytest.raises(Refused) as caught:
            stream.result()
        assert caught.value.code == "ENGINE_RESTARTED"
    assert client.generate(prompt(0), max_tokens=5).token_ids == reference(prompt(0), 5)


def test_a_client_of_an_engine_that_is_gone_closes_although_it_would_wait_an_hour_for_an_answer(serve: Serve) -> None:
    engine = serve()
    client = engine.client(timeout_s=3600.0)
    engine.process.kill()
    engine.process.wait()
    client.close()
    assert not client._thread.is_alive()


def test_a_parent_passes_the_drain_on_and_ends_with_its_scheduler(durable: Serve) -> None:
    engine = durable()
    client = engine.client()
    stream = client.submit(prompt(0), max_tokens=200)
    next(stream)
    kill(engine.process.pid, signal.SIGTERM)
    assert stream.result().token_ids == reference(prompt(0), 200)
    assert engine.process.wait(60) == 0


def test_nobody_outlives_the_parent(durable: Serve, eventually: Any, is_alive: Any) -> None:
    engine = durable()
    engine.client()
    pids = [engine.scheduler_pid(), engine.worker_pid()]
    kill(engine.process.pid)
    eventually(lambda: not any(is_alive(pid) for pid in pids), "the end of scheduler and worker")


def test_a_worker_that_is_stopped_while_it_starts_does_not_outlive_its_scheduler(
    serve: Serve, eventually: Any, is_alive: Any
) -> None:
    """Before a line of its own code has run: nobody could kill it later."""
    for _ in range(3):
        engine = serve(target=SLOW)
        worker = engine.worker_pid()
        kill(worker, signal.SIGSTOP)
        kill(engine.process.pid)
        engine.process.wait()
        eventually(lambda worker=worker: not is_alive(worker), "the end of the stopped worker")


def test_a_scheduler_that_dies_again_and_again_is_given_up(durable: Serve) -> None:
    engine = durable(respawn_budget=1)
    for _ in range(2):
        engine.client()
        kill(engine.scheduler_pid())
    assert engine.process.wait(60) == 1
    assert "scheduler_given_up" in engine.log()


def test_l088_a_recovered_engine_whose_worker_never_comes_ends_with_its_parent(durable: Serve) -> None:
    engine = durable(load_deadline_s=2.0, restart_budget=0)
    client = engine.client()
    client.submit(prompt(0), max_tokens=500)
    stop = threading.Event()

    def murder() -> None:
        """Every worker that shows itself."""
        scheduler = engine.scheduler_pid()
        kill(scheduler)
        while not stop.wait(0.01) and engine.process.poll() is None:
            for pid in children_of(engine.process.pid):
                for worker in children_of(pid):
                    kill(worker)

    thread = threading.Thread(target=murder)
    thread.start()
    status = engine.process.wait(60)
    stop.set()
    thread.join()
    assert status == 1


def children_of(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
