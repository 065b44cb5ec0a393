"""Key-value metadata: settings of the database, and notes of its users."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from chronotile.dataset import Dataset
from chronotile.errors import InvalidInputError

__all__ = ["Metadata"]


class Metadata:
    """Key-value metadata. Keys that begin with ``apdb:`` are reserved."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def get(self, key: str, default: str | None = None) -> str | None:
        """Return the value of a key, or `default`."""
        found = self._dataset.read(ids=[_key(key)], columns=["value"]).to_arrow()["value"].to_pylist()
        return default if not found or found[0] is None else str(found[0])

    def set(self, key: str, value: str, *, force: bool = False) -> None:
        """Set the value of a key.

        Raises
        ------
        InvalidInputError
            The key or value is empty; or the key exists and `force` is not given (kind ``key-exists``).
        """
        if not value:
            raise InvalidInputError(f"the value of {key!r} is empty: delete the key instead", kind="invalid-request")
        if not force and self.get(key) is not None:
            raise InvalidInputError(
                f"key {key!r} already exists: pass force=True to replace its value", kind="key-exists"
            )
        self._write(_key(key), value)

    def delete(self, key: str) -> bool:
        """Delete a key; return whether it existed."""
        existed = self.get(key) is not None
        if existed:
            self._write(key, None)
        return existed

    def items(self) -> Iterator[tuple[str, str]]:
        """All keys with their values, sorted by key."""
        rows = self._dataset.read(columns=["key", "value"]).to_arrow()
        found = zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
        yield from sorted((key, value) for key, value in found if value is not None)

    def _write(self, key: str, value: str | None) -> None:
        self._dataset.write({"key": [key], "value": [value], "updated": [datetime.now(UTC)]})


def _key(key: str) -> str:
    if not key:
        raise InvalidInputError("metadata keys must not be empty", kind="invalid-request")
    return key
