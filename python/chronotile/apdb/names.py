"""Table and column names that the code depends on.

They follow the LSST Science Data Model; a schema may have any others.
"""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase, digits

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
"""Required columns of each table with their types; an empty type means any integer."""

# Internal columns beside those of the schema. Readers do not see them.
VERSION, UPDATE, STORED = "_version", "_update", "_stored"

GONE = 2**63 - 1
"""Version of a deleted record: greater than any other, and excluded from every read."""

NO_VISIT = -1
"""Visit and detector of rows stored without these."""

GROUP = "apdb"
"""Group of the datasets that a detector-visit is stored in."""

VISITS, METADATA, FEED, OBJECT_INDEX = "apdb_visits", "apdb_metadata", "apdb_feed", "apdb_object_index"
"""The front end's own datasets."""

PIXEL, INDEX_TIME = "pixel", "window_mjd_tai"
"""Columns of the index of objects: a pixel in which an object has rows, and the middle of the window of these."""


def version_column(table: str) -> str:
    """Column that orders the versions of a record in a main table."""
    return VERSION if table == OBJECT else UPDATE


def not_deleted(table: str) -> tuple[str, str, int]:
    """Condition that excludes deleted records of a main table."""
    return version_column(table), "<", GONE


def dataset_name(table: str) -> str:
    """Dataset name of a table: ``DiaForcedSource`` is stored in ``dia_forced_source``."""
    words = "".join(f"_{char}" if _begins_word(table, at) else char for at, char in enumerate(table))
    return words.lower()


def _begins_word(table: str, at: int) -> bool:
    """Whether a capital begins a word: after a small letter or digit, or as the last capital of several."""
    before, char, after = table[at - 1 : at], table[at], table[at + 1 : at + 2]
    if char not in ascii_uppercase or not before:
        return False
    small = before in ascii_lowercase or before in digits
    return small or (before in ascii_uppercase and after != "" and after in ascii_lowercase)
