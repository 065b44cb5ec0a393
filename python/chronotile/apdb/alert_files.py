"""Convert alerts of the ZTF and the LSST, as packets or flattened tables, to database tables.

Formats: https://zwickytransientfacility.github.io/ztf-avro-alert and https://github.com/lsst/alert_packet.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronotile.apdb import alert_containers, names, values
from chronotile.errors import InvalidInputError
from chronotile.hints import name_list

# The AB zero point is 3631 Jy, which is magnitude 31.4 for fluxes in nJy.
_ZERO_POINT_NJY = 31.4
_MJD_OF_JD = 2_400_000.5
_ZTF_BANDS = {1: "g", 2: "r", 3: "i"}
_EXACT = 2**53
"""Largest integer up to which float64 represents every integer exactly."""
_INT64_END = 2.0**63

PARTS = (("objects", names.OBJECT), ("sources", names.SOURCE), ("forced_sources", names.FORCED))
"""For each table of an import, the schema table that it fills."""


@dataclass
class Tables:
    """Rows of the three tables, with the columns that the alert stream provides.

    Attributes
    ----------
    objects, sources, forced_sources : pyarrow.Table, optional
        Rows, or None.
    notes : list of str
        Changes made to the rows that a user should know about.
    no_column : set of str
        Parts of the alerts that no table has a column for.
    dropped : Counter of str
        Number of rows and values left out, by kind and reason.
    rounded : numpy.ndarray, optional
        Source ids (int64) that the file stores rounded to float64 and whose exact value it does not contain.
    """

    objects: Any = None
    sources: Any = None
    forced_sources: Any = None
    notes: list[str] = field(default_factory=list)
    no_column: set[str] = field(default_factory=set)
    dropped: Counter[str] = field(default_factory=Counter)
    rounded: Any = None
    forced_unit_known: bool = True
    """Whether the positions of forced sources are known to be degrees, or cannot be radians."""
    path: Path | None = None
    """File that the rows are from, or None if they are from several."""


def read_alerts(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Tables]:
    """Read alert files as tables of a few thousand rows each.

    Raises
    ------
    DataFileError
        A file cannot be read.
    InvalidInputError
        A file contains no alerts.
    """
    flat = Tables()
    for path in alert_containers.files(paths):
        for given, images in alert_containers.read(path):
            try:
                tables = _tables_of_rows(_with_packet_columns(given), path, flat)
            except (pa.ArrowException, _NonIntegerError) as error:
                raise InvalidInputError(f"{path}: {error}", kind="invalid-rows") from error
            if tables is not None:
                tables.no_column.update(images)
                tables.path = path
                yield tables
    if any(getattr(flat, attribute) is not None for attribute, _ in PARTS):
        _finish(flat, [] if flat.sources is None else [flat.sources])
        if flat.objects is not None and names.VALID_FROM not in flat.objects.schema.names:
            flat.notes.append("object validity starts at the time of the last imported source")
        yield flat


def _tables_of_rows(rows: Any, path: Path, flat: Tables) -> Tables | None:
    """Convert rows of a file to tables; flattened LSST tables are collected in `flat` until all are read."""
    here = set(rows.schema.names)
    if "candidate" in here:
        return _ztf_packets(rows, path)
    if "diaSource" in here:
        return _lsst_packets(rows, path)
    if "candid" in here:
        return _ztf(rows, path)
    _add_flat(flat, rows, path)
    return None


# ---------------------------------------------------------------- layouts of columns


_PACKET_PARTS = {"candidate": "candid", "diaSource": names.SOURCE_ID, "diaObject": names.OBJECT_ID}
"""Packet parts, each with a column that identifies it."""


def _with_packet_columns(rows: Any) -> Any:
    """Rename columns such as ``diaSource.ra``, ``diaSource_ra`` or a broker's ``i:ra`` to the names used in packets."""
    families = {name[:2] for name in rows.schema.names if name[1:2] == ":"}
    own = [each for each in families if any(f"{each}{key}" in rows.schema.names for key in _PACKET_PARTS.values())]
    if own:
        # If two families have a column of the same name, the survey's own takes precedence.
        ordered = sorted(rows.schema.names, key=lambda name: name[:2] not in own)
        short = {name[2:] if name[:2] in families else name: name for name in reversed(ordered)}
        rows = rows.select(list(short.values())).rename_columns(list(short))
    for part, key in _PACKET_PARTS.items():
        for between in "._":
            start = part + between
            if start + key in rows.schema.names:
                mine = [name for name in rows.schema.names if name.startswith(start)]
                fields = [rows[name].combine_chunks() for name in mine]
                struct = pa.StructArray.from_arrays(fields, [name.removeprefix(start) for name in mine])
                rest = [name for name in rows.schema.names if name not in mine and name != part]
                rows = rows.select(rest).append_column(part, struct)
    return rows


