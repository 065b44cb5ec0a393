"""Maintenance a database in order: day-time maintenance, and taking out what should not be there."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, cast

import numpy as np
import pyarrow.compute as pc

from chronotile.apdb import layout as layouts
from chronotile.apdb import names, values
from chronotile.apdb.cold import Cold, require_folder, restored_batch
from chronotile.apdb.density import Crowded, crowded
from chronotile.apdb.reads import CompleteVisits
from chronotile.apdb.rows import newest, set_column
from chronotile.apdb.tables import SurveyTables
from chronotile.apdb.turns import in_turn
from chronotile.apdb.updates import Updates, associated
from chronotile.apdb.values import version_of
from chronotile.dataset import Dataset
from chronotile.errors import BatchNotFoundError, DamagedError, InvalidInputError
from chronotile.reports import ConsolidateReport, DatasetInfo, SliceInfo, VerifyReport
from chronotile.times import Moment

__all__ = ["Maintained", "Removed"]

_PART = 5_000
"""Associations of one change: few enough that other processes' changes soon have their turn."""
_STATISTICS = "apdb:statistics"

Progress = Callable[[str, int, int], object]
"""Called with (what, parts done, parts in all)."""


@dataclass(frozen=True)
class Maintained:
    """What maintenance did and found.

    Attributes
    ----------
    consolidated : dict of str to ConsolidateReport
        By dataset.
    reassociated, unknown : int
        Sources that were given to other solar-system objects than before; and associations whose source is not stored.
    recounted : int
        Objects whose count of sources was set right, after a change that was cut off.
    statistics : dict of str to DatasetInfo
        What the datasets hold, those of the tables first.
    crowded : list of Crowded
        Slices in which a partition is past the limit of the layout, or will be.
    """

    consolidated: dict[str, ConsolidateReport]
    reassociated: int
    unknown: int
    recounted: int
    statistics: dict[str, DatasetInfo]
    crowded: list[Crowded]


@dataclass(frozen=True)
class Removed:
    """What was taken out.

    Attributes
    ----------
    detector_visits : int
        Detector-visits.
    rows : int
        Rows of all tables.
    """

    detector_visits: int
    rows: int


