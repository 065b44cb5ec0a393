"""Choose a layout that keeps the densest partition of a survey within an engine's limits.

On a cluster, the rows of a few pixels in one slice form a partition, which works well up to about 10 MiB. Near the
galactic plane, sources are a hundred times denser than elsewhere, so the layout follows from the densest pixel, not
from the mean. Stored partitions are measured against the same limit.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa

from chronotile import sky
from chronotile.apdb import names, values
from chronotile.apdb.layout import Layout
from chronotile.apdb.schema import Schema
from chronotile.errors import DataFileError, InvalidInputError
from chronotile.reports import DatasetInfo

__all__ = ["Crowded", "Density", "crowded", "positions"]

_SKY_DEG2 = 41_252.96
_MONTH_DAYS = 30.0
_LEVELS_FINER = 4
_POSITIONS_TELLING = 16
_WIDTHS = {"bool": 0.125, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "float32": 4, "float64": 8, "utf8": 8,
           "binary": 8, "timestamp[us]": 8}  # fmt: skip
_OWN_BYTES = 24
"""Bytes per row for the archive's own columns and for the row's share of the chunk head."""


_INDEX_ENTRY_BYTES, _INDEX_PARTITIONS_MAX = 9, 16
"""Bytes of an index entry before maintenance, and most partitions of the index that a store should write to."""


@dataclass(frozen=True)
class Density:
    """Expected source density of a survey.

    Attributes
    ----------
    ra, dec : arrays
        Positions with the same relative density as the survey's objects, such as a star catalogue; degrees.
    objects : float
        Number of variable objects that the positions stand for.
    visits_a_month : float
        Visits per field in thirty days, in the busiest months.
    detected : float
        Fraction of visits in which such an object is detected, 0 to 1; forced sources are measured in all visits.
    transients_deg2 : float
        New objects per visit and square degree.
    """

    ra: Any
    dec: Any
    objects: float
    visits_a_month: float
    detected: float = 0.5
    transients_deg2: float = 0.0
    _densest: dict[tuple[str, int], float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.ra) != len(self.dec) or not len(self.ra):
            raise InvalidInputError("ra and dec must be non-empty and of equal length", kind="invalid-setting")
        if min(self.objects, self.visits_a_month, self.transients_deg2) < 0 or not 0 <= self.detected <= 1:
            raise InvalidInputError(
                "objects, visits_a_month and transients_deg2 must be 0 or more, and detected between 0 and 1",
                kind="invalid-setting",
            )

    def densest(self, scheme: str, level: int) -> float:
        """Objects in the densest pixel, three standard deviations above the estimate from the positions.

        Below sixteen positions in the densest pixel, the estimate uses the finest level that has more, and assumes an
        even spread within it.
        """
        key = (scheme, level)
        if key not in self._densest:
            self._densest[key] = self._count_densest(scheme, level)
        return self._densest[key]

    def _count_densest(self, scheme: str, level: int) -> float:
        ra, dec = np.asarray(self.ra, float), np.asarray(self.dec, float)
        for coarser in range(level, -1, -1):
            _, counts = np.unique(np.asarray(sky.pixel_index(scheme, coarser, ra, dec)), return_counts=True)
            most = float(counts.max())
            if most >= _POSITIONS_TELLING:
                break
        return float((most + 3 * np.sqrt(most)) * self.objects / len(ra) / 4 ** (level - coarser))

    def cell_bytes(self, schema: Schema, layout: Layout) -> dict[str, int]:
        """Bytes of the densest partition in one slice, by table: an upper bound, because chunks are compressed. Forced
        sources are measured for objects seen within thirty days, so a transient gets one for each visit of a month. A
        partition that sources and forced sources share has the bytes of both.
        """

        def found(table: str) -> int:
            level = layout.partition_level(table)
            known = self.densest(layout.scheme, level)
            new, visits = self.transients_deg2 * _SKY_DEG2 / sky_pixels(layout.scheme, level), self.visits_a_month
            rows = visits * (known + new * visits if table == names.FORCED else known * self.detected + new)
            return round(rows * slice_days(layout, table) / _MONTH_DAYS * row_bytes(schema, table))

        by_table = {table: found(table) for table in names.MAIN_TABLES}
        if layout.shared:
            both = by_table[names.SOURCE] + by_table[names.FORCED]
            by_table |= {names.SOURCE: both, names.FORCED: both}
        return by_table

    def layout(self, schema: Schema, base: Layout | None = None) -> Layout:
        """The layout nearest to `base` whose densest partition stays within ``base.cell_bytes_max`` in every slice.
        Changes are tried in this order: shorter object slices (one more request per read), source slices of one window,
        fewer pixels in a partition, finer pixels (about twice the requests), shorter windows. The index of objects is
        spread over up to 16 partitions; a survey that fills more gets none.

        Raises
        ------
        InvalidInputError
            Kind ``invalid-setting``: no layout fits; the message says by how much.
        """
        wanted = base or Layout()
        if not 0 < wanted.level <= 20 - _LEVELS_FINER:
            return self._checked(schema, wanted)
        for layout in _candidates(wanted):
            if max(self.cell_bytes(schema, layout).values()) <= wanted.cell_bytes_max:
                return dataclasses.replace(layout, object_index_partitions=self._index_partitions(layout))
        return self._checked(schema, layout)

    def _index_partitions(self, layout: Layout) -> int:
        """Partitions that the index of objects needs in an object slice: 0 if more than a store should write to."""
        entries = self.objects * self.visits_a_month * slice_days(layout, names.OBJECT) / _MONTH_DAYS
        needed = math.ceil(entries * _INDEX_ENTRY_BYTES / layout.cell_bytes_max)
        wanted = layout.object_index_partitions
        return 0 if wanted == 0 or needed > _INDEX_PARTITIONS_MAX else max(wanted, needed)

    def _checked(self, schema: Schema, layout: Layout) -> Layout:
        found = self.cell_bytes(schema, layout)
        table = max(found, key=lambda name: found[name])
        if found[table] > layout.cell_bytes_max:
            raise InvalidInputError(
                f"the densest partition of {table} would hold {found[table] / 2**20:,.1f} MiB in one slice, "
                f"above the limit of {layout.cell_bytes_max / 2**20:.1f}, even with {layout.scheme} level "
                f"{layout.level} and windows of {layout.window}: choose finer pixels, fewer columns or a "
                f"greater cell_bytes_max",
                kind="invalid-setting",
            )
        return layout


def _candidates(base: Layout) -> Iterator[Layout]:
    """Candidate layouts, from `base` to smaller and smaller cells."""
    windows = [base, *(dataclasses.replace(base, window=text, slice=1) for text in ("30d", "15d", "5d"))]
    for shorter in windows:
        if values.days(shorter.window, "window") > values.days(base.window, "window"):
            continue
        finer = range(base.level, base.level + _LEVELS_FINER + 1)
        shared = range(base.partition_levels, -1, -1)
        slices = dict.fromkeys([shorter.slice, 1])
        objects_shared = range(base.object_partition_levels, -1, -1)
        for level, levels, length, object_levels in itertools.product(finer, shared, slices, objects_shared):
            layout = dataclasses.replace(
                shorter, level=level, partition_levels=levels, slice=length, object_partition_levels=object_levels
            )
            yield layout
            for text in ("180d", "90d"):
                if base.object_window == "360d" and slice_days(base, names.OBJECT) == 360:
                    yield dataclasses.replace(layout, object_window=text, object_slice=1)


def sky_pixels(scheme: str, level: int) -> int:
    """Number of pixels on the sky."""
    return {"mq3c": 6, "q3c": 6, "htm": 8, "healpix": 12}[scheme] << (2 * level)


def slice_days(layout: Layout, table: str) -> float:
    """Length of a slice of a table, in days."""
    window, length = (
        (layout.object_window, layout.object_slice) if table == names.OBJECT else (layout.window, layout.slice)
    )
    return length * values.days(window, "window") if isinstance(length, int) else values.days(length, "slice")


def row_bytes(schema: Schema, table: str) -> float:
    """Uncompressed bytes per row."""
    return _OWN_BYTES + sum(_WIDTHS[column.type] for column in schema[table].columns)


@dataclass(frozen=True)
class Crowded:
    """A slice whose largest partition exceeds the limit, or will when the slice is full.

    Attributes
    ----------
    table : str
        The table.
    start, end : float
        Period of the slice, MJD in TAI.
    bytes : int
        Bytes of the largest partition so far.
    expected : int
        Bytes expected at the end of the slice, at the present rate.
    """

    table: str
    start: float
    end: float
    bytes: int
    expected: int


def crowded(info: dict[str, DatasetInfo], layout: Layout, now: float) -> list[Crowded]:
    """Slices that exceed ``layout.cell_bytes_max``, from the statistics of the tables by name. A slice that is being
    filled is extrapolated once a tenth of its period has passed.
    """
    found = []
    for table, each in info.items():
        for part in each.slices:
            start, end = cast(float, part.start), cast(float, part.end)
            passed = min(max((now - start) / (end - start), 0.1), 1.0)
            expected = round(part.cell_bytes_max / passed)
            if expected > layout.cell_bytes_max:
                found.append(Crowded(table, start, end, part.cell_bytes_max, expected))
    return found


def positions(path: str | os.PathLike[str]) -> tuple[Any, Any]:
    """Read columns ra and dec of a Parquet file, without rows that hold nulls."""
    import pyarrow.parquet as pq

    if os.path.isdir(path):
        raise DataFileError(f"cannot read positions from {path}: it is a folder; give a file in it", kind="file-format")
    try:
        table = pq.read_table(path, columns=["ra", "dec"]).drop_null()
    except FileNotFoundError as error:
        raise DataFileError(
            f"cannot read positions from {path}: the file does not exist", kind="file-not-found"
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise DataFileError(f"cannot read positions from {path}: {error}", kind="file-format") from error
    return table["ra"].to_numpy(), table["dec"].to_numpy()
