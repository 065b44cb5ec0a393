"""Time to live: previews of changes, and reclaiming the storage of expired documents."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from chronotile import scanning, times
from chronotile.dataset import Dataset
from chronotile.errors import InvalidInputError
from chronotile.events.searching import Question, Visibility, count, to_us
from chronotile.events.settings import Settings
from chronotile.reports import SliceInfo

__all__ = ["TtlChange", "expired_slices", "preview", "retention_of", "ttl_seconds", "ttl_text"]

_TTL_MAX_S = 100_000 * 86_400


@dataclass(frozen=True)
class TtlChange:
    """Report of a change of the TTL, or of its dry run."""

    ttl_before: str | None
    """None for no expiry."""
    ttl_after: str | None
    documents_expiring: int
    """Visible documents that expire at once."""
    documents_visible: int
    """Documents visible after the change."""
    slices: tuple[SliceInfo, ...]
    """Slices without visible documents after the change: :meth:`chronotile.events.Events.reclaim` drops them."""


def ttl_seconds(ttl: str | timedelta | None, what: str = "ttl") -> int | None:
    """Convert a TTL to seconds.

    Raises
    ------
    InvalidInputError
        The value is not a duration, or is longer than 100,000 days.
    """
    if ttl is None:
        return None
    text = times.duration_text(ttl, what)
    seconds = scanning.length_of_time(text) or 0
    if not 1 <= seconds <= _TTL_MAX_S:
        raise InvalidInputError(
            f'{what} is {scanning.shown(text)}: give text such as "30d", "12h" or "90s", at most 100000d, or None '
            "(never) to keep documents forever",
            kind="invalid-time",
        )
    return seconds


def ttl_text(ttl_s: int | None) -> str | None:
    """Format seconds in the largest unit that divides them."""
    if ttl_s is None:
        return None
    unit = next(unit for unit in ("d", "h", "m", "s") if ttl_s % scanning.UNIT_SECONDS[unit] == 0)
    return f"{ttl_s // scanning.UNIT_SECONDS[unit]}{unit}"


def retention_of(settings: Settings) -> str | None:
    """Retention of the dataset: the age past which nothing is visible, so that dropping older slices is always safe."""
    if settings.ttl_s is None:
        return None
    return ttl_text(max(settings.ttl_s, settings.ttl_own_max_s or 0))


def changed(settings: Settings, ttl_s: int | None, now_us: int) -> Settings:
    """The settings with another TTL. Expired documents stay expired, however long the new TTL is."""
    start = Visibility(now_us, settings).start_us
    return replace(settings, ttl_s=ttl_s, expired_us=start)


def preview(dataset: Dataset, settings: Settings, ttl_s: int | None, now_us: int) -> TtlChange:
    """Preview a change of the TTL. Reads only chunk heads if no document has a TTL of its own, else all documents."""
    after = changed(settings, ttl_s, now_us)
    all_of = Question(None, None, None, (), Visibility(now_us, settings))
    before = count(dataset, all_of)
    remain = count(dataset, replace(all_of, visibility=Visibility(now_us, after)))
    return TtlChange(
        ttl_text(settings.ttl_s), ttl_text(ttl_s), before - remain, remain,
        tuple(expired_slices(dataset, Visibility(now_us, after))),
    )  # fmt: skip


def expired_slices(dataset: Dataset, visibility: Visibility) -> list[SliceInfo]:
    """Slices, from the oldest on, in which all documents have expired.

    A slice is read only if it is younger than the longest TTL of a write, and then only its column of TTLs. The first
    slice with a visible document ends the list.
    """
    start, now = visibility.start_us, visibility.now_us
    found = []
    for part in dataset.info().slices:
        end = to_us(part.end)
        shared_gone = start is not None and end <= start
        if end > now or (not shared_gone and not visibility.by_document):
            break
        if visibility.by_document:
            # Use the end of the slice, so that no document is dropped early.
            age_s = (now - end) // 1_000_000
            period = {"start": to_us(part.start), "end": end}
            if shared_gone:
                left = dataset.count(where=("ttl_s", ">", age_s), **period)
            else:
                left = dataset.count(**period) - dataset.count(where=("ttl_s", "<=", age_s), **period)
            if left:
                break
        found.append(part)
    return found
