"""Snapshots of traces that were written before a number was counted go on from there."""

from dsparkd.scheduler.core.handle import Core
from dsparkd.scheduler.service.snapshots import freeze, thaw
from dsparkd.scheduler.testing import Bench


def test_a_snapshot_without_a_count_begins_it_at_nothing_and_keeps_the_others() -> None:
    bench = Bench("fixed:7")
    bench.submit(0, [1, 2], max_tokens=9)
    bench.run()
    frozen = freeze(bench.core)
    assert frozen["totals"].pop("drafts_short")
    core = Core(bench.limits, bench.core.policy)
    thaw(core, frozen)
    assert core.totals.drafts_short == {}
    kept = {**vars(bench.core.totals), "drafts_short": {}}
    assert vars(core.totals) == kept
