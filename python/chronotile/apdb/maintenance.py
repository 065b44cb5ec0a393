"""Maintain a database: daily maintenance, retention, and removal of visits and nights."""

from __future__ import annotations

import functools
import json
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, cast

import pyarrow.compute as pc

from chronotile.apdb import layout as layouts
from chronotile.apdb import names, values
from chronotile.apdb.changes import Change, changing
from chronotile.apdb.cold import ColdStorage, locked, restored_batch
from chronotile.apdb.density import Crowded, crowded
from chronotile.apdb.slice_status import SliceKey, archived_error, check_not_archived_since
from chronotile.apdb.source_counts import SourceCounts
from chronotile.apdb.tables import SurveyTables, detector_visit_key
from chronotile.apdb.updates import Updates, associated, deleted
from chronotile.apdb.values import version_of
from chronotile.dataset.consolidation import consolidate_options
from chronotile.errors import BatchNotFoundError, DamagedError, InvalidInputError
from chronotile.reports import ConsolidateReport, DatasetInfo, GroupBatchInfo, SliceInfo, VerifyReport
from chronotile.terminal import count_text
from chronotile.times import Moment

__all__ = ["MaintenanceReport", "RemovalReport"]

_PART = 5_000
"""Associations per change: small enough that changes of other processes do not wait long."""
_STATISTICS = "apdb:statistics"
_ROWS = {names.SOURCE: "sources", names.FORCED: "forced_sources"}
"""The tables whose slices are written to files, with the column of a detector-visit that counts its rows."""
_ARCHIVED_REMEDY = (
    "pass archived=FOLDER (--archived FOLDER) to remove them there too, else archived=False (--not-archived)"
)

Progress = Callable[[str, int, int], object]
"""Called with (what, parts done, parts in total)."""


@dataclass(frozen=True)
class MaintenanceReport:
    """Report of :meth:`Maintenance.maintain`.

    Attributes
    ----------
    consolidated : dict of str to ConsolidateReport
        Consolidation report of each dataset.
    reassociated, unknown : int
        Sources that were assigned to another solar-system object; and associations whose source is not stored.
    counts_corrected : int
        Objects whose source count was wrong and is corrected; 0 without `counts`.
    statistics : dict of str to DatasetInfo
        Statistics of each dataset, those of the tables first.
    crowded : list of Crowded
        Slices with a partition that exceeds the layout's limit, or will.
    """

    consolidated: dict[str, ConsolidateReport]
    reassociated: int
    unknown: int
    counts_corrected: int
    statistics: dict[str, DatasetInfo]
    crowded: list[Crowded]


@dataclass(frozen=True)
class RemovalReport:
    """Report of a removal.

    Attributes
    ----------
    detector_visits : int
        Detector-visits.
    rows : int
        Rows of all tables, and of files; a row that both the database and a file had counts twice.
    """

    detector_visits: int
    rows: int


