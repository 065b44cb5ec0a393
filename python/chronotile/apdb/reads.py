"""Read objects, sources and forced sources."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from chronotile import sky
from chronotile.apdb import names, values
from chronotile.apdb.cold import ColdStorage, merged
from chronotile.apdb.rows import Rows, drop_deleted, newest
from chronotile.apdb.tables import SurveyTables
from chronotile.errors import InvalidInputError
from chronotile.result import ReadResult
from chronotile.sky import Region
from chronotile.times import Moment

_NEAR_DEG = 60 * values.ARCSECOND
"""Default search radius around an object's position."""


@dataclass(frozen=True)
class Footprint:
    """Objects, sources and forced sources of a region.

    Attributes
    ----------
    objects : Rows
        The newest version of each object.
    sources, forced_sources : Rows
        Their sources and forced sources, within the history.
    """

    objects: Rows
    sources: Rows
    forced_sources: Rows


@dataclass(frozen=True)
class _Plan:
    """A read of one table: what to ask the archive, and what to make of its answer."""

    table: str
    request: dict[str, Any]
    finish: Callable[[Any], Rows]


class Reads:
    """Reads objects, sources and forced sources."""

    def __init__(self, tables: SurveyTables, cold: ColdStorage) -> None:
        self._tables, self._cold = tables, cold

    def objects(
        self,
        region: Any = None,
        *,
        at: Moment = None,
        columns: Iterable[str] | None = None,
        closed: bool = False,
    ) -> Rows:
        """The newest version of each object.

        Parameters
        ----------
        region : Region, optional
            Region to read; without it, the whole sky is read into memory (:meth:`scan` streams).
        at : time, optional
            Return the version that was valid at this time instead of the newest.
        columns : iterable of str, optional
            Columns to return; all by default.
        closed : bool
            Whether to return objects with a closed validity too.
        """
        return self._read(self._object_plan(_region(region), at, columns, closed))

    def _object_plan(self, place: Region | None, at: Moment, columns: Iterable[str] | None, closed: bool) -> _Plan:
        wanted = self._tables.columns(names.OBJECT, columns)
        decoded = [*dict.fromkeys([*wanted, names.OBJECT_ID, names.VALID_TO])]
        request = {
            "region": place, "end": _until(at), "columns": decoded, "where": [names.not_deleted(names.OBJECT)]
        }  # fmt: skip

        def finish(rows: Any) -> Rows:
            if not closed:
                open_end = pc.is_null(rows[names.VALID_TO])
                if at is not None:
                    open_end = pc.or_kleene(open_end, pc.greater(rows[names.VALID_TO], values.mjd_tai(at, "at")))
                # Closed objects are rare, and a filter copies a hundred columns: filter only if needed.
                rows = rows if pc.all(open_end).as_py() else rows.filter(open_end)
            return Rows(rows.select(wanted))

        return _Plan(names.OBJECT, request, finish)

    def _read(self, plan: _Plan) -> Rows:
        return plan.finish(self._tables.datasets[plan.table].read(**plan.request).to_arrow())

    def _read_together(self, plans: Sequence[_Plan]) -> list[Rows]:
        """Read several tables as of one moment."""
        requests = {names.dataset_name(plan.table): plan.request for plan in plans}
        tables = self._tables.group.read(requests)
        return [plan.finish(tables[names.dataset_name(plan.table)]) for plan in plans]

    def sources(
        self,
        region: Any = None,
        *,
        object_ids: Iterable[int | str] | None = None,
        at: Moment = None,
        history: Any = None,
        start: Moment = None,
        columns: Iterable[str] | None = None,
        withdrawn: bool = True,
        archived: str | os.PathLike[str] | None = None,
    ) -> Rows:
        """Sources of a region or of objects.

        Parameters
        ----------
        region : Region, optional
            Region to read. Without it, all cells are scanned, also for `object_ids`.
        object_ids : iterable of int or str, optional
            Only sources of these objects: ids, or ZTF names.
        at : time, optional
            Latest time, inclusive; the read goes back by `history` from here.
        history : length of time, optional
            Days, ``"360d"``, a timedelta or a quantity; by default that of the layout, 360 days.
        start : time, optional
            Earliest time, instead of `history`.
        columns : iterable of str, optional
            Columns to return; all by default.
        withdrawn : bool
            Whether to return withdrawn sources too.
        archived : path, optional
            A folder of :meth:`archive_before` to read as well.
        """
        since = self._since(at, history, start)
        plan = self._history_plan(
            names.SOURCE, _region(region), object_ids, at, since, columns, withdrawn, archived
        )  # fmt: skip
        return self._read(plan)

    def forced_sources(
        self,
        region: Any = None,
        *,
        object_ids: Iterable[int | str] | None = None,
        at: Moment = None,
        history: Any = None,
        start: Moment = None,
        columns: Iterable[str] | None = None,
        withdrawn: bool = True,
        archived: str | os.PathLike[str] | None = None,
    ) -> Rows:
        """Forced sources of a region or of objects. Arguments as for :meth:`sources`."""
        since = self._since(at, history, start)
        plan = self._history_plan(
            names.FORCED, _region(region), object_ids, at, since, columns, withdrawn, archived
        )  # fmt: skip
        return self._read(plan)

    def _history_plan(
        self, table: str, place: Region | None, object_ids: Iterable[int | str] | None, at: Moment, since: float | None,
        columns: Iterable[str] | None, withdrawn: bool, archived: str | os.PathLike[str] | None,
    ) -> _Plan:  # fmt: skip
        wanted = self._tables.columns(table, columns)
        hide_withdrawn = not withdrawn and names.WITHDRAWN in self._tables.schema[table]
        dataset, hidden = self._tables.datasets[table], names.version_column(table)
        decoded = [*wanted]
        decoded += [names.WITHDRAWN] if hide_withdrawn else []
        decoded += [] if archived is None else [*dataset.id, hidden]
        decoded = list(dict.fromkeys(decoded))
        chosen = None if object_ids is None else _ids(object_ids)
        where = [names.not_deleted(table)] + ([] if chosen is None else [(names.OBJECT_ID, "in", chosen)])
        period = {"start": since, "end": _until(at)}

        def finish(rows: Any) -> Rows:
            if archived is not None:
                cold = self._cold.rows(table, archived, place, since, period["end"], chosen).select(decoded)
                rows = merged(rows, cold, list(dataset.id), hidden)
            if hide_withdrawn:
                rows = rows.filter(pc.is_null(rows[names.WITHDRAWN]))
            return Rows(rows.select(wanted))

        return _Plan(table, {"region": place, "where": where, "columns": decoded, **period}, finish)

    def _since(self, at: Moment, history: Any, start: Moment) -> float | None:
        if start is not None:
            return values.mjd_tai(start, "start")
        if at is None:
            if history is not None:
                raise InvalidInputError(
                    "history needs an end time: also pass at (--at), such as --at now", kind="invalid-request"
                )
            return None
        back = self._tables.layout.history_days if history is None else values.days(history, "history")
        return values.mjd_tai(at, "at") - back

    def footprint(
        self,
        region: Any,
        *,
        at: Moment = None,
        history: Any = None,
        columns: Mapping[str, Iterable[str]] | None = None,
    ) -> Footprint:
        """Read objects, sources and forced sources of a region, all as of one moment: of each detector-visit, all rows
        in the region or none.

        Parameters
        ----------
        region : Region
            A detector's footprint, including padding.
        at, history
            As for :meth:`sources`; objects are always the newest versions, whatever `at` is.
        columns : dict of str to iterable of str, optional
            Columns to return, by table: ``{"DiaSource": ["diaSourceId", "psfFlux"]}``.
        """
        wanted = dict(columns or {})
        for name in wanted:
            self._tables.schema[name]
        place = values.region(region)
        since = self._since(at, history if at is not None else None, None)
        plans = [self._object_plan(place, None, wanted.get(names.OBJECT), False)]
        plans += [
            self._history_plan(name, place, None, at, since, wanted.get(name), True, None)
            for name in (names.SOURCE, names.FORCED)
        ]
        return Footprint(*self._read_together(plans))

    def cone(self, /, ra: Any, dec: Any, radius: Any, **arguments: Any) -> Footprint:
        """:meth:`footprint` of a circle, in degrees or astropy angles."""
        return self.footprint(
            sky.circle(values.degrees(ra, ra=True), values.degrees(dec), values.degrees(radius)), **arguments
        )

    def object_history(
        self, object_id: int | str, *, near: tuple[Any, Any] | None = None, radius: Any = _NEAR_DEG
    ) -> Rows:
        """All versions of an object, oldest first, each with the end of its validity.

        Parameters
        ----------
        object_id : int or str
            Id of the object, or its ZTF name.
        near : (ra, dec), optional
            About where it is, degrees or astropy angles: without it, all of the sky is looked through.
        radius : float or angle, optional
            Search radius around `near`: degrees, text such as ``10arcsec``, or an astropy angle; one arc minute by
            default.
        """
        dataset = self._tables.datasets[names.OBJECT]
        region = None if near is None else _near(near, radius)
        rows = dataset.read(region=region, ids=[values.object_id(object_id)], history=True).to_arrow()
        rows = newest(drop_deleted(rows), [names.VALID_FROM], names.VERSION)
        ends = pa.concat_arrays(
            [rows[names.VALID_FROM].combine_chunks()[1:], pa.nulls(min(len(rows), 1), pa.float64())]
        )
        place = rows.schema.get_field_index(names.VALID_TO)
        closed = pc.coalesce(rows[names.VALID_TO].combine_chunks(), ends)
        rows = rows.set_column(place, rows.schema.field(place), closed)
        return Rows(rows.select(self._tables.schema[names.OBJECT].column_names))

    def light_curve(
        self, object_id: int | str, *, near: tuple[Any, Any] | None = None, radius: Any = _NEAR_DEG,
        forced: bool = True, start: Moment = None, end: Moment = None,
        archived: str | os.PathLike[str] | None = None,
    ) -> Rows:  # fmt: skip
        """Measurements of one object by time, from its sources and, with `forced`, its forced sources.

        The result has the columns that both tables share, and ``forced``, which tells them apart. Withdrawn
        measurements are excluded. `object_id`, `near` and `radius` are as for :meth:`object_history`, `archived` as for
        :meth:`sources`.

        Raises
        ------
        InvalidInputError
            No such object, when `near` is not given (kind ``unknown-id``).
        """
        number = values.object_id(object_id)
        tables = [names.SOURCE, names.FORCED] if forced else [names.SOURCE]
        if near is None:
            near = self._position(number)
            if near is None:
                raise InvalidInputError(f"no object {object_id} in the database", kind="unknown-id")
        region = _near(near, radius)
        since = None if start is None else values.mjd_tai(start, "start")
        shared = [
            name for name in self._tables.schema[names.SOURCE].column_names if name in self._tables.schema[names.FORCED]
        ]
        parts = []
        for table in tables:
            plan = self._history_plan(table, region, [number], None, since, shared, False, archived)
            rows = self._read(plan).to_arrow()
            if end is not None:
                rows = rows.filter(pc.less(rows[names.TIME], values.mjd_tai(end, "end")))
            if names.WITHDRAWN in shared:
                rows = rows.drop_columns([names.WITHDRAWN])
            parts.append(rows.append_column("forced", pa.repeat(table == names.FORCED, rows.num_rows)))
        whole = pa.concat_tables(parts, promote_options="permissive")
        return Rows(whole.sort_by([(names.TIME, "ascending"), ("forced", "ascending")]))

    def _position(self, object_id: int) -> tuple[float, float] | None:
        rows = self._tables.datasets[names.OBJECT].read(
            ids=[int(object_id)], columns=[names.RA, names.DEC], where=[names.not_deleted(names.OBJECT)]
        ).to_arrow()  # fmt: skip
        return (rows[names.RA][0].as_py(), rows[names.DEC][0].as_py()) if rows.num_rows else None

    def night(self, night: Moment, *, table: str = names.SOURCE, columns: Iterable[str] | None = None) -> ReadResult:
        """Stream the rows of one night: from noon (UTC) of the given day to the next noon.

        Parameters
        ----------
        night : date or time
            The day on which the night began.
        table : str
            DiaSource, DiaForcedSource or DiaObject (versions created that night).
        columns : iterable of str, optional
            Columns to return; all by default.
        """
        noon = values.night_start(night)
        return self.scan(table, start=noon, end=noon + 1, columns=columns)

    def scan(
        self, table: str, *, region: Any = None, start: Moment = None, end: Moment = None,
        columns: Iterable[str] | None = None, where: Any = None, history: bool = False,
    ) -> ReadResult:  # fmt: skip
        """Stream the rows of a table, up to the whole sky, in bounded memory.

        Parameters
        ----------
        table : str
            Any table of the schema.
        region, start, end, where, history
            As for :meth:`chronotile.Dataset.read`.
        columns : iterable of str, optional
            Columns to return; all by default.
        """
        conditions = [] if where is None else [where] if isinstance(where, tuple) else list(where)
        if table in names.MAIN_TABLES:
            conditions.append(names.not_deleted(table))
        return self._tables.dataset(table).read(
            region=_region(region), start=start, end=end, columns=self._tables.columns(table, columns),
            where=conditions, history=history,
        )  # fmt: skip


def _region(value: Any) -> Region | None:
    return None if value is None else values.region(value)


def _near(position: tuple[Any, Any], radius: Any) -> Region:
    return sky.circle(values.degrees(position[0], ra=True), values.degrees(position[1]), values.degrees(radius))


def _until(at: Moment) -> float | None:
    """End of the half-open period that includes `at`: archives count microseconds."""
    return None if at is None else values.mjd_tai(at, "at") + 1e-6 / 86_400 * 2


def _ids(given: Iterable[int | str]) -> list[int]:
    listed: Iterable[Any] = given.to_pylist() if hasattr(given, "to_pylist") else given
    return [values.object_id(each) for each in listed]
