"""Ingest files and pipes in batches of whole lines, each stored once."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import select
import time
import uuid
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

from chronotile import loading
from chronotile.errors import DataFileError
from chronotile.events.events import Events, IngestReport
from chronotile.events.guessing import Guess, guess
from chronotile.events.parsing import ReadOptions
from chronotile.reports import BatchInfo

__all__ = ["LoadProgress", "LoadReport", "feed", "load"]

BATCH_BYTES = 16 << 20
"""Target size of a file's batch. Batches of growing files may have any size."""

_READ_BYTES = 1 << 20
_KEY = "events"


@dataclass
class LoadReport(loading.Report):
    """Report of an ingest. Rejected lines are stored as dead letters."""

    documents: int = 0
    """Documents stored now."""
    documents_before: int = 0
    """Documents that were already stored."""
    bytes: int = 0
    """Bytes of the documents stored now."""
    expired: int = 0
    """Documents stored now that were already older than their TTL: searches do not return them."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Rejected lines by reason."""
    guess: Guess | None = None
    """Likely format of the rejected lines, if it differs from the one used."""
    batches: int = 0
    """Batches stored now."""

    @property
    def records(self) -> int:
        """Documents stored, now or earlier."""
        return self.documents + self.documents_before

    def add(self, report: IngestReport, source: str, read_options: ReadOptions) -> None:
        """Count one batch of lines of a source."""
        if report.rejects and (report.stored or not report.documents) and self.first_reject is None:
            self.first_reject = (source, report.rejects[0].line, report.rejects[0].reason)
            self.guess = guess(report.rejects, read_options)
        if not report.stored and report.documents:
            self.documents_before += report.documents
            return
        self.documents += report.documents
        self.bytes += report.bytes
        self.expired += report.expired
        self.rejected += report.rejected
        self.batches += 1
        for reason, count in report.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count


LoadProgress = loading.Progress[LoadReport]


@dataclass(frozen=True)
class _Block:
    """Whole lines of a file."""

    key: str
    text: bytes
    first_line: int
    bytes_done: int
    """Bytes of the file on disk, up to the end of this block."""


def load(
    events: Events,
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    read_options: ReadOptions | None = None,
    *,
    ttl: str | timedelta | None = None,
    workers: int | None = None,
    limited: bool = False,
    progress: Callable[[LoadProgress], object] | None = None,
) -> LoadReport:
    """Ingest files of events, gzipped or not. Running it again changes nothing, and an interrupted ingest continues
    where it stopped. If a file has grown, only its new lines are stored, even after a rename. The name of a batch has
    its position in the file and a hash of the file up to the end of the batch.

    Parameters
    ----------
    events : Events
        The archive of events.
    paths : path or iterable of paths
        Files, or folders of files.
    read_options : ReadOptions, optional
        From :meth:`Events.read_options`. Without a stream, documents that name none get the file name up to its first
        dot: ``web.log`` and ``web.log.1.gz`` both belong to ``web``.
    ttl
        TTL of the documents; see :meth:`Events.ingest_lines`.
    workers : int, optional
        Threads that parse and store; by default one per core, at most 8.
    limited : bool
        Whether to enforce the limits of streams, which are meant for live data.
    progress : callable, optional
        Called repeatedly.

    Raises
    ------
    DataFileError
        A file does not exist, or cannot be read or decompressed.
    BusyError
        A stream exceeds its limit; earlier batches are stored, and the next run continues after them.
    """
    began = time.monotonic()
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files = list(loading.listed(map(Path, given), lambda _: True, "file"))
    report = LoadReport(files=len(files))
    state = LoadProgress(sum(path.stat().st_size for path in files), report)
    done_before = 0
    for path in files:
        state.file = str(path)
        own = read_options or events.read_options()
        if own.stream is None:
            # Identify files by content, not name: log rotation renames files.
            own = replace(own, stream=path.name.lstrip(".").partition(".")[0] or path.name)
        seed = "" if read_options is None or read_options.stream is None else read_options.stream
        for block, outcome in _stored(events, path, seed, own, ttl, workers, limited, report):
            report.add(outcome, str(path), own)
            state.bytes_done = done_before + block.bytes_done
            report.seconds = time.monotonic() - began
            if progress is not None:
                progress(state)
        done_before += path.stat().st_size
    report.seconds = time.monotonic() - began
    return report


