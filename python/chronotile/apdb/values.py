"""Convert times, durations, angles, regions and object ids from the forms that callers use."""

from __future__ import annotations

import bisect
import math
import operator
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronotile import _native, scanning, sky, times
from chronotile.errors import InvalidInputError
from chronotile.sky import Region

__all__: list[str] = []

# TAI - UTC in seconds from the given MJD (UTC) on; IERS Bulletin C. Before 1972 UTC ran at another rate.
_LEAPS = (
    (41317, 10), (41499, 11), (41683, 12), (42048, 13), (42413, 14), (42778, 15), (43144, 16), (43509, 17),
    (43874, 18), (44239, 19), (44786, 20), (45151, 21), (45516, 22), (46247, 23), (47161, 24), (47892, 25),
    (48257, 26), (48804, 27), (49169, 28), (49534, 29), (50083, 30), (50630, 31), (51179, 32), (53736, 33),
    (54832, 34), (56109, 35), (57204, 36), (57754, 37),
)  # fmt: skip
_LEAP_DAYS = [day for day, _ in _LEAPS]
_AXIS = times.mjd("t", scale="tai")
_DAY_S = 86_400
MJD_OF_UNIX_EPOCH = 40_587
_JULIAN_DATES = (2_000_000, 3_000_000)
"""Range of numbers taken as Julian Dates: as Modified Julian Dates, they would be thousands of years ahead."""
_VERSIONS_END = 106_000.0
"""Last MJD whose object versions fit in 64 bits; in the year 2149."""
ARCSECOND = 1 / 3600
NEAR_DEG = 5 * ARCSECOND
"""Largest distance of a record from its given position."""
TICK_DAYS = 2e-6 / 86_400
"""A margin for rounded times: longer than the tick of an archive's times."""


def mjd_tai(value: Any, what: str = "the time") -> float:
    """Convert a time to Modified Julian Date in TAI.

    Numbers are returned as they are; datetimes, dates, `numpy.datetime64`, `pandas.Timestamp` and ISO 8601 text are UTC
    unless they carry a zone; an `astropy.time.Time` has its own scale.
    """
    kind, given = times.moment(value, _AXIS, what)
    if kind != "utc_ns":
        if _JULIAN_DATES[0] < given < _JULIAN_DATES[1]:
            raise InvalidInputError(
                f"{what} is {value}, which looks like a Julian Date: give a Modified Julian Date in TAI "
                "(subtract 2400000.5)",
                kind="invalid-time",
            )
        return float(given)
    days, rest_ns = divmod(int(given), _DAY_S * 1_000_000_000)
    day = days + MJD_OF_UNIX_EPOCH
    place = bisect.bisect_right(_LEAP_DAYS, day) - 1
    if place < 0:
        raise InvalidInputError(
            f"{what} {value!r} is before 1972, when TAI - UTC was not a whole number of seconds: give an MJD in TAI",
            kind="invalid-time",
        )
    return day + (rest_ns / 1e9 + _LEAPS[place][1]) / _DAY_S


def tai_minus_utc_s(mjd_utc: float) -> int:
    """TAI - UTC in seconds on a day since 1972."""
    return _LEAPS[max(bisect.bisect_right(_LEAP_DAYS, mjd_utc) - 1, 0)][1]


def unix_tai(mjd: float) -> float:
    """Seconds since 1970-01-01T00:00 TAI."""
    return (mjd - MJD_OF_UNIX_EPOCH) * _DAY_S


def version_of(mjd_tai: float) -> int:
    """Version number of an object whose validity starts at this time: microseconds times 1000, which leaves room for a
    thousand updates before the next version.
    """
    return round(within_versions(mjd_tai) * 86_400_000_000) * 1_000


def within_versions(mjd_tai: float) -> float:
    """Check that a time can be the start of validity of an object version."""
    if not 0 <= mjd_tai < _VERSIONS_END:
        raise InvalidInputError(
            f"time {mjd_tai:g} is not an MJD (TAI) from 0 to {_VERSIONS_END:,.0f}, in the years 1858 to 2149",
            kind="invalid-time",
        )
    return mjd_tai


def night_start(night: Any) -> float:
    """MJD in TAI of the noon (UTC) at which the night of a day begins."""
    moment = mjd_tai(night, "night")
    shift = tai_minus_utc_s(moment) / _DAY_S
    # A whole number names the day itself, even as an MJD in TAI.
    return math.floor(moment - shift + 1e-9 + (shift if float(moment).is_integer() else 0)) + 0.5 + shift


def days(value: Any, what: str) -> float:
    """Convert a duration to days: a number of days, text such as ``360d``, a timedelta, an astropy Quantity or
    TimeDelta.
    """
    if isinstance(value, bool) or value is None:
        raise _refused(what, value)
    if isinstance(value, int | float):
        length = float(value)
    elif isinstance(value, str):
        number, unit = value.strip()[:-1].rstrip(), value.strip()[-1:]
        if unit not in scanning.UNIT_SECONDS or not number[:1].isdigit() or not scanning.is_number(number):
            raise _refused(what, value)
        length = float(number) * scanning.UNIT_SECONDS[unit] / _DAY_S
    elif isinstance(value, timedelta):
        length = value / timedelta(days=1)
    elif hasattr(value, "jd"):
        length = float(value.jd)
    elif hasattr(value, "to_value"):
        length = float(value.to_value("d"))
    else:
        raise _refused(what, value)
    if not 0 <= length < float("inf"):
        raise _refused(what, value)
    return length


def _refused(what: str, value: Any) -> InvalidInputError:
    return InvalidInputError(
        f'{what} is {value!r}: give days as a number, text such as "360d", a timedelta or an astropy quantity',
        kind="invalid-time",
    )


