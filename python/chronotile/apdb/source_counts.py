"""Source counts of objects (``nDiaSources``): the number of stored sources of each object, withdrawn ones included.

Slices that are retired or moved to files take their sources with them. If an object may have had sources in such a
slice, its stored sources are only a lower bound of its count, so they never lower it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronotile.apdb import names, values
from chronotile.apdb.tables import SurveyTables

__all__: list[str] = []

PART = 5_000
"""Objects that are counted together, and corrected in one change."""

_REACH_DEG = 60 * values.ARCSECOND
"""Largest distance of a source from its object."""


class SourceCounts:
    """Counts the stored sources of objects."""

    def __init__(self, tables: SurveyTables) -> None:
        self._tables = tables

    @property
    def kept(self) -> bool:
        """Whether objects have a column for the count."""
        return names.SOURCE_COUNT in self._tables.schema[names.OBJECT]

    def parts(self) -> Iterator[Any]:
        """All objects as tables of id, position and stored count, of at most :data:`PART` rows. Neighbours on the sky
        are together.
        """
        buffered: list[Any] = []
        columns = [names.OBJECT_ID, names.RA, names.DEC, names.SOURCE_COUNT]
        objects = self._tables.datasets[names.OBJECT].read(columns=columns, where=[names.not_deleted(names.OBJECT)])
        for batch in objects.batches():
            buffered.append(batch)
            if sum(each.num_rows for each in buffered) >= PART:
                whole = pa.Table.from_batches(buffered)
                full = whole.num_rows // PART * PART
                yield from (whole.slice(start, PART) for start in range(0, full, PART))
                buffered = whole.slice(full).to_batches()
        if sum(each.num_rows for each in buffered):
            yield pa.Table.from_batches(buffered)

    def number(self) -> int:
        """Number of objects."""
        return self._tables.datasets[names.OBJECT].count(where=[names.not_deleted(names.OBJECT)])

    def wrong(self, part: Any) -> Any:
        """Rows of a part whose count differs from the number of their stored sources."""
        ids = part[names.OBJECT_ID].to_numpy()
        found = self._tables.datasets[names.SOURCE].count_by(names.OBJECT_ID, **self._sources_of(ids, part, _REACH_DEG))
        counted = np.zeros(len(ids), np.int64)
        counted[pc.index_in(found[names.OBJECT_ID], pa.array(ids)).to_numpy()] = found["count"].to_numpy()
        return part.filter(pa.array(differ(part, self.settled(part, counted, 0))))

    def objects(self, ids: Any, places: Any) -> tuple[Any, Any]:
        """Read objects and count their stored sources, as of one moment.

        Parameters
        ----------
        ids : array of int64
            Distinct ids of objects.
        places : pyarrow.Table
            Positions (``ra``, ``dec``) within 5 arc seconds of the objects.

        Returns
        -------
        objects : pyarrow.Table
            The newest version of each object that is stored, with all columns.
        counted : array of int64
            Stored sources of each of `objects`.
        """
        request = {
            "ids": ids, "cells": self._tables.cells_of(places, values.NEAR_DEG),
            "where": [names.not_deleted(names.OBJECT)],
        }  # fmt: skip
        sources = self._sources_of(ids, places, values.NEAR_DEG + _REACH_DEG) | {"columns": [names.OBJECT_ID]}
        object_set, source_set = names.dataset_name(names.OBJECT), names.dataset_name(names.SOURCE)
        found = self._tables.group.read({object_set: request, source_set: sources})
        objects = found[object_set]
        counted = occurrences(found[source_set][names.OBJECT_ID].to_numpy(), objects[names.OBJECT_ID].to_numpy())
        return objects, counted

    def _sources_of(self, ids: Any, places: Any, margin_deg: float) -> dict[str, Any]:
        """Arguments of a read of the sources of objects, in the pixels within `margin_deg` of `places`."""
        return {
            "cells": self._tables.cells_of(places, margin_deg),
            "where": [(names.OBJECT_ID, "in", ids), names.not_deleted(names.SOURCE)],
        }

    def settled(self, objects: Any, counted: Any, difference: Any) -> Any:
        """The correct count of each object after a change that adds and removes sources.

        Parameters
        ----------
        objects : pyarrow.Table
            Objects with their stored counts; a null counts as 0.
        counted : array of int64
            Their stored sources before the change. They must have been read before this call: a slice is recorded
            as retired or archived before its rows are dropped.
        difference : int or array of int64
            Sources added minus sources removed.
        """
        counts = np.maximum(counted + difference, 0)
        expected = pc.fill_null(objects[names.SOURCE_COUNT], 0).to_numpy().astype(np.int64) + difference
        # Only a count that would fall depends on sources that may be gone: look up the notes for these objects alone.
        lower = np.flatnonzero(counts < expected)
        if len(lower):
            bound = lower[self._may_have_lost_sources(objects[names.OBJECT_ID].to_numpy()[lower])]
            counts[bound] = expected[bound]
        return counts

    def _may_have_lost_sources(self, ids: Any) -> Any:
        """Mark the objects that may have had sources in slices that were retired or archived.

        An object may have had such sources unless its first entry in the index of objects is later than these slices.
        The index keeps entries of dropped slices until object versions are retired too.
        """
        notes = self._tables.slice_status
        gone = notes.recorded_slices(names.SOURCE)
        if not gone:
            return np.zeros(len(ids), bool)
        first = None if notes.recorded_slices(names.OBJECT) else self._tables.object_index.first_times(ids)
        if first is None:
            return np.ones(len(ids), bool)
        end = (max(gone) + 1) * self._tables.slice_days(names.SOURCE) + values.MJD_OF_UNIX_EPOCH
        return first < end + values.TICK_DAYS


def differ(objects: Any, counts: Any) -> Any:
    """Mark the objects whose stored count is null or differs from `counts`."""
    same = pc.equal(objects[names.SOURCE_COUNT], pa.array(counts))
    return ~pc.fill_null(same, False).to_numpy()


def occurrences(values_: Any, ids: Any) -> Any:
    """Count the occurrences of each of the distinct `ids` in `values_`."""
    found, counts = np.unique(values_, return_counts=True)
    if not len(found):
        return np.zeros(len(ids), np.int64)
    # The search returns the length of `found` for ids beyond its last value.
    places = np.minimum(np.searchsorted(found, ids), len(found) - 1)
    return np.where(found[places] == ids, counts[places], 0)
