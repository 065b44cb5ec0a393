"""Status of slices that were written to files or retired, in the database's metadata.

Files are read only if the caller names their folder. Without notes, the database could not tell that a file contains a
record that it removes, and a restore would bring the record back. Nor could it tell whether rows that it no longer has
are in files or permanently dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from chronotile.apdb.metadata import Metadata
from chronotile.errors import InvalidInputError, OutcomeUnknownError
from chronotile.terminal import count_text

__all__: list[str] = []

_ARCHIVED, _RETIRED = "apdb:archived", "apdb:retired"


class SliceKey(NamedTuple):
    """A slice of a table."""

    table: str
    number: int


class SliceStatus:
    """Status of slices of sources and forced sources, and on retired slices of object versions.

    A note is never removed, because nobody can know that the last copy of a file is gone.

    A slice is noted before its rows are read for a file, and a removal looks for notes again after it removed rows: so
    either the file lacks these rows, or the removal finds the note.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def add_archived(self, slices: Iterable[SliceKey], folder: str) -> None:
        """Record that files in a folder may have rows of slices."""
        wanted = set(slices)
        known = self.archived(wanted)
        fresh = {each: [*known.get(each, ()), folder] for each in wanted if folder not in known.get(each, ())}
        self._metadata.set_all({_key(_ARCHIVED, each): json.dumps(folders) for each, folders in fresh.items()})

    def archived(self, slices: Iterable[SliceKey]) -> dict[SliceKey, list[str]]:
        """The slices that were written to files, each with its folders.

        Only whether a slice has folders is certain: a folder may have been moved or copied since, and of two processes
        that archive the slice to different folders at once, one may be missing.
        """
        keys = {_key(_ARCHIVED, each): each for each in slices}
        return {keys[key]: json.loads(value) for key, value in self._metadata.find(keys).items()}

    def add_retired(self, slices: Iterable[SliceKey]) -> None:
        """Record that slices are being dropped for good, now."""
        now = datetime.now(UTC).isoformat()
        self._metadata.set_all({_key(_RETIRED, each): now for each in slices})

    def retired(self, slices: Iterable[SliceKey]) -> dict[SliceKey, datetime]:
        """The slices that were retired, each with the last time, by the clock of the process."""
        keys = {_key(_RETIRED, each): each for each in slices}
        return {keys[key]: datetime.fromisoformat(value) for key, value in self._metadata.find(keys).items()}

    def recorded_slices(self, table: str) -> list[int]:
        """Numbers of a table's slices that were retired, or written to files, even if they were restored since."""
        found = [key for kind in (_ARCHIVED, _RETIRED) for key in self._metadata.starting(f"{kind}/{table}/")]
        return [int(key.rpartition("/")[2]) for key in found]


def archived_error(in_files: Mapping[SliceKey, list[str]], count: int, remedy: str) -> InvalidInputError:
    """Error for `count` records that cannot be removed because files may also have them; it ends with the remedy."""
    return InvalidInputError(
        f"{count_text(count, 'record')} may also be in files that archive_before wrote to {_folders(in_files)}: "
        f"{remedy}",
        kind="archived-records",
    )


def check_not_archived_since(
    before: Mapping[SliceKey, list[str]], now: Mapping[SliceKey, list[str]], remedy: str
) -> None:
    """Check that no other process wrote slices to files while records were removed from them.

    Raises
    ------
    OutcomeUnknownError
        The database lacks the records, and files may have them; the message ends with the remedy.
    """
    fresh = {each: folders for each, folders in now.items() if folders != before.get(each)}
    if fresh:
        raise OutcomeUnknownError(
            f"the records were removed from the database, but another process has since copied their slices to files "
            f"in {_folders(fresh)}, which may contain the records: {remedy}",
            kind="outcome-unknown",
        )


def _folders(in_files: Mapping[SliceKey, list[str]]) -> str:
    return " and ".join(sorted({folder for folders in in_files.values() for folder in folders}))


def _key(kind: str, part: SliceKey) -> str:
    return f"{kind}/{part.table}/{part.number}"
