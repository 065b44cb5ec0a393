"""An archive for time-ordered records that are read back by place and period.

>>> import chronotile as ct
>>> archive = ct.open("memory:")
>>> ds = archive.create(
...     "detections",
...     schema={"candid": "int64", "jd": "float64", "ra": "float64", "dec": "float64"},
...     cell=ct.sky("ra", "dec", scheme="mq3c", level=10),
...     time="jd",
...     id=["candid"],
... )
>>> report = ds.write({"candid": [1], "jd": [2461041.7], "ra": [150.1], "dec": [2.2]}, batch="visit-17")
>>> ds.count(region=ct.circle(150.1, 2.2, 0.1), start="2025-12-01", end="2026-03-01")
1
"""

# isort: off
from chronotile import starting as _starting  # noqa: F401  (before the imports that take time)

# isort: on
from chronotile import cql as _cql_module  # noqa: F401  (first, so that the functions below keep the names)
from chronotile import historian
from chronotile import sky as _sky_module  # noqa: F401
from chronotile._native import __version__
from chronotile.archive import Archive, open  # noqa: A004
from chronotile.backups import BackupReport, backup, restore
from chronotile.cells import (
    CellRule,
    HashCell,
    IdBucketCell,
    KeyCell,
    SingleCell,
    SkyCell,
    hash,  # noqa: A004
    id_bucket,
    key,
    single,
    sky,
)
from chronotile.copying import CopyProgress, CopyReport, DatasetCopyReport, TileDifference, copy
from chronotile.cql import CqlSession, cql
from chronotile.dataset import Dataset
from chronotile.errors import (
    AccessDeniedError,
    ArchiveNotFoundError,
    BatchConflictError,
    BatchNotFoundError,
    BusyError,
    ChronotileError,
    ClosedError,
    DamagedChunkError,
    DamagedError,
    DataFileError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidInputError,
    MissingPackageError,
    NotAnArchiveError,
    OutcomeUnknownError,
    ReadOnlyError,
    StorageFullError,
    TagNotFoundError,
    UnavailableError,
)
from chronotile.group import Group
from chronotile.reports import (
    BatchInfo,
    ConsolidateReport,
    Damage,
    DamagedRecord,
    DatasetInfo,
    ForeignChunk,
    GroupBatchInfo,
    IndexBuildReport,
    IndexInfo,
    IndexUse,
    RowsMissing,
    SliceInfo,
    Spread,
    Tile,
    TileFailure,
    VerifyReport,
    WriteReport,
)
from chronotile.result import ReadResult
from chronotile.sky import Region, box, circle, polygon
from chronotile.times import TimeAxis, jd, mjd, timestamp

__all__ = [
    "AccessDeniedError",
    "Archive",
    "ArchiveNotFoundError",
    "BackupReport",
    "BatchConflictError",
    "BatchInfo",
    "BatchNotFoundError",
    "BusyError",
    "CellRule",
    "ChronotileError",
    "ClosedError",
    "ConsolidateReport",
    "CopyProgress",
    "CopyReport",
    "CqlSession",
    "Damage",
    "DamagedChunkError",
    "DamagedError",
    "DamagedRecord",
    "DataFileError",
    "Dataset",
    "DatasetCopyReport",
    "DatasetExistsError",
    "DatasetInfo",
    "DatasetNotFoundError",
    "ForeignChunk",
    "Group",
    "GroupBatchInfo",
    "HashCell",
    "IdBucketCell",
    "IndexBuildReport",
    "IndexInfo",
    "IndexUse",
    "InvalidInputError",
    "KeyCell",
    "MissingPackageError",
    "NotAnArchiveError",
    "OutcomeUnknownError",
    "ReadOnlyError",
    "ReadResult",
    "Region",
    "RowsMissing",
    "SingleCell",
    "SkyCell",
    "SliceInfo",
    "Spread",
    "StorageFullError",
    "TagNotFoundError",
    "Tile",
    "TileDifference",
    "TileFailure",
    "TimeAxis",
    "UnavailableError",
    "VerifyReport",
    "WriteReport",
    "__version__",
    "backup",
    "box",
    "circle",
    "copy",
    "cql",
    "hash",
    "historian",
    "id_bucket",
    "jd",
    "key",
    "mjd",
    "open",
    "polygon",
    "restore",
    "single",
    "sky",
    "timestamp",
]
