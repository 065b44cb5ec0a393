"""Groups: datasets that are written together and read as of one moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from chronotile import _native, arguments, optional, times
from chronotile.dataset import Dataset, Progress, check_batch_name
from chronotile.dataset.consolidation import consolidate_options
from chronotile.dataset.retirement import retire_limit
from chronotile.errors import DatasetNotFoundError, InvalidInputError
from chronotile.hints import name_hint
from chronotile.reports import (
    ConsolidateReport,
    DatasetInfo,
    GroupBatchInfo,
    SliceInfo,
    WriteReport,
    utc_of_us,
)

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Group"]


class Group:
    """Datasets of an archive that share their batches: a batch is complete in all of them or in none. Returned by
    :meth:`Archive.group`; datasets join a group when they are created with ``group=``. Thread-safe.

    Everything that concerns one dataset is done through that dataset, ``group["name"]``: reads, retention, indexes,
    verification. Writing and removing batches concerns all of them. Consolidation and statistics take several datasets
    at once, at a lower cost where datasets share their slices.
    """

    def __init__(self, native: _native.Group, name: str) -> None:
        self._native = native
        self._name = name
        self._datasets = {name: Dataset(dataset) for name, dataset in native.datasets()}

    def __repr__(self) -> str:
        return f"<Group {self._name}: {', '.join(self._datasets)}>"

    @property
    def name(self) -> str:
        """Name of the group."""
        return self._name

    @property
    def datasets(self) -> dict[str, Dataset]:
        """Its datasets by name, in the order in which they joined it."""
        return dict(self._datasets)

    def __getitem__(self, name: str) -> Dataset:
        try:
            return self._datasets[name]
        except KeyError:
            raise DatasetNotFoundError(
                f"no dataset {name!r} in group {self._name}{name_hint(name, self._datasets)}", kind="dataset-not-found"
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self._datasets

    def __iter__(self) -> Iterator[str]:
        return iter(self._datasets)

    def __len__(self) -> int:
        return len(self._datasets)

    def write(
        self, data: Mapping[str, Any], batch: str | None = None, *, replace: bool = False
    ) -> dict[str, WriteReport]:
        """Store rows of several datasets as one batch. They are durable when this returns.

        Parameters
        ----------
        data : dict of str to rows
            Rows by dataset, each as for :meth:`Dataset.write`. Datasets that are left out get none.
        batch, replace
            As for :meth:`Dataset.write`. A name stands for one batch in all datasets of the group. Replacing a batch
            also removes its rows from datasets that are left out.

        Returns
        -------
        dict of str to WriteReport
            A report for each dataset in `data`.

        Raises
        ------
        DatasetNotFoundError
            A dataset is not in the group. Nothing was stored.
        InvalidInputError, BatchConflictError, BusyError, OutcomeUnknownError, StorageFullError, ReadOnlyError
            As for :meth:`Dataset.write`.
        """
        arguments.instance(data, Mapping, "data", "a dict of rows by dataset, such as {'sources': table}")
        check_batch_name(batch)
        replace = arguments.flag(replace, "replace")
        rows = [(name, self[name].native_rows(given)) for name, given in data.items()]
        reports = self._native.write(rows, batch, replace)
        return {name: WriteReport(**report) for (name, _), report in zip(rows, reports, strict=True)}

    def read(
        self, requests: Mapping[str, Mapping[str, Any]], *, cells_from: tuple[str, str] | None = None
    ) -> dict[str, pyarrow.Table]:
        """Read several datasets as of one moment: each batch is in all results or in none. Needs pyarrow.

        Parameters
        ----------
        requests : dict of str to dict
            Arguments of :meth:`Dataset.read` by dataset, without `order_by` and `limit`:
            ``{"sources": {"region": region, "start": start}, "objects": {"region": region}}``.
        cells_from : (dataset, column), optional
            Read this dataset first, and the others only in the cells whose numbers are in this column of its rows, of
            type int64. Use it if a dataset stores the cells of rows in other datasets. The other requests then have no
            `region`, `cells` or `keys`.

        Returns
        -------
        dict of str to pyarrow.Table
            The rows by dataset, in memory.

        Raises
        ------
        DatasetNotFoundError, InvalidInputError, DamagedChunkError
            As for :meth:`Dataset.read`.
        """
        expected = "a dict of arguments of read by dataset, such as {'sources': {'region': region}}"
        for given in (requests, *(requests.values() if isinstance(requests, Mapping) else ())):
            arguments.instance(given, Mapping, "requests", expected)
        arrow = optional.module("pyarrow", "Group.read", "arrow")
        first, column = (None, None) if cells_from is None else _index(cells_from, requests)
        # The dataset with the cells is read first; the sort keeps the order of the others.
        order = sorted(requests, key=lambda name: name != first)
        native = [(name, self[name].native_request(**requests[name])) for name in order]
        tables = dict(zip(order, self._native.read(native, column), strict=True))
        return {name: arrow.table(tables[name]) for name in requests}

    def batches(self) -> list[GroupBatchInfo]:
        """All stored batches, finished and unfinished, in the order of writing."""
        return [self._info(info) for info in self._native.batches()]

    def batch(self, key: str) -> GroupBatchInfo | None:
        """The batch of this name, or None; answers "is this visit stored?"."""
        info = self._native.batch(arguments.text(key, "key"))
        return None if info is None else self._info(info)

    def remove_batch(self, key: str) -> int:
        """Remove the rows of a batch from all datasets; return their number, without rows retired earlier. See
        :meth:`Dataset.remove_batch`.

        Raises
        ------
        BatchNotFoundError
            No batch has this name.
        """
        return self._native.remove_batch(arguments.text(key, "key"))

    def info(self, datasets: str | Iterable[str] | None = None) -> dict[str, DatasetInfo]:
        """Statistics of datasets, by default all, as from :meth:`Dataset.info`. Datasets that share their slices are
        looked up together.

        Raises
        ------
        DatasetNotFoundError
            A dataset is not in the group.
        """
        return {name: self[name].statistics_info(info) for name, info in self._native.info(self._named(datasets))}

    def consolidate(
        self,
        datasets: str | Iterable[str] | None = None,
        *,
        before: times.Moment = None,
        chunks_min: int | None = None,
        dry_run: bool = False,
        shard: tuple[int, int] | None = None,
        tiles_per_s: float | None = None,
        progress: Progress | None = None,
    ) -> dict[str, ConsolidateReport]:
        """Merge the small chunks of each tile of several datasets as :meth:`Dataset.consolidate` does; return the
        report of each dataset.

        On a cluster this is cheaper than one dataset after the other where datasets share their slices: a partition is
        read once, and its tiles of all datasets are replaced in one lightweight transaction.

        Parameters
        ----------
        datasets : str or iterable of str, optional
            Names of the datasets; by default all.
        before, chunks_min, dry_run, shard, tiles_per_s, progress
            As for :meth:`Dataset.consolidate`.

        Raises
        ------
        DatasetNotFoundError
            A dataset is not in the group.
        InvalidInputError
            `before` is given for datasets whose time columns differ in type, format or scale; and as for
            :meth:`Dataset.consolidate`.
        """
        wanted = self._named(datasets)
        if not wanted:
            return {}
        if before is not None:
            self._check_axes(wanted, "consolidate")
        options = consolidate_options(self[wanted[0]].time, before, chunks_min, dry_run, shard, tiles_per_s)
        found = self._native.consolidate(wanted, options, progress)
        return {name: ConsolidateReport.of_native(report) for name, report in found}

    def retire(
        self,
        datasets: str | Iterable[str],
        *,
        before: times.Moment = None,
        older_than: str | timedelta | None = None,
        unchanged: Iterable[SliceInfo] | None = None,
        dry_run: bool = False,
    ) -> dict[str, list[SliceInfo]]:
        """Drop whole slices of datasets as :meth:`Dataset.retire` does; return those of each dataset.

        Datasets that share their slices are retired together, so all of them must be named. Without a limit, the
        longest of their retentions applies to all.

        Parameters
        ----------
        datasets : str or iterable of str
            Names of the datasets.
        before, older_than, dry_run
            As for :meth:`Dataset.retire`.
        unchanged : iterable of SliceInfo, optional
            As for :meth:`Dataset.retire`, of one of several datasets that share these slices. The slices are dropped if
            they have not changed since, whichever of the datasets was written to.

        Raises
        ------
        DatasetNotFoundError
            A dataset is not in the group.
        InvalidInputError
            A dataset shares its slices with one that is not named; `before` is given for datasets whose time columns
            differ in type, format or scale; and as for :meth:`Dataset.retire`.
        BusyError
            As for :meth:`Dataset.retire`.
        """
        wanted = arguments.name_list(datasets, "datasets")
        if not wanted:
            raise InvalidInputError("name the datasets to retire", kind="invalid-request")
        if before is not None:
            self._check_axes(wanted, "give older_than, or retire")
        limit = retire_limit(self[wanted[0]].time, before, older_than, unchanged, dry_run)
        if isinstance(limit, list):
            found = self._native.retire_unchanged(wanted, limit)
        else:
            found = self._native.retire(wanted, *limit, dry_run)
        return {name: [self[name].slice_info(part) for part in parts] for name, parts in found}

    def _named(self, datasets: str | Iterable[str] | None) -> list[str]:
        wanted = list(self) if datasets is None else arguments.name_list(datasets, "datasets")
        return [self[name].name for name in wanted]

    def _check_axes(self, names: list[str], advice: str) -> None:
        """Reject datasets whose time columns would store one moment as different values."""
        datasets = [self[name] for name in names]
        axes = {(each.time.format, each.time.scale, each.column_types[each.time.column]) for each in datasets}
        if len(axes) > 1:
            raise InvalidInputError(
                f"the time columns of {', '.join(names)} differ in type, format or scale: {advice} them in several "
                "calls",
                kind="invalid-request",
            )

    def _info(self, info: dict[str, Any]) -> GroupBatchInfo:
        datasets = {name: self[name].batch_info(part) for name, part in info.pop("datasets").items()}
        written = utc_of_us(info.pop("written_us"))
        return GroupBatchInfo(**info, written=written, datasets=datasets)


def _index(cells_from: object, requests: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """Check `cells_from`: the dataset that names the cells of the others, and its column."""
    match cells_from:
        case (str() as dataset, str() as column):
            pass
        case _:
            raise InvalidInputError(
                f"invalid cells_from {cells_from!r}: give the names of a dataset and of its column, as a tuple",
                kind="invalid-request",
            )
    if dataset not in requests:
        raise InvalidInputError(
            f"cells_from names dataset {dataset!r}, which is not read: add its request", kind="invalid-request"
        )
    for name, request in requests.items():
        for place in ("region", "cells", "keys"):
            if name != dataset and request.get(place) is not None:
                raise InvalidInputError(
                    f"{place} of dataset {name!r}: leave it out, since cells_from gives the cells",
                    kind="invalid-request",
                )
    return dataset, column
