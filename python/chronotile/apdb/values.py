"""Times, lengths of time, angles and regions in whatever form a caller has them."""

from __future__ import annotations

import bisect
import math
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
_SECONDS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DAY_S = 86_400
_MJD_OF_UNIX_EPOCH = 40_587
ARCSECOND = 1 / 3600
NEAR_DEG = 5 * ARCSECOND
"""How far from a given position a record may lie."""
TICK_DAYS = 2e-6 / 86_400
"""More than the tick of an archive's times."""


def mjd_tai(value: Any, what: str = "the time") -> float:
    """A moment as Modified Julian Date in TAI.

    A number is one already; datetimes, dates, `numpy.datetime64`, `pandas.Timestamp` and ISO 8601 text are UTC unless
    they say otherwise; an `astropy.time.Time` has its own scale.
    """
    kind, given = times.moment(value, _AXIS, what)
    if kind != "utc_ns":
        return float(given)
    days, rest_ns = divmod(int(given), _DAY_S * 1_000_000_000)
    day = days + _MJD_OF_UNIX_EPOCH
    place = bisect.bisect_right(_LEAP_DAYS, day) - 1
    if place < 0:
        raise InvalidInputError(
            f"{what} is {value!r}: before 1972 UTC does not convert to TAI by whole seconds; give an MJD in TAI",
            kind="invalid-time",
        )
    return day + (rest_ns / 1e9 + _LEAPS[place][1]) / _DAY_S


def tai_minus_utc_s(mjd_utc: float) -> int:
    """Seconds that TAI is ahead of UTC on a day since 1972."""
    return _LEAPS[max(bisect.bisect_right(_LEAP_DAYS, mjd_utc) - 1, 0)][1]


def utc_of(mjd: float) -> float:
    """MJD in UTC of an MJD in TAI, to a second at leap seconds."""
    return mjd - tai_minus_utc_s(mjd) / _DAY_S


def unix_tai(mjd: float) -> float:
    """Seconds since 1970-01-01T00:00 TAI."""
    return (mjd - _MJD_OF_UNIX_EPOCH) * _DAY_S


def version_of(mjd_tai: float) -> int:
    """The version number of an object whose validity begins then: microseconds times a thousand, so that a thousand
    updates of that version come before the next."""
    return round(mjd_tai * 86_400_000_000) * 1_000


def night_start(night: Any) -> float:
    """MJD in TAI of the noon (UTC) that begins the night of a day."""
    moment = mjd_tai(night, "night")
    shift = tai_minus_utc_s(moment) / _DAY_S
    # A number without fraction is a day itself, also where it counts in TAI.
    return math.floor(moment - shift + 1e-9 + (shift if float(moment).is_integer() else 0)) + 0.5 + shift


def days(value: Any, what: str) -> float:
    """A length of time in days: a number of days, text such as ``360d``, a timedelta, an astropy Quantity or
    TimeDelta."""
    if isinstance(value, bool) or value is None:
        raise _refused(what, value)
    if isinstance(value, int | float):
        length = float(value)
    elif isinstance(value, str):
        number, unit = value.strip()[:-1].rstrip(), value.strip()[-1:]
        if unit not in _SECONDS or not number[:1].isdigit() or not scanning.is_number(number):
            raise _refused(what, value)
        length = float(number) * _SECONDS[unit] / _DAY_S
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
    """An angle in degrees, from a number of degrees, text such as ``10arcsec`` or ``10h20m``, or an astropy angle.

    Text without a unit is in degrees; of a right ascension (`ra`) ``10:20:30`` is in hours.
    """
    return _native.angle_degrees(value, ra=ra)


def region(value: Any) -> Region:
    """A region: one of ours, or a region of lsst.sphgeom (a shape we have not is taken as the circle around it)."""
    if isinstance(value, Region):
        return value
    if not type(value).__module__.startswith("lsst.sphgeom"):
        raise InvalidInputError(
            f"the region is {value!r}: give ct.circle, ct.box, ct.polygon or a region of lsst.sphgeom",
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
        raise InvalidInputError("the region is empty: give one that holds a point", kind="invalid-request")
    # A border of rounding errors belongs to the circle.
    radius = min(circle.getOpeningAngle().asDegrees() + 1e-9, 180.0)
    return sky.circle(*_position(circle.getCenter()), radius)


def _position(vector: Any) -> tuple[float, float]:
    ra = math.degrees(math.atan2(vector.y(), vector.x())) % 360.0
    return ra, math.degrees(math.atan2(vector.z(), math.hypot(vector.x(), vector.y())))


def object_id(given: Any) -> int:
    """The id of an object: a number, or a name of the ZTF such as ``ZTF18abkdczc``.

    Raises
    ------
    InvalidInputError
        It is neither.
    """
    if isinstance(given, str) and given.strip().upper().startswith("ZTF"):
        return int(ztf_object_ids(pa.array(["ZTF" + given.strip()[3:].lower()]))[0])
    try:
        return int(given)
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"{given!r} is not the id of an object: give its number, or a ZTF name such as ZTF18abkdczc",
            kind="invalid-request",
        ) from None


def ztf_object_ids(texts: Any) -> Any:
    """Numbers of ZTF objects: the two digits and seven letters of ``ZTF18abkdczc`` read as one number, in base 26."""
    column = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    good = pc.fill_null(pc.match_substring_regex(column, r"^ZTF\d{2}[a-z]{7}$"), False)
    if not pc.all(good, min_count=0).as_py():
        bad = column.filter(pc.invert(good))
        raise InvalidInputError(f"{bad[0].as_py()!r} is no name of a ZTF object", kind="invalid-rows")
    letters = np.array(column.to_numpy(zero_copy_only=False), dtype="S12").view("u1").reshape(-1, 12).astype(np.int64)
    number = (letters[:, 3] - 48) * 10 + (letters[:, 4] - 48)
    for place in range(5, 12):
        number = number * 26 + (letters[:, place] - 97)
    return number