def _missing_columns(rows: Any, wanted: Iterable[str]) -> list[str]:
    return [name for name in wanted if name not in rows.schema.names]


def _skipped_note(part: str, missing_names: list[str]) -> str:
    return f"{part} skipped: missing {_columns_text(missing_names)}"


def _columns_text(missing_names: list[str]) -> str:
    return f"column{'s' * (len(missing_names) > 1)} {name_list(missing_names)}"


def _require_columns(rows: Any, wanted: Iterable[str], what: str, path: Path) -> None:
    """Raise an error if required columns are missing."""
    if missing_names := _missing_columns(rows, wanted):
        raise InvalidInputError(f"{path}: {what} rejected: missing {_columns_text(missing_names)}", kind="invalid-rows")


def _drop_incomplete(rows: Any, wanted: Iterable[str], what: str, dropped: Counter[str]) -> Any:
    """Keep the rows that have a value in every wanted column; count the others in `dropped`."""
    for name in wanted:
        there = _has_value(rows[name])
        if missing := rows.num_rows - (pc.sum(there).as_py() or 0):
            dropped[f"{what} without {name}"] += missing
            rows = rows.filter(there)
    return rows


def _has_value(column: Any) -> Any:
    """Mark the values of a column that are neither null nor NaN."""
    return pc.invert(pc.is_null(column, nan_is_null=True))


# ---------------------------------------------------------------- packets


def _ztf_packets(rows: Any, path: Path) -> Tables:
    _require_columns(rows, ["objectId"], "alerts", path)
    dropped: Counter[str] = Counter()
    notes: list[str] = []
    rows = _drop_incomplete(rows, ["candidate", "objectId"], "alerts", dropped)
    detections = _flattened(_record(rows, "candidate", path))
    _require_columns(detections, sorted(_ZTF_NEEDED - {"objectId"}), "detections", path)
    parts, limits = [detections.append_column("objectId", rows["objectId"])], 0
    before = _exploded(rows, "prv_candidates", notes)
    if before is not None and (missing_names := _missing_columns(before[0], sorted(_ZTF_NEEDED - {"objectId"}))):
        notes.append(_skipped_note("prv_candidates", missing_names))
    elif before is not None:
        history, places = before
        history = history.append_column("objectId", rows["objectId"].take(places))
        # A previous candidate without an id is an upper limit, not a detection.
        detected = _has_value(history["candid"])
        limits = history.num_rows - pc.sum(detected).as_py()
        parts.append(history.filter(detected))
    tables = _ztf(_concatenate(parts, "candid", dropped), path)
    tables.no_column.update({*rows.schema.names} - {"candidate", "prv_candidates", "objectId", "candid"})
    if limits:
        dropped["upper limits of prv_candidates"] += limits
    tables.dropped.update(dropped)
    tables.notes += notes
    return tables


