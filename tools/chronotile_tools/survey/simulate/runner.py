"""Worker processes that drive a database visit by visit, and concurrent readers, each with a log."""

from __future__ import annotations

import importlib.metadata
import json
import multiprocessing
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from chronotile import apdb as own
from chronotile import optional
from chronotile.apdb.schema import Schema
from chronotile.errors import BatchConflictError, ChronotileError, InvalidInputError
from chronotile.workers import end_with_parent
from chronotile_tools.survey.simulate.drivers import ChronotileDriver, Driver, PeerDriver
from chronotile_tools.survey.simulate.universe import PADDING_DEG, Survey, Universe

__all__ = ["Run", "SimulationError", "machine", "run"]

_JOIN_S = 30


class SimulationError(ChronotileError, RuntimeError):
    """A worker failed with an error that is not Chronotile's. Kind ``simulation-failed``; the message contains its
    traceback.
    """


@dataclass(frozen=True)
class Run:
    """Settings of a simulation run.

    Attributes
    ----------
    survey : Survey
        The survey to simulate.
    target : str
        URL of a Chronotile database, or with `peer` the configuration file of any ``lsst.dax.apdb.Apdb``.
    log : path
        Folder for the logs; one file of JSON lines for each process.
    workers : int
        Processes that read and store, each for some of the detectors.
    readers : int
        Processes that concurrently read cones of the patch.
    peer : bool
        Whether to use `target` through the interface of the LSST.
    first_visit : int
        First visit, to continue an interrupted simulation.
    barrier : bool
        Whether all workers wait for each other after each visit, as detectors of one camera do.
    """

    survey: Survey
    target: str
    log: Path
    workers: int = 1
    readers: int = 0
    peer: bool = False
    first_visit: int = 0
    barrier: bool = True


def _engine(plan: Run) -> str:
    """Engine of the database, for the report; for a peer, its configuration file."""
    if plan.peer:
        return f"that of {Path(plan.target).name}"
    with own.open(plan.target, read_only=True) as database:
        return database.archive.engine


