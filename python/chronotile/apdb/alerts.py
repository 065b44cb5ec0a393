"""Alerts of surveys as rows of a database: packets and flattened tables of the ZTF and of the LSST.

An alert brings a detection, the object it belongs to, and some of their history. Of the same detector-visit other
alerts bring other parts, so that here rows of equal ids are one record, whoever brought it, and importing a file again
changes nothing.

Formats: https://zwickytransientfacility.github.io/ztf-avro-alert and https://github.com/lsst/alert_packet.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chronotile import optional
from chronotile.apdb import names, values
from chronotile.apdb.rows import newest
from chronotile.apdb.survey import Apdb
from chronotile.errors import DataFileError, InvalidInputError

__all__ = ["Import", "Tables", "import_alerts", "read_alerts"]

# AB magnitudes count from 3631 Jy; in nJy that is magnitude 31.4.
_ZERO_POINT_NJY = 31.4
_MJD_OF_JD = 2_400_000.5
_ZTF_BANDS = {1: "g", 2: "r", 3: "i"}
_PACKETS = 5_000


@dataclass
class Tables:
    """Rows of the three tables as an alert stream brings them; columns as far as it has them.

    Attributes
    ----------
    objects, sources, forced_sources : pyarrow.Table, optional
        Rows, or None.
    notes : list of str
        What was done to them that is worth knowing.
    """

    objects: Any = None
    sources: Any = None
    forced_sources: Any = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Import:
    """What an import did.

    Attributes
    ----------
    objects, sources, forced_sources : int
        Rows handed to the database; those it had already among them.
    detector_visits : int
        Detector-visits they are of.
    left_out : tuple of str
        Columns of the alerts that the schema has not.
    notes : tuple of str
        What was done to the rows that is worth knowing.
    """

    objects: int
    sources: int
    forced_sources: int
    detector_visits: int
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def import_alerts(database: Apdb, paths: Iterable[str | os.PathLike[str]]) -> Import:
    """Import files of alerts: Avro packets, or Parquet files of them or of their flattened parts.

    Give the flattened tables of one stream (objects, sources, forced sources) together.

    Raises
    ------
    DataFileError
        A file cannot be read.
    InvalidInputError
        A file holds no alerts, or they lack columns of the schema that may not be null.
    """
    counts, visits = [0, 0, 0], 0
    left_out: set[str] = set()
    notes: list[str] = []
    for tables in read_alerts(paths):
        fitted = Tables(notes=tables.notes)
        for place, (attribute, name) in enumerate(_PARTS):
            rows = getattr(tables, attribute)
            if rows is None:
                continue
            known = [column for column in rows.schema.names if column in database.schema[name]]
            left_out |= {f"{name}.{column}" for column in rows.schema.names if column not in known}
            setattr(fitted, attribute, _of_schema(rows.select(known), database, name))
            counts[place] += rows.num_rows
        visits += _store(database, fitted)
        notes += [note for note in tables.notes if note not in notes]
    return Import(counts[0], counts[1], counts[2], visits, tuple(sorted(left_out)), tuple(notes))


_PARTS = (("objects", names.OBJECT), ("sources", names.SOURCE), ("forced_sources", names.FORCED))


def read_alerts(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Tables]:
    """The alerts of some files as tables, some thousands at a time.

    Raises
    ------
    DataFileError, InvalidInputError
        As :func:`import_alerts`.
    """
    flat = Tables()
    for path in paths:
        where = Path(path)
        if not where.exists():
            raise DataFileError(f"there is no file {where}", kind="file-not-found")
        if where.suffix == ".avro":
            yield from (_packets(rows, where) for rows in _avro(where))
            continue
        try:
            rows = pq.read_table(where)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataFileError(f"{where} is no Parquet file: {error}", kind="file-format") from error
        if {"candidate", "diaSource"} & set(rows.schema.names):
            yield _packets(rows, where)
        elif "candid" in rows.schema.names:
            yield _ztf(rows)
        else:
            _add_flat(flat, rows, where)
    if any(getattr(flat, attribute) is not None for attribute, _ in _PARTS):
        _mend_radians(flat)
        if flat.objects is not None and names.VALID_FROM not in flat.objects.schema.names:
            flat.notes.append("objects hold from the time of the last source of the import")
        yield flat


def _avro(path: Path) -> Iterator[Any]:
    fastavro = optional.module("fastavro", "reading Avro", "alerts")
    with path.open("rb") as file:
        try:
            packets: list[dict[str, Any]] = []
            each: Any
            for each in fastavro.reader(file):
                # Images are no rows of a table.
                packets.append({k: v for k, v in each.items() if not k.startswith("cutout")})
                if len(packets) == _PACKETS:
                    yield pa.Table.from_pylist(packets)
                    packets = []
        except (ValueError, EOFError, KeyError) as error:
            raise DataFileError(f"{path} is no Avro file: {error}", kind="file-format") from error
    if packets:
        yield pa.Table.from_pylist(packets)


def _packets(rows: Any, path: Path) -> Tables:
    if "candidate" in rows.schema.names:
        parts = [_flattened(rows["candidate"])]
        parts[0] = parts[0].append_column("objectId", rows["objectId"])
        if "prv_candidates" in rows.schema.names:
            before = _exploded(rows["prv_candidates"])
            if before is not None:
                before_rows, places = before
                before_rows = before_rows.append_column("objectId", rows["objectId"].take(places))
                # Those without a number are limits of what could have been seen.
                parts.append(before_rows.filter(pc.is_valid(before_rows["candid"])))
        return _ztf(pa.concat_tables(parts, promote_options="permissive"))
    if "diaSource" not in rows.schema.names:
        raise InvalidInputError(f"{path} holds no alerts that are known", kind="invalid-rows")
    sources = [_flattened(rows["diaSource"])]
    tables = Tables()
    if "prvDiaSources" in rows.schema.names and (more := _exploded(rows["prvDiaSources"])) is not None:
        sources.append(more[0])
    tables.sources = pa.concat_tables(sources, promote_options="permissive")
    if "prvDiaForcedSources" in rows.schema.names and (more := _exploded(rows["prvDiaForcedSources"])) is not None:
        tables.forced_sources = more[0]
    if "diaObject" in rows.schema.names:
        objects = _flattened(rows["diaObject"])
        objects = objects.append_column(names.VALID_FROM, sources[0][names.TIME])
        tables.objects = objects.filter(pc.is_valid(objects[names.OBJECT_ID]))
    _mend_radians(tables)
    return tables


def _flattened(column: Any) -> Any:
    """A column of structs as a table."""
    array = column.combine_chunks()
    return pa.Table.from_arrays(array.flatten(), names=[each.name for each in array.type])


def _exploded(column: Any) -> tuple[Any, Any] | None:
    """A column of lists of structs as a table, and the row each struct came from; None where there are none."""
    array = column.combine_chunks()
    if not pa.types.is_list(array.type) or not pa.types.is_struct(array.type.value_type):
        return None
    structs = array.flatten()
    places = pc.list_parent_indices(array)
    return (
        (pa.Table.from_arrays(structs.flatten(), names=[f.name for f in structs.type]), places)
        if len(structs)
        else None
    )


def _ztf(rows: Any) -> Tables:
    """Detections of the ZTF. A visit is an exposure, a detector one of its 64 readout channels."""
    pid = rows["pid"].to_numpy()
    flux = 10 ** ((_ZERO_POINT_NJY - rows["magpsf"].to_numpy().astype(float)) / 2.5)
    sigma = rows["sigmapsf"].to_numpy().astype(float)
    sign = np.where(
        np.isin(rows["isdiffpos"].to_numpy(zero_copy_only=False).astype(str), ("t", "1", "True")), 1.0, -1.0
    )
    mjd = rows["jd"].to_numpy() - _MJD_OF_JD
    ids = ztf_object_ids(rows["objectId"])
    bands = pa.array([_ZTF_BANDS.get(number) for number in range(4)])
    columns = {
        names.SOURCE_ID: rows["candid"].cast(pa.int64()),
        names.OBJECT_ID: pa.array(ids),
        # The number of a processing: night, time of day, channel, and two digits of its kind.
        names.VISIT: pa.array(pid // 10_000),
        names.DETECTOR: pa.array((pid // 100 % 100).astype("int16")),
        names.RA: rows["ra"],
        names.DEC: rows["dec"],
        names.TIME: pa.array(_tai(mjd)),
        "band": bands.take(pa.array(np.clip(rows["fid"].to_numpy(), 0, 3))),
        "psfFlux": pa.array((sign * flux).astype("float32")),
        "psfFluxErr": pa.array((flux * sigma * np.log(10) / 2.5).astype("float32")),
        "snr": pa.array((2.5 / np.log(10) / sigma).astype("float32")),
    }
    if "rb" in rows.schema.names:
        columns["reliability"] = rows["rb"].cast(pa.float32())
    sources = pa.table(columns)
    objects = sources.select([names.OBJECT_ID, names.RA, names.DEC, names.TIME])
    objects = objects.rename_columns([names.OBJECT_ID, names.RA, names.DEC, names.VALID_FROM])
    notes = ["midpointMjdTai of the ZTF is the start of the exposure", "fluxes of the ZTF are of its magnitudes"]
    return Tables(objects, sources, None, notes)


def ztf_object_ids(texts: Any) -> Any:
    """Numbers of ZTF objects: the two digits and seven letters of ``ZTF18abkdczc`` read as one number, in base 26."""
    column = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    good = pc.match_substring_regex(column, r"^ZTF\d{2}[a-z]{7}$")
    if not pc.all(good).as_py():
        bad = column.filter(pc.invert(pc.fill_null(good, False)))
        raise InvalidInputError(f"{bad[0].as_py()!r} is no name of a ZTF object", kind="invalid-rows")
    letters = np.array(column.to_numpy(zero_copy_only=False), dtype="S12").view("u1").reshape(-1, 12).astype(np.int64)
    number = (letters[:, 3] - 48) * 10 + (letters[:, 4] - 48)
    for place in range(5, 12):
        number = number * 26 + (letters[:, place] - 97)
    return number


def _tai(mjd_utc: Any) -> Any:
    """MJD in TAI of many MJD in UTC."""
    days, places = np.unique(np.floor(mjd_utc), return_inverse=True)
    ahead = np.array([values.tai_minus_utc_s(day) for day in days])
    return mjd_utc + ahead[places] / 86_400


def _add_flat(tables: Tables, rows: Any, path: Path) -> None:
    """A flattened part goes where its columns say it belongs."""
    here = set(rows.schema.names)
    if names.SOURCE_ID in here:
        attribute = "sources"
    elif {names.OBJECT_ID, names.VISIT, names.DETECTOR} <= here:
        attribute = "forced_sources"
    elif {names.OBJECT_ID, names.RA, names.DEC} <= here:
        attribute = "objects"
    else:
        raise InvalidInputError(
            f"{path} holds no alerts that are known: neither packets, nor detections of the ZTF, nor objects, sources "
            "or forced sources of the LSST",
            kind="invalid-rows",
        )
    before = getattr(tables, attribute)
    setattr(
        tables, attribute, rows if before is None else pa.concat_tables([before, rows], promote_options="permissive")
    )


def _mend_radians(tables: Tables) -> None:
    """Some early alerts of the LSST have positions of forced sources in radians: those of known objects tell."""
    forced = tables.forced_sources
    if forced is None or not {names.RA, names.DEC} <= set(forced.schema.names):
        return
    known = [
        t.select([names.OBJECT_ID, names.RA, names.DEC]) for t in (tables.objects, tables.sources) if t is not None
    ]
    if not known:
        return
    both = pa.concat_tables(known, promote_options="permissive").drop_null()
    ids, first = np.unique(both[names.OBJECT_ID].to_numpy(), return_index=True)
    here = forced[names.OBJECT_ID].to_numpy()
    place = np.minimum(np.searchsorted(ids, here), max(len(ids) - 1, 0))
    matched = ids[place] == here if len(ids) else np.zeros(len(here), bool)
    dec = forced[names.DEC].to_numpy()
    true_dec = both[names.DEC].to_numpy()[first][place] if len(ids) else dec
    as_radians = np.abs(np.degrees(dec) - true_dec)[matched] < 0.1
    as_degrees = np.abs(dec - true_dec)[matched] < 0.1
    limits = np.abs(forced[names.RA].to_numpy()).max(initial=0) <= 2 * np.pi
    if matched.any() and limits and as_radians.all() and not as_degrees.all():
        for name in (names.RA, names.DEC):
            index = forced.schema.get_field_index(name)
            forced = forced.set_column(index, name, pa.array(np.degrees(forced[name].to_numpy())))
        tables.forced_sources = forced
        tables.notes.append("positions of forced sources were in radians, and became degrees")


def _of_schema(rows: Any, database: Apdb, name: str) -> Any:
    """Columns with the types of the schema, so that rows of several packets compare."""
    fields = [database.schema[name][column].arrow.with_nullable(True) for column in rows.schema.names]
    try:
        return rows.cast(pa.schema(fields), safe=False)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(f"{name} of the alerts does not fit the schema: {error}", kind="invalid-rows") from None


def _store(database: Apdb, tables: Tables) -> int:
    """Store by detector-visit; returns of how many the rows are."""
    sources = None if tables.sources is None else _once(tables.sources, [names.SOURCE_ID])
    key = [names.OBJECT_ID, names.VISIT, names.DETECTOR]
    forced = None if tables.forced_sources is None else _once(tables.forced_sources, key)
    groups = _by_visit(sources), _by_visit(forced)
    objects = _object_versions(tables, sources)
    for visit, detector in sorted({*groups[0], *groups[1]}):
        mine, measured = (each.get((visit, detector)) for each in groups)
        rows: Any = mine if mine is not None else measured
        time = pc.min(rows[names.TIME]).as_py()
        database.store_again(time, objects.pop(time, None), mine, measured)
    for time, versions in objects.items():
        database.store_again(time, versions)
    return len({*groups[0], *groups[1]})


def _once(rows: Any, key: list[str]) -> Any:
    """One row of each key, in the order of keys: the last that was given."""
    numbered = rows.append_column("_row", pa.array(np.arange(rows.num_rows)))
    return newest(numbered, key, "_row").drop_columns(["_row"])


def _by_visit(rows: Any) -> dict[tuple[int, int], Any]:
    if rows is None or not rows.num_rows:
        return {}
    ordered = rows.sort_by([(names.VISIT, "ascending"), (names.DETECTOR, "ascending")])
    visits, detectors = ordered[names.VISIT].to_numpy(), ordered[names.DETECTOR].to_numpy()
    cuts = np.flatnonzero((np.diff(visits) != 0) | (np.diff(detectors) != 0)) + 1
    starts, ends = [0, *cuts.tolist()], [*cuts.tolist(), ordered.num_rows]
    return {
        (int(visits[start]), int(detectors[start])): ordered.slice(start, end - start)
        for start, end in zip(starts, ends, strict=True)
    }


def _object_versions(tables: Tables, sources: Any) -> dict[float, Any]:
    """Objects by the time from which they hold."""
    rows = tables.objects
    if rows is None or not rows.num_rows:
        return {}
    if names.VALID_FROM not in rows.schema.names:
        if sources is None:
            raise InvalidInputError("objects without sources do not say since when they hold", kind="invalid-rows")
        rows = _once(rows, [names.OBJECT_ID])
        return {pc.max(sources[names.TIME]).as_py(): rows}
    rows = _once(rows, [names.OBJECT_ID, names.VALID_FROM]).sort_by(names.VALID_FROM)
    times = rows[names.VALID_FROM].to_numpy()
    cuts = np.flatnonzero(np.diff(times) != 0) + 1
    starts, ends = [0, *cuts.tolist()], [*cuts.tolist(), rows.num_rows]
    whole = rows.drop_columns([names.VALID_FROM])
    return {float(times[s]): whole.slice(s, e - s) for s, e in zip(starts, ends, strict=True)}
