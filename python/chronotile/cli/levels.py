"""Choose a pixel level from data, and give advice on the level of an existing dataset."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

from chronotile import _native, cells, scanning, times
from chronotile.dataset import Dataset
from chronotile.errors import DataFileError
from chronotile.reports import DatasetInfo
from chronotile.terminal import bytes_text, count_text

LEVEL_DEFAULT = 10
"""Default level, if no rows are given to choose from: pixels of 5 arc minutes."""

ROWS_GOOD = 400
"""Rows per tile for good compression and fast reads; see the guide to choosing pixels."""

ROWS_FEW = 40
"""Below this many rows per tile, overhead dominates if there are many tiles."""

ROWS_FEW_NARROW = 100
"""The same limit for narrow rows, whose tiles have at most `BYTES_FEW`. Measured with 1.5 M rows of 41 bytes over the
whole sky and a year: the file has 42 MB with 1,200 rows per tile, 55 MB with 300, and 66 MB with 75."""

BYTES_FEW = 4 << 10

BYTES_LARGE = 32 << 20
"""Above this size, a read of a small region reads much more than it needs."""

_ROWS_MIN = 10_000
"""Files with fewer rows are too small to choose a level from."""

_ROWS_MAX = 2_000_000
_SAMPLE_ROWS = 200_000
_TILES_MANY = 5_000
_UNIT_SECONDS = {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True)
class Choice:
    """A level and the reason for it."""

    level: int
    reason: str


def choose(
    file: _native.RecordFile, ra: str, dec: str, scheme: str, axis: times.TimeAxis, window: str, types: dict[str, str]
) -> Choice | None:
    """Choose the finest level, up to the default, at which a file's rows give tiles of a good size; None if the file is
    too small to tell.
    """
    length = scanning.length_of_time(window)
    kind = types.get(axis.column, "")
    if length is None or not {ra, dec, axis.column} <= types.keys():
        return None
    if kind.startswith("timestamp["):
        unit = length / _UNIT_SECONDS[kind[10:].split(",")[0].rstrip("]")]
    elif kind in ("date32", "float64"):
        unit = length / 86_400
    else:
        return None
    rows, counts = _native.tile_counts(file, ra, dec, axis.column, scheme, LEVEL_DEFAULT, unit, _ROWS_MAX)
    if rows < _ROWS_MIN:
        return None
    per_tile = {level: rows / tiles for level, tiles in counts}
    good = [level for level, mean in per_tile.items() if mean >= ROWS_GOOD]
    level = max(good) if good else min(per_tile)
    if level == LEVEL_DEFAULT:
        return Choice(level, "")
    return Choice(
        level,
        f"level {level}, with {per_tile[level]:,.0f} rows per tile of this file "
        f"({per_tile[LEVEL_DEFAULT]:,.1f} at level {LEVEL_DEFAULT}); set --level if you expect much more "
        "data for the same period",
    )


def for_rows(rows: int, scheme: str, window: str) -> Choice:
    """Choose the finest level, up to the default, at which `rows` of a window over the whole sky give tiles of a good
    size.
    """
    good = [level for level in range(LEVEL_DEFAULT + 1) if rows >= ROWS_GOOD * _pixels(scheme, level)]
    level = max(good, default=0)
    per_tile = rows / _pixels(scheme, level)
    return Choice(level, f"level {level}, with {per_tile:,.0f} of {rows:,} rows per tile and window of {window}")


def by_default(scheme: str, window: str) -> Choice:
    """The default level, with advice on how to choose another."""
    rows = ROWS_GOOD * _pixels(scheme, LEVEL_DEFAULT)
    return Choice(
        LEVEL_DEFAULT,
        f"level {LEVEL_DEFAULT}, the default, not chosen from data; it suits {rows / 1e9:.1f} billion rows per window "
        f"of {window} over the whole sky. If you expect fewer, drop the dataset and create it with --rows N, "
        f"--level N, or --like a file of at least {_ROWS_MIN:,} rows",
    )


def _pixels(scheme: str, level: int) -> int:
    """Pixels of the whole sky."""
    first, end = _native.pixel_range(scheme, level)
    return end - first


def advice(dataset: Dataset, info: DatasetInfo) -> str | None:
    """Advice on tiles that are too small or too large."""
    if not info.tiles:
        return None
    mean = info.rows / info.tiles
    few = ROWS_FEW_NARROW if info.bytes <= info.tiles * BYTES_FEW else ROWS_FEW
    if mean < few and info.tiles >= _TILES_MANY:
        return (
            f"tiles are small: {mean:,.1f} rows on average in {count_text(info.tiles, 'tile')}, where {ROWS_GOOD} are "
            f"good; {_larger(dataset, ROWS_GOOD / mean)} takes less room and reads faster"
        )
    if info.tile_bytes.median > BYTES_LARGE:
        return (
            f"tiles are large: {bytes_text(info.tile_bytes.median)} at the median; "
            f"{_smaller(dataset)} reads less for a small region or period"
        )
    return None


def _larger(dataset: Dataset, factor: float) -> str:
    if isinstance(dataset.cell, cells.SkyCell):
        level = _fitting_level(dataset, dataset.cell)
        if level is None:
            level = max(dataset.cell.level - math.ceil(math.log(factor, 4)), 0)
        return f"a dataset of --level {level}, or of longer windows than {dataset.window},"
    return f"a dataset of longer windows than {dataset.window}, or of fewer cells,"


def _fitting_level(dataset: Dataset, cell: cells.SkyCell) -> int | None:
    """A coarser level that `create` would choose for a sample of the rows, if any. The number of tiles alone does not
    show how rows are distributed over coarser pixels.
    """
    columns = dict.fromkeys([cell.ra, cell.dec, dataset.time.column])
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "sample.arrow")
        try:
            _native.write_records(dataset.read(columns=columns, limit=_SAMPLE_ROWS)._native, path, "arrow")
            file = _native.RecordFile.open(path)
            found = choose(file, cell.ra, cell.dec, cell.scheme, dataset.time, dataset.window, dataset.column_types)
        except DataFileError:
            # The sample cannot be written, for example because the disk is full: give less precise advice.
            return None
    return None if found is None or found.level >= cell.level else found.level


def _smaller(dataset: Dataset) -> str:
    if isinstance(dataset.cell, cells.SkyCell):
        return f"a dataset of --level {dataset.cell.level + 1} or more, or of shorter windows than {dataset.window},"
    return f"a dataset of shorter windows than {dataset.window}, or of more cells,"