def _concatenate(parts: list[Any], key: str, dropped: Counter[str], object_ids: Any = None) -> Any:
    """Concatenate tables; column `_rounded` marks rows whose id in column `key` may have been rounded.

    pandas converts an integer column with nulls to float64, which keeps 53 of 63 bits. If a column holds integers in
    one table and floats in another, all become integers; a float that lost bits and matches no known integer becomes
    null, except in the key column, where it stays as it is. A key takes an exact id only from the same detection,
    because rounding makes close ids equal. `object_ids` holds all known object ids.
    """
    kinds = {
        name: [part.schema.field(name).type for part in parts if name in part.schema.names]
        for name in dict.fromkeys(name for part in parts for name in part.schema.names)
    }
    mixed = {
        name
        for name, types in kinds.items()
        if name == key or (any(map(pa.types.is_integer, types)) and any(map(pa.types.is_floating, types)))
    }
    known = {} if object_ids is None else {names.OBJECT_ID: object_ids}
    done = []
    for part in parts:
        rounded = np.zeros(part.num_rows, bool)
        # The key comes last: comparing detections needs the other columns.
        columns = [name for name in part.schema.names if name in mixed or name in known]
        for name in sorted(columns, key=lambda name: name == key):
            ids, inexact = exact_ids(part[name], known.get(name, _integers(parts, name)), name)
            if name == key:
                given, lossy = exact_ids(part[name], _NO_IDS, name)
                others = _belong_to_other_detections(part, ids, lossy & ~inexact, parts, key)
                ids, rounded = pc.if_else(pa.array(others), given, ids), inexact | others
            elif inexact.any():
                dropped[f"values of {names.SOURCE}.{name}, rounded in the file"] += int(inexact.sum())
                ids = pc.if_else(pa.array(inexact), None, ids)
            part = part.set_column(part.schema.get_field_index(name), name, ids)
        done.append(part.append_column("_rounded", pa.array(rounded)))
    return pa.concat_tables(done, promote_options="permissive")


_DETECTION_COLUMNS = {
    names.SOURCE_ID: (names.VISIT, names.DETECTOR, names.RA, names.DEC),
    "candid": ("pid", "ra", "dec"),
}
"""For each column of detection ids, columns that are equal in two rows of the same detection."""


def _belong_to_other_detections(part: Any, ids: Any, resolved: Any, parts: list[Any], key: str) -> Any:
    """Mark the `resolved` rows of `part` whose id in `ids` belongs to another detection of the tables."""
    others = np.zeros(part.num_rows, bool)
    if not resolved.any():
        return others
    owners = {
        id: seen
        for each in parts
        if pa.types.is_integer(each.schema.field(key).type)
        for id, seen in zip(each[key].to_pylist(), _detection_keys(each, key), strict=True)
    }
    places = np.flatnonzero(resolved)
    wanted = pa.array(places)
    for place, id, seen in zip(
        places, ids.take(wanted).to_pylist(), _detection_keys(part.take(wanted), key), strict=True
    ):
        others[place] = owners[id] != seen
    return others


def _detection_keys(rows: Any, key: str) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in _DETECTION_COLUMNS[key]), strict=True))


def _integers(parts: list[Any], name: str) -> Any:
    """Distinct values of a column, sorted, from the tables that store it as integers."""
    columns = [p[name].drop_null().to_numpy() for p in parts if name in p.schema.names]
    # numpy would combine signed and unsigned integers to floats.
    return np.unique(np.concatenate([_NO_IDS, *(each.astype(np.int64) for each in columns if each.dtype.kind in "iu")]))


_NO_IDS = np.empty(0, np.int64)


def first_non_integer(column: Any) -> int | None:
    """Find the first row of a float column that is not a whole number of at most 64 bits; NaN counts as null."""
    given = column.to_numpy().astype(np.float64)
    misfits = (given != np.trunc(given)) & ~np.isnan(given) | (np.abs(given) >= _INT64_END)
    return int(np.argmax(misfits)) if misfits.any() else None


class _NonIntegerError(InvalidInputError):
    """A column of integers holds a value that is not an integer, or exceeds 64 bits."""