def _stored(
    events: Events, path: Path, seed: str, read_options: ReadOptions, ttl: Any, workers: int | None, limited: bool,
    report: LoadReport,
) -> Iterator[tuple[_Block, IngestReport]]:  # fmt: skip
    """Store the part of a file that is not stored yet, several blocks at a time."""
    count = min(os.cpu_count() or 1, 8) if workers is None else max(workers, 1)

    def store(block: _Block) -> IngestReport:
        known = events.dataset.batch(block.key)
        if known is not None and known.finished and known.rows:
            return IngestReport(block.key, False, known.rows, 0, 0, ())
        return events.ingest_lines(
            block.text, read_options, batch=block.key, source=str(path), first_line=block.first_line, ttl=ttl,
            limited=limited,
        )  # fmt: skip

    with ThreadPoolExecutor(count) as pool:
        yield from loading.in_order(pool, store, _blocks(events, path, seed, report), count)


# ---------------------------------------------------------------- files in blocks


class _Source:
    """Text of a file from its start, with a digest of everything consumed."""

    def __init__(self, path: Path, raw: BinaryIO, seed: str) -> None:
        self.path, self._raw = path, raw
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        # Detect compression by content, whatever the file name.
        self._text: Any = io.BufferedReader(gzip.GzipFile(fileobj=raw)) if packed else raw
        self.digest = hashlib.blake2b(seed.encode(), digest_size=16)
        self.position = 0
        self.lines = 0
        self._buffer = b""

    def peek(self, size: int) -> bytes:
        """The next `size` bytes, or fewer at the end of the file, without consuming them."""
        while len(self._buffer) < size:
            try:
                more = self._text.read(size - len(self._buffer))
            except (EOFError, OSError, zlib.error) as error:
                raise DataFileError(f"cannot decompress {self.path}: {error}", kind="file-damaged") from error
            if not more:
                break
            self._buffer += more
        return self._buffer[:size]

    def take(self, size: int) -> bytes:
        """Consume the next bytes."""
        found = self.peek(size)
        self._buffer = self._buffer[size:]
        self.digest.update(found)
        self.position += len(found)
        self.lines += found.count(b"\n")
        return found

    @property
    def raw_bytes(self) -> int:
        """Bytes of the file on disk that were read."""
        return self._raw.tell()


def _blocks(events: Events, path: Path, seed: str, report: LoadReport) -> Iterator[_Block]:
    """Parts of a file that no finished batch covers, in order."""
    stored = _by_position(events.dataset.batches())
    rejected = _by_position(events.rejected_batches())
    with path.open("rb") as raw:
        source = _Source(path, raw, seed)
        while True:
            _skip_stored(events, source, stored, report)
            _forget_rejected(events, source, rejected)
            text = source.peek(BATCH_BYTES)
            if not text:
                return
            cut = text.rfind(b"\n") + 1
            # A line may be longer than a batch: double the text until the line ends.
            while cut == 0 and len(longer := source.peek(2 * len(text))) > len(text):
                text, cut = longer, longer.rfind(b"\n") + 1
            # A last line without a newline is a batch of its own, because it may still grow.
            start, line = source.position, source.lines + 1
            whole = source.take(cut or len(text))
            key = f"{_KEY}:{start}-{source.position}:{source.digest.hexdigest()}"
            yield _Block(key, whole, line, source.raw_bytes)


_Stored = dict[int, dict[int, list[BatchInfo]]]
"""Finished batches of a file, by the positions of their first byte and their end."""


def _by_position(batches: Iterable[BatchInfo]) -> _Stored:
    found: _Stored = defaultdict(lambda: defaultdict(list))
    for batch in batches:
        place = _position_of(batch.key) if batch.finished and batch.rows else None
        if place is not None:
            found[place[0]][place[1]].append(batch)
    return found


def _forget_rejected(events: Events, source: _Source, rejected: _Stored) -> None:
    """Remove the dead letters of a batch that starts here if all its lines were rejected: they are read again."""
    for end, batches in rejected.get(source.position, {}).items():
        text = source.peek(end - source.position)
        digest = source.digest.copy()
        digest.update(text)
        for batch in batches:
            if str(batch.key).endswith(digest.hexdigest()):
                events.forget_rejects(str(batch.key))


def _skip_stored(events: Events, source: _Source, stored: _Stored, report: LoadReport) -> None:
    """Skip the contiguous stored part of a file that starts here."""
    while (known := stored.get(source.position)) is not None:
        start = source.position
        text = source.peek(max(known) - start)
        found: tuple[int, BatchInfo] | None = None
        digest, done = source.digest.copy(), 0
        for end in sorted(end for end in known if end - start <= len(text)):
            digest.update(text[done : end - start])
            done = end - start
            name = digest.hexdigest()
            # Of the stored parts with the content of the file, the longest counts.
            found = next(((end, batch) for batch in known[end] if str(batch.key).endswith(name)), found)
        if found is None:
            return
        end, batch = found
        if not text[: end - start].endswith(b"\n") and len(source.peek(end - start + 1)) > end - start:
            # A stored partial last line has grown since: the complete line replaces it.
            events.remove_batch(str(batch.key))
            return
        source.take(end - start)
        report.documents_before += batch.rows


