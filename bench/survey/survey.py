"""Survey-shaped records in Chronotile, compared with DuckDB, Parquet files and SQLite with a row for each record.

    ./dev bench survey [--quick] [--repeat N] [--keep FOLDER]

Each visit has 4 or 5 rows of 100 columns in each of 48 tiles; there are 150 visits over 12 months. Every system stores
every visit durably, then reads a footprint of 12 tiles over 12 months, all columns, as an Arrow table: once before and
once after its maintenance. Before reads are timed, all answers are compared row by row. Systems are measured in turns.
Writes survey.md, survey.svg and survey.json (all samples) to bench/results/."""

from __future__ import annotations

import argparse
import gc
import json
import random
import shutil
import sqlite3
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import common
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from survey_systems import SYSTEMS, Chronotile, System

import chronotile as ct

START_MJD, DAYS = 60_000.0, 360.0
FOOTPRINT_TILES = 12
NARROW = ["source_id", "mjd", "flux_0", "flux_1"]
Samples = dict[str, dict[str, list[float]]]
"""Milliseconds by operation, then by system."""


@dataclass(frozen=True)
class Workload:
    """Size of the stored data."""

    tiles: int
    visits: int

    @property
    def text(self) -> str:
        return (
            f"{self.visits} visits over {DAYS:.0f} days, each with 4 or 5 rows in each of {self.tiles} tiles, "
            f"{len(schema())} columns ({kinds()}); a read takes {FOOTPRINT_TILES} tiles"
        )


def schema() -> pa.Schema:
    """100 columns, with types in the proportions of an alert survey's table of sources."""
    fields = [("source_id", pa.int64()), ("object_id", pa.int64()), ("visit", pa.int64()), ("cell", pa.int64())]
    fields += [("detector", pa.int32()), ("ndata", pa.int32()), ("mjd", pa.float64()), ("band", pa.string())]
    fields += [(f"angle_{n}", pa.float64()) for n in range(8)]
    fields += [(f"flag_{n}", pa.bool_()) for n in range(20)]
    fields += [(f"flux_{n}", pa.float32()) for n in range(100 - len(fields))]
    return pa.schema(fields)


def kinds() -> str:
    found: dict[str, int] = {}
    for kind in schema().types:
        found[str(kind)] = found.get(str(kind), 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in found.items())


