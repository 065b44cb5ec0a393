"""Cell rules: how to compute the cell of a record, an integer, from its columns."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from chronotile import scanning
from chronotile import sky as sky_module
from chronotile.errors import InvalidInputError

__all__ = [
    "CellRule",
    "HashCell",
    "IdBucketCell",
    "KeyCell",
    "SingleCell",
    "SkyCell",
    "hash",
    "id_bucket",
    "key",
    "single",
    "sky",
]


@dataclass(frozen=True)
class SkyCell:
    """Sky pixel of a position. Returned by :func:`sky`."""

    ra: str
    dec: str
    scheme: str
    level: int


@dataclass(frozen=True)
class KeyCell:
    """Value of an integer column. Returned by :func:`key`."""

    column: str


@dataclass(frozen=True)
class IdBucketCell:
    """Ranges of consecutive integers. Returned by :func:`id_bucket`."""

    column: str
    size: int


@dataclass(frozen=True)
class HashCell:
    """Hash of one or several columns. Returned by :func:`hash`."""

    columns: tuple[str, ...]
    buckets: int | None


@dataclass(frozen=True)
class SingleCell:
    """One cell for all records. Returned by :func:`single`."""


CellRule = SkyCell | KeyCell | IdBucketCell | HashCell | SingleCell

_NAMES: dict[type[Any], str] = {
    SkyCell: "sky",
    KeyCell: "value",
    IdBucketCell: "id_bucket",
    HashCell: "hash",
    SingleCell: "single",
}


def rule_name(rule: CellRule) -> str:
    """Name of a rule's function, such as ``sky`` or ``id_bucket``."""
    return "key" if isinstance(rule, KeyCell) else _NAMES[type(rule)]


class _Sky:
    """Sky cells, when called; and the functions of :mod:`chronotile.sky` as attributes: ``ct.sky.pixel_index``, ...

    The module and the cell rule share one name, so the name is bound to an object that serves as both.
    """

    Region = sky_module.Region
    box = staticmethod(sky_module.box)
    circle = staticmethod(sky_module.circle)
    polygon = staticmethod(sky_module.polygon)
    pixel_area = staticmethod(sky_module.pixel_area)
    pixel_center = staticmethod(sky_module.pixel_center)
    pixel_index = staticmethod(sky_module.pixel_index)
    pixel_range = staticmethod(sky_module.pixel_range)
    pixel_vertices = staticmethod(sky_module.pixel_vertices)
    region_contains = staticmethod(sky_module.region_contains)
    region_cover = staticmethod(sky_module.region_cover)

    def __repr__(self) -> str:
        return "<chronotile.sky: cell rule and functions>"

    def __call__(self, ra: str, dec: str, *, scheme: str = "mq3c", level: int = 10) -> SkyCell:
        """Assign records to cells by sky pixel.

        Parameters
        ----------
        ra, dec : str
            Columns with right ascension and declination, degrees, float64 or float32.
        scheme : {"mq3c", "q3c", "htm", "healpix"}
            The pixelization. ``mq3c``, ``q3c`` and ``htm`` number pixels as lsst-sphgeom does, ``healpix`` in nested
            order.
        level : int
            Subdivision level: each level quarters the pixels. MQ3C level 10 has pixels of about 0.006 square degrees (5
            arcminutes a side); a read of a region opens every pixel it touches, so choose pixels somewhat smaller than
            a typical region.

        Raises
        ------
        InvalidInputError
            Raised by :meth:`Archive.create`: unknown scheme, level out of range, or wrong column type.
        """
        return SkyCell(ra, dec, scheme, level)


sky = _Sky()


def key(column: str) -> KeyCell:
    """Assign records to cells by the value of an integer column, such as a tag number: one cell per value. For text,
    use :func:`hash`.
    """
    return KeyCell(column)


def id_bucket(column: str, size: int) -> IdBucketCell:
    """Assign records to cells by ``floor(value / size)`` of an integer column: `size` consecutive ids share a cell.

    Parameters
    ----------
    column : str
        Integer column, such as a job id.
    size : int
        Ids in one bucket, 1 to 1,000,000,000.
    """
    return IdBucketCell(column, size)


def hash(*columns: str, buckets: int | None = None) -> HashCell:
    """Assign records to cells by a hash of columns, for text keys such as the name of a stream or a sensor.

    Parameters
    ----------
    *columns : str
        Integer, bool, text or binary columns.
    buckets : int, optional
        Number of cells. By default every distinct value has its own cell, which suits up to a few hundred thousand
        values with many records each; set a number for more values.
    """
    return HashCell(tuple(columns), buckets)


def single() -> SingleCell:
    """Assign all records to one cell, for data that are read by time only."""
    return SingleCell()


_ANGLE_UNITS = {"arcsec": 3600.0, "arcmin": 60.0, "deg": 1.0}


def angle_deg(value: Any, what: str) -> float:
    """Convert an angle to degrees: a number of degrees, text such as ``"5arcsec"``, ``"2arcmin"`` or ``"0.1deg"``, or
    an astropy Quantity or Angle.
    """
    if hasattr(value, "to_value"):
        return float(value.to_value("deg"))
    text = value.strip() if isinstance(value, str) else ""
    unit = next((unit for unit in _ANGLE_UNITS if text.endswith(unit)), "")
    if text and scanning.is_number(number := text[: len(text) - len(unit)].rstrip()):
        return float(number) / _ANGLE_UNITS.get(unit, 1.0)
    if not isinstance(value, str | bool):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    raise InvalidInputError(
        f'{what} is {value!r}: give degrees, text such as "5arcsec" or "0.1deg", or an astropy Quantity',
        kind="invalid-definition",
    )


def to_json(rule: object) -> str:
    """Convert a cell rule to the form stored in the archive's catalog."""
    if not isinstance(rule, CellRule):
        raise InvalidInputError(
            f"invalid cell rule {rule!r}: use ct.sky, ct.key, ct.id_bucket, ct.hash or ct.single",
            kind="invalid-definition",
        )
    return json.dumps({"rule": _NAMES[type(rule)], **asdict(rule)})


def from_json(definition: dict[str, Any]) -> CellRule:
    """Inverse of :func:`to_json`."""
    parts = {name: value for name, value in definition.items() if name != "rule"}
    if "columns" in parts:
        parts["columns"] = tuple(parts["columns"])
    for cls, name in _NAMES.items():
        if name == definition["rule"]:
            rule: CellRule = cls(**parts)
            return rule
    raise InvalidInputError(
        f"unknown cell rule {definition['rule']!r}, written by a later release: upgrade chronotile",
        kind="invalid-definition",
    )
