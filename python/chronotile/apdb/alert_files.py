"""Files of alerts as tables: packets and flattened tables of the ZTF and of the LSST.

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
import pyarrow.parquet as pq

from chronotile import optional
from chronotile.apdb import names, values
from chronotile.errors import DataFileError, InvalidInputError

# AB magnitudes count from 3631 Jy; in nJy that is magnitude 31.4.
_ZERO_POINT_NJY = 31.4
_MJD_OF_JD = 2_400_000.5
_ZTF_BANDS = {1: "g", 2: "r", 3: "i"}
_PACKETS = 5_000
_EXACT = 2**53
"""Greatest integer up to which a float64 holds every integer."""

PARTS = (("objects", names.OBJECT), ("sources", names.SOURCE), ("forced_sources", names.FORCED))
"""The tables of an import and the tables of a schema that they fill."""


@dataclass
class Tables:
    """Rows of the three tables as an alert stream brings them; columns as far as it has them.

    Attributes
    ----------
    objects, sources, forced_sources : pyarrow.Table, optional
        Rows, or None.
    notes : list of str
        What was done to them that is worth knowing.
    dropped : Counter of str
        Parts of the alerts that none of the tables has a place for.
    rounded : numpy.ndarray, optional
        Of the sources, int64: ids that the file holds rounded to a float64, and whose exact value it does not tell.
    """

    objects: Any = None
    sources: Any = None
    forced_sources: Any = None
    notes: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    rounded: Any = None


def read_alerts(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Tables]:
    """The alerts of some files as tables, some thousands at a time.

    Raises
    ------
    DataFileError
        A file cannot be read.
    InvalidInputError
        A file holds no alerts.
    """
    flat = Tables()
    for path in paths:
        where = Path(path)
        if not where.exists():
            raise DataFileError(f"there is no file {where}", kind="file-not-found")
        if where.suffix == ".avro":
            yield from (_packets(rows, where) for rows in _avro(where))
            continue
        file = _parquet(where)
        here = set(file.schema_arrow.names)
        if here & {"candidate", "diaSource"}:
            yield from (_packets(rows, where) for rows in _batches(file, where))
        elif "candid" in here:
            yield from (_ztf(rows) for rows in _batches(file, where))
        else:
            for rows in _batches(file, where):
                _add_flat(flat, rows, where)
    if any(getattr(flat, attribute) is not None for attribute, _ in PARTS):
        _mend_object_ids(flat)
        _mend_radians(flat)
        if flat.objects is not None and names.VALID_FROM not in flat.objects.schema.names:
            flat.notes.append("objects hold from the time of the last source of the import")
        yield flat


# ---------------------------------------------------------------- files


def _parquet(path: Path) -> Any:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataFileError(f"{path} is not a Parquet file: {error}", kind="file-format") from error


def _batches(file: Any, path: Path) -> Iterator[Any]:
    """Some thousand rows at a time; images are not read."""
    wanted = [name for name in file.schema_arrow.names if not name.startswith("cutout")]
    try:
        for batch in file.iter_batches(_PACKETS, columns=wanted):
            yield _plain(pa.Table.from_batches([batch]))
    except (pa.ArrowInvalid, OSError) as error:
        raise DataFileError(f"{path} is damaged: {error}", kind="file-format") from error


def _plain(rows: Any) -> Any:
    """Dictionary-encoded columns, which pandas writes for its categories, become plain ones."""
    for place, column in enumerate(rows.schema):
        if pa.types.is_dictionary(column.type):
            rows = rows.set_column(place, column.name, rows[column.name].cast(column.type.value_type))
    return rows


def _avro(path: Path) -> Iterator[Any]:
    fastavro = optional.module("fastavro", "reading Avro", "alerts")
    with path.open("rb") as file:
        packets: list[dict[str, Any]] = []
        try:
            each: Any
            for each in fastavro.reader(file):
                packets.append({k: v for k, v in each.items() if not k.startswith("cutout")})
                if len(packets) == _PACKETS:
                    yield pa.Table.from_pylist(packets)
                    packets = []
        except (ValueError, EOFError, KeyError, IndexError) as error:
            raise DataFileError(f"{path} is not an Avro file, or is damaged: {error}", kind="file-format") from error
    if packets:
        yield pa.Table.from_pylist(packets)


# ---------------------------------------------------------------- packets


def _packets(rows: Any, path: Path) -> Tables:
    if "candidate" in rows.schema.names:
        return _ztf_packets(rows)
    if "diaSource" not in rows.schema.names:
        raise InvalidInputError(
            f"{path} holds no known alerts: it has neither a column candidate (ZTF) nor diaSource (LSST)",
            kind="invalid-rows",
        )
    return _lsst_packets(rows)


def _ztf_packets(rows: Any) -> Tables:
    detections = _flattened(rows["candidate"]).append_column("objectId", rows["objectId"])
    parts, limits = [detections], 0
    before = _exploded(rows, "prv_candidates")
    if before is not None:
        history, places = before
        history = history.append_column("objectId", rows["objectId"].take(places))
        # A previous candidate without an id is an upper limit: nothing was detected.
        detected = pc.is_valid(history["candid"])
        limits = history.num_rows - pc.sum(detected).as_py()
        parts.append(history.filter(detected))
    tables = _ztf(_joined(parts, "candid"))
    for name in rows.schema.names:
        if name not in ("candidate", "prv_candidates", "objectId", "candid"):
            tables.dropped[name] += 1
    if limits:
        tables.dropped["upper limits of prv_candidates"] += limits
    return tables


def _joined(parts: list[Any], key: str) -> Any:
    """Rows of some tables as one; `_rounded` says where the id of column `key` may be another by rounding.

    pandas turns integers beside nulls into floats, which hold 53 of their 63 bits. Where one table has a column as
    integers and another as floats, both become integers; a float that stands for none of them and has lost bits becomes
    null, but for the key, which stays as it is.
    """
    kinds = {
        name: [part.schema.field(name).type for part in parts if name in part.schema.names]
        for name in dict.fromkeys(name for part in parts for name in part.schema.names)
    }
    mixed = [
        name
        for name, types in kinds.items()
        if name == key or (any(map(pa.types.is_integer, types)) and any(map(pa.types.is_floating, types)))
    ]
    done = []
    for part in parts:
        rounded = np.zeros(part.num_rows, bool)
        for name in set(mixed) & set(part.schema.names):
            ids, inexact = exact_ids(part[name], _integers(parts, name))
            if name == key:
                rounded = inexact
            else:
                ids = pc.if_else(pa.array(inexact), None, ids)
            part = part.set_column(part.schema.get_field_index(name), name, ids)
        done.append(part.append_column("_rounded", pa.array(rounded)))
    return pa.concat_tables(done, promote_options="permissive")


def _integers(parts: list[Any], name: str) -> Any:
    """The different values that a column has where it is one of integers, sorted."""
    columns = [p[name].drop_null().to_numpy() for p in parts if name in p.schema.names]
    return np.unique(np.concatenate([_NO_IDS, *(each for each in columns if each.dtype.kind in "iu")]))


_NO_IDS = np.empty(0, np.int64)


def exact_ids(column: Any, known: Any) -> tuple[Any, Any]:
    """Ids of a column as Arrow int64, and which of them may be another by rounding.

    `known` are exact ids, sorted: a rounded one that comes of exactly one of these stands for it.
    """
    if not pa.types.is_floating(column.type):
        return column.cast(pa.int64()), np.zeros(len(column), bool)
    given = column.to_numpy().astype(np.float64)
    missing = np.isnan(given)
    given = np.where(missing, 0.0, given)
    ids = given.astype(np.int64)
    inexact = np.abs(given) > _EXACT
    rounded = known.astype(np.float64)
    first, last = np.searchsorted(rounded, given, "left"), np.searchsorted(rounded, given, "right")
    told = inexact & (last - first == 1)
    ids[told] = known[first[told]]
    return pa.chunked_array([pa.array(ids, mask=missing)]), inexact & ~told


def _lsst_packets(rows: Any) -> Tables:
    here = _flattened(rows["diaSource"])
    sources = [here]
    tables = Tables()
    if (more := _exploded(rows, "prvDiaSources")) is not None:
        sources.append(more[0])
    joined = _joined(sources, names.SOURCE_ID)
    inexact = joined[names.SOURCE_ID].filter(joined["_rounded"]).to_numpy()
    tables.rounded = inexact if len(inexact) else None
    tables.sources = joined.drop_columns(["_rounded"])
    if (more := _exploded(rows, "prvDiaForcedSources")) is not None:
        tables.forced_sources = more[0]
    if "diaObject" in rows.schema.names and pa.types.is_struct(rows.schema.field("diaObject").type):
        tables.objects = _lsst_objects(_flattened(rows["diaObject"]), here)
    for name in rows.schema.names:
        if name not in ("diaSource", "prvDiaSources", "prvDiaForcedSources", "diaObject", "diaSourceId", "alertId"):
            tables.dropped[name] += 1
    _mend_radians(tables)
    return tables


def _lsst_objects(objects: Any, sources: Any) -> Any:
    """Objects of packets; `sources` are those that triggered them, row by row.

    Packets before schema 8 do not say since when an object's values hold: it is the time of the source.
    """
    time = sources[names.TIME].cast(pa.float64())
    if names.VALID_FROM in objects.schema.names:
        place = objects.schema.get_field_index(names.VALID_FROM)
        given = objects[names.VALID_FROM].cast(pa.float64())
        objects = objects.set_column(place, names.VALID_FROM, pc.coalesce(given, time))
    else:
        objects = objects.append_column(names.VALID_FROM, time)
    if pa.types.is_floating(objects[names.OBJECT_ID].type):
        # The source of the same packet may have it whole.
        whole, _ = exact_ids(sources[names.OBJECT_ID], _NO_IDS)
        same = pc.equal(whole.cast(pa.float64(), safe=False), objects[names.OBJECT_ID])
        ids, inexact = exact_ids(objects[names.OBJECT_ID], _NO_IDS)
        ids = pc.if_else(pc.fill_null(same, False), whole, pc.if_else(pa.array(inexact), None, ids))
        objects = objects.set_column(objects.schema.get_field_index(names.OBJECT_ID), names.OBJECT_ID, ids)
    there = pc.is_valid(objects[names.OBJECT_ID])
    return objects.filter(there) if pc.any(there).as_py() else None


def _flattened(column: Any) -> Any:
    """A column of structs as a table."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    return _plain(pa.Table.from_arrays(array.flatten(), names=[each.name for each in array.type]))


