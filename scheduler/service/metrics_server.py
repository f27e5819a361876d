"""The Prometheus endpoint: a small web server in threads of its own, with a registry of its own.

Owns the socket and how readings become text. The loop is never waited for longer than a moment and never waits: a
thread asks for the reading of the next turn's end, and takes the last one when none comes.
"""

import errno
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from ...statemachine.errors import LocalError, Refused
from .distribution import Distribution
from .metric_list import COUNTER, HISTOGRAM, METRICS, Metric
from .metrics import Metrics, Reading
from .setting_checks import host_and_port

WAIT_S = 1.0
REST_S = 0.0001  # between metrics: making the text must not keep the interpreter from the loop


class MetricsServer:
    """Serves until `close`. Raises `Refused` naming the setting when nothing can listen there."""

    def __init__(self, address: str, metrics: Metrics, *, wake: Callable[[], None]) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            message = f"metrics = {address!r}: needs `pip install prometheus-client`"
            raise Refused("BAD_CONFIG", message) from None
        found = host_and_port(address)
        if found is None:
            raise LocalError(f"metrics = {address!r} was not judged")
        self._metrics, self._wake = metrics, wake
        self.took, self.obeyed, self.end_turn = metrics.took, metrics.obeyed, metrics.end_turn
        self._lock = threading.Lock()  # among the threads of the server, and `close`; never for a turn
        self._closed = False
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(found[1], addr=found[0], registry=registry)
        except OSError as error:
            code = "ADDRESS_IN_USE" if error.errno == errno.EADDRINUSE else "BAD_CONFIG"
            raise Refused(code, f"metrics = {address!r}: cannot listen there: {error}") from error
        host = f"[{found[0]}]" if ":" in found[0] else found[0]
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def collect(self) -> Iterator[Any]:
        """What the registry calls for each scrape, in the scrape's thread."""
        reading = self._reading()
        for metric in METRICS:
            yield family(metric, reading)
            time.sleep(REST_S)

    def close(self) -> None:
        """Called by the loop, after its last turn."""
        self._metrics.close()  # nobody who waits for a reading waits on
        with self._lock:
            self._closed = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _reading(self) -> Reading:
        with self._lock:
            if self._closed:
                return self._metrics.newest
            place = self._metrics.ask()
            self._wake()
            try:
                return place.get(timeout=WAIT_S)
            except queue.Empty:
                return self._metrics.newest


def family(metric: Metric, reading: Reading) -> Any:
    """Return the samples of one metric as the library's object."""
    from prometheus_client import core

    if metric.kind == HISTOGRAM:
        histogram = core.HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        for labels, one in metric.read(reading):
            histogram.add_metric(labels, _buckets(one), one.total)
        return histogram
    if metric.kind == COUNTER:
        made: Any = core.CounterMetricFamily(metric.name.removesuffix("_total"), metric.meaning, labels=metric.labels)
    else:
        made = core.GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    for labels, value in metric.read(reading):
        made.add_metric(labels, value)
    return made


def _buckets(one: Distribution) -> list[tuple[str, float]]:
    """Cumulative, as the format wants them."""
    sums, so_far = [], 0
    for count in one.counts:
        so_far += count
        sums.append(float(so_far))
    return list(zip([*map(str, one.bounds), "+Inf"], sums, strict=True))
