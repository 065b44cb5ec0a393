"""The archive of a batch or grid system: finished jobs, looked up by id and counted by user, site and status.

>>> import chronotile as ct
>>> from chronotile import jobs
>>> archive = ct.open("memory:")
>>> done = jobs.create(
...     archive,
...     schema={"job_id": "int64", "submitted": "timestamp[us, UTC]", "user": "utf8", "status": "utf8"},
... )
>>> report = done.write(
...     {
...         "job_id": [1, 2],
...         "submitted": ["2026-01-01", "2026-01-02"],
...         "user": ["ann", "bob"],
...         "status": ["done", "failed"],
...     },
...     batch="first",
... )
>>> done.count(status="failed", days="2026-01-02")
1

Needs pyarrow and numpy: ``pip install 'chronotile[jobs]'``; :func:`sync` and :func:`compare` also need SQLAlchemy.
"""

from chronotile import optional

optional.require("chronotile.jobs", "jobs", "numpy", "pyarrow")

from chronotile.jobs.comparing import CompareReport, DayDifference, compare
from chronotile.jobs.jobs import Jobs, create, open  # noqa: A004
from chronotile.jobs.loading import LoadReport, load
from chronotile.jobs.remote import RemoteJobs, connect
from chronotile.jobs.swf import SWF_COLUMNS
from chronotile.jobs.syncing import SyncReport, sync

__all__ = [
    "SWF_COLUMNS",
    "CompareReport",
    "DayDifference",
    "Jobs",
    "LoadReport",
    "RemoteJobs",
    "SyncReport",
    "compare",
    "connect",
    "create",
    "load",
    "open",
    "sync",
]