class Maintenance:
    """Keeps a database in order."""

    def __init__(self, tables: SurveyTables, cold: Cold, updates: Updates, complete: CompleteVisits) -> None:
        self._tables, self._cold, self._updates, self._complete = tables, cold, updates, complete

    def _all(self) -> list[str]:
        """Names of the datasets, those of the tables first."""
        own = [names.VISITS, names.METADATA, *([names.TURNS] if names.TURNS in self._tables.archive else [])]
        own += [names.FEED, layouts.UPDATES] if self._tables.layout.feed else []
        return [*(names.dataset_name(table.name) for table in self._tables.schema.stored_tables), *own]

    def maintain(
        self, *, before: Moment = None, chunks_min: int | None = None, associations: Any = None,
        progress: Progress | None = None,
    ) -> Maintained:  # fmt: skip
        """The work of a day: give sources to solar-system objects, rewrite many small chunks as few large ones, table
        by table, and note what the tables hold. Where a :meth:`reassign` was cut off the sources of its objects are
        counted.

        It may be ended at any time, killed too, and begun again: what it has done stays, and nothing is lost. Reads,
        stores, and the changes of other processes may go on beside it.

        Parameters
        ----------
        before : time, optional
            Only windows that end by then are rewritten, so that those being written are left alone.
        chunks_min : int, optional
            Leave tiles with fewer chunks alone; 2 by default.
        associations : table, or dict of source id to object id, optional
            As for :meth:`reassociate`; sources that are not stored are counted and passed over.
        progress : callable, optional
            Called with (what, parts done, in all): sources given to objects, then tiles of each dataset, then tables.

        Raises
        ------
        DamagedError
            Once the other tables are done, where what the catalog says of one is damaged: see :meth:`verify`.
        """
        moment = None if before is None else values.mjd_tai(before, "before")
        told: Progress = progress or (lambda what, done, total: None)
        recounted = self._updates.mend_counts()
        changed, unknown = (0, 0) if associations is None else self._associate(associations, told)
        consolidated, damage = {}, None
        for name in self._all():
            dataset = self._tables.archive[name]
            if moment is not None and dataset.time.format != "mjd":
                continue
            report = functools.partial(told, name)
            try:
                consolidated[name] = dataset.consolidate(before=moment, chunks_min=chunks_min, progress=report)
            except DamagedError as error:
                damage = damage or error
        if damage is not None:
            raise damage
        statistics = {}
        for number, name in enumerate(self._all()):
            told("statistics", number, len(self._all()))
            statistics[name] = self._tables.archive[name].info()
        self._note(statistics)
        return Maintained(consolidated, changed, unknown, recounted, statistics, self._crowded(statistics))

    def _associate(self, associations: Any, told: Progress) -> tuple[int, int]:
        """Give sources to objects in parts, each a change of its own; how many were changed, and were not stored."""
        given = associated(associations)
        order = [(name, "ascending") for name in (names.TIME, names.DEC, names.SOURCE_ID) if name in given.schema.names]
        given, changed, found = given.sort_by(order), 0, 0
        for start in range(0, given.num_rows, _PART):
            told("reassociation", start, given.num_rows)
            done, stored = self._updates.give(given.slice(start, _PART), missing="ignore")
            changed, found = changed + done, found + stored
        return changed, given.num_rows - found

    def _note(self, statistics: Mapping[str, DatasetInfo]) -> None:
        tables = {
            name: {
                "rows": each.rows, "chunks": each.chunks, "bytes": each.bytes,
                "cell_bytes_max": max((part.cell_bytes_max for part in each.slices), default=0),
            }
            for name, each in statistics.items()
        }  # fmt: skip
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._tables.metadata.set(_STATISTICS, json.dumps({"noted": now, "tables": tables}), force=True)

    def statistics(self) -> dict[str, Any]:
        """What the last :meth:`maintain` noted, without looking through the tables: ``noted``, its time (UTC), and
        ``tables`` with rows, chunks, bytes and the largest partition's bytes by dataset. Empty before the first."""
        return dict(json.loads(self._tables.metadata.get(_STATISTICS) or "{}"))

    def crowded(self) -> list[Crowded]:
        """Slices in which a partition is past the layout's limit, or will be when they are full."""
        return self._crowded(self.info())

    def _crowded(self, statistics: Mapping[str, DatasetInfo]) -> list[Crowded]:
        main = {name: statistics[names.dataset_name(name)] for name in names.MAIN_TABLES}
        visits = self._tables.visits
        last = visits.info().slices
        # Simulated and old surveys have times of their own: the latest visit is now.
        latest = visits.read(start=cast(float, last[-1].start), columns=["visit_mjd_tai"]) if last else None
        times = [] if latest is None else latest.to_arrow()["visit_mjd_tai"].to_pylist()
        return crowded(main, self._tables.layout, max(times, default=0.0))

    def prepare(self, start: Moment, end: Moment) -> None:
        """Make the slices of a half-open period ahead of its writers, which on a cluster saves them seconds."""
        first, last = values.mjd_tai(start, "start"), values.mjd_tai(end, "end")
        for name in self._all():
            if self._tables.archive[name].time.format == "mjd":
                self._tables.archive[name].prepare(first, last)

    def info(self) -> dict[str, DatasetInfo]:
        """Statistics of every dataset, by name."""
        return {name: self._tables.archive[name].info() for name in self._all()}

    def verify(self) -> dict[str, VerifyReport]:
        """Read and check every chunk of every dataset. Damage is reported, not raised."""
        return {name: self._tables.archive[name].verify() for name in self._all()}

    def retire(self, before: Moment, *, objects: bool = False, dry_run: bool = False) -> dict[str, list[SliceInfo]]:
        """Drop the slices of sources, forced sources and detector-visits that end by then, for good.

        Versions of objects stay unless `objects` is given: those of an object that was long not seen are all there is
        of it.

        Returns
        -------
        dict of str to list of SliceInfo
            What was dropped, or with `dry_run` would be, by dataset.
        """
        limit = values.mjd_tai(before, "before")
        tables = [names.SOURCE, names.FORCED] + ([names.OBJECT] if objects else [])
        chosen = [names.dataset_name(table) for table in tables] + [names.VISITS]
        return {name: self._tables.archive[name].retire(before=limit, dry_run=dry_run) for name in chosen}

    # ------------------------------------------------------------------ taking out

    def remove_visit(
        self, visit: int, detector: int | None = None, *, changed: bool = False,
        archived: str | os.PathLike[str] | Literal[False] | None = None,
    ) -> Removed:  # fmt: skip
        """Take out what was stored of a visit, of one detector or of all. It can be stored again.

        Parameters
        ----------
        visit, detector : int
            What to take out; without a detector all of them.
        changed : bool
            Whether to take out records too that were changed since they were stored (reassigned, withdrawn, closed,
            restored from a file).
            Those are deleted: the same ids cannot be stored again.
        archived : path or False, optional
            The folder of :meth:`archive_before`: what its files have is taken out too. False where rows that are no
            longer in the database are in no file either.

        Raises
        ------
        InvalidInputError
            Kind ``changed-records``: some were changed, and `changed` is not given. Kind ``archived-records``: some
            went to files, from which they would come back, and `archived` is not given. Nothing was taken out.
        """
        where = [("visit", "==", int(visit))]
        if detector is not None:
            where.append(("detector", "==", int(detector)))
        rows = self._tables.visits.read(keys=[int(visit)], where=where).to_arrow()
        # A store that was cut off has no row yet; its name tells it.
        unfinished = [] if rows.num_rows or detector is None else [f"{visit}-{detector}"]
        return self._remove(rows, unfinished, changed, archived)

    def remove_night(
        self, night: Moment, *, changed: bool = False, archived: str | os.PathLike[str] | Literal[False] | None = None
    ) -> Removed:
        """Take out what was stored of a night: from noon (UTC) of the given day to the next noon. Otherwise as
        :meth:`remove_visit`."""
        start = values.night_start(night)
        return self._remove(self._tables.visits.read(start=start, end=start + 1).to_arrow(), [], changed, archived)

    @in_turn
    def _remove(
        self, rows: Any, unfinished: list[str], changed: bool, archived: str | os.PathLike[str] | Literal[False] | None
    ) -> Removed:
        if archived:
            require_folder(archived)
        found = [(row, name, self._changed(name, row)) for row in rows.to_pylist() for name in names.MAIN_TABLES]
        count = sum(part.num_rows for _, _, part in found)
        if count and not changed:
            raise InvalidInputError(
                f"{count} records were reassigned, withdrawn, closed or restored since they were stored, and could not "
                "be stored again: give changed=True to delete them with the rest",
                kind="changed-records",
            )
        away = 0 if archived is not None else sum(self._away(row) for row in rows.to_pylist())
        if away:
            raise InvalidInputError(
                f"{away} records are no longer in the database: where archive_before moved them to files, from which "
                "they would come back, give archived=FOLDER to take them out of these too, else archived=False",
                kind="archived-records",
            )
        for _, name, part in found:
            if part.num_rows:
                hidden = names.version_column(name)
                gone = set_column(part, hidden, np.full(part.num_rows, names.GONE))
                self._tables.turns.check()
                self._tables.datasets[name].write(gone)
        self._complete.forget()
        total = visits = 0
        if archived:
            total = sum(self._take_from_files(row, archived) for row in rows.to_pylist())
        # The rows that say a detector-visit is complete go first.
        own = [names.VISITS] + ([names.FEED] if self._tables.layout.feed else [])
        for key in [*rows["key"].to_pylist(), *unfinished]:
            counts = [self._drop(name, key) for name in own]
            taken = [self._drop(names.dataset_name(table), key) for table in names.MAIN_TABLES]
            visits += any(each is not None for each in [*counts, *taken])
            total += sum(each or 0 for each in taken)
        if archived:
            # What went to files since they were looked through.
            total += sum(self._take_from_files(row, archived) for row in rows.to_pylist())
        return Removed(visits, total)

    def _away(self, row: dict[str, Any]) -> int:
        """How many sources and forced sources of a detector-visit went with their slices, and were not restored."""
        away = 0
        for table in (names.SOURCE, names.FORCED):
            dataset = self._tables.datasets[table]
            stored = dataset.batch(row["key"])
            if stored is not None and stored.rows_retired:
                times = {row["time_first"], row["time_last"]}
                away += 0 if all(self._restored(dataset, time) for time in times) else stored.rows_retired
        return away

    def _take_from_files(self, row: dict[str, Any], folder: str | os.PathLike[str]) -> int:
        """Take a detector-visit out of the files of archived slices; how many rows."""
        if row["time_first"] is None:
            return 0
        limits = row["time_first"] - values.TICK_DAYS, row["time_last"] + values.TICK_DAYS

        def own(rows: Any) -> Any:
            return pc.and_(pc.equal(rows[names.VISIT], row["visit"]), pc.equal(rows[names.DETECTOR], row["detector"]))

        return sum(self._cold.drop(table, folder, *limits, own) for table in (names.SOURCE, names.FORCED))

    def _drop(self, name: str, key: str) -> int | None:
        """Remove a batch; its rows, or None where there is none."""
        try:
            return self._tables.archive[name].remove_batch(key)
        except BatchNotFoundError:
            return None

    def _changed(self, table: str, row: dict[str, Any]) -> Any:
        """Records of a detector-visit that are newer than their storing."""
        dataset, hidden = self._tables.datasets[table], names.version_column(table)
        if table == names.OBJECT:
            time = row["visit_mjd_tai"]
            rows = dataset.read(
                cells=row["object_cells"], start=time - values.TICK_DAYS, end=time + values.TICK_DAYS, history=True,
                where=[(hidden, ">", version_of(time)), names.kept(table), (names.VALID_FROM, "==", time)],
            )  # fmt: skip
            return newest(rows.to_arrow(), [names.OBJECT_ID], hidden)
        cells = row["source_cells" if table == names.SOURCE else "forced_cells"]
        if not cells:
            return dataset.schema.empty_table()
        where = [names.kept(table), ("visit", "==", row["visit"]), ("detector", "==", row["detector"])]
        if not any(self._restored(dataset, row[each]) for each in ("time_first", "time_last")):
            where.append((hidden, ">", 0))
        first, last = row["time_first"] - values.TICK_DAYS, row["time_last"] + values.TICK_DAYS
        return dataset.read(cells=cells, start=first, end=last, where=where).to_arrow()

    @staticmethod
    def _restored(dataset: Dataset, mjd_tai: float) -> bool:
        """Whether the slice of a time was brought back from a file: its rows are no longer in the batches of their
        detector-visits."""
        length = values.days(dataset.window, "window") * dataset.windows_per_slice
        found = dataset.batch(restored_batch(int((mjd_tai - 40_587) // length)))
        return found is not None and found.rows_retired < found.rows