def exact_ids(column: Any, known: Any, name: str) -> tuple[Any, Any]:
    """Convert ids to Arrow int64, and mark those that may have been rounded.

    `known` holds sorted exact ids: a rounded id that matches exactly one of them is replaced by it.

    Raises
    ------
    InvalidInputError
        A value is not a whole number of at most 64 bits.
    """
    if not pa.types.is_floating(column.type):
        return column.cast(pa.int64()), np.zeros(len(column), bool)
    if (misfit := first_non_integer(column)) is not None:
        raise _NonIntegerError(
            f"column {name} holds {column[misfit].as_py()!r} where other values are integers: give whole numbers",
            kind="invalid-rows",
        )
    given = column.to_numpy().astype(np.float64)
    missing = np.isnan(given)
    # NaN has no integer: convert 0 in its place, which the mask below makes null.
    given = np.where(missing, 0.0, given)
    ids = given.astype(np.int64)
    inexact = np.abs(given) > _EXACT
    # Rounding keeps the order, so the rounded ids are sorted as well. Two of them may be equal: neither is certain.
    rounded = known.astype(np.float64)
    first, last = np.searchsorted(rounded, given, "left"), np.searchsorted(rounded, given, "right")
    resolved = inexact & (last - first == 1)
    ids[resolved] = known[first[resolved]]
    return pa.chunked_array([pa.array(ids, mask=missing)]), inexact & ~resolved


def _lsst_packets(rows: Any, path: Path) -> Tables:
    tables = Tables()
    rows = _drop_incomplete(rows, ["diaSource"], "alerts", tables.dropped)
    here = _with_ids_of_alerts(_flattened(_record(rows, "diaSource", path)), rows)
    _require_columns(here, _SOURCE_NEEDED, "sources", path)
    here = _with_mjd(here, "sources", tables)
    if names.OBJECT_ID not in here.schema.names:
        here = here.append_column(names.OBJECT_ID, pa.nulls(here.num_rows, pa.int64()))
    parts = [here]
    if (more := _exploded(rows, "prvDiaSources", tables.notes)) is not None:
        if missing_names := _missing_columns(more[0], _SOURCE_NEEDED):
            tables.notes.append(_skipped_note("prvDiaSources", missing_names))
        else:
            parts.append(_with_mjd(more[0], "sources", tables))
    if "diaObject" in rows.schema.names and rows["diaObject"].null_count < rows.num_rows:
        if pa.types.is_struct(kind := rows.schema.field("diaObject").type):
            tables.objects = _lsst_objects(_flattened(rows["diaObject"]), here, tables)
        else:
            tables.notes.append(_not_records_note("diaObject", kind))
    if (more := _exploded(rows, "prvDiaForcedSources", tables.notes)) is not None:
        tables.forced_sources = more[0]
    tables.no_column.update({*rows.schema.names} - _LSST_PARTS)
    tables.forced_sources = _with_mjd(tables.forced_sources, "forced sources", tables)
    _finish(tables, parts)
    return tables


_LSST_PARTS = {"diaSource", "prvDiaSources", "prvDiaForcedSources", "diaObject", "diaSourceId", "alertId"}
_SOURCE_NEEDED = (names.SOURCE_ID, names.VISIT, names.DETECTOR, names.RA, names.DEC, names.TIME)
_FORCED_NEEDED = (names.OBJECT_ID, names.VISIT, names.DETECTOR, names.RA, names.DEC, names.TIME)
_OBJECT_NEEDED = (names.OBJECT_ID, names.RA, names.DEC)


