"""The index from object ids to pixels, by which objects anywhere on the sky are found.

An entry says that a pixel has rows of an object: versions of the object, sources, or forced sources. Each batch stores
the entries of its own rows, so rows and entries are removed together: whichever batches are removed or replaced, every
remaining row has an entry. An entry without rows costs the read of one pixel and changes no result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronotile import sky
from chronotile.apdb import names, values
from chronotile.apdb.layout import OBJECT_INDEX_SCHEMA, Layout
from chronotile.archive import Archive
from chronotile.dataset import Dataset
from chronotile.reports import SliceInfo

__all__: list[str] = []

_TABLE_OF = {names.dataset_name(table): table for table in names.MAIN_TABLES}
_PLACES = pa.schema([("id", pa.int64()), ("ra", pa.float64()), ("dec", pa.float64()), ("time", pa.float64())])


class ObjectIndex:
    """The index from object ids to pixels of a database.

    Attributes
    ----------
    kept : bool
        Whether the database keeps an index.
    """

    def __init__(self, archive: Archive, layout: Layout) -> None:
        self._archive, self._layout = archive, layout
        self._window_days = values.days(layout.object_window, "object_window")
        self._dataset: Dataset | None = None
        self.kept = layout.object_index_partitions > 0

    @property
    def dataset(self) -> Dataset:
        """The dataset of the entries."""
        if self._dataset is None:
            self._dataset = self._archive[names.OBJECT_INDEX]
        return self._dataset

    # ------------------------------------------------------------------ writing

    def entries(self, rows: Mapping[str, Any]) -> Any:
        """Compute the entries of `rows`, tables by dataset: one for each object, pixel and window."""
        parts = [_places(_TABLE_OF[name], part) for name, part in rows.items() if name in _TABLE_OF]
        places = pa.concat_tables([_PLACES.empty_table(), *parts])
        if places.column(0).null_count:
            places = places.filter(pc.is_valid(places.column(0)))
        ids, ra, dec, times = (column.to_numpy() for column in places.columns)
        pixels = pa.array(sky.pixel_index(self._layout.scheme, self._layout.level, ra, dec))
        pixels = pixels.to_numpy(zero_copy_only=False).astype(np.int64)
        # All entries of a window have the same time, so a consolidated tile is sorted by id and its chunks cover
        # separate ranges of ids.
        windows = (np.floor(times / self._window_days) + 0.5) * self._window_days
        order = np.lexsort((windows, pixels, ids))
        ids, pixels, windows = ids[order], pixels[order], windows[order]
        first = np.ones(len(ids), bool)
        first[1:] = (ids[1:] != ids[:-1]) | (pixels[1:] != pixels[:-1]) | (windows[1:] != windows[:-1])
        return pa.table([ids[first], pixels[first], windows[first]], OBJECT_INDEX_SCHEMA)

    # ------------------------------------------------------------------ reading

    @staticmethod
    def request(ids: Any) -> dict[str, Any]:
        """Arguments of a read of the index: columns ``diaObjectId`` and ``pixel`` of the entries of objects.

        `ids` is an array of int64.
        """
        return {"keys": ids, "ids": ids, "columns": [names.OBJECT_ID, names.PIXEL]}

    def entries_of(self, ids: Any) -> Any:
        """The entries of objects as a table with the columns of :meth:`request`; None without an index."""
        return self.dataset.read(**self.request(ids)).to_arrow() if self.kept else None

    def pixels_of(self, ids: Any) -> list[int] | None:
        """Pixels, sorted, that hold all rows of objects; None without an index."""
        found = self.entries_of(ids)
        return None if found is None else distinct_pixels(found)

    def first_times(self, ids: Any) -> Any:
        """Lower bound for the time of each object's first row, as an array of MJD (TAI): the start of its window; minus
        infinity for objects without entries.

        Rows of retired or archived slices count until their entries are retired. None without an index.
        """
        if not self.kept:
            return None
        request = {**self.request(ids), "columns": [names.OBJECT_ID, names.INDEX_TIME], "history": True}
        entries = self.dataset.read(**request).to_arrow()
        found = entries.group_by(names.OBJECT_ID).aggregate([(names.INDEX_TIME, "min")])
        first = np.full(len(ids), -np.inf)
        places = pc.index_in(found[names.OBJECT_ID], pa.array(ids)).to_numpy()
        # An entry has the time of the middle of its window.
        first[places] = found[f"{names.INDEX_TIME}_min"].to_numpy() - self._window_days / 2
        return first

    # ------------------------------------------------------------------ maintenance

    def retire(self, datasets: Mapping[str, Dataset], limit: float, *, dry_run: bool) -> list[SliceInfo]:
        """Drop the slices that end at or before a time, in MJD (TAI), and have no more rows in the main tables."""
        # List the slices first: a row that is stored afterwards changes the slice of its entry, which is then kept.
        old = self.dataset.retire(before=limit, dry_run=True)
        starts = [cast(float, part.start) for table in names.MAIN_TABLES for part in datasets[table].info().slices]
        first = min(starts, default=math.inf)
        # Windows of entries are counted from MJD 0, slices from 1970: the time of an entry differs from those of its
        # rows by up to half a window, so the entry may be in an earlier slice.
        old = [part for part in old if cast(float, part.end) < first - self._window_days / 2]
        return old if dry_run or not old else self.dataset.retire(unchanged=old)


def _time_column(table: str) -> str:
    return names.VALID_FROM if table == names.OBJECT else names.TIME


def _places(table: str, rows: Any) -> Any:
    """Object, position and time of each row of a table."""
    if rows.schema.get_field_index(names.OBJECT_ID) < 0:
        # A nullable column that was left out: the rows belong to no object.
        return _PLACES.empty_table()
    columns = [rows.column(name) for name in (names.OBJECT_ID, names.RA, names.DEC, _time_column(table))]
    return pa.table(columns, _PLACES)


def distinct_pixels(entries: Any) -> list[int]:
    """The pixels of entries, sorted."""
    return [int(pixel) for pixel in np.unique(entries[names.PIXEL].to_numpy())]
