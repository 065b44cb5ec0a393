"""The alert production database of a sky survey.

A survey's alert pipeline reads the last year of a detector's footprint, then stores the objects, sources and forced
sources that it found in the detector-visit. The database is a file on a laptop or a keyspace of a cluster.

>>> from chronotile import apdb
>>> survey = apdb.create("memory:", "small")
>>> report = survey.store(
...     60_000.1,
...     objects={"diaObjectId": [7], "ra": [150.1], "dec": [2.2]},
...     sources={"diaSourceId": [70], "diaObjectId": [7], "ra": [150.1], "dec": [2.2], "midpointMjdTai": [60_000.1]},
...     visit=1,
...     detector=42,
... )
>>> len(survey.cone(150.1, 2.2, 0.1, at=60_000.2).sources)
1
"""

from chronotile import optional

optional.require("chronotile.apdb", "apdb", "numpy", "pyarrow")

from chronotile.apdb.density import Crowded, Density
from chronotile.apdb.feed import Feed
from chronotile.apdb.layout import Layout
from chronotile.apdb.metadata import Metadata
from chronotile.apdb.rows import Rows
from chronotile.apdb.schema import Column, Migration, Schema, Table
from chronotile.apdb.survey import Apdb, Footprint, StoreReport, create, open  # noqa: A004

__all__ = [
    "Apdb",
    "Column",
    "Crowded",
    "Density",
    "Feed",
    "Footprint",
    "Layout",
    "Metadata",
    "Migration",
    "Rows",
    "Schema",
    "StoreReport",
    "Table",
    "create",
    "open",
]