def make_visits(work: Workload) -> list[pa.Table]:
    """Rows of each visit: noise in the floats, rarely set flags, every tenth float column null."""
    noise = np.random.default_rng(20_260_101)
    visits, next_id = [], 1
    for visit in range(work.visits):
        per_tile = noise.integers(4, 6, work.tiles)
        cell = np.repeat(np.arange(work.tiles), per_tile)
        rows = len(cell)
        known = {
            "source_id": np.arange(next_id, next_id + rows),
            "object_id": cell * 100 + noise.integers(0, 40, rows),
            "visit": np.full(rows, visit),
            "cell": cell,
            "detector": (cell // 12).astype("int32"),
            "ndata": noise.integers(1, 60, rows).astype("int32"),
            "mjd": START_MJD + DAYS * visit / work.visits + cell * 1e-5 + noise.random(rows) * 1e-6,
            "band": np.array(["u", "g", "r", "i", "z", "y"])[np.full(rows, visit % 6)],
        }
        next_id += rows
        columns = []
        for place, field in enumerate(schema()):
            if field.name in known:
                columns.append(pa.array(known[field.name], field.type))
            elif pa.types.is_boolean(field.type):
                columns.append(pa.array(noise.random(rows) < 0.02))
            elif place % 10 == 9:
                columns.append(pa.nulls(rows, field.type))
            else:
                columns.append(pa.array(noise.normal(100, 30, rows), field.type))
        visits.append(pa.table(columns, schema=schema()))
    return visits


def footprint(work: Workload, number: int) -> list[int]:
    first = number * FOOTPRINT_TILES % max(work.tiles - FOOTPRINT_TILES + 1, 1)
    return list(range(first, first + FOOTPRINT_TILES))


def store_all(systems: list[System], visits: list[pa.Table], samples: Samples) -> None:
    for number, rows in enumerate(visits):
        for system in common.rotated(systems, number):
            ms = common.timed_ms(lambda system=system, number=number, rows=rows: system.store(number, rows))
            samples.setdefault("store a visit", {}).setdefault(system.name, []).append(ms)


def check_equal(systems: list[System], work: Workload, truth: pa.Table) -> None:
    """Check that all systems return the rows of a filter of the input, bit for bit."""

    def normal(table: pa.Table) -> pa.Table:
        return table.select(schema().names).cast(schema()).sort_by("source_id").combine_chunks()

    cells, start, end = footprint(work, 1), START_MJD + 40.0, START_MJD + 300.0
    mask = pc.and_(pc.is_in(truth["cell"], pa.array(cells)), pc.greater_equal(truth["mjd"], start))
    want = normal(truth.filter(pc.and_(mask, pc.less(truth["mjd"], end))))
    ids = pick_ids(truth, 0)
    want_ids = normal(truth.filter(pc.is_in(truth["source_id"], pa.array(ids))))
    newest = [normal(found) for system in systems if (found := system.latest(cells)) is not None]
    for system in systems:
        assert normal(system.read(cells, start, end)).equals(want), f"{system.name} reads other rows"
        assert normal(system.by_id(ids)).equals(want_ids), f"{system.name} finds other rows by id"
        assert system.count(cells, start, end) == want.num_rows, f"{system.name} counts other rows"
    assert all(found.equals(newest[0]) for found in newest), "the newest rows differ"


def pick_ids(truth: pa.Table, number: int) -> list[int]:
    return random.Random(number).sample(range(1, truth.num_rows + 1), 100)


def measure_reads(
    systems: list[System], work: Workload, truth: pa.Table, when: str, repeat: int, samples: Samples
) -> None:
    """Send each request to each system once per round, in turns. The first round warms caches and is discarded."""
    end = START_MJD + DAYS

    def requests(number: int) -> dict[str, Callable[[System], object]]:
        cells, ids = footprint(work, number), pick_ids(truth, number)
        return {
            "read a footprint, 12 months, all columns": lambda system: system.read(cells, START_MJD, end),
            "read a footprint, 12 months, 4 columns": lambda system: system.read(cells, START_MJD, end, NARROW),
            "read a footprint, 1 month, all columns": lambda system: system.read(cells, end - 30, end),
            "count a footprint, 12 months": lambda system: system.count(cells, START_MJD, end),
            "newest row of each object of a footprint": lambda system: system.latest(cells),
            "100 rows by id": lambda system: system.by_id(ids),
        }

    for number in range(repeat + 1):
        for name, request in requests(number).items():
            for system in common.rotated(systems, number):
                ms = common.timed_ms(lambda request=request, system=system: request(system))
                without = name.startswith("newest") and type(system).latest is System.latest
                if number and not without:
                    samples.setdefault(f"{name} ({when})", {}).setdefault(system.name, []).append(ms)


def run(work: Workload, repeat: int, folder: Path) -> tuple[list[System], Samples, dict[str, dict[str, float]]]:
    visits = make_visits(work)
    truth = pa.concat_tables(visits)
    systems = [kind(folder / kind.__name__.lower(), schema()) for kind in SYSTEMS]
    samples: Samples = {}
    sizes: dict[str, dict[str, float]] = {}
    common.say(f"storing {truth.num_rows:,} rows in {len(systems)} systems")
    gc.disable()
    store_all(systems, visits, samples)
    for when in ("before maintenance", "after maintenance"):
        if when == "after maintenance":
            for system in systems:
                ms = common.timed_ms(system.consolidate)
                samples.setdefault("maintenance, once", {}).setdefault(system.name, []).append(ms)
        sizes[when] = {system.name: system.bytes_on_disk() / truth.num_rows for system in systems}
        common.say(f"comparing answers {when}")
        check_equal(systems, work, truth)
        common.say(f"reading {when}, {repeat} rounds")
        measure_reads(systems, work, truth, when, repeat, samples)
        gc.collect()
    return systems, samples, sizes


def report(
    work: Workload,
    repeat: int,
    load: float,
    systems: list[System],
    samples: Samples,
    sizes: dict[str, dict[str, float]],
) -> str:
    names = [system.name for system in systems]
    rows = [[name, *(common.spread(found.get(system, [])) for system in names)] for name, found in samples.items()]
    bytes_rows = [
        [f"bytes a row on disk, {when}", *(f"{found[name]:.0f}" for name in names)] for when, found in sizes.items()
    ]
    raw = (
        sum({"int64": 8, "double": 8, "int32": 4, "float": 4}.get(str(kind), 0) for kind in schema().types) + 20 / 8 + 1
    )
    full = "read a footprint, 12 months, all columns"
    ours = [
        statistics.median(samples[f"{full} ({when})"][Chronotile.name])
        for when in ("before maintenance", "after maintenance")
    ]
    return f"""# Survey-shaped records

{work.text}.
Milliseconds: median (least-largest) of {repeat} samples, of {work.visits} for stores; files in the page cache.
All systems returned the same rows, compared bit for bit before reads were timed.

{common.table(["ms", *names], rows)}

{common.table(["bytes", *names], bytes_rows)}

Raw column values take about {raw:.0f} bytes a row.

Chronotile reads the footprint in {ours[0]:.2f} ms before and {ours[1]:.2f} ms after consolidation;
the target is 10 and 4 ms on an idle machine with the full workload.

| system | durable when a store returns | maintenance |
|---|---|---|
{chr(10).join(f"| {system.name} | {system.durability} | {system.maintenance} |" for system in systems)}

chronotile {ct.__version__}, {common.versions("duckdb", "pyarrow", "numpy")}, SQLite of Python
{sqlite3.sqlite_version}, commit {common.commit()}.
{common.hardware()}. Load average at the start {load:.1f}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="24 tiles, 30 visits, 5 samples: a check that it works; the figures are meaningless",
    )
    parser.add_argument("--repeat", type=int, help="samples of each read (default 21)")
    parser.add_argument("--keep", type=Path, help="keep the files of all systems in this new folder")
    arguments = parser.parse_args()
    work = Workload(24, 30) if arguments.quick else Workload(48, 150)
    repeat = arguments.repeat or (5 if arguments.quick else 21)
    load = common.load_average()
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="chronotile-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        systems, samples, sizes = run(work, repeat, folder)
        text = report(work, repeat, load, systems, samples, sizes)
    finally:
        if arguments.keep is None:
            shutil.rmtree(folder)
    print(text)
    common.RESULTS.mkdir(exist_ok=True)
    (common.RESULTS / "survey.md").write_text(text)
    medians = {name: {system: statistics.median(ms) for system, ms in found.items()} for name, found in samples.items()}
    (common.RESULTS / "survey.svg").write_text(
        common.bars(f"Survey: {work.visits} visits, {work.tiles} tiles, ms", medians, "ms")
    )
    record = {"workload": work.text, "hardware": common.hardware(), "samples_ms": samples, "bytes_a_row": sizes}
    (common.RESULTS / "survey.json").write_text(json.dumps(record, indent=1) + "\n")
    common.say(f"wrote {common.RESULTS}/survey.md, survey.svg and survey.json")


if __name__ == "__main__":
    main()