def degrees(value: Any, *, ra: bool = False) -> float:
    """Convert an angle to degrees: a number of degrees, text such as ``10arcsec`` or ``10h20m``, or an astropy angle.

    Text without a unit is in degrees; for a right ascension (`ra`), ``10:20:30`` is in hours.
    """
    return _native.angle_degrees(value, ra=ra)


def region(value: Any) -> Region:
    """Convert a region of lsst.sphgeom (unsupported shapes become their bounding circle); ours pass unchanged."""
    if isinstance(value, Region):
        return value
    if not type(value).__module__.startswith("lsst.sphgeom"):
        raise InvalidInputError(
            f"invalid region {value!r}: give ct.circle, ct.box, ct.polygon or a region of lsst.sphgeom",
            kind="invalid-request",
        )
    shape = type(value).__name__
    if shape == "ConvexPolygon":
        return sky.polygon([_position(vertex) for vertex in value.getVertices()])
    if shape == "Box" and not value.isEmpty():
        ra, dec = value.getLon(), value.getLat()
        span = (0.0, 360.0) if ra.isFull() else (ra.getA().asDegrees(), ra.getB().asDegrees())
        return sky.box(span[0], span[1], dec.getA().asDegrees(), dec.getB().asDegrees())
    circle = value if shape == "Circle" else value.getBoundingCircle()
    if circle.isEmpty():
        raise InvalidInputError("the region is empty", kind="invalid-request")
    # Widen the circle by the rounding error, so that its border is included.
    radius = min(circle.getOpeningAngle().asDegrees() + 1e-9, 180.0)
    return sky.circle(*_position(circle.getCenter()), radius)


def _position(vector: Any) -> tuple[float, float]:
    ra = math.degrees(math.atan2(vector.y(), vector.x())) % 360.0
    return ra, math.degrees(math.atan2(vector.z(), math.hypot(vector.x(), vector.y())))


def object_id(given: Any) -> int:
    """Convert an object id: a number, or a ZTF name such as ``ZTF18abkdczc``.

    Raises
    ------
    InvalidInputError
        The value is neither.
    """
    if isinstance(given, str) and given.strip().upper().startswith("ZTF"):
        return int(ztf_object_ids(pa.array(["ZTF" + given.strip()[3:].lower()]))[0])
    try:
        return int(given) if isinstance(given, str) else operator.index(given)
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"{given!r} is not an object id: give a number, or a ZTF name such as ZTF18abkdczc",
            kind="invalid-request",
        ) from None


def object_ids(given: Any) -> Any:
    """Convert object ids to a numpy array of int64, in order and with repeats; nulls are left out.

    Parameters
    ----------
    given : iterable, Arrow or numpy array, Series, int or str
        Ids: integers, ZTF names, or both.

    Raises
    ------
    InvalidInputError
        Some value is not an id; or ids are floats, which do not hold all integers.
    """
    column = _id_column([given] if isinstance(given, str | int) else given)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if str(kind) in ("string", "large_string", "string_view"):
        return _ids_of_texts(column.cast(pa.string()).drop_null())
    column = column.drop_null()
    if not len(column):
        return np.empty(0, np.int64)
    if not pa.types.is_integer(column.type):
        raise InvalidInputError(
            f"object ids have type {column.type}: give integers or ZTF names", kind="invalid-request"
        )
    try:
        return column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(f"object ids do not fit 64 bits: {error}", kind="invalid-request") from None


def _id_column(given: Any) -> Any:
    try:
        if hasattr(given, "__arrow_c_stream__"):
            return pa.chunked_array(given)
        return pa.array(given if hasattr(given, "__arrow_c_array__") or hasattr(given, "dtype") else list(given))
    except (pa.ArrowException, TypeError, OverflowError):
        pass
    try:
        # The list mixes numbers and names: convert each value separately.
        return pa.array([object_id(each) for each in given if each is not None], pa.int64())
    except (TypeError, OverflowError) as error:
        raise InvalidInputError(
            f"cannot read object ids: {error}: give integers of 64 bits or ZTF names", kind="invalid-request"
        ) from None


def _ids_of_texts(texts: Any) -> Any:
    trimmed = pc.utf8_trim_whitespace(texts)
    ids = np.empty(len(trimmed), np.int64)
    is_name = pc.starts_with(trimmed, "ZTF", ignore_case=True)
    ztf = is_name.to_numpy(zero_copy_only=False)
    if ztf.any():
        found = pc.binary_join_element_wise(
            "ZTF", pc.utf8_lower(pc.utf8_slice_codeunits(trimmed.filter(is_name), 3)), ""
        )
        ids[ztf] = ztf_object_ids(found)
    numbers = trimmed.filter(pc.invert(is_name))
    try:
        ids[~ztf] = numbers.cast(pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        ids[~ztf] = [object_id(text) for text in numbers.to_pylist()]
    return ids


def ztf_object_ids(texts: Any) -> Any:
    """Convert ZTF names to numbers: two digits and seven letters, as in ``ZTF18abkdczc``, read in base 26."""
    column = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    good = pc.fill_null(pc.match_substring_regex(column, r"^ZTF\d{2}[a-z]{7}$"), False)
    if not pc.all(good, min_count=0).as_py():
        bad = column.filter(pc.invert(good))
        raise InvalidInputError(f"{bad[0].as_py()!r} is not a ZTF object name", kind="invalid-rows")
    letters = np.array(column.to_numpy(zero_copy_only=False), dtype="S12").view("u1").reshape(-1, 12).astype(np.int64)
    number = (letters[:, 3] - 48) * 10 + (letters[:, 4] - 48)
    for place in range(5, 12):
        number = number * 26 + (letters[:, place] - 97)
    return number
