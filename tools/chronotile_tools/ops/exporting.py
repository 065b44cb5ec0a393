"""Export metrics: in Prometheus text format over HTTP, and as a Grafana dashboard."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from chronotile.errors import ChronotileError
from chronotile_tools.ops.metrics import METRICS, Metric, prometheus, prometheus_name
from chronotile_tools.ops.state import Snapshot

__all__ = ["Exporter", "dashboard"]

_PANEL_WIDTH, _PANEL_HEIGHT, _ROW = 8, 7, 24
_GRAFANA_UNITS = {"%": "percent", "ms": "ms", "s": "s", "bytes": "bytes", "MiB": "mbytes", "": "short"}


class Exporter:
    """Serves ``/metrics`` on 127.0.0.1.

    Parameters
    ----------
    observe : callable
        Takes a snapshot.
    port : int
        Port to listen on; 0 for any free port.
    age_s : float
        Largest age of a snapshot; scrapers cannot cause more frequent queries of the cluster.
    """

    def __init__(self, observe: Callable[[], Snapshot], port: int, age_s: float) -> None:
        self._observe, self._age_s = observe, age_s
        self._lock = threading.Lock()
        self._text, self._taken = "", float("-inf")
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                exporter._answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Do not log scrapes."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)

    @property
    def url(self) -> str:
        """URL of the metrics."""
        return f"http://127.0.0.1:{self._server.server_port}/metrics"

    def serve(self) -> None:
        """Serve until `stop`."""
        self._server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """Stop `serve` from another thread, and release the port."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        if request.path.partition("?")[0] != "/metrics":
            request.send_error(404, "Metrics are at /metrics")
            return
        try:
            content = self._current().encode()
        except ChronotileError as error:
            # Answer with an error: old numbers would hide that the cluster is down.
            request.send_error(503, "The cluster did not answer", str(error))
            return
        request.send_response(200)
        request.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def _current(self) -> str:
        with self._lock:
            if time.monotonic() - self._taken > self._age_s:
                self._text = prometheus(self._observe())
                self._taken = time.monotonic()
            return self._text


def dashboard(title: str = "Cassandra, by Chronotile") -> dict[str, Any]:
    """A Grafana dashboard (schema version 39) with a panel for each metric that :func:`prometheus` writes. The data
    source and the cluster are variables of it."""
    panels = []
    for index, metric in enumerate(METRICS):
        column, row = index * _PANEL_WIDTH % _ROW, index * _PANEL_WIDTH // _ROW
        place = {"x": column, "y": row * _PANEL_HEIGHT, "w": _PANEL_WIDTH, "h": _PANEL_HEIGHT}
        panels.append(_panel(index + 1, metric, place))
    source = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Data source"}
    cluster = {
        "name": "cluster",
        "type": "query",
        "label": "Cluster",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": {"query": "label_values(chronotile_ops_up, cluster)", "refId": "cluster"},
        "refresh": 2,
    }
    return {
        "title": title,
        "uid": "chronotile-ops",
        "tags": ["cassandra", "chronotile"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [source, cluster]},
        "panels": panels,
    }


def _panel(number: int, metric: Metric, place: dict[str, int]) -> dict[str, Any]:
    name = prometheus_name(metric) + '{cluster="$cluster"}'
    legend = " ".join(["{{node}}", *(f"{{{{{label}}}}}" for label in metric.labels)])
    return {
        "id": number,
        "type": "timeseries",
        "title": metric.help + (" (per second)" if metric.counter else ""),
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": _GRAFANA_UNITS[metric.unit], "min": 0}, "overrides": []},
        "targets": [
            {"refId": "A", "expr": f"rate({name}[5m])" if metric.counter else name, "legendFormat": legend}
        ],
    }  # fmt: skip
