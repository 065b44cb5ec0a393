"""The archive of jobs in Chronotile."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import chronotile as ct
from chronotile import jobs
from chronotile_tools.load.job_archive.generated import DAY_US

__all__ = ["INDEXES", "Chronotile"]

INDEXES = (("user", "cloud", "status"), ("cloud", "status"), "task", ("user", "jobset"))


class Chronotile:
    """The archive of jobs, loaded from a CSV file.

    Parameters
    ----------
    url : str or Path
        A new archive: a file or a cluster.
    schema : pyarrow.Schema
        Columns of the jobs.
    csv : Path
        The jobs.

    Attributes
    ----------
    load_rows_s, index_s : float
        Rows loaded per second by two processes; seconds for building the indexes afterwards.
    """

    name = "Chronotile"

    def __init__(self, url: str | Path, schema: pa.Schema, csv: Path) -> None:
        self.archive = ct.open(url)
        self.jobs = jobs.create(self.archive, schema=schema, version="modified", indexes=list(INDEXES))
        report = jobs.load(self.jobs, csv, url=self.archive.url, workers=2)
        self.load_rows_s = report.rows / report.seconds
        began = time.perf_counter()
        self.jobs.dataset.build_indexes()
        self.index_s = time.perf_counter() - began

    def sizes(self) -> tuple[int, dict[str, int]]:
        """Bytes of the jobs, and of each index."""
        dataset = self.jobs.dataset
        return dataset.info().bytes, {", ".join(index.columns): index.bytes for index in dataset.indexes()}

    def close(self) -> None:
        """Close the archive."""
        self.archive.close()

    def by_ids(self, ids: list[int]) -> Any:
        return self.jobs.get(ids).to_arrow()

    def count(self, user: str, cloud: str, start: int) -> Any:
        return self.jobs.count(user=user, cloud=cloud, status="failed", start=start, end=start + 5 * DAY_US)

    def rows(self, user: str, cloud: str, start: int) -> Any:
        found = self.jobs.find(user=user, cloud=cloud, status="failed", start=start, end=start + 5 * DAY_US)
        return found.to_arrow()

    def jobsets(self, user: str, jobsets: list[int]) -> Any:
        return self.jobs.find(user=user, jobset=jobsets).to_arrow()

    def tasks(self, tasks: list[int]) -> Any:
        return self.jobs.find(task=tasks).to_arrow()

    def year(self) -> Any:
        return int(sum(self.jobs.group_by(["cloud", "status"])["count"].to_pylist()))
