"""Eight processes write and read one archive at once: nothing is lost, doubled or seen half."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
import support_visits
import support_workers
from support_visits import Visit

import chronotile as ct

PROCESSES = 8
FIRST_US = 1_700_000_000_000_000


def test_eight_processes_lose_and_double_nothing(tmp_path: Path) -> None:
    path = tmp_path / "visits.db"
    with ct.open(path) as archive:
        support_visits.create(archive)
    reads = support_workers.run(support_workers.work, str(path), PROCESSES)
    assert set(reads) == {support_workers.OWN_VISITS + support_workers.SHARED_VISITS}

    visits = [Visit(group, index) for group in range(PROCESSES) for index in range(support_workers.OWN_VISITS)]
    visits += [Visit(support_workers.SHARED_GROUP, index) for index in range(support_workers.SHARED_VISITS)]
    with ct.open(path, create=False, read_only=True) as archive:
        ds = archive["visits"]
        assert sorted(batch.key or "" for batch in ds.batches()) == sorted(visit.key for visit in visits)
        assert all(batch.finished for batch in ds.batches())
        table = ds.read().to_arrow().sort_by("id")
        got = list(zip(*(table[name].to_pylist() for name in ("id", "tag", "value", "note")), strict=True))
        want = []
        for visit in sorted(visits, key=lambda visit: visit.index):
            columns = visit.columns()
            want += list(zip(*(columns[name] for name in ("id", "tag", "value", "note")), strict=True))
        assert got == want
        report = ds.verify()
        assert report.ok
        assert report.batches == len(visits)
        assert report.batches_unfinished == 0


def test_reads_beside_consolidation_find_every_acknowledged_record(tmp_path: Path) -> None:
    path, stop = tmp_path / "visits.db", threading.Event()
    acknowledged, failures = [0], []

    def put(ds: ct.Dataset) -> None:
        ids = range(acknowledged[0], acknowledged[0] + 40)
        tags, times = [id % 4 for id in ids], [FIRST_US + id for id in ids]
        ds.write({"id": list(ids), "tag": tags, "time": times}, batch=f"{ids[0]}")
        acknowledged[0] = ids[-1] + 1

    def repeat(work: Callable[[ct.Dataset], object]) -> None:
        try:
            with ct.open(path) as archive:
                while not stop.is_set():
                    work(archive["records"])
        except BaseException as error:
            failures.append(error)

    with ct.open(path) as archive:
        schema = {"id": "int64", "tag": "int64", "time": "timestamp[us]"}
        ds = archive.create("records", schema=schema, cell=ct.key("tag"), time="time", window="1d", id="id")
        for _ in range(20):
            put(ds)
        threads = [threading.Thread(target=repeat, args=(work,)) for work in (put, ct.Dataset.consolidate)]
        for thread in threads:
            thread.start()
        try:
            end = time.monotonic() + 5
            while time.monotonic() < end and not failures:
                wanted = acknowledged[0]
                assert ds.read(ids=list(range(wanted)), columns=["id"]).to_arrow().num_rows == wanted
                assert ds.count(start=FIRST_US, end=FIRST_US + wanted) == wanted
                assert ds.count(where=("id", "<", wanted)) == wanted
                assert ds.count() >= wanted
                assert ds.latest(by=["id"], end=FIRST_US + wanted).to_arrow().num_rows == wanted
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert not failures


def test_workers_end_with_a_parent_that_is_killed() -> None:
    code = """
import multiprocessing, time
from concurrent.futures import ProcessPoolExecutor
from chronotile.workers import end_with_parent
pool = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), end_with_parent)
pool.submit(time.sleep, 0).result()
print("ready", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        # Workers hold the same output: it ends with the last of them.
        assert parent.communicate(timeout=60) == ("", None)