def _exploded(rows: Any, name: str) -> tuple[Any, Any] | None:
    """A column of lists of structs as a table, and the row each struct came from; None where there are none."""
    if name not in rows.schema.names:
        return None
    kind = rows.schema.field(name).type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return None
    column = rows[name].combine_chunks()
    structs, places = pc.list_flatten(column), pc.list_parent_indices(column)
    there = pc.is_valid(structs)
    structs, places = structs.filter(there), places.filter(there)
    return (_flattened(pa.chunked_array([structs])), places) if len(structs) else None


def _mend_object_ids(tables: Tables) -> None:
    """Ids of flattened objects that a file holds as floats, by the exact ones that the sources have."""
    if tables.objects is None or not pa.types.is_floating(tables.objects.schema.field(names.OBJECT_ID).type):
        return
    known = _NO_IDS if tables.sources is None else _integers([tables.sources], names.OBJECT_ID)
    ids, inexact = exact_ids(tables.objects[names.OBJECT_ID], known)
    if inexact.any():
        tables.dropped["objects whose ids are rounded"] += int(inexact.sum())
    place = tables.objects.schema.get_field_index(names.OBJECT_ID)
    tables.objects = tables.objects.set_column(place, names.OBJECT_ID, ids).filter(pa.array(~inexact))


