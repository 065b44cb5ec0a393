"""Front ends that stay open from one request to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from chronotile.errors import DatasetNotFoundError

__all__ = ["FrontEndCache"]


class _FrontEnd(Protocol):
    def refresh(self) -> None: ...


_F = TypeVar("_F", bound=_FrontEnd)


class FrontEndCache(Generic[_F]):
    """Front ends by name. Safe to use from many threads.

    Parameters
    ----------
    open : callable
        Opens the front end of a name.
    """

    def __init__(self, open: Callable[[str], _F]) -> None:
        self._open = open
        self._by_name: dict[str, _F] = {}

    def get(self, name: str) -> _F:
        """The front end of this name, with its definition as other processes left it.

        Raises
        ------
        DatasetNotFoundError
            When there is none, or it was dropped.
        """
        found = self._by_name.get(name)
        if found is None:
            # Requests that open it at once share one.
            return self._by_name.setdefault(name, self._open(name))
        try:
            found.refresh()
        except DatasetNotFoundError:
            self._by_name.pop(name, None)
            raise
        return found
