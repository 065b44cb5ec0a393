"""Small texts by key: settings of the database, and whatever its users note beside it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from chronotile.dataset import Dataset
from chronotile.errors import InvalidInputError

__all__ = ["Metadata"]


class Metadata:
    """Texts by key. Keys that begin with ``apdb:`` are the archive's own."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def get(self, key: str, default: str | None = None) -> str | None:
        """The text of a key, or `default`."""
        found = self._dataset.read(ids=[_key(key)], columns=["value"]).to_arrow()["value"].to_pylist()
        return default if not found or found[0] is None else str(found[0])

    def set(self, key: str, value: str, *, force: bool = False) -> None:
        """Note a text.

        Raises
        ------
        InvalidInputError
            An empty key or value; or without `force` a key that has a text already (kind ``key-exists``).
        """
        if not value:
            raise InvalidInputError(f"the value of {key!r} is empty: delete the key instead", kind="invalid-request")
        if not force and self.get(key) is not None:
            raise InvalidInputError(f"the key {key!r} exists already: set it with force=True", kind="key-exists")
        self._write(_key(key), value)

    def delete(self, key: str) -> bool:
        """Forget a key; whether there was one."""
        existed = self.get(key) is not None
        if existed:
            self._write(key, None)
        return existed

    def items(self) -> Iterator[tuple[str, str]]:
        """All keys with their texts, by key."""
        rows = self._dataset.read(columns=["key", "value"]).to_arrow()
        found = zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
        yield from sorted((key, value) for key, value in found if value is not None)

    def _write(self, key: str, value: str | None) -> None:
        self._dataset.write({"key": [key], "value": [value], "updated": [datetime.now(UTC)]})


def _key(key: str) -> str:
    if not key:
        raise InvalidInputError("a key of the metadata is empty", kind="invalid-request")
    return key
