"""Keeps archives of events and jobs open between requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from chronotile.errors import DatasetNotFoundError

__all__ = ["FrontEndCache"]


class _FrontEnd(Protocol):
    def refresh(self) -> None: ...


_F = TypeVar("_F", bound=_FrontEnd)


class FrontEndCache(Generic[_F]):
    """Caches open front ends by name. Thread-safe.

    Parameters
    ----------
    open : callable
        Opens the front end with a given name.
    """

    def __init__(self, open: Callable[[str], _F]) -> None:
        self._open = open
        self._by_name: dict[str, _F] = {}

    def get(self, name: str) -> _F:
        """Return the front end with this name, with its current definition.

        Raises
        ------
        DatasetNotFoundError
            It does not exist, or was dropped.
        """
        found = self._by_name.get(name)
        if found is None:
            # Concurrent requests share one front end.
            return self._by_name.setdefault(name, self._open(name))
        try:
            found.refresh()
        except DatasetNotFoundError:
            self._by_name.pop(name, None)
            raise
        return found
