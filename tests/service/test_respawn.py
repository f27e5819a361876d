"""The parent of a scheduler: which ends are deaths, and how many in a row it replaces."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from dsparkd.scheduler.service import respawn
from dsparkd.scheduler.service.respawn import BROKEN, TAKEN, Parent
from hypothesis import given
from hypothesis import strategies as st

DEATHS = st.sampled_from([-signal.SIGKILL, -signal.SIGSEGV, BROKEN])


class Ended:
    """A scheduler that has ended already."""

    def __init__(self, status: int) -> None:
        self._status = status

    def wait(self) -> int:
        return self._status


@pytest.fixture(autouse=True, scope="module")
def no_delay() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(respawn, "_FIRST_DELAY_S", 0.0)
        yield


def ran(statuses: list[int], budget: int) -> tuple[int, int]:
    """The parent's own status, and how many it started."""
    left = iter(statuses)
    status = Parent(lambda: Ended(next(left)), budget=budget).run()  # type: ignore[arg-type,return-value]
    return status, len(statuses) - len(list(left))


@given(deaths=st.lists(DEATHS, max_size=4), end=st.sampled_from([0, 1, 3]))
def test_the_dead_are_replaced_and_whoever_ends_by_itself_is_the_last(deaths: list[int], end: int) -> None:
    assert ran([*deaths, end, 99], budget=4) == (end, len(deaths) + 1)


@given(death=DEATHS, later=st.lists(DEATHS | st.just(TAKEN), max_size=3))
def test_after_one_that_had_the_address_one_that_finds_it_taken_is_replaced(death: int, later: list[int]) -> None:
    assert ran([death, *later, 0], budget=4) == (0, len(later) + 2)


def test_the_first_that_finds_its_address_taken_is_the_last() -> None:
    assert ran([TAKEN, 0], budget=4) == (1, 1)


@given(deaths=st.lists(DEATHS, min_size=5), budget=st.integers(0, 4))
def test_no_more_die_in_a_row_than_the_budget_allows(deaths: list[int], budget: int) -> None:
    status, started = ran(deaths, budget)
    assert started == budget + 1
    assert status in (1, BROKEN)


def test_one_that_is_told_to_end_ends_its_child_and_replaces_none() -> None:
    told: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
        told.append(subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]))
        parent.pass_on(signal.SIGTERM, None)  # before the parent knows of its child
        return told[-1]

    parent = Parent(start, budget=4)
    assert parent.run() != 0
    assert len(told) == 1
    assert told[0].returncode is not None


LEAVER = """
import os, signal, subprocess, sys
from dsparkd.scheduler.service.respawn import Parent, end_orphans
from dsparkd.scheduler.wire.workerside import inherit_orphans

LEFT = "import os, signal; print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {LEFT!r}]).wait()"

def start():
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE)
    left = int(child.stdout.readline())
    while open(f"/proc/{left}/stat").read().split()[2] != "T":
        pass
    child.kill()
    return child

inherit_orphans()
Parent(start, budget=1, bury=end_orphans).run()
print("over", flush=True)
"""


def test_what_a_dead_child_leaves_stopped_and_tied_to_nobody_is_ended() -> None:
    """With the budget spent there is nobody left to end it later; the pipe is open as long as one of them lives."""
    done = subprocess.run([sys.executable, "-c", LEAVER], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "over", done.stderr
