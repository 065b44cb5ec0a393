"""What messages say of a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable

from chronotile import _native

__all__ = ["name_hint"]


def name_hint(name: str, known: Iterable[str]) -> str:
    """The nearest known names, if any is near, and those there are: ``; did you mean magpsf? It has jd, magpsf``."""
    return _native.name_hint(str(name), list(known))
