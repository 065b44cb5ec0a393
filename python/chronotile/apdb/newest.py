"""Fast path for the newest version of each forced source, given that nearly all have only one.

The archive's general merge handles any number of versions. Forced sources rarely change, so this module reads all
versions of whole cells and detects duplicates from their ids alone. The result is the same row by row: select cells and
times, keep the newest version of each id, then filter by region.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from chronotile.apdb import names
from chronotile.apdb.layout import Layout
from chronotile.dataset import Dataset
from chronotile.sky import Region

__all__ = ["NewestOfRegion"]

# Odd multipliers that spread products over 64 bits: the fractional parts of the golden ratio, sqrt(2) and sqrt(3).
_SPREAD = (0x9E3779B97F4A7C15, 0x6A09E667F3BCC909, 0xBB67AE8584CAA73B)


class NewestOfRegion:
    """A read of the newest versions in a region, without deleted records.

    Parameters
    ----------
    dataset : Dataset
        Dataset of sources or forced sources.
    layout : Layout
        Layout of the tables in the archive.
    region : Region
        Region to read.
    columns : list of str
        Columns to return.
    hidden : str
        The column that orders versions.

    Attributes
    ----------
    request : dict
        Arguments of :meth:`chronotile.Dataset.read`, without the period.
    """

    def __init__(self, dataset: Dataset, layout: Layout, region: Region, columns: list[str], hidden: str) -> None:
        self._keys, self._region, self._columns, self._hidden = list(dataset.id), region, columns, hidden
        cells = [cell for low, high in region.cover(layout.scheme, layout.level) for cell in range(low, high)]
        decoded = list(dict.fromkeys([*columns, *self._keys, hidden, names.RA, names.DEC]))
        self.request: dict[str, Any] = {"cells": cells, "columns": decoded, "history": True}

    def choose(self, rows: Any) -> Any:
        """The rows to return, from those that the request gave; None if two versions of a row are equally new, so that
        the archive's merge must decide.
        """
        if not rows.num_rows:
            return rows.select(self._columns)
        chosen = _newest([rows[name].to_numpy() for name in self._keys], rows[self._hidden].to_numpy())
        if chosen is None:
            return None
        chosen &= np.asarray(self._region.contains(rows[names.RA], rows[names.DEC])).astype(bool)
        rows = rows.select(self._columns)
        return rows if chosen.all() else rows.filter(pa.array(chosen))


def _newest(keys: list[Any], versions: Any) -> Any:
    """Select the rows that are the newest of their key and not deleted; None if two are equally new."""
    chosen = np.asarray(versions < names.GONE)
    codes = keys[0].astype(np.uint64)
    if len(keys) > 1:
        parts = zip(keys, _SPREAD, strict=True)
        codes = np.bitwise_xor.reduce([key.astype(np.uint64) * np.uint64(factor) for key, factor in parts])
    ordered = np.sort(codes)
    if not (ordered[1:] == ordered[:-1]).any():
        return chosen
    order = np.lexsort((versions, codes))
    same = codes[order][1:] == codes[order][:-1]
    here, following = order[:-1][same], order[1:][same]
    # Two rows share a hash code, or two versions are equally new: both are rare, so leave them to the archive.
    if any((key[here] != key[following]).any() for key in keys) or (versions[here] == versions[following]).any():
        return None
    chosen[here] = False
    return chosen