# ---------------------------------------------------------------- detections of the ZTF


def _ztf(rows: Any) -> Tables:
    """Detections of the ZTF. A visit is an exposure, a detector one of its 64 readout channels."""
    if "_rounded" not in rows.schema.names:
        rows = _joined([rows.filter(pc.is_valid(rows["candid"]))], "candid")
    pid = rows["pid"].cast(pa.int64(), safe=False).to_numpy()
    flux = 10 ** ((_ZERO_POINT_NJY - rows["magpsf"].to_numpy().astype(float)) / 2.5)
    sigma = rows["sigmapsf"].to_numpy().astype(float)
    mjd = rows["jd"].to_numpy() - _MJD_OF_JD
    bands = pa.array([_ZTF_BANDS.get(number) for number in range(4)])
    used = {"candid", "objectId", "pid", "jd", "fid", "magpsf", "sigmapsf", "isdiffpos", "rb", "_rounded"}
    columns = {
        names.SOURCE_ID: rows["candid"],
        names.OBJECT_ID: pa.array(values.ztf_object_ids(rows["objectId"])),
        # The number of a processing: night, time of day, channel, and two digits of its kind.
        names.VISIT: pa.array(pid // 10_000),
        names.DETECTOR: pa.array((pid // 100 % 100).astype("int16")),
        names.RA: rows["ra"],
        names.DEC: rows["dec"],
        names.TIME: pa.array(_tai(mjd)),
        "band": bands.take(pa.array(np.clip(rows["fid"].to_numpy(), 0, 3))),
        "psfFlux": pa.array((_signs(rows["isdiffpos"]) * flux).astype("float32")),
        "psfFluxErr": pa.array((flux * sigma * np.log(10) / 2.5).astype("float32")),
        "snr": pa.array((2.5 / np.log(10) / sigma).astype("float32")),
    }
    if "rb" in rows.schema.names:
        columns["reliability"] = rows["rb"].cast(pa.float32())
    # A schema may have columns of the ZTF too.
    columns.update({name: rows[name] for name in rows.schema.names if name not in used | columns.keys()})
    sources = pa.table(columns)
    objects = sources.select([names.OBJECT_ID, names.RA, names.DEC, names.TIME])
    objects = objects.rename_columns([names.OBJECT_ID, names.RA, names.DEC, names.VALID_FROM])
    notes = ["midpointMjdTai of the ZTF is the start of the exposure", "fluxes of the ZTF are of its magnitudes"]
    rounded = rows["candid"].filter(rows["_rounded"]).to_numpy()
    return Tables(objects, sources, None, notes, rounded=rounded if len(rounded) else None)


def _signs(positive: Any) -> Any:
    """1 where the ZTF's `isdiffpos` says that the source is brighter than the template, else -1."""
    given = positive.to_numpy(zero_copy_only=False).astype(str)
    return np.where(np.isin(given, ("t", "1", "True", "true", "T")), 1.0, -1.0)


def _tai(mjd_utc: Any) -> Any:
    """MJD in TAI of many MJD in UTC."""
    days, places = np.unique(np.floor(mjd_utc), return_inverse=True)
    ahead = np.array([values.tai_minus_utc_s(day) for day in days])
    return mjd_utc + ahead[places] / 86_400


# ---------------------------------------------------------------- flattened tables of the LSST


def _add_flat(tables: Tables, rows: Any, path: Path) -> None:
    """A flattened part goes where its columns say it belongs."""
    here = set(rows.schema.names)
    if names.SOURCE_ID in here and names.TIME in here:
        attribute = "sources"
    elif {names.OBJECT_ID, names.VISIT, names.DETECTOR} <= here:
        attribute = "forced_sources"
    elif {names.OBJECT_ID, names.RA, names.DEC} <= here:
        attribute = "objects"
    else:
        raise InvalidInputError(
            f"{path} holds no known alerts: neither packets, nor detections of the ZTF, nor objects, sources or forced "
            f"sources of the LSST; its columns are {', '.join(list(rows.schema.names)[:8])} ...",
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
