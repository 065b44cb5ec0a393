"""Copy an archive to another, on any engine."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from chronotile.archive import Archive, open  # noqa: A004
from chronotile.errors import InvalidInputError
from chronotile.reports import Damage, Tile

__all__ = ["CopyProgress", "CopyReport", "DatasetCopyReport", "TileDifference", "copy"]


@dataclass(frozen=True)
class CopyProgress:
    """Progress of a copy."""

    dataset: str
    """The dataset being copied."""
    verifying: bool
    """Whether tiles are being verified rather than copied."""
    pass_number: int
    """The pass, from 1; 0 while verifying."""
    tiles_done: int
    """Tiles compared in this pass or verification."""
    tiles_total: int
    """Tiles of the source at the start."""
    bytes: int
    """Bytes of this dataset's chunks copied or verified so far."""


@dataclass(frozen=True)
class TileDifference:
    """A tile that differs between the archives."""

    tile: Tile
    """The tile."""
    missing: int
    """Chunks of finished batches that the target lacks."""
    superfluous: int
    """Chunks that only the target has."""
    differing: int
    """Chunks with other rows, another head or a damaged body on the target."""
    chunks: tuple[str, ...]
    """The first few of those chunks, 32 hexadecimal digits each."""


@dataclass(frozen=True)
class DatasetCopyReport:
    """Report of copying or comparing one dataset."""

    dataset: str
    """The dataset."""
    verify_only: bool
    """Whether the dataset was only compared, not copied."""
    passes: int
    """Passes over the tiles of the dataset."""
    caught_up: bool
    """Whether the last pass found nothing new. If False, the source is still being written: run the copy again."""
    batches: int
    """Finished batches on the target now."""
    batches_copied: int
    """Batches finished on the target by this run, replaced ones included."""
    batches_removed: int
    """Batches removed on the target because they were removed on the source."""
    batches_left: int
    """Batches finished on the source that the target lacks or holds with other content."""
    batches_foreign: int
    """Batches of the target that are unknown to the source."""
    batches_unfinished: tuple[str, ...]
    """Keys (or ids) of batches that are being written, replaced or removed on the source."""
    chunks_copied: int
    """Chunks copied."""
    rows_copied: int
    """Rows in them."""
    bytes_copied: int
    """Bytes of them."""
    chunks_removed: int
    """Chunks removed on the target because the source no longer has them."""
    slices_dropped: int
    """Slices dropped on the target because they were retired on the source."""
    tiles_verified: int
    """Tiles compared at the end."""
    chunks_verified: int
    """Chunks of the target read and compared at the end."""
    rows_verified: int
    """Rows in them."""
    bytes_verified: int
    """Bytes of them."""
    tiles_moved: int
    """Tiles that kept changing on the source during the comparison; a later run compares them."""
    tiles_differing: int
    """Tiles that differ."""
    differences: tuple[TileDifference, ...]
    """The first of them, by slice and tile."""
    damage: tuple[Damage, ...]
    """Damaged chunks of the source, which were copied as they are."""

    @property
    def ok(self) -> bool:
        """Whether the target equals the source, without damage. Batches finished on the source during the run count as
        missing after a comparison, but not after a copy.
        """
        same_batches = not self.verify_only or not (self.batches_left or self.batches_foreign)
        return not self.tiles_differing and not self.damage and same_batches


@dataclass(frozen=True)
class CopyReport:
    """Report of a copy or a comparison."""

    datasets: tuple[DatasetCopyReport, ...]
    """Each dataset, by name."""

    @property
    def ok(self) -> bool:
        """Whether all datasets are the same in both archives."""
        return all(dataset.ok for dataset in self.datasets)


def copy(
    source: str | os.PathLike[str] | Archive,
    target: str | os.PathLike[str] | Archive,
    datasets: str | Iterable[str] | None = None,
    *,
    verify_only: bool = False,
    workers: int = 4,
    passes_max: int = 10,
    progress: Callable[[CopyProgress], object] | None = None,
) -> CopyReport:
    """Copy an archive to another, of the same engine or not, and verify the copy tile by tile.

    A copy may be interrupted at any point and repeated: it continues with what is missing. During a copy, others may
    write to the source and read the target, where a batch counts as finished once it is complete. Nobody else may write
    to the target: a dataset with other batches is rejected.

    Parameters
    ----------
    source, target : str, path or Archive
        The archives, as for :func:`chronotile.open`. A missing target is created.
    datasets : str or iterable of str, optional
        Only these; all by default.
    verify_only : bool
        Compare the archives and change nothing.
    workers : int
        Groups of chunks copied concurrently, 1 to 64; each takes up to about 4 MiB of memory.
    passes_max : int
        Most passes over a source that is still being written, at least 1.
    progress : callable, optional
        Called repeatedly with a :class:`CopyProgress`.

    Raises
    ------
    ArchiveNotFoundError, DatasetNotFoundError
        The source or dataset does not exist; nothing was copied.
    DatasetExistsError
        The target has a dataset of this name with another definition, or one that is not a copy of the source's.
    InvalidInputError
        Both are the same archive (``same-archive``); a chunk is larger than the target takes (``too-large``).
    BusyError
        Another copy into the dataset has begun.

    Examples
    --------
    >>> import chronotile as ct
    >>> with ct.open("memory:") as source, ct.open("memory:") as target:
    ...     ds = source.create("log", schema={"t": "timestamp[us]", "x": "int64"}, cell=ct.single(), time="t", id="x")
    ...     ds = ds.write({"t": [0, 1], "x": [1, 2]}, batch="a")
    ...     ct.copy(source, target).datasets[0].rows_copied
    2
    """
    if not 1 <= workers <= 64:
        raise InvalidInputError(f"workers={workers} is out of range: use 1 to 64", kind="invalid-request")
    if passes_max < 1:
        raise InvalidInputError(f"passes_max={passes_max} is out of range: use at least 1", kind="invalid-request")
    names = [datasets] if isinstance(datasets, str) else None if datasets is None else list(datasets)
    tell = None if progress is None else lambda now: progress(CopyProgress(**now))
    with ExitStack() as opened:
        here = _opened(source, opened, create=False, read_only=True)
        if not verify_only:
            # Check the names before the target is created.
            _check_names(here, names)
        there = _opened(target, opened, create=not verify_only, read_only=verify_only)
        reports = here._native.copy_to(there._native, names, verify_only, workers, passes_max, tell)
    return CopyReport(tuple(_report(report) for report in reports))


def _opened(archive: str | os.PathLike[str] | Archive, opened: ExitStack, *, create: bool, read_only: bool) -> Archive:
    if isinstance(archive, Archive):
        return archive
    return opened.enter_context(open(archive, create=create, read_only=read_only))


def _check_names(archive: Archive, names: builtins.list[str] | None) -> None:
    for name in names or []:
        archive.dataset(name)


def _report(report: dict[str, Any]) -> DatasetCopyReport:
    differences = tuple(
        TileDifference(**{**tile, "tile": Tile(*tile["tile"]), "chunks": tuple(tile["chunks"])})
        for tile in report["differences"]
    )
    damage = tuple(Damage(**{**found, "tile": Tile(*found["tile"])}) for found in report["damage"])
    names = tuple(report["batches_unfinished"])
    return DatasetCopyReport(**{**report, "differences": differences, "damage": damage, "batches_unfinished": names})
