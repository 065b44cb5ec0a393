"""Parse times in documents to UTC timestamps; invalid text becomes null."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronotile.errors import InvalidInputError

__all__ = ["EPOCHS", "MOMENT", "check_format", "of_numbers", "of_texts"]

MOMENT = pa.timestamp("us", "UTC")
"""Type of all event times."""

EPOCHS = {"epoch_s": 1_000_000, "epoch_ms": 1_000, "epoch_us": 1, "epoch_ns": 0}
"""Epoch time formats, with microseconds per unit; -1000 for nanoseconds: a thousand of them are a microsecond."""

_ISO = (
    r"^\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?"
    r"(?P<zone>[Zz]|[+-]\d\d(?::?\d\d)?)?$"
)
_TICKS_MAX = 9 * 10**18
_FRACTION = r"(?P<clock>\d\d:?\d\d:?\d\d)[.,](?P<digits>\d{1,9})"


def check_format(format: str) -> None:
    """Check a time format.

    Raises
    ------
    InvalidInputError
        The format is unknown and contains no ``%``.
    """
    if format != "iso8601" and format not in EPOCHS and "%" not in format:
        raise InvalidInputError(
            f"time format {format!r} is unknown: use iso8601, {', '.join(EPOCHS)}, or a pattern such as "
            '"%d/%b/%Y:%H:%M:%S %z"',
            kind="invalid-setting",
        )


def of_texts(texts: pa.Array, format: str = "iso8601", year: int | None = None) -> pa.Array:
    """Parse text as times.

    Parameters
    ----------
    texts : pa.Array of utf8
    format : str
        ``iso8601`` (without a zone UTC), one of :data:`EPOCHS`, or a strptime pattern, in which ``%f`` is the fraction
        of a second after the seconds.
    year : int, optional
        Year for patterns without one. By default the latest for which the time is at most a day from now.
    """
    if format in EPOCHS:
        # Only numbers that int64 holds: a single larger one would make the cast of all of them fail.
        number = pc.match_substring_regex(texts, r"^-?(\d{1,18}|[1-8]\d{18})(\.\d+)?$")
        nothing = pa.scalar(None, pa.utf8())
        numbers = pc.if_else(number, texts, nothing)
        fraction = pc.match_substring(numbers, ".")
        # A double cannot hold all digits of nanoseconds.
        whole = of_numbers(pc.if_else(fraction, nothing, numbers).cast(pa.int64()), format)
        parts = of_numbers(pc.if_else(fraction, numbers, nothing).cast(pa.float64()), format)
        return pc.coalesce(whole, parts)
    if format == "iso8601":
        return _of_iso(texts)
    return _of_pattern(texts, format, year)


def of_numbers(numbers: pa.Array, format: str) -> pa.Array:
    """Convert epoch numbers to times, truncated to microseconds; null if out of range."""
    unit = EPOCHS[format]
    values = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    sound = np.isfinite(values) & (np.abs(values) < _TICKS_MAX // max(unit, 1))
    values = np.where(sound, values, 0)
    if pa.types.is_floating(numbers.type):
        # A double resolves present times to a quarter of a microsecond.
        ticks = np.floor(np.round(values * (unit or 1e-3), 1)).astype("int64")
    else:
        ticks = values * unit if unit else np.floor_divide(values, 1_000)
    return pa.array(ticks, pa.int64(), mask=~sound | pc.is_null(numbers).to_numpy(zero_copy_only=False)).cast(MOMENT)


def _of_iso(texts: pa.Array) -> pa.Array:
    found = pc.extract_regex(texts, _ISO)
    zone = pc.struct_field(found, "zone")
    cut = pc.replace_substring_regex(texts, r"[.,](\d{1,6})\d*", r".\1")
    nothing = pa.scalar(None, pa.utf8())
    zoned = pc.fill_null(pc.not_equal(zone, ""), False)
    bare = pc.fill_null(pc.equal(zone, ""), False)
    upper = pc.replace_substring(cut, "z", "Z")
    try:
        with_zone = pc.if_else(zoned, upper, nothing).cast(MOMENT)
        without = pc.if_else(bare, cut, nothing).cast(pa.timestamp("us")).cast(MOMENT)
    except pa.ArrowInvalid:
        # Some value looks like a time but is invalid, such as 30 February: parse each separately.
        looking_like = pc.if_else(pc.is_valid(zone), upper, nothing)
        return pa.array([_iso_or_none(text) for text in looking_like.to_pylist()], MOMENT)
    return pc.coalesce(with_zone, without)


def _iso_or_none(text: str | None) -> datetime | None:
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _of_pattern(texts: pa.Array, format: str, year: int | None) -> pa.Array:
    micros = None
    if "%f" in format:
        # Arrow's parser does not support fractions: remove them from the text, and add them at the end.
        format = format.replace(".%f", "").replace(",%f", "")
        digits = pc.struct_field(pc.extract_regex(texts, _FRACTION), 1)
        micros = pc.utf8_slice_codeunits(pc.utf8_rpad(digits, 6, "0"), 0, 6).cast(pa.int64())
        texts = pc.replace_substring_regex(texts, _FRACTION, r"\1", max_replacements=1)
    if not any(f"%{letter}" in format for letter in "YyCGsDFc"):
        found = _of_yearless(texts, format, year)
    else:
        found = _parsed(texts, format)
    if micros is not None:
        found = pc.add(found.cast(pa.int64()), pc.fill_null(micros, 0)).cast(MOMENT)
    return found


def _parsed(texts: pa.Array, format: str) -> pa.Array:
    """Parse text without fractions; reject days such as 30 February, which Arrow reads as 2 March."""
    found = pc.strptime(texts, format, "us", error_is_null=True).cast(MOMENT)
    # An invalid day becomes one of the first three days of the next month; the zone shifts it by up to a day, to the
    # last day of the month or the fourth of the next.
    day_in_utc = pc.day(found)
    if not pc.any(pc.or_(pc.less_equal(day_in_utc, 4), pc.greater_equal(day_in_utc, 28))).as_py():
        return found
    whole = format.replace("%F", "%Y-%m-%d").replace("%D", "%m/%d/%y")
    for day in (29, 30, 31):
        first = pc.strptime(texts, whole.replace("%d", str(day)).replace("%e", str(day)), "us", error_is_null=True)
        middle = pc.add(first, pa.scalar(timedelta(days=14)))
        length = pc.days_between(pc.floor_temporal(middle, unit="month"), pc.ceil_temporal(middle, unit="month"))
        too_late = pc.fill_null(pc.less(length, day), False)
        found = pc.if_else(too_late, pa.scalar(None, MOMENT), found)
    return found


def _of_yearless(texts: pa.Array, format: str, year: int | None) -> pa.Array:
    latest = datetime.now(UTC) + timedelta(days=1)

    def in_year(number: int) -> pa.Array:
        dated = pc.binary_join_element_wise(str(number), texts, " ")
        return _parsed(dated, f"%Y {format}")

    if year is not None:
        return in_year(year)
    this, last = in_year(latest.year), in_year(latest.year - 1)
    too_late = pc.fill_null(pc.greater(this, pa.scalar(latest, MOMENT)), True)
    return pc.if_else(too_late, last, this)