def _position_of(key: str | None) -> tuple[int, int] | None:
    """First byte and end of the part of a file, from its batch name."""
    kind, _, rest = (key or "").partition(":")
    start, dash, end = rest.partition(":")[0].partition("-")
    return (int(start), int(end)) if kind == _KEY and dash and start.isdigit() and end.isdigit() else None


# ---------------------------------------------------------------- pipes


def feed(
    events: Events,
    pipe: int,
    read_options: ReadOptions | None = None,
    *,
    source: str = "-",
    batch_bytes: int = 4 << 20,
    batch_s: float = 2.0,
    ttl: str | timedelta | None = None,
    limited: bool = True,
    progress: Callable[[LoadProgress], object] | None = None,
) -> LoadReport:
    """Ingest lines from a pipe until it ends: ``tail -F app.log | chronotile events ingest ...``.

    A batch is stored when it is large enough, or when its first line has waited long enough. On an interrupt, all
    complete lines that were read are stored first.

    Parameters
    ----------
    pipe : int
        A file descriptor.
    batch_bytes : int
        Size at which a batch is stored.
    batch_s : float
        Seconds after which a batch is stored, whatever its size.

    Raises
    ------
    BusyError
        A stream exceeds its limit; the message names the rejected lines. Earlier lines are stored.
    """
    own = read_options or events.read_options()
    run = uuid.uuid4().hex

    def ingest(text: bytes, first: int) -> IngestReport:
        return events.ingest_lines(
            text, own, batch=f"pipe:{run}:{first}", source=source, first_line=first, ttl=ttl, limited=limited
        )

    buffer = _PipeBuffer(ingest, LoadProgress(0, LoadReport(files=1), file=source), own, progress)
    try:
        _drain(pipe, buffer, batch_bytes, batch_s)
    except KeyboardInterrupt:
        buffer.store()
        raise
    buffer.store(include_partial_line=True)
    return buffer.state.report


class _PipeBuffer:
    """Text that was read from a pipe and is not stored yet."""

    def __init__(
        self, ingest: Callable[[bytes, int], IngestReport], state: LoadProgress, read_options: ReadOptions,
        progress: Callable[..., object] | None,
    ) -> None:  # fmt: skip
        self._ingest, self.state, self._read_options, self._progress = ingest, state, read_options, progress
        self._began = time.monotonic()
        self._line = 1
        self._text = bytearray()
        self._in_flight = b""
        """The batch being stored; after an interrupt it is stored again under the same name."""

    def __len__(self) -> int:
        return len(self._text)

    def add(self, text: bytes) -> None:
        self._text += text

    def store(self, *, include_partial_line: bool = False) -> None:
        """Store complete lines; with `include_partial_line`, also a partial last line."""
        self._store_in_flight()
        size = len(self._text) if include_partial_line else self._text.rfind(b"\n") + 1
        self._in_flight = bytes(self._text[:size])
        del self._text[:size]
        self._store_in_flight()

    def _store_in_flight(self) -> None:
        if not self._in_flight:
            return
        outcome = self._ingest(self._in_flight, self._line)
        self._line += self._in_flight.count(b"\n")
        self.state.bytes_done += len(self._in_flight)
        self._in_flight = b""
        self.state.report.add(outcome, self.state.file, self._read_options)
        self.state.report.seconds = time.monotonic() - self._began
        if self._progress is not None:
            self._progress(self.state)


def _drain(pipe: int, buffer: _PipeBuffer, batch_bytes: int, batch_s: float) -> None:
    """Read a pipe until it ends, and store each batch when it is due."""
    due: float | None = None
    while True:
        ready, _, _ = select.select([pipe], [], [], None if due is None else max(due - time.monotonic(), 0.0))
        if ready:
            more = os.read(pipe, _READ_BYTES)
            if not more:
                return
            buffer.add(more)
            due = due or time.monotonic() + batch_s
        if len(buffer) >= batch_bytes or (due is not None and time.monotonic() >= due):
            buffer.store()
            # A partial line stays in the buffer until the rest of it arrives.
            due = time.monotonic() + batch_s if len(buffer) else None