def _finish(tables: Tables, sources: list[Any]) -> None:
    """Join all source rows; replace rounded ids by exact ones where known, and drop incomplete rows."""
    parts = [*sources, *(part for part in (tables.objects, tables.forced_sources) if part is not None)]
    known = _integers(parts, names.OBJECT_ID)
    if sources:
        joined = _concatenate(sources, names.SOURCE_ID, tables.dropped, known)
        joined = _drop_incomplete(joined, _SOURCE_NEEDED, "sources", tables.dropped)
        inexact = joined[names.SOURCE_ID].filter(joined["_rounded"]).to_numpy()
        tables.rounded = inexact if len(inexact) else None
        tables.sources = joined.drop_columns(["_rounded"])
    for attribute, what, needed in (
        ("objects", "objects", _OBJECT_NEEDED), ("forced_sources", "forced sources", _FORCED_NEEDED),
    ):  # fmt: skip
        rows = getattr(tables, attribute)
        if rows is None:
            continue
        if missing_names := _missing_columns(rows, needed):
            tables.notes.append(_skipped_note(what, missing_names))
            setattr(tables, attribute, None)
            continue
        ids, inexact = exact_ids(rows[names.OBJECT_ID], known, names.OBJECT_ID)
        if inexact.any():
            tables.dropped[f"{what} whose ids are rounded in the file"] += int(inexact.sum())
        rows = rows.set_column(rows.schema.get_field_index(names.OBJECT_ID), names.OBJECT_ID, ids)
        rows = _drop_incomplete(rows.filter(pa.array(~inexact)), needed, what, tables.dropped)
        setattr(tables, attribute, rows if rows.num_rows else None)
    _convert_radians(tables)


def _with_ids_of_alerts(sources: Any, alerts: Any) -> Any:
    """Replace float source ids by the exact ids of their alerts where the two match after rounding."""
    for name in (names.SOURCE_ID, "alertId"):
        if name not in alerts.schema.names or not pa.types.is_integer(alerts.schema.field(name).type):
            continue
        place = sources.schema.get_field_index(names.SOURCE_ID)
        if place < 0 or not pa.types.is_floating(sources.schema.field(place).type):
            break
        whole = alerts[name].cast(pa.int64())
        same = pc.fill_null(pc.equal(whole.cast(pa.float64(), safe=False), sources[names.SOURCE_ID]), False)
        if pc.all(same).as_py():
            sources = sources.set_column(place, names.SOURCE_ID, whole)
    return sources


_UNIX_TIMES = (10**8, 4 * 10**9)
"""Range of numbers taken as seconds since 1970, from 1973 to 2096. No MJD of a survey is as large."""


def _with_mjd(rows: Any, what: str, tables: Tables) -> Any:
    """Convert times that are seconds since 1970 (UTC), as in samples of LSST schemas before 8, to MJD in TAI."""
    place = -1 if rows is None else rows.schema.get_field_index(names.TIME)
    if place < 0 or not pa.types.is_floating(rows.schema.field(place).type):
        return rows
    given = rows[names.TIME].to_numpy()
    first, end = _UNIX_TIMES
    here = (given >= first) & (given < end)
    if not here.any() or not (here | np.isnan(given)).all():
        return rows
    note = f"{names.TIME} of {what} was converted from seconds since 1970 (UTC) to MJD (TAI)"
    if note not in tables.notes:
        tables.notes.append(note)
    mjd = _tai(values.MJD_OF_UNIX_EPOCH + np.where(here, given, 0.0) / 86_400)
    return rows.set_column(place, names.TIME, pa.array(mjd, mask=~here))


def _with_start(objects: Any) -> Any:
    """Convert the start of validity that objects of schema 8 have as a timestamp."""
    place = objects.schema.get_field_index("validityStart")
    if place < 0 or not pa.types.is_timestamp(objects.schema.field(place).type):
        return objects
    return objects.set_column(place, names.VALID_FROM, mjd_of_timestamps(objects["validityStart"]))


