"""Runs the test suite of lsst-dax-apdb for any engine on a Chronotile archive."""

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
    """The hooks that the suite requires of an implementation. Each call of `next_url` returns a new, empty archive."""

    enable_replica: bool = False
    meta_row_count = 3
    schema_file: ClassVar[Path] = SCHEMA

    def next_url(self) -> str:
        """URL of the next database."""
        raise AssertionError("test cases override next_url")

    def make_instance(self, **kwargs: Any) -> ApdbConfig:
        """Create a new database."""
        choices: dict[str, Any] = {
            "schema_file": str(self.schema_file), "ss_schema_file": "", "enable_replica": self.enable_replica, **kwargs
        }  # fmt: skip
        return ChronotileApdb.init_database(self.next_url(), **choices)

    def getDiaObjects_table(self) -> ApdbTables:  # noqa: N802
        """The table that defines the columns of objects that reads return."""
        return ApdbTables.DiaObject

    def pixelization(self, config: ApdbConfig) -> Pixelization:
        """The pixelization of the database."""
        return Pixelization("mq3c", LEVEL, 1_000)

    def store_update_records(self, apdb: Apdb, records: list[ApdbUpdateRecord], chunk: ReplicaChunk) -> None:
        """Append update records to the list of changes."""
        assert isinstance(apdb, ChronotileApdb)
        if not self.enable_replica:
            raise TypeError("the database keeps no list of changes")
        ChronotileApdbReplica(apdb).store_update_records(records, chunk)

    def _count_after_reset_dedup(self, count_before: int) -> int:
        """Reads of objects need no deduplicated copy, so a reset of the deduplication does not change their number."""
        return count_before
