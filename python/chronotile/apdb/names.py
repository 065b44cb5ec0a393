"""Names that mean something to the code: the tables and columns of an alert production database.

They are those of the LSST Science Data Model; a schema may have any others beside them.
"""

from __future__ import annotations

import re

OBJECT, SOURCE, FORCED = "DiaObject", "DiaSource", "DiaForcedSource"
MAIN_TABLES = (OBJECT, SOURCE, FORCED)

OBJECT_ID, SOURCE_ID, SS_OBJECT_ID = "diaObjectId", "diaSourceId", "ssObjectId"
RA, DEC, TIME, VISIT, DETECTOR = "ra", "dec", "midpointMjdTai", "visit", "detector"
VALID_FROM, VALID_TO = "validityStartMjdTai", "validityEndMjdTai"
SOURCE_COUNT, REASSOCIATED, WITHDRAWN = "nDiaSources", "ssObjectReassocTimeMjdTai", "timeWithdrawnMjdTai"

REQUIRED: dict[str, dict[str, str]] = {
    OBJECT: {OBJECT_ID: "int64", VALID_FROM: "float64", VALID_TO: "float64", RA: "float64", DEC: "float64"},
    SOURCE: {
        SOURCE_ID: "int64", OBJECT_ID: "int64", VISIT: "int64", DETECTOR: "", RA: "float64", DEC: "float64",
        TIME: "float64",
    },
    FORCED: {OBJECT_ID: "int64", VISIT: "int64", DETECTOR: "", RA: "float64", DEC: "float64", TIME: "float64"},
}  # fmt: skip
"""Columns that each table must have, with their types; an empty type is any integer."""

# Columns the archive keeps beside those of the schema. Readers do not see them.
VERSION, UPDATE, STORED_VISIT, STORED_DETECTOR, STORED = "_version", "_update", "_visit", "_detector", "_stored"

GONE = 2**63 - 1
"""The version of a record that was deleted: greater than any other, and left out by every read."""

NO_VISIT = -1
"""Visit and detector of what was stored without them."""

VISITS, METADATA, FEED, TURNS = "apdb_visits", "apdb_metadata", "apdb_feed", "apdb_turns"
"""Datasets of the front end itself."""


def version_column(table: str) -> str:
    """The column that orders the versions of a record of one of the main tables."""
    return VERSION if table == OBJECT else UPDATE


def kept(table: str) -> tuple[str, str, int]:
    """The condition that leaves out deleted records of one of the main tables."""
    return version_column(table), "<", GONE


def dataset_name(table: str) -> str:
    """The dataset of a table: ``DiaForcedSource`` lies in ``dia_forced_source``."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", table)
    return re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", words).lower()
