"""Concurrent work of several processes on one archive, in a module that spawned processes can import."""

from __future__ import annotations

import multiprocessing
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import support_visits
from support_visits import Visit

import chronotile as ct
from chronotile.workers import end_with_parent

SHARED_GROUP = 99
"""Visits of this group are written by every process."""
OWN_VISITS, SHARED_VISITS = 8, 6


def visits_on(url: str) -> tuple[int, int]:
    """Number of own and of shared visits that a process writes: fewer on a cluster, where each write and read takes
    longer."""
    return (5, 4) if url.startswith("cassandra:") else (OWN_VISITS, SHARED_VISITS)


def run(what: Callable[[str, int, Any, Any], None], url: str, count: int) -> list[int]:
    """Let `count` processes run `what` at the same time, and return the amount of work of each."""
    spawn = multiprocessing.get_context("spawn")
    start, results = spawn.Barrier(count), spawn.Queue()
    given = [(what, url, number, start, results) for number in range(count)]
    processes = [spawn.Process(target=_begin, args=each, daemon=True) for each in given]
    for process in processes:
        process.start()
    done = []
    for number, much, error in [results.get(timeout=300) for _ in processes]:
        assert error is None, f"process {number}:\n{error}"
        done.append(much)
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * count
    return done


def _begin(what: Callable[[str, int, Any, Any], None], url: str, number: int, start: Any, results: Any) -> None:
    end_with_parent()
    what(url, number, start, results)


def work(path: str, number: int, start: Any, results: Any) -> None:
    """Write own and shared visits, reading after each; puts the number of reads, or the traceback."""
    try:
        start.wait(120)
        with ct.open(path, timeout_s=60) as archive:
            results.put((number, _work(archive["visits"], number, *visits_on(path)), None))
    except BaseException:
        results.put((number, 0, traceback.format_exc()))


def begin(url: str, number: int, start: Any, results: Any) -> None:
    """Open an archive that does not exist yet, create its dataset and write a visit; puts the traceback of an error."""
    try:
        start.wait(120)
        with ct.open(url) as archive:
            support_visits.write(support_visits.create(archive), Visit(number, 0))
        results.put((number, 1, None))
    except BaseException:
        results.put((number, 0, traceback.format_exc()))


def _work(ds: ct.Dataset, number: int, own: int, shared: int) -> int:
    choose = random.Random(number)
    visits = [Visit(number, index) for index in range(own)]
    visits += [Visit(SHARED_GROUP, index) for index in range(shared)]
    choose.shuffle(visits)
    whole: set[int] = set()
    for reads, visit in enumerate(visits, 1):
        support_visits.write(ds, visit)
        whole.add(visit.index)
        whole |= look(ds, whole)
        if number == 0 and reads % 5 == 0:
            ds.consolidate()
        time.sleep(choose.uniform(0, 0.01))
    return len(visits)


def look(ds: ct.Dataset, whole: set[int]) -> set[int]:
    """Read everything and check that all visits are complete, and that all visits in `whole` are present: those that
    were acknowledged to this process or that it has read before. Returns all visits found."""
    table = ds.read(columns=["visit", "id"]).to_arrow()
    ids = table["id"].to_pylist()
    assert len(ids) == len(set(ids)), "a record came twice"
    seen = Counter(table["visit"].to_pylist())
    for index, rows in seen.items():
        visit = Visit(*divmod(index, 10_000))
        assert rows == visit.rows, f"visit {visit.key} has {rows} rows of {visit.rows}"
    assert whole <= seen.keys(), (
        f"visits {sorted(whole - seen.keys())} are missing, but were read or acknowledged before"
    )
    # Other read paths, which read heads of chunks first and then only some bodies.
    some = [Visit(*divmod(index, 10_000)) for index in sorted(whole)[-3:]]
    ids = [record for visit in some for record in visit.ids]
    found = ds.read(ids=ids, columns=["id"]).to_arrow()["id"].to_pylist()
    assert sorted(found) == ids, f"{len(found)} of {len(ids)} records are found by id"
    for visit in some:
        got = ds.count(where=("id", "between", (visit.ids[0], visit.ids[-1])))
        assert got == visit.rows, f"{got} of {visit.rows} records meet the condition"
    # Other processes may have stored more since.
    assert ds.count() >= sum(seen.values())
    return set(seen)