class Maintenance:
    """Maintains a database."""

    def __init__(self, tables: SurveyTables, cold: ColdStorage, updates: Updates) -> None:
        self._tables, self._cold, self._updates = tables, cold, updates
        self._counts = SourceCounts(tables)

    def _all(self) -> list[str]:
        """Names of all datasets, those of the tables first."""
        own = [names.VISITS, names.METADATA]
        own += [names.OBJECT_INDEX] if names.OBJECT_INDEX in self._tables.group else []
        own += [names.FEED, layouts.UPDATES] if self._tables.layout.feed else []
        return [*(names.dataset_name(table.name) for table in self._tables.schema.stored_tables), *own]

    def maintain(
        self, *, before: Moment = None, chunks_min: int | None = None, associations: Any = None,
        counts: bool = False, shard: tuple[int, int] | None = None, tiles_per_s: float | None = None,
        progress: Progress | None = None,
    ) -> MaintenanceReport:  # fmt: skip
        """Daily maintenance: assign sources to solar-system objects, merge small chunks, and record statistics.

        Maintenance may be interrupted or killed at any time and started again: finished work stays, and nothing is
        lost. Reads, stores and changes by other processes may run at the same time.

        Parameters
        ----------
        before : time, optional
            Consolidate only windows that end at or before this time, to leave windows that are still being written.
        chunks_min : int, optional
            Skip tiles with fewer chunks; 2 by default.
        associations : table, or dict of source id to object id, optional
            As for :meth:`reassociate`; sources that are not stored are counted and skipped.
        counts : bool
            Whether to count the stored sources of every object and to correct ``nDiaSources`` where it is wrong, by the
            rules of :meth:`reassign`. Scans the objects, and the ids of all sources, in bounded memory. Sources that
            were never stored, such as those before the first imported alert, are not counted.
        shard, tiles_per_s
            As for :meth:`chronotile.Dataset.consolidate`, so that several processes share the merging of chunks. None
            of them records statistics: maintain without `shard` when all have ended. Give `associations` and `counts`
            to one of them.
        progress : callable, optional
            Called with (what, parts done, parts in total): associations, then objects whose sources are counted, then
            tiles, then tables.

        Raises
        ------
        InvalidInputError
            With `counts`: the objects have no column ``nDiaSources``. Nothing was done. Or as for
            :meth:`chronotile.Dataset.consolidate`.
        DamagedError
            The catalog records of a table are damaged; raised after the other tables are done. See :meth:`verify`.
        """
        moment = None if before is None else values.mjd_tai(before, "before")
        notify: Progress = progress or (lambda what, done, total: None)
        # Only check the arguments, so that an invalid one is refused before anything is changed.
        consolidate_options(self._tables.visits.time, None, chunks_min, False, shard, tiles_per_s)
        if counts and not self._counts.kept:
            raise InvalidInputError(
                f"table {names.OBJECT} has no column {names.SOURCE_COUNT}: leave out counts (--counts), or migrate the "
                "schema first",
                kind="invalid-request",
            )
        changed, unknown = (0, 0) if associations is None else self._associate(associations, notify)
        corrected, damage = self._correct_counts(notify) if counts else (0, None)
        consolidated, more_damage = self._consolidate(moment, chunks_min, (shard, tiles_per_s), notify)
        damage = damage or more_damage
        # Raise damage only now, so that one damaged table does not stop the maintenance of the others.
        if damage is not None:
            raise damage
        if shard is not None:
            return MaintenanceReport(consolidated, changed, unknown, corrected, {}, [])
        notify("statistics", 0, len(self._all()))
        statistics = self.info()
        self._note(statistics)
        return MaintenanceReport(consolidated, changed, unknown, corrected, statistics, self._crowded(statistics))

    def _consolidate(
        self, moment: float | None, chunks_min: int | None, sharing: tuple[tuple[int, int] | None, float | None],
        notify: Progress,
    ) -> tuple[dict[str, ConsolidateReport], DamagedError | None]:  # fmt: skip
        """Consolidate all datasets; return the reports, and the error of the first dataset that is damaged."""
        # `before` is an MJD, which datasets with timestamps, such as the metadata, do not understand.
        of_mjd = [name for name in self._all() if self._tables.archive[name].time.format == "mjd"]
        wanted = self._all() if moment is None else of_mjd
        grouped, alone = self._by_group(wanted)
        shard, tiles_per_s = sharing
        how: dict[str, Any] = {
            "before": moment, "chunks_min": chunks_min, "shard": shard, "tiles_per_s": tiles_per_s,
        }  # fmt: skip
        consolidated: dict[str, ConsolidateReport] = {}
        try:
            consolidated = self._tables.group.consolidate(grouped, **how, progress=functools.partial(notify, "tiles"))
        except DamagedError:
            # Consolidate the datasets separately, so that only the damaged ones are left out.
            alone = wanted
        damage = None
        for name in alone:
            report = functools.partial(notify, name)
            try:
                consolidated[name] = self._tables.archive[name].consolidate(**how, progress=report)
            except DamagedError as error:
                damage = damage or error
        return {name: consolidated[name] for name in wanted if name in consolidated}, damage

    def _by_group(self, wanted: Iterable[str]) -> tuple[list[str], list[str]]:
        """Split datasets into those in the group of the main tables, and the others."""
        group = self._tables.group
        return [name for name in wanted if name in group], [name for name in wanted if name not in group]

    def _associate(self, associations: Any, notify: Progress) -> tuple[int, int]:
        """Assign sources to objects, one change per part; return how many changed and how many are not stored."""
        given = associated(associations)
        order = [(name, "ascending") for name in (names.TIME, names.DEC, names.SOURCE_ID) if name in given.schema.names]
        given, changed, found = given.sort_by(order), 0, 0
        for start in range(0, given.num_rows, _PART):
            notify("reassociation", start, given.num_rows)
            done, stored = self._updates.give(given.slice(start, _PART), missing="ignore")
            changed, found = changed + done, found + stored
        return changed, given.num_rows - found

    def _correct_counts(self, notify: Progress) -> tuple[int, DamagedError | None]:
        """Correct the source counts of all objects, one change per part; return how many were wrong, and the error that
        ended the work if tables are damaged.
        """
        corrected, done = 0, 0
        try:
            total = self._counts.number()
            for part in self._counts.parts():
                notify("source counts", done, total)
                wrong = self._counts.wrong(part)
                if wrong.num_rows:
                    # `wrong` only finds candidates: the change reads and counts them again, as of one moment.
                    corrected += self._updates.correct_counts(wrong)
                done += part.num_rows
        except DamagedError as error:
            return corrected, error
        return corrected, None

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
        """Statistics recorded by the last :meth:`maintain`, without scanning the tables: ``noted``, its time (UTC), and
        ``tables`` with rows, chunks, bytes and the largest partition's bytes by dataset. Empty before the first run.
        """
        return dict(json.loads(self._tables.metadata.get(_STATISTICS) or "{}"))

    def crowded(self) -> list[Crowded]:
        """Slices with a partition that exceeds the layout's limit, or will when the slice is full."""
        return self._crowded(self.info())

    def _crowded(self, statistics: Mapping[str, DatasetInfo]) -> list[Crowded]:
        main = {name: statistics[names.dataset_name(name)] for name in names.MAIN_TABLES}
        if names.OBJECT_INDEX in statistics:
            main[names.OBJECT_INDEX] = statistics[names.OBJECT_INDEX]
        visits = self._tables.visits
        last = visits.info().slices
        # Take the latest visit as the present, because simulated and old surveys have times of their own.
        latest = visits.read(start=cast(float, last[-1].start), columns=["visit_mjd_tai"]) if last else None
        times = [] if latest is None else latest.to_arrow()["visit_mjd_tai"].to_pylist()
        return crowded(main, self._tables.layout, max(times, default=0.0))

    def prepare(self, start: Moment, end: Moment) -> None:
        """Create the slices of a half-open period in advance, which saves writers on a cluster some seconds."""
        first, last = values.mjd_tai(start, "start"), values.mjd_tai(end, "end")
        for name in self._all():
            if self._tables.archive[name].time.format == "mjd":
                self._tables.archive[name].prepare(first, last)

    def info(self) -> dict[str, DatasetInfo]:
        """Statistics of every dataset, by name."""
        grouped, alone = self._by_group(self._all())
        found = self._tables.group.info(grouped) | {name: self._tables.archive[name].info() for name in alone}
        return {name: found[name] for name in self._all()}

    def verify(self) -> dict[str, VerifyReport]:
        """Read and check every chunk of every dataset. Damage is reported, not raised."""
        return {name: self._tables.archive[name].verify() for name in self._all()}

    def retire(self, before: Moment, *, objects: bool = False, dry_run: bool = False) -> dict[str, list[SliceInfo]]:
        """Permanently drop the slices of sources, forced sources and detector-visits that end at or before a time.

        Object versions are kept unless `objects` is given, because an object that was not observed for long has no
        newer version. :meth:`contains` is False for the detector-visits that lose rows.

        Returns
        -------
        dict of str to list of SliceInfo
            Dropped slices by dataset; with `dry_run`, those that would be dropped.
        """
        limit = values.mjd_tai(before, "before")
        tables = [names.SOURCE, names.FORCED] + ([names.OBJECT] if objects else [])
        chosen = [names.dataset_name(table) for table in tables] + [names.VISITS]
        dropped = self._tables.group.retire(chosen, before=limit, dry_run=True)
        if not dry_run:
            # Record first: an interrupted call must not leave detector-visits that seem stored but have lost rows.
            noted = self._note_retired(dropped, set())
            dropped = self._tables.group.retire(chosen, before=limit)
            # Rows that were stored late may have created an old slice after the dry run: note that slice too.
            self._note_retired(dropped, noted)
        if objects and names.OBJECT_INDEX in self._tables.group:
            index = self._tables.object_index.retire(self._tables.datasets, limit, dry_run=dry_run)
            dropped[names.OBJECT_INDEX] = index
        return dropped

    def _note_retired(self, slices: Mapping[str, Iterable[SliceInfo]], noted: set[SliceKey]) -> set[SliceKey]:
        """Record which slices of the main tables are retired, except those `noted` before; return them."""
        by_table = {table: slices.get(names.dataset_name(table), ()) for table in names.MAIN_TABLES}
        found = {SliceKey(table, part.slice) for table, parts in by_table.items() for part in parts}
        self._tables.slice_status.add_retired(found - noted)
        return found

    # ------------------------------------------------------------------ removal

    def remove_visit(
        self, visit: int, detector: int | None = None, *, changed: bool = False,
        archived: str | os.PathLike[str] | Literal[False] | None = None, dry_run: bool = False,
    ) -> RemovalReport:  # fmt: skip
        """Remove a visit, of one detector or of all. It can be stored again.

        Parameters
        ----------
        visit, detector : int
            The visit, and the detector; all detectors by default.
        changed : bool
            Whether to also remove records that changed since they were stored (reassigned, withdrawn, closed, restored
            from a file). These are deleted: the same ids cannot be stored again.
        archived : path or False, optional
            The folder of :meth:`archive_before`, from whose files the rows are removed too, also those of a visit that
            only files have. False if the rows are in no file.
        dry_run : bool
            Whether to only count what is stored of the visit.

        Raises
        ------
        InvalidInputError
            Kind ``changed-records``: some records were changed, and `changed` is not given. Kind ``archived-records``:
            rows left the database, or slices of the visit were written to files, from which they could be restored, and
            `archived` is not given. Nothing was removed.
        OutcomeUnknownError
            Another process wrote slices of the visit to files meanwhile. It is removed from the database; repeat with
            `archived`.
        BusyError
            Kind ``folder-in-use``: another process is replacing files of the folder. Nothing was removed.
        """
        where = [("visit", "==", int(visit))]
        if detector is not None:
            where.append(("detector", "==", int(detector)))
        rows = self._tables.visits.read(keys=[int(visit)], where=where).to_arrow()
        # An interrupted store has no row in the table of detector-visits yet: find it by its batch name.
        unfinished = [] if rows.num_rows or detector is None else [detector_visit_key(visit, detector)]
        if dry_run:
            return self._stored(rows, unfinished)
        condition = [pc.field(name) == value for name, _, value in where]
        return self._remove(rows, unfinished, changed, archived, functools.reduce(operator.and_, condition))

    def remove_night(
        self, night: Moment, *, changed: bool = False,
        archived: str | os.PathLike[str] | Literal[False] | None = None, dry_run: bool = False,
    ) -> RemovalReport:  # fmt: skip
        """Remove a night: from noon (UTC) of the given day to the next noon. Arguments as for :meth:`remove_visit`."""
        start = values.night_start(night)
        rows = self._tables.visits.read(start=start, end=start + 1).to_arrow()
        if dry_run:
            return self._stored(rows, [])
        condition = (pc.field(names.TIME) >= start) & (pc.field(names.TIME) < start + 1)
        return self._remove(rows, [], changed, archived, condition)

    def _stored(self, rows: Any, unfinished: list[str]) -> RemovalReport:
        """Count detector-visits and the rows that were stored with them."""
        counts = [pc.sum(rows[name]).as_py() or 0 for name in ("objects", "sources", "forced_sources")]
        begun = [key for key in unfinished if self._tables.group.batch(key) is not None]
        return RemovalReport(rows.num_rows + len(begun), sum(counts))

    def _remove(
        self, rows: Any, unfinished: list[str], changed: bool,
        archived: str | os.PathLike[str] | Literal[False] | None, in_files: Any,
    ) -> RemovalReport:  # fmt: skip
        """Remove detector-visits. With a folder, also remove from its files the detector-visits that match `in_files`
        and have no record in the database.
        """
        visits, notes = rows.to_pylist(), self._tables.slice_status
        folder = None if archived is False else archived
        with nullcontext() if folder is None else locked(folder):
            before = notes.archived(self._slices_of(visits))
            self._check_removable(visits, changed, archived, before)
            # Delete changed records before the batches: these contain the rows of `visits`, by which a repeated call
            # finds changed records.
            self._delete_changed(rows)
            unknown = [] if folder is None else self._only_in_files(folder, in_files)
            removed = {detector_visit_key(row["visit"], row["detector"]) for row in unknown}
            total = 0
            if folder is not None:
                # Files first: if the call is interrupted, the database still has the records of the rows to remove.
                total = sum(self._remove_from_files(row, folder) for row in [*visits, *unknown])
            for key in [*rows["key"].to_pylist(), *removed.union(unfinished)]:
                batch = self._tables.group.batch(key)
                if batch is not None and self._drop(key):
                    removed.add(key)
                    total += _rows_of(batch)
            # Also delete records that other processes changed meanwhile.
            self._delete_changed(rows)
        # Look for notes again: another process notes a slice before it reads the slice's rows for a file.
        if archived is not False:
            check_not_archived_since(before, notes.archived(self._slices_of(visits)), f"repeat, and {_ARCHIVED_REMEDY}")
        return RemovalReport(len(removed), total)

    def _check_removable(
        self, visits: list[dict[str, Any]], changed: bool,
        archived: str | os.PathLike[str] | Literal[False] | None, in_files: Mapping[SliceKey, list[str]],
    ) -> None:  # fmt: skip
        """Raise an error if some records of detector-visits would survive the removal, or could return from files."""
        keys = {row["key"] for row in visits}
        count = sum(self._changed(name, row, keys).num_rows for row in visits for name in names.MAIN_TABLES)
        if count and not changed:
            raise InvalidInputError(
                f"{count_text(count, 'record')} changed since the store (reassigned, withdrawn, closed or "
                "restored); deleting them would prevent storing the same ids again: pass changed=True (--changed) to "
                "delete them too",
                kind="changed-records",
            )
        if archived is not None:
            return
        missing = sum(self._rows_not_restored(row) for row in visits)
        if missing:
            raise InvalidInputError(
                f"{count_text(missing, 'record')} left the database: if archive_before moved them to files, "
                f"{_ARCHIVED_REMEDY}",
                kind="archived-records",
            )
        held = sum(
            row[_ROWS[table]]
            for row in visits
            for table in _ROWS
            if not in_files.keys().isdisjoint(self._tables.slices_between(table, row["time_first"], row["time_last"]))
        )
        if held:
            raise archived_error(in_files, held, _ARCHIVED_REMEDY)

    @changing
    def _delete_changed(self, change: Change, rows: Any) -> None:
        """Delete the records of detector-visits that were changed after they were stored."""
        keys = set(rows["key"].to_pylist())
        for name in names.MAIN_TABLES:
            for row in rows.to_pylist():
                change.add(names.dataset_name(name), deleted(name, self._changed(name, row, keys)))

    def _slices_of(self, visits: Iterable[dict[str, Any]]) -> set[SliceKey]:
        """Slices of the sources and forced sources of detector-visits."""
        between = self._tables.slices_between
        return {
            part for row in visits for table in _ROWS for part in between(table, row["time_first"], row["time_last"])
        }

    def _only_in_files(self, folder: str | os.PathLike[str], where: Any) -> list[dict[str, Any]]:
        """Detector-visits that only files have, such as those of retired slices."""
        found, key = self._cold.detector_visits(folder, where), ["visit", "detector"]
        if not found.num_rows:
            return []
        known = self._tables.visits.read(keys=pc.unique(found["visit"]), columns=key).to_arrow()
        return list(found.join(known, key, join_type="left anti").to_pylist())

    def _rows_not_restored(self, row: dict[str, Any]) -> int:
        """Number of sources and forced sources of a detector-visit whose slices were dropped and not restored."""
        rows = 0
        for table in _ROWS:
            stored = self._tables.datasets[table].batch(row["key"])
            if stored is not None and stored.rows_retired:
                times = {row["time_first"], row["time_last"]}
                rows += 0 if all(self._restored(table, time) for time in times) else stored.rows_retired
        return rows

    def _remove_from_files(self, row: dict[str, Any], folder: str | os.PathLike[str]) -> int:
        """Remove a detector-visit from the files of archived slices; return the number of rows."""
        if row["time_first"] is None:
            return 0
        limits = row["time_first"] - values.TICK_DAYS, row["time_last"] + values.TICK_DAYS

        def own(rows: Any) -> Any:
            return pc.and_(pc.equal(rows[names.VISIT], row["visit"]), pc.equal(rows[names.DETECTOR], row["detector"]))

        return sum(self._cold.drop(table, folder, *limits, own) for table in _ROWS)

    def _drop(self, key: str) -> bool:
        """Remove a detector-visit; return whether it was stored."""
        try:
            self._tables.group.remove_batch(key)
        except BatchNotFoundError:
            return False
        return True

    def _changed(self, table: str, row: dict[str, Any], removed: set[str]) -> Any:
        """Records of a detector-visit that were changed after it was stored. `removed` has the keys of all
        detector-visits that are removed together.
        """
        dataset, hidden = self._tables.datasets[table], names.version_column(table)
        if table == names.OBJECT:
            time = row["visit_mjd_tai"]
            rows = dataset.read(
                cells=row["object_cells"], start=time - values.TICK_DAYS, end=time + values.TICK_DAYS,
                # A stored version has exactly the version number of the visit's time; changes have greater ones.
                where=[(hidden, ">", version_of(time)), names.not_deleted(table), (names.VALID_FROM, "==", time)],
            ).to_arrow()  # fmt: skip
            return self._without_others(rows, row, removed) if rows.num_rows else rows
        cells = row["source_cells" if table == names.SOURCE else "forced_cells"]
        if not cells:
            return dataset.schema.empty_table()
        where = [names.not_deleted(table), ("visit", "==", row["visit"]), ("detector", "==", row["detector"])]
        # Stored rows have version 0, changed ones a greater version. Rows of a restored slice belong to the batch of
        # the restore, so the removal of the detector-visit's batch leaves all of them, whatever their version.
        if not any(self._restored(table, row[each]) for each in ("time_first", "time_last")):
            where.append((hidden, ">", 0))
        first, last = row["time_first"] - values.TICK_DAYS, row["time_last"] + values.TICK_DAYS
        return dataset.read(cells=cells, start=first, end=last, where=where).to_arrow()

    def _without_others(self, versions: Any, row: dict[str, Any], removed: set[str]) -> Any:
        """Leave out object versions that another detector of the visit stored, because they are kept. These are
        versions of objects with a source or forced source of that detector, in the same pixels and at the same time.
        """
        stored = self._tables.visits.read(keys=[row["visit"]], where=[("visit", "==", row["visit"])]).to_arrow()
        for other in stored.to_pylist():
            if other["key"] in removed or other["visit_mjd_tai"] != row["visit_mjd_tai"] or other["time_first"] is None:
                continue
            for table, cells in ((names.SOURCE, "source_cells"), (names.FORCED, "forced_cells")):
                # Read older versions too: a source may have been reassigned to another object since.
                own = self._tables.datasets[table].read(
                    cells=other[cells], start=other["time_first"] - values.TICK_DAYS,
                    end=other["time_last"] + values.TICK_DAYS, columns=[names.OBJECT_ID], history=True,
                    where=[("visit", "==", other["visit"]), ("detector", "==", other["detector"])],
                ).to_arrow()  # fmt: skip
                is_other = pc.is_in(versions[names.OBJECT_ID], own[names.OBJECT_ID].combine_chunks())
                versions = versions.filter(pc.invert(is_other))
        return versions

    def _restored(self, table: str, mjd_tai: float) -> bool:
        """Whether the slice at a time was restored from a file: its rows no longer belong to the batches of their
        detector-visits.
        """
        number = int((mjd_tai - values.MJD_OF_UNIX_EPOCH) // self._tables.slice_days(table))
        found = self._tables.datasets[table].batch(restored_batch(table, number))
        # The slice may have been retired or archived again: its batch then has no rows left.
        return found is not None and found.rows_retired < found.rows


def _rows_of(batch: GroupBatchInfo) -> int:
    """Rows of a detector-visit in the main tables that were not retired."""
    parts = [batch.datasets.get(names.dataset_name(table)) for table in names.MAIN_TABLES]
    return sum(part.rows - part.rows_retired for part in parts if part is not None)