def _lsst_objects(objects: Any, sources: Any, tables: Tables) -> Any:
    """Objects in packets; `sources` holds the triggering source of each row. Packets before schema 8 give no start of
    validity: the time of the source is used.
    """
    objects = _with_start(objects)
    if missing_names := _missing_columns(objects, _OBJECT_NEEDED):
        tables.notes.append(_skipped_note("diaObject", missing_names))
        return None
    time = sources[names.TIME].cast(pa.float64())
    if names.VALID_FROM in objects.schema.names:
        place = objects.schema.get_field_index(names.VALID_FROM)
        given = objects[names.VALID_FROM].cast(pa.float64())
        objects = objects.set_column(place, names.VALID_FROM, pc.coalesce(given, time))
    else:
        objects = objects.append_column(names.VALID_FROM, time)
    if pa.types.is_floating(objects[names.OBJECT_ID].type) and pa.types.is_integer(sources[names.OBJECT_ID].type):
        # The source in the same packet may hold the exact id.
        whole = sources[names.OBJECT_ID].cast(pa.int64())
        same = pc.equal(whole.cast(pa.float64(), safe=False), objects[names.OBJECT_ID])
        ids, inexact = exact_ids(objects[names.OBJECT_ID], _NO_IDS, names.OBJECT_ID)
        if lost := pc.sum(pc.and_(pa.array(inexact), pc.invert(pc.fill_null(same, False)))).as_py():
            tables.dropped["objects whose ids are rounded in the file"] += lost
        ids = pc.if_else(pc.fill_null(same, False), whole, pc.if_else(pa.array(inexact), None, ids))
        objects = objects.set_column(objects.schema.get_field_index(names.OBJECT_ID), names.OBJECT_ID, ids)
    objects = _drop_incomplete(
        objects.filter(pc.is_valid(objects[names.OBJECT_ID])), [names.VALID_FROM], "objects", tables.dropped
    )
    return objects if objects.num_rows else None


def _record(rows: Any, name: str, path: Path) -> Any:
    if not pa.types.is_struct(rows.schema.field(name).type):
        if rows.num_rows:
            raise InvalidInputError(
                f"{path}: column {name} has type {rows.schema.field(name).type}, expected a record",
                kind="invalid-rows",
            )
        return pa.chunked_array([pa.array([], pa.struct([]))])
    return rows[name]


