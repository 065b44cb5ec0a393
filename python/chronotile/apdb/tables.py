"""State shared by all parts of a database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from chronotile import sky
from chronotile.apdb import names, values
from chronotile.apdb.changes import Changes
from chronotile.apdb.layout import Layout
from chronotile.apdb.metadata import Metadata
from chronotile.apdb.object_index import ObjectIndex
from chronotile.apdb.schema import Schema
from chronotile.apdb.slice_status import SliceKey, SliceStatus
from chronotile.archive import Archive
from chronotile.dataset import Dataset
from chronotile.errors import DatasetNotFoundError
from chronotile.reports import WriteReport

__all__ = ["SurveyTables"]

LAYOUT_KEY, SCHEMA_KEY = "apdb:layout", "apdb:schema"


class SurveyTables:
    """The datasets of a database, with their schema and layout.

    Attributes
    ----------
    archive : Archive
        Archive that holds the datasets.
    metadata : Metadata
        Key-value metadata.
    layout : Layout
        Layout of the tables.
    schema : Schema
        The tables, with units and descriptions.
    datasets : dict of str to Dataset
        Datasets by table name.
    group : Group
        The datasets that a detector-visit is stored in, as one batch.
    visits : Dataset
        The detector-visits.
    object_index : ObjectIndex
        Pixels with rows of each object.
    changes : Changes
        Changes of stored records.
    slice_status : SliceStatus
        Which slices were written to files or retired.
    """

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        try:
            self.metadata = Metadata(archive[names.METADATA])
            found = self.metadata.get(LAYOUT_KEY)
        except DatasetNotFoundError:
            found = None
        if found is None:
            raise DatasetNotFoundError(
                f"no alert production database in {archive.url}: create one with chronotile.apdb.create, or "
                "`chronotile apdb create`",
                kind="dataset-not-found",
            )
        self.layout = Layout.from_json(found)
        self.object_index = ObjectIndex(archive, self.layout)
        # A removal must find the notes of other processes: read them at a level that overlaps with that of writes.
        self.slice_status = SliceStatus(Metadata(archive[names.METADATA].seeing_every_write()))
        # `use_schema` replaces the group, so look it up at each use.
        self.changes = Changes(lambda: self.group, self.write)
        self.use_schema(Schema.from_json(self.metadata.get(SCHEMA_KEY) or ""))

    def use_schema(self, schema: Schema) -> None:
        """Switch to a schema whose tables exist."""
        self.schema = schema
        self.group = self.archive.group(names.GROUP)
        self.visits = self.group[names.VISITS]
        self.datasets = {}
        for table in schema.stored_tables:
            name = names.dataset_name(table.name)
            self.datasets[table.name] = self.group[name] if name in self.group else self.archive[name]

    def write(
        self, rows: Mapping[str, Any], batch: str, *, replace: bool = False, indexed: Mapping[str, Any] | None = None
    ) -> dict[str, WriteReport]:
        """Store rows of the group's datasets as one batch, with their entries in the index of objects.

        `rows` are tables by dataset. If they are streams, `indexed` has the columns that the index needs as tables.
        """
        if not self.object_index.kept:
            return self.group.write(rows, batch, replace=replace)
        entries = self.object_index.entries(rows if indexed is None else indexed)
        return self.group.write({**rows, names.OBJECT_INDEX: entries}, batch, replace=replace)

    def dataset(self, table: str) -> Dataset:
        """Dataset of a table, for operations that this class does not provide."""
        self.schema[table]
        return self.datasets[table]

    def slice_days(self, table: str) -> float:
        """Length of a slice of a table, in days."""
        dataset = self.datasets[table]
        return values.days(dataset.window, "window") * dataset.windows_per_slice

    def slices_of(self, table: str, times: Any) -> set[SliceKey]:
        """Slices of a table that hold rows of these times, an array of MJD (TAI)."""
        since = np.asarray(times, float) - values.MJD_OF_UNIX_EPOCH
        # Times are rounded, so a row at the border of two slices may be in either.
        both = np.concatenate([since - values.TICK_DAYS, since + values.TICK_DAYS])
        return {SliceKey(table, int(number)) for number in np.unique(both // self.slice_days(table))}

    def slices_between(self, table: str, first: float | None, last: float | None) -> set[SliceKey]:
        """Slices of a table that overlap a closed period, in MJD (TAI); none if it has no times."""
        if first is None or last is None:
            return set()
        ends = [part.number for part in self.slices_of(table, [first, last])]
        return {SliceKey(table, number) for number in range(min(ends), max(ends) + 1)}

    def cells_of(self, rows: Any, margin_deg: float = 0.0) -> list[int]:
        """Pixels, sorted, that contain a row of a table or any point within `margin_deg` of one."""
        ra, dec = rows[names.RA].to_numpy(), rows[names.DEC].to_numpy()
        if margin_deg:
            # Circles of constant declination shrink towards the poles, where the bound prevents a division by zero.
            wide = margin_deg / np.maximum(np.cos(np.radians(dec)), 1e-6)
            shifts = [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1)]
            ra = np.concatenate([(ra + x * wide) % 360.0 for x, _ in shifts])
            dec = np.concatenate([np.clip(dec + y * margin_deg, -90.0, 90.0) for _, y in shifts])
        found = pa.array(sky.pixel_index(self.layout.scheme, self.layout.level, ra, dec))
        return [int(cell) for cell in np.unique(found.to_numpy(zero_copy_only=False))]

    def columns(self, table: str, columns: Iterable[str] | None) -> list[str]:
        """Columns to read from a table: all by default; unknown ones raise an error."""
        known = self.schema[table]
        if columns is None:
            return known.column_names
        wanted = [columns] if isinstance(columns, str) else list(columns)
        for name in wanted:
            known[name]
        return wanted


def detector_visit_key(visit: int, detector: int) -> str:
    """Name of the batch of a detector-visit. The LSST adapter adds the time to it."""
    return f"{visit}-{detector}"
