"""Arguments of :meth:`Dataset.retire` and :meth:`Group.retire`."""

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
    """Convert the limit for the native module: numbers and fingerprints of slices if `unchanged` is given, else a
    moment and an age, at least one of which is None.

    Raises
    ------
    InvalidInputError
        More than one limit is given, or `unchanged` with `dry_run`.
    """
    if unchanged is not None:
        if before is not None or older_than is not None or dry_run:
            raise InvalidInputError(
                "unchanged cannot be combined with before, older_than or dry_run", kind="invalid-request"
            )
        return [(part.slice, part.fingerprint) for part in unchanged]
    if before is not None and older_than is not None:
        raise InvalidInputError("give only one of before and older_than", kind="invalid-request")
    moment = None if before is None else times.moment(before, time, "before")
    return moment, None if older_than is None else times.duration_text(older_than, "older_than")