def _flattened(column: Any) -> Any:
    """Convert a struct column to a table."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    return alert_containers.plain(pa.Table.from_arrays(array.flatten(), names=[each.name for each in array.type]))


def _exploded(rows: Any, name: str, notes: list[str]) -> tuple[Any, Any] | None:
    """Convert a column of struct lists to a table, with the row that each struct came from; None if there are none.

    A column of something else is skipped, with a note.
    """
    if name not in rows.schema.names or rows[name].null_count == rows.num_rows:
        return None
    column = rows[name].combine_chunks()
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        notes.append(_not_records_note(name, kind))
        return None
    items, places = pc.list_flatten(column), pc.list_parent_indices(column)
    there = pc.is_valid(items)
    items, places = items.filter(there), places.filter(there)
    if not len(items):
        return None
    if not pa.types.is_struct(items.type):
        notes.append(_not_records_note(name, kind))
        return None
    return _flattened(pa.chunked_array([items])), places


def _not_records_note(part: str, kind: Any) -> str:
    return f"{part} skipped: expected records, found {kind}"


# ---------------------------------------------------------------- detections of the ZTF


_ZTF_NEEDED = {"candid", "objectId", "pid", "jd", "ra", "dec", "magpsf"}
_ZTF_OPTIONAL = {"fid": pa.int64(), "sigmapsf": pa.float64(), "isdiffpos": pa.string(), "rb": pa.float64()}


def _float32(values: Any, name: str, dropped: Counter[str]) -> Any:
    """Convert computed values; those that no 32-bit float holds become null and are counted in `dropped`."""
    misfits = np.abs(values) > np.finfo(np.float32).max
    if misfits.any():
        dropped[f"values of {name}, out of range"] += int(misfits.sum())
    return pa.array(np.where(misfits, np.nan, values).astype(np.float32), from_pandas=True)


def _ztf(rows: Any, path: Path) -> Tables:
    """Convert ZTF detections. A visit is an exposure; a detector is one of its 64 readout channels."""
    _require_columns(rows, sorted(_ZTF_NEEDED), "detections", path)
    dropped: Counter[str] = Counter()
    notes = [
        "midpointMjdTai of ZTF detections is the start of the exposure",
        "ZTF fluxes were computed from magnitudes",
    ]
    if "_rounded" not in rows.schema.names:
        rows = _concatenate([rows], "candid", dropped)
    for name in _missing_columns(rows, _ZTF_OPTIONAL):
        rows = rows.append_column(name, pa.nulls(rows.num_rows, _ZTF_OPTIONAL[name]))
    rows = _drop_incomplete(rows, ["candid", "objectId", "pid", "jd", "ra", "dec"], "detections", dropped)
    signs, unknown = _signs(rows["isdiffpos"])
    if unknown:
        notes.append("detections without isdiffpos got positive fluxes")
    pid = exact_ids(rows["pid"], _NO_IDS, "pid")[0].to_numpy()
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        flux = 10 ** ((_ZERO_POINT_NJY - rows["magpsf"].to_numpy().astype(float)) / 2.5)
        sigma = rows["sigmapsf"].to_numpy().astype(float)
        computed = {
            "psfFlux": signs * flux,
            "psfFluxErr": flux * sigma * np.log(10) / 2.5,
            "snr": 2.5 / np.log(10) / sigma,
        }
    mjd = rows["jd"].to_numpy() - _MJD_OF_JD
    bands = [_ZTF_BANDS.get(number) for number in rows["fid"].to_pylist()]
    used = {"candid", "objectId", "pid", "jd", "fid", "magpsf", "sigmapsf", "isdiffpos", "rb", "_rounded"}
    columns = {
        names.SOURCE_ID: rows["candid"],
        names.OBJECT_ID: pa.array(values.ztf_object_ids(rows["objectId"])),
        # Processing id: night, time of day, channel, and a two-digit type.
        names.VISIT: pa.array(pid // 10_000),
        names.DETECTOR: pa.array((pid // 100 % 100).astype("int16")),
        names.RA: rows["ra"],
        names.DEC: rows["dec"],
        names.TIME: pa.array(_tai(mjd)),
        "band": pa.array(bands, pa.string()),
        **{name: _float32(each, f"detections.{name}", dropped) for name, each in computed.items()},
        "reliability": rows["rb"],
    }
    # The schema may also contain ZTF columns.
    columns.update({name: rows[name] for name in rows.schema.names if name not in used | columns.keys()})
    sources = pa.table(columns)
    objects = sources.select([names.OBJECT_ID, names.RA, names.DEC, names.TIME])
    objects = objects.rename_columns([names.OBJECT_ID, names.RA, names.DEC, names.VALID_FROM])
    rounded = rows["candid"].filter(rows["_rounded"]).to_numpy()
    return Tables(objects, sources, None, notes, dropped=dropped, rounded=rounded if len(rounded) else None)


def _signs(positive: Any) -> tuple[Any, bool]:
    """-1 where ZTF's `isdiffpos` marks a source as fainter than the template, else 1; and whether any is missing."""
    given = positive.to_pylist()
    brighter = ("t", "1", "true", "1.0", "y", "yes")
    signs = [1.0 if each is None or str(each).lower() in brighter else -1.0 for each in given]
    return np.array(signs, float), None in given


def mjd_of_timestamps(timestamps: Any) -> Any:
    """Convert an Arrow column of timestamps in UTC to MJD in TAI."""
    microseconds = timestamps.cast(pa.timestamp("us", timestamps.type.tz), safe=False).cast(pa.int64())
    missing = pc.is_null(microseconds).to_numpy()
    whole, rest = np.divmod(pc.fill_null(microseconds, 0).to_numpy(), 86_400_000_000)
    mjd = _tai(whole + values.MJD_OF_UNIX_EPOCH + rest / 86_400_000_000)
    return pa.chunked_array([pa.array(mjd, mask=missing)])


def _tai(mjd_utc: Any) -> Any:
    """Convert an array of MJD in UTC to MJD in TAI."""
    days, places = np.unique(np.floor(mjd_utc), return_inverse=True)
    ahead = np.array([values.tai_minus_utc_s(day) for day in days])
    return mjd_utc + ahead[places] / 86_400


