"""Concurrent changes of one database by several processes, in a module that spawned processes can import."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np

from chronotile import apdb

START = 61_000.0
PROCESSES, EACH = 3, 6
TARGET = 1
PLACE = {"ra": 150.1, "dec": 2.1}


def source_id(process: int, place: int) -> int:
    """Id of a source that one process reassigns to the target object and another withdraws."""
    return 1_000 + process * 100 + place


def store(database: apdb.Apdb) -> None:
    """Store the sources of all processes, each with an object of its own, within an arc second of the target object."""
    ids = np.array([TARGET, *(source_id(p, k) for p in range(PROCESSES) for k in range(EACH))])
    places = {"ra": np.full(len(ids), PLACE["ra"]), "dec": PLACE["dec"] + np.arange(len(ids)) * 1e-5 / 3}
    database.store(
        START,
        objects={"diaObjectId": ids, **places, "nDiaSources": np.ones(len(ids), "int32")},
        sources={"diaSourceId": ids, "diaObjectId": ids, **places, "midpointMjdTai": np.full(len(ids), START)},
        visit=1,
        detector=1,
    )


def change(url: str, number: int, start: Any, results: Any) -> None:
    """Reassign this process's sources to the target, and withdraw those of the next process, one by one."""
    try:
        with apdb.open(url) as database:
            start.wait(120)
            for place in range(EACH):
                database.reassign(_where(source_id(number, place)) | {"diaObjectId": [TARGET]})
                database.withdraw_sources(_where(source_id((number + 1) % PROCESSES, place)), START + 1)
        results.put((number, EACH, None))
    except BaseException:
        results.put((number, 0, traceback.format_exc()))


def _where(source: int) -> dict[str, list[Any]]:
    return {"diaSourceId": [source], "ra": [PLACE["ra"]], "dec": [PLACE["dec"]], "midpointMjdTai": [START]}
