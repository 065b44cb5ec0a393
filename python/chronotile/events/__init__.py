"""Log records and security events: JSON documents of streams with a time to live, searched by time, field and text.

>>> import chronotile as ct
>>> from chronotile import events
>>> archive = ct.open("memory:")
>>> log = events.create(archive, fields={"level": "utf8", "status": "int64"}, stream_field="host")
>>> report = log.ingest_lines(
...     '{"time": "2026-01-01T00:00:00Z", "host": "web1", "level": "error", "status": 502, "path": "/pay"}'
... )
>>> log.count(level="error", where=("status", ">=", 500), text="/pay")
1

Needs pyarrow and numpy: ``pip install 'chronotile[events]'``.
"""

from chronotile import optional

optional.require("chronotile.events", "events", "numpy", "pyarrow")

from chronotile.events.events import Events, IngestReport, create, open  # noqa: A004
from chronotile.events.following import Follower
from chronotile.events.loading import LoadReport, feed, load
from chronotile.events.parsing import ReadOptions, Reject
from chronotile.events.remote import RemoteEvents, RemoteReport, connect
from chronotile.events.retention import TtlChange
from chronotile.events.settings import Limits, Settings
from chronotile.events.syslog import SYSLOG_FIELDS

__all__ = [
    "SYSLOG_FIELDS",
    "Events",
    "Follower",
    "IngestReport",
    "Limits",
    "LoadReport",
    "ReadOptions",
    "Reject",
    "RemoteEvents",
    "RemoteReport",
    "Settings",
    "TtlChange",
    "connect",
    "create",
    "feed",
    "load",
    "open",
]
