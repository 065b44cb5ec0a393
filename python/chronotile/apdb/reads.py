"""Read objects, sources and forced sources."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
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
_FORCED = "forced"
"""Column of light curves: true for forced sources, false for sources."""


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
class _Selection:
    """Restricts a read to a region and to objects, whose `ids` are an array of int64; by default to neither."""

    region: Region | None = None
    ids: Any = None


@dataclass(frozen=True)
class _Plan:
    """A read of one table: the request to the archive, and a function that converts its rows to the result."""

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

    def _object_plan(self, region: Region | None, at: Moment, columns: Iterable[str] | None, closed: bool) -> _Plan:
        wanted = self._tables.columns(names.OBJECT, columns)
        decoded = [*dict.fromkeys([*wanted, names.OBJECT_ID, names.VALID_TO])]
        request = {
            "region": region, "end": _until(at), "columns": decoded, "where": [names.not_deleted(names.OBJECT)]
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
        object_ids: Any = None,
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
            Region to read; by default the whole sky.
        object_ids : iterable or array of int or str, optional
            Only sources of these objects: ids, or ZTF names. Without a region, the index of objects finds them.
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
        period = self._since(at, history, start), _until(at)
        return self._history(names.SOURCE, region, object_ids, period, columns, withdrawn, archived)

    def forced_sources(
        self,
        region: Any = None,
        *,
        object_ids: Any = None,
        at: Moment = None,
        history: Any = None,
        start: Moment = None,
        columns: Iterable[str] | None = None,
        withdrawn: bool = True,
        archived: str | os.PathLike[str] | None = None,
    ) -> Rows:
        """Forced sources of a region or of objects. Arguments as for :meth:`sources`."""
        period = self._since(at, history, start), _until(at)
        return self._history(names.FORCED, region, object_ids, period, columns, withdrawn, archived)

    def _history(
        self, table: str, region: Any, object_ids: Any, period: tuple[float | None, float | None],
        columns: Iterable[str] | None, withdrawn: bool, archived: str | os.PathLike[str] | None,
    ) -> Rows:  # fmt: skip
        ids = None if object_ids is None else values.object_ids(object_ids)

        def plan(selection: _Selection) -> _Plan:
            return self._history_plan(table, selection, period, columns, withdrawn, archived)

        if region is None and ids is not None:
            (rows,), _ = self._read_of_objects(ids, lambda selection: [plan(selection)])
            return rows
        return self._read(plan(_Selection(_region(region), ids)))

    def _read_of_objects(self, ids: Any, plans_for: Callable[[_Selection], list[_Plan]]) -> tuple[list[Rows], Any]:
        """Read tables in the pixels of objects, as of one moment. Also returns the index entries of the objects; None
        if the database keeps no index and the tables were scanned.
        """
        index = self._tables.object_index
        if not index.kept:
            return self._read_together(plans_for(_Selection(ids=ids))), None
        plans = plans_for(_Selection(ids=ids))
        requests = {names.dataset_name(plan.table): plan.request for plan in plans}
        # The index is read first, and the tables only in the pixels that its entries name; all as of one moment.
        tables = self._tables.group.read(
            {**requests, names.OBJECT_INDEX: index.request(ids)}, cells_from=(names.OBJECT_INDEX, names.PIXEL)
        )
        return [plan.finish(tables[names.dataset_name(plan.table)]) for plan in plans], tables[names.OBJECT_INDEX]

    def _history_plan(
        self, table: str, selection: _Selection, period: tuple[float | None, float | None],
        columns: Iterable[str] | None, withdrawn: bool, archived: str | os.PathLike[str] | None,
    ) -> _Plan:  # fmt: skip
        wanted = self._tables.columns(table, columns)
        hide_withdrawn = not withdrawn and names.WITHDRAWN in self._tables.schema[table]
        dataset, hidden = self._tables.datasets[table], names.version_column(table)
        decoded = [*wanted]
        decoded += [names.WITHDRAWN] if hide_withdrawn else []
        # Merging with rows of files compares ids and versions.
        decoded += [] if archived is None else [*dataset.id, hidden]
        decoded = list(dict.fromkeys(decoded))
        where: list[Any] = [names.not_deleted(table)]
        if selection.ids is not None:
            where.append((names.OBJECT_ID, "in", selection.ids))
        start, end = period

        def finish(rows: Any) -> Rows:
            if archived is not None:
                cold = self._cold.rows(table, archived, selection.region, start, end, selection.ids).select(decoded)
                rows = merged(rows, cold, list(dataset.id), hidden)
            if hide_withdrawn:
                rows = rows.filter(pc.is_null(rows[names.WITHDRAWN]))
            return Rows(rows.select(wanted))

        request = {"region": selection.region, "where": where, "columns": decoded}
        return _Plan(table, {**request, "start": start, "end": end}, finish)

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
            # The look-up refuses unknown tables.
            self._tables.schema[name]
        selection = _Selection(values.region(region))
        period = self._since(at, history if at is not None else None, None), _until(at)
        plans = [self._object_plan(selection.region, None, wanted.get(names.OBJECT), False)]
        plans += [
            self._history_plan(name, selection, period, wanted.get(name), True, None)
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
            Approximate position, degrees or astropy angles: saves the look-up in the index of objects.
        radius : float or angle, optional
            Search radius around `near`: degrees, text such as ``10arcsec``, or an astropy angle; one arc minute by
            default.
        """
        dataset, number = self._tables.datasets[names.OBJECT], values.object_id(object_id)
        region = None if near is None else _near(near, radius)
        pixels = self._tables.object_index.pixels_of(np.array([number])) if near is None else None
        rows = dataset.read(region=region, cells=pixels, ids=[number], history=True).to_arrow()
        # A changed version is stored again with the same start of validity: keep the last of each.
        rows = newest(drop_deleted(rows), [names.VALID_FROM], names.VERSION)
        # A version ends where the next one starts, and the last has no end. `min` covers an object without versions.
        ends = pa.concat_arrays(
            [rows[names.VALID_FROM].combine_chunks()[1:], pa.nulls(min(len(rows), 1), pa.float64())]
        )
        place = rows.schema.get_field_index(names.VALID_TO)
        closed = pc.coalesce(rows[names.VALID_TO].combine_chunks(), ends)
        rows = rows.set_column(place, rows.schema.field(place), closed)
        return Rows(rows.select(self._tables.schema[names.OBJECT].column_names))

    def light_curve(
        self, object_id: int | str, *, near: tuple[Any, Any] | None = None, radius: Any = _NEAR_DEG,
        forced: bool = True, columns: Iterable[str] | None = None, start: Moment = None, end: Moment = None,
        archived: str | os.PathLike[str] | None = None,
    ) -> Rows:  # fmt: skip
        """Measurements of one object by time, from its sources and, with `forced`, its forced sources.

        `object_id`, `near` and `radius` are as for :meth:`object_history`, the other arguments and the result as for
        :meth:`light_curves`.

        Raises
        ------
        InvalidInputError
            No such object, when `near` is not given (kind ``unknown-id``).
        """
        if near is None:
            return self.light_curves(
                [object_id], forced=forced, columns=columns, start=start, end=end, archived=archived, missing="error"
            )
        columns = None if columns is None else _listed(columns)
        selection = _Selection(_near(near, radius), values.object_ids([object_id]))
        plans = self._curve_plans(selection, forced, columns, start, end, archived)
        return _selected(_one_table(self._read_together(plans)), columns)

    def light_curves(
        self, object_ids: Any, *, forced: bool = True, columns: Iterable[str] | None = None, start: Moment = None,
        end: Moment = None, archived: str | os.PathLike[str] | None = None, missing: str = "ignore",
    ) -> Rows:  # fmt: skip
        """Measurements of objects anywhere on the sky, sorted by object and time, as of one moment.

        The index of objects says in which pixels each object has rows, and only these are read.

        Parameters
        ----------
        object_ids : iterable or array of int or str
            Ids, or ZTF names; the order and repeats do not matter.
        forced : bool
            Whether to return forced sources too; column ``forced`` tells them from sources.
        columns : iterable of str, optional
            Columns to return: of DiaSource, DiaForcedSource, or ``forced``. By default those that both tables share,
            and ``forced``. A column that one of the tables lacks is null in its rows.
        start, end : time, optional
            Half-open period.
        archived : path, optional
            A folder of :meth:`archive_before` to read as well.
        missing : {"ignore", "error"}
            How to handle ids that no object, source or forced source has. An object without measurements in the period
            is no error.

        Returns
        -------
        Rows
            One row for each measurement that was not withdrawn.

        Raises
        ------
        InvalidInputError
            Some value is not an id or a column; or an id is unknown (kind ``unknown-id``, with ``ids``) and `missing`
            is ``error``.
        """
        if missing not in ("ignore", "error"):
            raise InvalidInputError(f'missing is {missing!r}: use "ignore" or "error"', kind="invalid-request")
        ids = np.unique(values.object_ids(object_ids))
        columns = None if columns is None else _listed(columns)
        parts, entries = self._read_of_objects(
            ids, lambda selection: self._curve_plans(selection, forced, columns, start, end, archived)
        )
        rows = _one_table(parts)
        if missing == "error":
            known = self._objects_among(ids) if entries is None else entries[names.OBJECT_ID].to_numpy()
            absent = np.setdiff1d(np.setdiff1d(ids, known), rows[names.OBJECT_ID].to_numpy())
            if len(absent):
                raise _unknown(absent)
        return _selected(rows, columns)

    def _curve_plans(
        self, selection: _Selection, forced: bool, columns: list[str] | None, start: Moment, end: Moment,
        archived: str | os.PathLike[str] | None,
    ) -> list[_Plan]:  # fmt: skip
        """Reads of sources and forced sources, with the requested columns and those that light curves are sorted by."""
        by_table = self._curve_columns(columns)
        period = _mjd(start, "start"), _mjd(end, "end")
        tables = [names.SOURCE, names.FORCED] if forced else [names.SOURCE]
        return [self._history_plan(table, selection, period, by_table[table], False, archived) for table in tables]

    def _curve_columns(self, columns: list[str] | None) -> dict[str, list[str]]:
        """Columns of sources and forced sources in a light curve."""
        source, forced = self._tables.schema[names.SOURCE], self._tables.schema[names.FORCED]
        if columns is None:
            wanted = [name for name in source.column_names if name in forced and name != names.WITHDRAWN]
        else:
            wanted = [name for name in columns if name != _FORCED]
            for name in wanted:
                if name not in forced:
                    # The look-up refuses a column that neither table has.
                    source[name]
            wanted = list(dict.fromkeys([*wanted, names.OBJECT_ID, names.TIME]))
        return {table.name: [name for name in wanted if name in table] for table in (source, forced)}

    def _objects_among(self, ids: Any) -> Any:
        rows = self._tables.datasets[names.OBJECT].read(
            ids=ids, columns=[names.OBJECT_ID], where=[names.not_deleted(names.OBJECT)]
        ).to_arrow()  # fmt: skip
        return rows[names.OBJECT_ID].to_numpy()

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
    """End of the half-open period that includes `at`."""
    return None if at is None else values.mjd_tai(at, "at") + values.TICK_DAYS


def _one_table(parts: Sequence[Rows]) -> Any:
    """Sources and, if requested, forced sources as one table, sorted by object and time."""
    marked = [
        rows.to_arrow().append_column(_FORCED, pa.repeat(is_forced, len(rows)))
        for rows, is_forced in zip(parts, (False, True), strict=False)
    ]
    whole = pa.concat_tables(marked, promote_options="permissive")
    order = [(name, "ascending") for name in (names.OBJECT_ID, names.TIME, _FORCED)]
    return whole.take(pc.sort_indices(whole, order))


def _listed(columns: Iterable[str]) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)


def _selected(rows: Any, columns: list[str] | None) -> Rows:
    return Rows(rows if columns is None else rows.select(columns))


def _mjd(value: Moment, what: str) -> float | None:
    return None if value is None else values.mjd_tai(value, what)


def _unknown(ids: Any) -> InvalidInputError:
    shown = ", ".join(str(int(each)) for each in ids[:5])
    more = "" if len(ids) <= 5 else f" and {len(ids) - 5} more"
    return InvalidInputError(
        f"no object {shown}{more} in the database", kind="unknown-id", ids=[int(each) for each in ids]
    )
