"""Key-value metadata: settings of the database, and notes of its users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from chronotile.dataset import Dataset
from chronotile.errors import InvalidInputError
from chronotile.result import ReadResult

__all__ = ["Metadata"]


class Metadata:
    """Key-value metadata. Keys that begin with ``apdb:`` are reserved."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def get(self, key: str, default: str | None = None) -> str | None:
        """Return the value of a key, or `default`."""
        found = self._dataset.read(ids=[_key(key)], columns=["value"]).to_arrow()["value"].to_pylist()
        return default if not found or found[0] is None else str(found[0])

    def find(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the values of those of the keys that exist."""
        wanted = [_key(key) for key in keys]
        if not wanted:
            return {}
        return dict(self._values(self._dataset.read(ids=wanted, columns=["key", "value"])))

    def starting(self, prefix: str) -> dict[str, str]:
        """Return the values of the keys that start with a prefix."""
        return dict(self._values(self._dataset.read(where=("key", "prefix", prefix), columns=["key", "value"])))

    def set(self, key: str, value: str, *, force: bool = False) -> None:
        """Set the value of a key. The check of `force` does not exclude other processes: if two set a new key at the
        same time, both may succeed, and the later value stays.

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
        self._write({_key(key): value})

    def set_all(self, values: Mapping[str, str]) -> None:
        """Set the values of several keys at once, whether or not they exist."""
        if values:
            self._write({_key(key): value for key, value in values.items()})

    def delete(self, key: str) -> bool:
        """Delete a key; return whether it existed."""
        existed = self.get(key) is not None
        if existed:
            # The dataset returns the newest value of a key: a null hides the earlier ones, and readers leave it out.
            self._write({key: None})
        return existed

    def items(self) -> Iterator[tuple[str, str]]:
        """All keys with their values, sorted by key."""
        yield from sorted(self._values(self._dataset.read(columns=["key", "value"])))

    @staticmethod
    def _values(read: ReadResult) -> Iterator[tuple[str, str]]:
        rows = read.to_arrow()
        found = zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
        yield from ((key, value) for key, value in found if value is not None)

    def _write(self, values: Mapping[str, str | None]) -> None:
        now = datetime.now(UTC)
        self._dataset.write({"key": list(values), "value": list(values.values()), "updated": [now] * len(values)})


def _key(key: str) -> str:
    if not key:
        raise InvalidInputError("metadata keys must not be empty", kind="invalid-request")
    return key
