"""The suite that ships with lsst-dax-apdb, run on a Chronotile archive: its cases for any engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from lsst.dax.apdb import Apdb, ApdbConfig, ApdbUpdateRecord, ReplicaChunk
from lsst.dax.apdb.apdbSchema import ApdbTables
from lsst.dax.apdb.pixelization import Pixelization

from chronotile.apdb.lsst import ChronotileApdb, ChronotileApdbReplica

SCHEMA = Path(__file__).parent / "support_apdb_schema.yaml"
LEVEL = 9


class SuiteOnChronotile:
    """What the suite asks of an implementation. `next_url` names a new, empty archive each time it is called."""

    enable_replica: bool = False
    meta_row_count = 3
    schema_file: ClassVar[Path] = SCHEMA

    def next_url(self) -> str:
        """Where the next database is made."""
        raise AssertionError("a case says where its archives are")

    def make_instance(self, **kwargs: Any) -> ApdbConfig:
        """A new database."""
        choices: dict[str, Any] = {
            "schema_file": str(self.schema_file), "ss_schema_file": "", "enable_replica": self.enable_replica, **kwargs
        }  # fmt: skip
        return ChronotileApdb.init_database(self.next_url(), **choices)

    def getDiaObjects_table(self) -> ApdbTables:  # noqa: N802
        """The table whose columns reads of objects return."""
        return ApdbTables.DiaObject

    def pixelization(self, config: ApdbConfig) -> Pixelization:
        """The pixels of the sky."""
        return Pixelization("mq3c", LEVEL, 1_000)

    def store_update_records(self, apdb: Apdb, records: list[ApdbUpdateRecord], chunk: ReplicaChunk) -> None:
        """Put update records into the list of changes."""
        assert isinstance(apdb, ChronotileApdb)
        if not self.enable_replica:
            raise TypeError("the database keeps no list of changes")
        ChronotileApdbReplica(apdb).store_update_records(records, chunk)

    def _count_after_reset_dedup(self, count_before: int) -> int:
        """Objects are read where they are stored, so that those before the last deduplication can be read again."""
        return count_before
