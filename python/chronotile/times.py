"""Time axes, and conversion of times from the forms that callers use."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import Any, Literal

from chronotile import scanning
from chronotile.errors import InvalidInputError

__all__ = ["Moment", "TimeAxis", "jd", "mjd", "timestamp"]

Moment = Any
"""A time in any supported form: see :meth:`chronotile.Dataset.read`."""

NativeMoment = tuple[Literal["utc_ns", "native", "ticks"], int | float]

_JD_OF_UNIX_EPOCH = Fraction("2440587.5")
_MJD_OF_UNIX_EPOCH = 40_587
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_NS = 86_400_000_000_000
_UNIT_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_NUMPY_UNIT_NS = {"W": 7 * _DAY_NS, "D": _DAY_NS, "h": 3_600 * 10**9, "m": 60 * 10**9, **_UNIT_NS}
_LENGTH_NS = {"w": 7 * _DAY_NS, "d": _DAY_NS, "h": 3_600 * 10**9, "m": 60 * 10**9, **_UNIT_NS}
_TEXT_CHARS_MAX = 100
"""Most characters of a time."""


@dataclass(frozen=True)
class TimeAxis:
    """The time column of a dataset and its encoding.

    Attributes
    ----------
    column : str
        Name of the column.
    format : {"timestamp", "mjd", "jd"}
        Arrow timestamp or date, Modified Julian Date, or Julian Date (both float64 days).
    scale : {"utc", "tai"}
        Time scale of the column. Times given as datetimes and text are UTC and are converted.
    """

    column: str
    format: str = "timestamp"
    scale: str = "utc"


def mjd(column: str, *, scale: str = "utc") -> TimeAxis:
    """A float64 column of Modified Julian Dates, days since 1858-11-17T00:00 of `scale` ("utc" or "tai")."""
    return TimeAxis(column, "mjd", scale)


def jd(column: str, *, scale: str = "utc") -> TimeAxis:
    """A float64 column of Julian Dates, days since noon of -4713-11-24 (proleptic Gregorian) of `scale` ("utc" or
    "tai")."""
    return TimeAxis(column, "jd", scale)


def timestamp(column: str, *, scale: str = "utc") -> TimeAxis:
    """An Arrow timestamp or date column; one without zone is taken as `scale` ("utc" or "tai")."""
    return TimeAxis(column, "timestamp", scale)


def resolve_axis(time: str | TimeAxis, time_format: str | None, time_scale: str, columns: dict[str, str]) -> TimeAxis:
    """Determine the axis of ``create(time=..., time_format=..., time_scale=...)``; `columns` maps names to types."""
    if isinstance(time, TimeAxis):
        return time
    if not isinstance(time, str):
        raise InvalidInputError(
            f"invalid time {time!r}: give the name of the time column, or ct.mjd, ct.jd or ct.timestamp",
            kind="invalid-definition",
        )
    if time_format is not None:
        return TimeAxis(time, time_format, time_scale)
    if columns.get(time) != "float64":
        return TimeAxis(time, "timestamp", time_scale)
    if time.lower() in ("jd", "mjd"):
        return TimeAxis(time, time.lower(), time_scale)
    raise InvalidInputError(
        f"time column {time!r} is float64: its format must be given: "
        f'write time=ct.mjd({time!r}) or time=ct.jd({time!r}), with scale="tai" if it is not UTC',
        kind="invalid-definition",
    )


def duration_text(value: str | timedelta, what: str) -> str:
    """Convert a duration, text or a timedelta of whole seconds, to text such as ``30d``."""
    if isinstance(value, str):
        return value
    if isinstance(value, timedelta):
        if value.microseconds or value <= timedelta(0):
            raise InvalidInputError(
                f"{what} is {value!r}: give a positive whole number of seconds", kind="invalid-time"
            )
        return f"{value.days * 86_400 + value.seconds}s"
    raise InvalidInputError(
        f'{what} is {value!r}: give text such as "30d", "12h" or "15m", or a timedelta', kind="invalid-time"
    )


def moment(value: Moment, axis: TimeAxis, what: str) -> NativeMoment:
    """Convert `value` to the form of the native module, for a dataset with this time axis."""
    days = axis.format in ("mjd", "jd")
    kind = _number_kind(value)
    if kind is int:
        if not -(2**63) <= int(value) < 2**63:
            raise _refused(what, scanning.shown(str(value)), "the time is out of range")
        return ("native", float(value)) if days else ("ticks", int(value))
    if kind is float:
        if days:
            return ("native", float(value))
        raise _refused(
            what, value, "the time column is a timestamp: give a datetime, ISO 8601 text, or a whole number in its unit"
        )
    if isinstance(value, str):
        since_now = _relative_to_now(value, what)
        return ("utc_ns", _text_ns(value, what) if since_now is None else _datetime_ns(since_now, what))
    if isinstance(value, datetime):
        return ("utc_ns", _datetime_ns(value, what))
    if isinstance(value, date):
        return ("utc_ns", (value.toordinal() - _EPOCH.toordinal()) * _DAY_NS)
    if _is_numpy(value, "datetime64"):
        return ("utc_ns", numpy_ns(value, what))
    if hasattr(value, "jd1") and hasattr(value, "jd2") and hasattr(value, axis.scale):
        return _astropy(value, axis, what)
    raise _refused(what, value, "give a datetime, ISO 8601 text, or a number in the unit of the time column")


def _relative_to_now(text: str, what: str) -> datetime | None:
    """Parse ``now``, ``now-6h`` or ``now+1d``; None for other texts."""
    word = text.strip().lower() if len(text) <= _TEXT_CHARS_MAX else ""
    sign, length = word[3:4], word[4:].strip()
    if not word.startswith("now") or (sign and sign not in "+-"):
        return None
    # No overflow: a duration is shorter than 293 years.
    away = timedelta(microseconds=duration_ns(length, what) // 1_000 if sign else 0)
    return datetime.now(UTC) + (away if sign != "-" else -away)


def _number_kind(value: object) -> type | None:
    """Return int or float for numbers of Python and numpy, None for anything else."""
    # numpy counts timedelta64 among its integers.
    if isinstance(value, bool) or _is_numpy(value, "timedelta64"):
        return None
    if isinstance(value, int) or _is_numpy(value, "integer"):
        return int
    if isinstance(value, float) or _is_numpy(value, "floating"):
        return float
    return None


def is_whole(value: object) -> bool:
    """Whether `value` is a whole number of Python or numpy."""
    return _number_kind(value) is int


def _is_numpy(value: object, name: str) -> bool:
    """Whether `value` is a scalar of a numpy class, without importing numpy."""
    return any(cls.__module__ == "numpy" and cls.__name__ == name for cls in type(value).__mro__)


def _refused(what: str, value: object, hint: str) -> InvalidInputError:
    return InvalidInputError(f"{what} is {value!r}: {hint}", kind="invalid-time")


def _text_ns(text: str, what: str) -> int:
    # `fromisoformat` truncates after microseconds; add further digits separately.
    plain, digits = _without_fraction(text.strip()) if len(text) <= _TEXT_CHARS_MAX else ("", "")
    try:
        # `fromisoformat` takes a fraction of an hour as a fraction of a second.
        whole = datetime.fromisoformat("" if "." in plain or "," in plain else plain)
    except ValueError:
        hint = "write ISO 8601 such as 2026-01-31T12:00:00Z, now-6h, or a number in the unit of the time column"
        raise InvalidInputError(f"{what} is {scanning.shown(text)}: {hint}", kind="invalid-time") from None
    return _datetime_ns(whole, what) + int(digits[:9].ljust(9, "0"))


def exact_text_ns(text: str, what: str) -> int:
    """Convert ISO 8601 text to nanoseconds since 1970 UTC; finer times raise an error."""
    if len(text) <= _TEXT_CHARS_MAX and _without_fraction(text.strip())[1][9:].strip("0"):
        raise _refused(what, text, "the finest resolution is nanoseconds: give at most 9 decimal places")
    return _text_ns(text, what)


def _without_fraction(text: str) -> tuple[str, str]:
    """Split a time into the text without its fractional seconds, and the digits of the fraction."""
    point = next((at for at, char in enumerate(text) if char in ".,"), len(text))
    end = next((at for at in range(point + 1, len(text)) if not "0" <= text[at] <= "9"), len(text))
    has_colons = [len(part) for part in text[:point][-8:].split(":")] == [2, 2, 2]
    is_clock = has_colons or (point >= len("20260131T120000") and text[point - 6 : point].isdigit())
    # The zone's offset may have a fraction too, which is not part of the time's seconds.
    is_offset = text[:point].rstrip("0123456789:").endswith(("+", "-"))
    if not is_clock or is_offset or end <= point + 1:
        return text, ""
    return text[:point] + text[end:], text[point + 1 : end]


def text_of_ns(value_ns: int, what: str) -> str:
    """Convert nanoseconds since 1970 UTC to ISO 8601 text."""
    seconds, rest_ns = divmod(value_ns, 10**9)
    try:
        whole = _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        raise _refused(what, f"{seconds} s from 1970", "give a time of the years 1 to 9999") from None
    return f"{whole.isoformat()[:19]}.{rest_ns:09}Z"


def _datetime_ns(value: datetime, what: str) -> int:
    """Convert a datetime to nanoseconds since 1970 UTC; UTC is assumed without a zone. pandas timestamps keep their
    nanoseconds.
    """
    if value != value:  # pandas.NaT
        raise _refused(what, value, "the value is not a time")
    # Use a plain datetime: pandas computes differences of its timestamps in nanoseconds, which overflow.
    plain = datetime(
        value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, fold=value.fold
    )
    offset = value.utcoffset() or timedelta(0)
    since = plain.replace(tzinfo=UTC) - _EPOCH
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    shift = (offset.days * 86_400 + offset.seconds) * 1_000_000 + offset.microseconds
    return (microseconds - shift) * 1_000 + int(getattr(value, "nanosecond", 0))


def timedelta_ns(value: timedelta) -> int:
    """Nanoseconds of a ``timedelta``, of pandas too."""
    microseconds = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    return microseconds * 1_000 + int(getattr(value, "nanoseconds", 0))


def numpy_ns(value: Any, what: str) -> int:
    """Nanoseconds of a ``datetime64``, since 1970, or of a ``timedelta64``."""
    name, bracket, text = str(value.dtype).partition("64[")  # datetime64[us], datetime64[25s]
    if name not in ("datetime", "timedelta") or not bracket or str(value) == "NaT":
        raise _refused(what, value, "the value is not a time")
    unit = text.removesuffix("]").lstrip("0123456789")
    count = int(text[: text.index(unit)] or 1)
    if unit in ("Y", "M") and value.dtype.kind == "M":
        value, count, unit = value.astype("datetime64[D]"), 1, "D"
    if unit not in _NUMPY_UNIT_NS:
        raise _refused(what, value, "use a unit from years to nanoseconds")
    return int(value.astype("int64")) * count * _NUMPY_UNIT_NS[unit]


def _astropy(value: Any, axis: TimeAxis, what: str) -> NativeMoment:
    if getattr(value, "shape", ()) != ():
        raise _refused(what, value, "give a single time")
    if axis.format in ("mjd", "jd"):
        return ("native", float(getattr(getattr(value, axis.scale), axis.format)))
    utc = value.utc
    days = Fraction(float(utc.jd1)) + Fraction(float(utc.jd2)) - _JD_OF_UNIX_EPOCH
    return ("utc_ns", round(days * _DAY_NS))


def tick_value(tick: int, axis: TimeAxis, data_type: str) -> datetime | float | int:
    """Convert a tick of the axis to float days, or to a datetime in the column's scale; return the tick itself if a
    datetime cannot represent it.
    """
    if axis.format in ("mjd", "jd"):
        epoch = float(_JD_OF_UNIX_EPOCH) if axis.format == "jd" else float(_MJD_OF_UNIX_EPOCH)
        return tick / 86_400_000_000 + epoch
    nanoseconds = tick * tick_ns(data_type)
    try:
        return _EPOCH + timedelta(microseconds=nanoseconds // 1_000)
    except OverflowError:
        return tick


def tick_ns(data_type: str) -> int:
    """Nanoseconds in one tick of a timestamp or date column, whose type is given as text."""
    if data_type.startswith("timestamp["):
        return _UNIT_NS[data_type.removeprefix("timestamp[").partition(",")[0].removesuffix("]")]
    return _DAY_NS


def duration_ns(value: str | timedelta | int, what: str) -> int:
    """Convert a duration to nanoseconds: text such as ``"1h"`` or ``"500ms"``, a timedelta, or nanoseconds."""
    found = scanning.length_of_time(value, _LENGTH_NS) if isinstance(value, str) else None
    if isinstance(value, timedelta):
        number = timedelta_ns(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif found is not None:
        number = found
    else:
        number = -1
    if not 0 <= number < 2**63:
        raise InvalidInputError(
            f'{what} is {scanning.shown(value) if isinstance(value, str) else repr(value)}: give text such as "1h", '
            '"15m" or "500ms", a timedelta, or nanoseconds',
            kind="invalid-time",
        )
    return number
