"""Which slices to retire, as :meth:`Dataset.retire` and :meth:`Group.retire` are told."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from chronotile import times
from chronotile.errors import InvalidInputError
from chronotile.reports import SliceInfo

__all__ = ["retire_limit"]


def retire_limit(
    time: times.TimeAxis,
    before: times.Moment,
    older_than: str | timedelta | None,
    unchanged: Iterable[SliceInfo] | None,
    dry_run: bool,
) -> tuple[Any, str | None] | list[tuple[int, str]]:
    """Slices by number and fingerprint, if they are given, or else a moment and an age, of which one or both are None.

    Raises
    ------
    InvalidInputError
        More than one of them is given.
    """
    if unchanged is not None:
        if before is not None or older_than is not None or dry_run:
            raise InvalidInputError("unchanged cannot be combined with before or older_than", kind="invalid-request")
        return [(part.slice, part.fingerprint) for part in unchanged]
    if before is not None and older_than is not None:
        raise InvalidInputError("give only one of before and older_than", kind="invalid-request")
    moment = None if before is None else times.moment(before, time, "before")
    return moment, None if older_than is None else times.duration_text(older_than, "older_than")
