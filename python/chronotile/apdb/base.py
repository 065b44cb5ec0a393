"""What all parts of the database share."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from chronotile import sky
from chronotile.apdb import names
from chronotile.apdb.layout import Layout
from chronotile.apdb.metadata import Metadata
from chronotile.apdb.schema import Schema
from chronotile.apdb.turns import Turns
from chronotile.archive import Archive
from chronotile.dataset import Dataset


class Base:
    """The archive, its datasets and their schema."""

    _archive: Archive
    _datasets: dict[str, Dataset]
    _schema: Schema
    _layout: Layout
    _metadata: Metadata
    _visits: Dataset
    _pool: ThreadPoolExecutor
    _complete: Any
    _turns: Turns

    def dataset(self, table: str) -> Dataset:
        """The dataset of a table, for what this class has no method for."""
        self._schema[table]
        return self._datasets[table]

    def cells_of(self, rows: Any, margin_deg: float = 0.0) -> list[int]:
        """The pixels in which the rows of a table lie, or any point within `margin_deg` of one of them, sorted."""
        ra, dec = rows[names.RA].to_numpy(), rows[names.DEC].to_numpy()
        if margin_deg:
            wide = margin_deg / np.maximum(np.cos(np.radians(dec)), 1e-6)
            shifts = [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1)]
            ra = np.concatenate([(ra + x * wide) % 360.0 for x, _ in shifts])
            dec = np.concatenate([np.clip(dec + y * margin_deg, -90.0, 90.0) for _, y in shifts])
        found = pa.array(sky.pixel_index(self._layout.scheme, self._layout.level, ra, dec))
        return [int(cell) for cell in np.unique(found.to_numpy(zero_copy_only=False))]

    def _columns(self, table: str, columns: Iterable[str] | None) -> list[str]:
        known = self._schema[table]
        if columns is None:
            return known.column_names
        wanted = [columns] if isinstance(columns, str) else list(columns)
        for name in wanted:
            known[name]
        return wanted
