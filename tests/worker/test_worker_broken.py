"""The worker broken on purpose, one line at a time: the house of tenants, or the worker's own watch, notices each.

Every scenario passes as it stands; with the mutation in place it must not. (Scratch row aliasing slot 0:
`test_worker_paranoid.py`; a skipped context write and features of another row: `test_worker_zero_draft.py` too.)
"""

from collections.abc import Callable
from typing import Any

import pytest
from dsparkd.scheduler.wire import messages as wire
from dsparkd.worker import attention, graphs, phases, runner, tenancies, windows
from dsparkd.worker.paranoid import Violation
from structlog.testing import capture_logs
from window_support import MAX_MODEL_LEN, House, house, prompt_of
from worker_support import seed

Patch = pytest.MonkeyPatch


# ---- what is done ---------------------------------------------------------------------------------------------------


def mixed(one: House) -> None:
    """Rows of different widths in one step, beside a chunk; drafts are held against the twin after each."""
    for slot in range(2):
        one.begin(slot, prompt_of("vanilla", 9 + slot))
        one.seed_all(slot)
    one.begin(2, prompt_of("vanilla", 30))
    for turn in range(6):
        one.step(one.chunk(2, 5), one.decode(0, turn % 5), one.decode(1, 4 - turn % 5))
        look(one)


def reused(one: House) -> None:
    """A long tenant, then a short one in its slot."""
    for length in (40, 3):
        one.begin(0, prompt_of("vanilla", length))
        one.seed_all(0, iter([length - 1, 1]))
        for _ in range(3):
            one.step(one.decode(0))
            look(one)


def ringed(one: House) -> None:
    """Prompts that end before, at and behind the edge of the ring, run to the end."""
    for length in (4, 6, 7, 12):
        one.begin(0, prompt_of("vanilla", length))
        one.seed_all(0)
        while len(one.contents[0]) < MAX_MODEL_LEN:
            look(one)
            one.step(one.decode(0))


def late(one: House) -> None:
    """A row of the slot's former tenant, which was cancelled while the row was on its way."""
    one.begin(0, prompt_of("vanilla", 8))
    one.seed_all(0)
    row = one.decode(0)
    one.begin(0, prompt_of("vanilla", 12))
    one.seed_all(0)
    answer = one.driver.one(wire.Decode(0, row.epoch, 0, 0))
    one.check()
    assert getattr(answer, "code", None) == "EPOCH"


def hits(one: House) -> None:
    """Prefixes taken over and copied, with pending features; some steps fail first."""
    one.begin(0, prompt_of("vanilla", 20))
    one.seed_all(0)
    for _ in range(3):
        one.step(one.decode(0, propose_len=0))
    for slot, keep_len in ((1, 22), (2, 8), (0, 21)):
        one.begin(slot, [*one.contents[0][:keep_len], 7, 8], source=0, keep_len=keep_len)
        row = one.chunk(slot, 99)
        one.step(row, fault="target done")
        one.check()
        one.step(row)
        look(one)


def lost(one: House) -> None:
    """A prefix whose context the ring has lost."""
    one.begin(0, prompt_of("vanilla", 40))
    one.seed_all(0)
    opens = wire.Open(20, 0, one.epochs[0])  # of a scheduler that does not know the rule
    answer = one.driver.one(seed(1, 10**6, [7, 8], start_pos=20, propose_len=4, opens=opens))
    assert getattr(answer, "code", None) == "CONTEXT"
    one.check()


def overwritten(one: House) -> None:
    """A chunk that fails when it has overwritten the ring."""
    one.begin(0, prompt_of("vanilla", 40))
    one.step(one.chunk(0, 10))
    one.step(one.chunk(0, 20), fault="context done")
    one.check()


def look(one: House) -> None:
    one.check()
    for slot, tenant in one.tenants.items():
        if tenant.anchor is not None:
            one.check_draft(slot)


# ---- what is broken -------------------------------------------------------------------------------------------------


def length_not_reset(patch: Patch) -> None:
    former = windows.Window

    def stale(epoch: int | None = None) -> windows.Window:
        window = former(epoch)
        window.length = window.context_len = 37
        return window

    patch.setattr(tenancies, "Window", stale)


def context_not_reset(patch: Patch) -> None:
    former = windows.Window

    def stale(epoch: int | None = None) -> windows.Window:
        window = former(epoch)
        window.context_len = 2
        return window

    patch.setattr(tenancies, "Window", stale)


def stride_by_the_widest(patch: Patch) -> None:
    plain = graphs.EagerRunner.forward

    def forward(self: Any, batch: Any) -> Any:
        found = plain(self, batch)
        batch.firsts = [index * max(job.width for job in batch.jobs) for index in range(len(batch.jobs))]
        return found

    patch.setattr(graphs.EagerRunner, "forward", forward)