# ---------------------------------------------------------------- flattened tables of the LSST


def _add_flat(tables: Tables, rows: Any, path: Path) -> None:
    """Assign a flattened table to the schema table that its columns identify."""
    here = set(rows.schema.names)
    if names.SOURCE_ID in here:
        _require_columns(rows, _SOURCE_NEEDED, "sources", path)
        attribute = "sources"
    elif {names.OBJECT_ID, names.VISIT, names.DETECTOR} <= here:
        attribute = "forced_sources"
    elif {names.OBJECT_ID, names.RA, names.DEC} <= here:
        attribute, rows = "objects", _with_start(rows)
    else:
        raise InvalidInputError(
            f"{path}: no known alert format (packets, ZTF detections, or LSST objects, sources or forced "
            f"sources); its columns are {name_list(rows.schema.names)}",
            kind="invalid-rows",
        )
    if attribute != "objects":
        rows = _with_mjd(rows, attribute.replace("_", " "), tables)
    before = getattr(tables, attribute)
    setattr(
        tables, attribute, rows if before is None else pa.concat_tables([before, rows], promote_options="permissive")
    )


def _convert_radians(tables: Tables) -> None:
    """Convert forced-source positions of early LSST alerts from radians to degrees; positions of known objects reveal
    the unit.
    """
    forced = tables.forced_sources
    if forced is None:
        return
    tables.forced_unit_known = not _may_be_radians(forced)
    columns = [names.OBJECT_ID, names.RA, names.DEC]
    placed = [t for t in (tables.objects, tables.sources) if t is not None and names.OBJECT_ID in t.schema.names]
    if known := [t.select(columns) for t in placed]:
        convert_radians(tables, pa.concat_tables(known, promote_options="permissive").drop_null())


def _may_be_radians(forced: Any) -> bool:
    limits = ((names.RA, 2 * np.pi), (names.DEC, np.pi / 2))
    return all(np.abs(forced[name].to_numpy()).max() <= limit for name, limit in limits)


def convert_radians(tables: Tables, known: Any) -> None:
    """Convert forced-source positions to degrees if the positions of their objects in `known` show that they are in
    radians. The unit stays undetermined only if `known` has none of their objects.
    """
    forced = tables.forced_sources
    ids, first = np.unique(known[names.OBJECT_ID].to_numpy(), return_index=True)
    here = forced[names.OBJECT_ID].to_numpy()
    matched = np.isin(here, ids)
    if not matched.any():
        return
    tables.forced_unit_known = True
    if not _may_be_radians(forced):
        return
    place = first[np.searchsorted(ids, here[matched])]
    true_ra, true_dec = (known[name].to_numpy()[place] for name in (names.RA, names.DEC))
    ra, dec = (forced[name].to_numpy() for name in (names.RA, names.DEC))
    as_degrees = _distance_deg(ra[matched], dec[matched], true_ra, true_dec)
    as_radians = _distance_deg(np.degrees(ra[matched]), np.degrees(dec[matched]), true_ra, true_dec)
    if as_radians.max() < min(_NEAR_DEG, as_degrees.max()):
        for name, angles in ((names.RA, ra), (names.DEC, dec)):
            index = forced.schema.get_field_index(name)
            forced = forced.set_column(index, name, pa.array(np.degrees(angles)))
        tables.forced_sources = forced
        tables.notes.append("forced-source positions were converted from radians to degrees")


_NEAR_DEG = 0.1
"""Upper bound for the distance between a forced source and its object."""


def _distance_deg(ra: Any, dec: Any, true_ra: Any, true_dec: Any) -> Any:
    """Planar approximation of the distance of positions, in degrees: it only has to tell near from far."""
    across = (ra - true_ra + 180) % 360 - 180
    return np.hypot(across * np.cos(np.radians(true_dec)), dec - true_dec)