def machine() -> str:
    """The machine that ran the clients: processors, memory, system."""
    cores = os.cpu_count() or 1
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    models = (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name"))
    model = next(models, "")
    return ", ".join(filter(None, [f"{cores} processors", model, f"{memory_gib:.0f} GiB", platform.platform()]))


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def run(plan: Run, progress: Callable[[int, int], object] | None = None) -> list[Path]:
    """Run a simulation; return the log files. The database must exist.

    `progress` is called with the detector-visits done so far and in total.

    Raises
    ------
    BatchConflictError
        The database has other rows for a visit: a survey was simulated on it before.
    ChronotileError
        A worker failed with this error; the others were ended.
    SimulationError
        A worker failed with another error.
    InvalidInputError
        A setting is invalid.
    """
    survey = plan.survey
    if not 1 <= plan.workers <= survey.detectors:
        raise InvalidInputError(
            f"workers is {plan.workers}: use 1 to the number of detectors, {survey.detectors}", kind="invalid-setting"
        )
    if plan.first_visit >= survey.visits:
        raise InvalidInputError(
            f"first_visit is {plan.first_visit}: use less than the number of visits, {survey.visits}",
            kind="invalid-setting",
        )
    schema, layout = _opened(plan)
    plan.log.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(plan.workers) if plan.barrier and plan.workers > 1 else None
    stop, results = spawn.Event(), spawn.Queue()
    record = {"survey": asdict(survey), "target": plan.target, "workers": plan.workers, "readers": plan.readers}
    record["layout"] = layout
    record |= {"engine": _engine(plan), "machine": machine(), "version": importlib.metadata.version("chronotile")}
    driver = PeerDriver.name if plan.peer else ChronotileDriver.name
    (plan.log / "run.json").write_text(json.dumps({**record, "driver": driver, "started": time.time()}, indent=1))
    files = [plan.log / f"worker-{number}.jsonl" for number in range(plan.workers)]
    files += [plan.log / f"reader-{number}.jsonl" for number in range(plan.readers)]
    shared = (plan, schema.to_json())
    workers = [
        spawn.Process(target=_work, args=(*shared, number, barrier, results), daemon=True)
        for number in range(plan.workers)
    ]
    readers = [
        spawn.Process(target=_read, args=(*shared, number, stop, results), daemon=True)
        for number in range(plan.readers)
    ]
    for process in [*workers, *readers]:
        process.start()
    try:
        _wait(plan, workers, readers, results, progress)
    finally:
        stop.set()
        for process in [*workers, *readers]:
            process.join(_JOIN_S if process.is_alive() else 1)
            if process.is_alive():
                process.terminate()
    return files


def _opened(plan: Run) -> tuple[Schema, dict[str, Any] | None]:
    """Schema of the simulated database, and the layout if it is a Chronotile database."""
    if plan.peer:
        optional.require("a database of lsst.dax.apdb", "lsst", "lsst.dax.apdb", "pandas")
        from lsst.dax.apdb import ApdbConfig

        import chronotile.apdb.lsst as adapter

        return adapter.own_schema(ApdbConfig.from_uri(plan.target)), None
    from chronotile import apdb

    with apdb.open(plan.target, read_only=True) as database:
        return database.schema, asdict(database.layout)


def _wait(
    plan: Run, workers: list[Any], readers: list[Any], results: Any, progress: Callable[[int, int], object] | None
) -> None:
    import queue

    total = (plan.survey.visits - plan.first_visit) * plan.survey.detectors
    done, ended = 0, 0
    while ended < len(workers):
        try:
            kind, value = results.get(timeout=1.0)
        except queue.Empty:
            died = [each for each in [*workers, *readers] if each.exitcode not in (None, 0)]
            if died:
                raise SimulationError(f"a process ended with {died[0].exitcode}", kind="simulation-failed") from None
            continue
        if kind == "failed":
            raise _failure(plan, value)
        if kind == "ended":
            ended += 1
        else:
            done += value
            if progress is not None:
                progress(done, total)


def _failure(plan: Run, value: ChronotileError | str) -> ChronotileError:
    """The error to raise for an error or a traceback of a process."""
    if isinstance(value, str):
        return SimulationError(f"a process failed:\n{value}", kind="simulation-failed")
    if not isinstance(value, BatchConflictError):
        return value
    with own.open(plan.target, read_only=True) as database:
        stored = max(database.visits().to_arrow()["visit"].to_pylist(), default=0)
    return BatchConflictError(
        f"{plan.target} holds other rows of these visits, up to visit {stored}: a survey was simulated on it before. "
        f"Use a new database, or continue with --first-visit {stored + 1} and more --visits",
        kind=value.kind,
        **value.details,
    )


def _report_failure(results: Any, error: BaseException) -> None:
    """Send the reason to the parent, and wait until it is sent."""
    results.put(("failed", error if isinstance(error, ChronotileError) else traceback.format_exc(limit=-6)))
    results.close()
    results.join_thread()


def _driver(plan: Run) -> Driver:
    return PeerDriver(plan.target) if plan.peer else ChronotileDriver(plan.target)


def _log(file: TextIO, **entry: Any) -> None:
    file.write(json.dumps(entry, separators=(",", ":")) + "\n")
    file.flush()


def _work(plan: Run, schema: str, number: int, barrier: Any, results: Any) -> None:
    """Main function of a worker: simulate its detectors, visit by visit."""
    end_with_parent()
    try:
        with (plan.log / f"worker-{number}.jsonl").open("a") as file:
            universe, driver = Universe(plan.survey, Schema.from_json(schema)), _driver(plan)
            for visit in range(plan.first_visit, plan.survey.visits):
                mine = range(number, plan.survey.detectors, plan.workers)
                for detector in mine:
                    for entry in _detector_visit(universe, driver, visit, detector):
                        _log(file, driver=driver.name, worker=number, **entry)
                results.put(("done", len(mine)))
                if barrier is not None:
                    barrier.wait(600)
            driver.close()
        results.put(("ended", number))
    except BaseException as error:
        # Report this before the other workers fail at the barrier, so that the parent gets the cause first.
        _report_failure(results, error)
        if barrier is not None:
            barrier.abort()


def _detector_visit(universe: Universe, driver: Driver, visit: int, detector: int) -> Iterator[dict[str, Any]]:
    """Read, detect, store; yields the fields to log."""
    e = universe.survey.exposure(visit, detector)
    shared = {"visit": visit, "detector": detector, "mjd_tai": e.mjd, "wall": time.time()}
    footprint = e.footprint(PADDING_DEG)
    read = driver.read(footprint, e.mjd)
    yield {
        **shared, "op": "read", "rows": read.counts, "seconds_by_table": read.seconds,
        "seconds": sum(read.seconds.values()), "cpu_s": read.cpu_s,
    }  # fmt: skip
    found = universe.observe(e, read.known)
    size = sum(table.nbytes for table in (found.objects, found.sources, found.forced_sources))
    rows = driver.rows(found)
    began, cpu = time.perf_counter(), time.process_time()
    driver.store(e, rows)
    spent = time.perf_counter() - began
    yield {
        **shared, "op": "store", "rows": found.rows, "bytes": size, "seconds": spent,
        "cpu_s": time.process_time() - cpu,
    }  # fmt: skip


def _read(plan: Run, schema: str, number: int, stop: Any, results: Any) -> None:
    """Main function of a reader: read cones around positions in the patch, one after another, until the workers end."""
    end_with_parent()
    try:
        survey = plan.survey
        rng = np.random.default_rng([survey.seed, 4, number])
        last = survey.time(survey.visits - 1)
        with (plan.log / f"reader-{number}.jsonl").open("a") as file:
            driver = _driver(plan)
            while not stop.is_set():
                ra, dec = survey.pointing(int(rng.integers(survey.visits)))
                ra, dec = ra + rng.uniform(-0.2, 0.2), dec + rng.uniform(-0.2, 0.2)
                began, cpu = time.perf_counter(), time.process_time()
                rows = driver.cone(ra, dec, 0.05, last)
                spent = time.perf_counter() - began
                _log(
                    file, driver=driver.name, reader=number, op="cone", ra=ra, dec=dec, rows=rows, seconds=spent,
                    cpu_s=time.process_time() - cpu, wall=time.time(),
                )  # fmt: skip
                stop.wait(0.05)
            driver.close()
    except BaseException as error:
        _report_failure(results, error)