def window_off_by(extra: int) -> Callable[[Patch], None]:
    def broken(patch: Patch) -> None:
        plain = attention.BlockAttention._wrap

        def wrap(self: Any, starts: list[int], *, block: int, window: int) -> None:
            plain(self, starts, block=block, window=window + extra)

        patch.setattr(attention.BlockAttention, "_wrap", wrap)

    return broken


def ring_too_short(patch: Patch) -> None:
    """Two rows: one of them is a reserve that only a failed step can need."""
    patch.setattr(windows.Shape, "ring_len", property(lambda self: self.drafter_window + self.block_len - 1))


def ring_written_off_by_one(patch: Patch) -> None:
    plain = phases.Phases.project

    def project(self: Any, features: Any, positions: list[int], slots: list[int]) -> None:
        plain(self, features, [position + 1 for position in positions], slots)

    patch.setattr(phases.Phases, "project", project)


def one_row_of_context_skipped(patch: Patch) -> None:
    plain = phases.Phases.project

    def project(self: Any, features: Any, positions: list[int], slots: list[int]) -> None:
        kept = slice(None, -1 if len(positions) > 1 else None)
        plain(self, features[kept], positions[kept], slots[kept])

    patch.setattr(phases.Phases, "project", project)


def no_epoch_check(patch: Patch) -> None:
    patch.setattr(runner.Runner, "_window_of", lambda self, row: self.windows.table[row.slot])


def nothing_cut_in_place(patch: Patch) -> None:
    patch.setattr(windows.Windows, "head", lambda self, window, keep_len, *, epoch: window)


def pending_not_cut(patch: Patch) -> None:
    plain = windows.Window.head

    def head(self: windows.Window, keep_len: int, **options: Any) -> windows.Window:
        made = plain(self, keep_len, **options)
        made.pending_len = self.pending_len
        return made

    patch.setattr(windows.Window, "head", head)


def nothing_copied(patch: Patch) -> None:
    patch.setattr(windows.Windows, "_readable", lambda self, window: [])


def context_not_copied(patch: Patch) -> None:
    patch.setattr(windows.Windows, "_readable", lambda self, window: [(self.target, slice(0, window.length))])


def destination_keeps_its_epoch(patch: Patch) -> None:
    plain = windows.Windows.open

    def opened(self: Any, tenancies: Any) -> None:
        before = list(self.table)
        plain(self, tenancies)
        for one in tenancies:
            self.table[one.slot] = before[one.slot]

    patch.setattr(windows.Windows, "open", opened)


def lost_context_is_not_told(patch: Patch) -> None:
    plain = windows.Window.head

    def head(self: windows.Window, keep_len: int, **options: Any) -> windows.Window:
        made = plain(self, keep_len, **options)
        made.context_start = 0
        return made

    patch.setattr(windows.Window, "head", head)


def nothing_given_up(patch: Patch) -> None:
    patch.setattr(windows.Windows, "overwrite", lambda self, slot, end: None)


RING = {"drafter_window": 6}
BROKEN: dict[str, tuple[Callable[[Patch], None], Callable[[House], None], dict[str, Any]]] = {
    "length counter not reset on reuse": (length_not_reset, reused, {}),
    "context counter not reset on reuse": (context_not_reset, reused, {}),
    "stride by the maximum width": (stride_by_the_widest, mixed, {}),
    "window one row too long": (window_off_by(1), ringed, RING),
    "window one row too short": (window_off_by(-1), ringed, RING),
    "ring too short": (ring_too_short, ringed, RING),
    "ring written off by one": (ring_written_off_by_one, ringed, RING),
    "context write skipped for one accepted row": (one_row_of_context_skipped, mixed, {}),
    "epoch check removed": (no_epoch_check, late, {}),
    "content in place is not cut": (nothing_cut_in_place, hits, {}),
    "pending features are not cut": (pending_not_cut, hits, {}),
    "nothing is copied": (nothing_copied, hits, {}),
    "the context is not copied": (context_not_copied, hits, {}),
    "a destination keeps its epoch": (destination_keeps_its_epoch, hits, {}),
    "lost context is not told": (lost_context_is_not_told, lost, RING),
    "overwritten context is not given up": (nothing_given_up, overwritten, RING),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("watches", [True, False], ids=["watched", "unwatched"])
def test_each_of_these_mutations_is_noticed(what: str, watches: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the worker's own watch or by the house, which compares rows and drafts with those made anew."""
    mutate, scenario, init = BROKEN[what]
    with monkeypatch.context() as patch:
        mutate(patch)
        one = house("vanilla", paranoid=watches, **init)
        with capture_logs(), pytest.raises((AssertionError, Violation, IndexError, RuntimeError)):
            scenario(one)


@pytest.mark.parametrize("what", BROKEN)
def test_unbroken_the_same_scenario_passes(what: str) -> None:
    _, scenario, init = BROKEN[what]
    with capture_logs():
        scenario(house("vanilla", **init))
