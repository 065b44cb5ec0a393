"""Suggestions for unknown names in messages."""

from __future__ import annotations

from collections.abc import Iterable

from chronotile import _native

__all__ = ["name_hint", "name_list"]


def name_hint(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest known names and list all: ``; did you mean magpsf? It has jd, magpsf``."""
    return _native.name_hint(str(name), list(known))


def name_list(names: Iterable[str]) -> str:
    """List at most 20 names for a message, such as ``jd, magpsf``; if there are more, add their number."""
    return _native.list_names(list(names))
