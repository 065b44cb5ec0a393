"""Open archives and the datasets in them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

from chronotile import _native, arguments, cells, inputs, scanning, times
from chronotile.closing import Closing
from chronotile.dataset import Dataset
from chronotile.errors import InvalidInputError
from chronotile.group import Group
from chronotile.urls import has_scheme

__all__ = ["Archive", "open"]

_SLICE_SECONDS = 30 * 86_400


def open(
    url: str | os.PathLike[str],
    *,
    create: bool = True,
    read_only: bool = False,
    timeout_s: int = 60,
    memory_bytes_max: int | None = None,
    superseded_kept_s: float = 600.0,
) -> Archive:
    """Open the archive at `url`.

    Parameters
    ----------
    url : str or path
        ``sqlite:PATH`` for a file; a plain path means the same. ``cassandra://HOST1,HOST2/KEYSPACE?NAME=VALUE`` for a
        keyspace of a Cassandra or Scylla cluster; the guide to clusters lists the URL parameters. ``memory:`` for an
        in-memory archive, which is lost when the object is closed.
    create : bool
        Create the archive if it does not exist. Its folder must exist.
    read_only : bool
        Reject every write; the archive must exist.
    timeout_s : int
        Seconds to wait for other writers before :class:`BusyError`, 0 to 86,400. For a cluster, set the timeout in the
        URL.
    memory_bytes_max : int, optional
        Memory for all reads of this archive together: chunks, rows in transit, and one entry per id if `latest`, or a
        read of a dataset with merge "latest", has to compare ids. A read that needs more raises
        :class:`InvalidInputError` of kind ``too-large``, or :class:`BusyError` while other reads hold it. Default: half
        of the memory that the process may use.
    superseded_kept_s : float
        Seconds for which this process keeps rows of batches that it replaces or removes, for reads that began earlier.
        A read that takes no longer sees each batch whole. With 0, the space of these rows is freed at once.

    Raises
    ------
    ArchiveNotFoundError
        The archive does not exist and `create` is False; or its folder is missing.
    NotAnArchiveError
        The file or keyspace is not an archive, or was written by a later release. It was not changed.
    UnavailableError, AccessDeniedError
        No node of the cluster answers; or the cluster rejects the login.
    InvalidInputError
        The URL names an unknown engine.

    Examples
    --------
    >>> import chronotile as ct
    >>> with ct.open("memory:") as archive:
    ...     archive.datasets()
    []
    """
    text = os.fspath(url)
    if not has_scheme(text):
        if not text:
            raise InvalidInputError("the URL is empty: give a path, or sqlite:PATH", kind="invalid-url")
        text = f"sqlite:{text}"
    if memory_bytes_max is not None and (not isinstance(memory_bytes_max, int) or memory_bytes_max < 1):
        raise InvalidInputError(f"invalid memory_bytes_max {memory_bytes_max!r}: give bytes", kind="invalid-setting")
    return Archive(_native.Archive.open(text, create, read_only, timeout_s, memory_bytes_max, superseded_kept_s), text)


class Archive(Closing):
    """Datasets under one URL. Returned by :func:`open`; a context manager. Thread-safe; many processes may open the
    same archive at once. An open archive does not survive a fork: start processes with the ``spawn`` or ``forkserver``
    method, and open it in each.
    """

    def __init__(self, native: _native.Archive, url: str) -> None:
        self._native = native
        self._url = url

    def __repr__(self) -> str:
        return f"<Archive {self._url}{' (closed)' if self._native.closed else ''}>"

    @property
    def url(self) -> str:
        """The URL that the archive was opened with."""
        return self._url

    @property
    def engine(self) -> str:
        """Name of the engine."""
        return self._native.engine

    @property
    def closed(self) -> bool:
        """Whether the archive is closed."""
        return self._native.closed

    def close(self) -> None:
        """Close the archive. Its datasets raise errors from now on; results that are being read can be read to the end.
        Closing twice has no effect.
        """
        self._native.close()

    def create(
        self,
        name: str,
        *,
        schema: Any,
        cell: cells.CellRule,
        time: str | times.TimeAxis,
        window: str | timedelta = "30d",
        id: str | Iterable[str] = (),
        merge: str = "append",
        version: str | None = None,
        retention: str | timedelta | None = None,
        slice: int | str | timedelta | None = None,
        layout: str = "chunks",
        partition_cells: int = 1,
        text: str | Iterable[str] = (),
        moves: Any = 0.0,
        time_format: str | None = None,
        time_scale: str = "utc",
        group: str | None = None,
        slices_of: str | None = None,
        exist_ok: bool = False,
    ) -> Dataset:
        """Create a dataset. The definition is fixed at creation, except for retention, `moves` and added columns.

        Parameters
        ----------
        name : str
            1 to 48 of ``a-z 0-9 _``, beginning with a letter.
        schema : schema, table or dict
            A `pyarrow.Schema`, anything with ``__arrow_c_schema__``, a table or DataFrame to take the columns from, or
            a dict of type names: ``{"candid": "int64", "jd": "float64", "filter": "utf8"}``.
        cell : cell rule
            :func:`chronotile.sky`, :func:`chronotile.key`, :func:`chronotile.id bucket`, :func:`chronotile.hash` or
            :func:`chronotile.single`.
        time : str or TimeAxis
            The time column. A timestamp or date column by name; a float64 column as ``ct.mjd("name", scale="tai")`` or
            ``ct.jd("name")``, or by name alone if it is called ``jd`` or ``mjd``, or with `time_format`.
        window : str or timedelta
            Length of a window: records of one cell in one window are stored together. Choose about the period of a
            typical read, or somewhat less: ``"30d"``, ``"1d"``, ``"1h"``.
        id : str or iterable of str
            Columns that identify a record. Without them, each row of each batch is a record of its own.
        merge : {"append", "latest"}
            ``append``: records never change, one row per id. ``latest``: the newest version per id.
        version : str, optional
            With ``latest``, the column that orders versions; by default the time of writing.
        retention : str or timedelta, optional
            Age past which :meth:`Dataset.retire` drops slices: ``"365d"``.
        slice : int, str or timedelta, optional
            Windows in a slice, or its length: what :meth:`Dataset.retire` drops at once. By default as many as fit in
            30 days, at least one.
        layout : {"chunks", "rows"}
            Storage layout. ``chunks``: compact, fast blocks of encoded columns, which only this library reads.
            ``rows``, on a cluster only: one CQL row per record with columns of native types, for cqlsh, Spark and other
            tools; several times larger and slower. Reads return the same rows.
        partition_cells : int
            On a cluster, number of consecutive cells that share a partition of a slice, 1 to 256. Reads of several
            neighbouring cells then touch fewer partitions. 4, 16 or 64 join the pixels of one coarser pixel. Keep
            partitions below about 10 MiB. Always 1 with `layout` ``rows``; ignored by other engines.
        text : str or iterable of str
            Text columns (utf8) with filters, for lines and messages: reads with ``contains``, ``prefix``, ``matches``,
            ``==`` or ``in`` on these columns skip chunks that cannot contain the text. A filter takes about a twentieth
            of its chunk and is stored only where it pays. Filters never change a result.
        moves : float, str or astropy Quantity, optional
            With ``latest`` and sky pixels, largest distance between two versions of a record: degrees, or text such as
            ``"5arcsec"``, up to 10 degrees. Reads of a region also search this far around it, so that a record which
            crossed a pixel border is returned in its newest version only. By default records do not move.
        time_format, time_scale : str
            For a `time` given by name: "timestamp", "mjd" or "jd"; "utc" or "tai".
        group : str, optional
            Name of a group of datasets that are written together, which the dataset joins; see :class:`Group`. The
            first dataset of a name begins the group; it has at most 16.
        slices_of : str, optional
            Name of a dataset of the group whose slices the dataset shares. On a cluster, rows of both are then stored
            in the same partitions, so that writes and :meth:`Group.read` need fewer requests. Both have the same
            `window`, `slice`, `partition_cells` and time scale, and are retired together (:meth:`Group.retire`).
        exist_ok : bool
            Open the dataset if it exists with the same definition.

        Raises
        ------
        InvalidInputError
            The definition is invalid; the message names the part and the column.
        DatasetExistsError
            The name is taken; or, with `exist_ok`, the definition differs.
        """
        columns = inputs.schema(schema)
        types = {column: kind for column, kind, _ in columns.columns()}
        axis = times.resolve_axis(time, time_format, time_scale, types)
        window = times.duration_text(window, "window")
        native = self._native.create(
            arguments.text(name, "name"),
            columns,
            cell=cells.to_json(cell),
            time=(axis.column, axis.format, axis.scale),
            window=window,
            windows_per_slice=_windows_per_slice(slice, window),
            id=arguments.name_list(id, "id"),
            merge=arguments.text(merge, "merge"),
            version=None if version is None else arguments.text(version, "version"),
            retention=None if retention is None else times.duration_text(retention, "retention"),
            layout=arguments.text(layout, "layout"),
            partition_cells=arguments.integer(partition_cells, "partition_cells"),
            text=arguments.name_list(text, "text"),
            moves_deg=cells.angle_deg(moves, "moves"),
            group=None if group is None else arguments.text(group, "group"),
            slices_of=_slices_of(slices_of, group),
            exist_ok=arguments.flag(exist_ok, "exist_ok"),
        )
        return Dataset(native)

    def dataset(self, name: str) -> Dataset:
        """Open a dataset; ``archive[name]`` is the same.

        Raises
        ------
        DatasetNotFoundError
            No such dataset; the message lists the existing ones.
        """
        return Dataset(self._native.dataset(arguments.text(name, "name")))

    def group(self, name: str) -> Group:
        """Open a group of datasets.

        Raises
        ------
        DatasetNotFoundError
            No such group; the message lists the existing ones.
        """
        return Group(self._native.group(arguments.text(name, "name")), name)

    def groups(self) -> list[str]:
        """Names of all groups, sorted."""
        return self._native.groups()

    def __getitem__(self, name: str) -> Dataset:
        return self.dataset(name)

    def __contains__(self, name: object) -> bool:
        return name in self.datasets()

    def __iter__(self) -> Iterator[str]:
        return iter(self.datasets())

    def __len__(self) -> int:
        return len(self.datasets())

    def drop(self, name: str) -> None:
        """Permanently drop a dataset, or a group with all its datasets, with all rows, batches and indexes. A later
        write through a :class:`Dataset` that is still open raises `DatasetNotFoundError`; on a cluster, writers may
        continue for ten seconds. Creating a dataset of the same name removes their rows first, and therefore waits
        until twelve seconds after the drop. An interrupted drop can be repeated.

        Raises
        ------
        DatasetNotFoundError
            No such dataset or group; the message suggests the nearest name.
        InvalidInputError
            The dataset belongs to a group: drop the group.
        """
        if name in self.groups():
            self._native.drop_group(name)
        else:
            self._native.drop_dataset(name)

    def datasets(self) -> list[str]:
        """Names of all datasets, sorted."""
        return self._native.datasets()


def _slices_of(given: str | None, group: str | None) -> str | None:
    if given is None:
        return None
    if group is None:
        raise InvalidInputError(
            "slices_of names a dataset of the same group: give group too", kind="invalid-definition"
        )
    return arguments.text(given, "slices_of")


def _windows_per_slice(given: int | str | timedelta | None, window: str) -> int:
    window_s = _seconds(window)
    if window_s is None:
        # The archive reports the error in the window.
        return 1
    if given is None:
        return min(max(_SLICE_SECONDS // window_s, 1), 100_000)
    if isinstance(given, int):
        if not 1 <= given <= 100_000:
            raise InvalidInputError(
                f"slice {given} is out of range: use 1 to 100000 windows", kind="invalid-definition"
            )
        return given
    text = times.duration_text(given, "slice")
    slice_s = _seconds(text)
    if slice_s is None or slice_s % window_s:
        raise InvalidInputError(
            f"slice {text} is not a multiple of window {window}: give a multiple, or a number of windows",
            kind="invalid-definition",
        )
    return slice_s // window_s


def _seconds(text: str) -> int | None:
    return scanning.length_of_time(text) or None
