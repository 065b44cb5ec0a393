"""The load generator: processes with clients that run operations when they are due, independent of earlier ones.

The intended start of every operation is fixed before the run begins
(:class:`~chronotile_tools.load.schedule.Schedule`). A client takes the next operation, waits until it is due and runs
it; if all clients are busy, it starts late, and the delay counts. No operation is skipped: those not started by the end
of the run are recorded as unserved.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from chronotile.errors import ChronotileError, InvalidInputError
from chronotile.workers import end_with_parent
from chronotile_tools.load.recording import DONE, FAILED, TIMED_OUT, UNSERVED, Recording
from chronotile_tools.load.schedule import Schedule

__all__ = ["Client", "Generator", "LoadError", "Noop", "Stream", "Target"]

_LEAD_NS = 100_000_000
_JOIN_S = 5.0


class LoadError(ChronotileError, RuntimeError):
    """The load generator itself failed. Kind ``load-failed``; the message contains the last output of its process."""


class Client(Protocol):
    """A connection to a target, shared by the threads of a process."""

    def run(self, number: int) -> int:
        """Run the operation of this number; return the number of rows returned or stored.

        The same number gives the same operation. An error of this package, an ``OSError`` or a ``TimeoutError`` is
        recorded as the operation's outcome; any other exception ends the run.
        """

    def close(self) -> None:
        """Close the connection."""


class Target(Protocol):
    """Target of a load. Must be picklable, because each process creates its own client."""

    def connect(self) -> Client:
        """A new client."""


@dataclass(frozen=True)
class Noop:
    """A target that does nothing; it measures the load generator's own cost."""

    def connect(self) -> Client:
        """A new client."""
        return self

    def run(self, number: int) -> int:
        """Nothing."""
        return 0

    def close(self) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Stream:
    """Operations of one kind, run concurrently with other streams.

    Attributes
    ----------
    name : str
        Name of its recording.
    target : Target
        Target of the operations.
    schedule : Schedule
        Intended starts of the operations.
    clients : int
        Maximum number of concurrent operations.
    """

    name: str
    target: Target
    schedule: Schedule
    clients: int = 8


@dataclass(frozen=True)
class _Share:
    """Share of a stream for one process."""

    stream: str
    target: Target
    numbers: Any
    due_ns: Any
    clients: int


@dataclass
class _StreamResult:
    """Results of one process for a stream."""

    stream: str
    numbers: Any
    started_ns: Any
    ended_ns: Any
    outcome: Any
    rows: Any
    errors: dict[str, str]


class Generator:
    """Processes that run loads; a context manager.

    Parameters
    ----------
    processes : int
        Number of processes. Each has threads for its share of a stream's clients.
    """

    def __init__(self, processes: int = 2) -> None:
        if not 1 <= processes <= 64:
            raise InvalidInputError(f"processes={processes} is out of range: use 1 to 64", kind="invalid-setting")
        spawn = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(processes):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            # While this process keeps the other end open, `recv` does not notice the end of the child.
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(0 if kind else _JOIN_S)
            if process.is_alive():
                process.kill()
                process.join(_JOIN_S)

    def run(
        self, streams: Sequence[Stream], *, drain_s: float = 30.0, begin: Callable[[int], object] | None = None
    ) -> dict[str, Recording]:
        """Run streams concurrently.

        Parameters
        ----------
        streams : sequence of Stream
            Streams with unique names.
        drain_s : float
            Operations that have not started this many seconds after the last intended start are given up. Running
            operations are always awaited: the target has its own timeout.
        begin : callable, optional
            Called with the start of the run, in nanoseconds of `time.perf_counter_ns`, once all clients are connected.

        Returns
        -------
        dict
            A recording for each stream.

        Raises
        ------
        LoadError
            A process failed.
        """
        if len({stream.name for stream in streams}) != len(streams) or not all(map(_runnable, streams)):
            raise InvalidInputError(
                "each stream needs a unique name, at least one client, and an operation after the warm-up",
                kind="invalid-setting",
            )
        end_ns = max(stream.schedule.end_ns for stream in streams)
        shares = [_shares(stream, len(self._pipes)) for stream in streams]
        for place, pipe in enumerate(self._pipes):
            pipe.send([share[place] for share in shares if len(share[place].numbers)])
        self._await_ready()
        start_ns = time.perf_counter_ns() + _LEAD_NS
        for pipe in self._pipes:
            pipe.send((start_ns, start_ns + end_ns + int(drain_s * 1e9)))
        if begin is not None:
            begin(start_ns)
        answers = _results([self._receive(place) for place in range(len(self._pipes))])
        cpu_s = sum(spent for _, spent in answers)
        found = [[each for each in part if each.stream == stream.name] for stream in streams for part, _ in answers]
        by_stream = [found[place : place + len(answers)] for place in range(0, len(found), len(answers))]
        return {s.name: _joined(s, parts, start_ns, cpu_s) for s, parts in zip(streams, by_stream, strict=True)}

    def _await_ready(self) -> None:
        """Wait until all processes are connected; if one fails, abort the others, so that they can be reused."""
        answers = [self._receive(place) for place in range(len(self._pipes))]
        if not any(isinstance(answer, ChronotileError) for answer in answers):
            return
        for place, answer in enumerate(answers):
            if not isinstance(answer, ChronotileError):
                self._pipes[place].send(None)
                self._receive(place)
        _results(answers)

    def _receive(self, place: int) -> Any:
        """Receive a process's answer, or the error it ended with."""
        try:
            kind, value = self._pipes[place].recv()
        except EOFError:
            self._processes[place].join(_JOIN_S)
            kind, value = "failed", f"a process ended with {self._processes[place].exitcode}"
        if kind == "failed":
            return LoadError(f"the load generator failed:\n{value}", kind="load-failed")
        return value


def _results(answers: Sequence[Any]) -> Sequence[Any]:
    """Collect all answers; raise the first error among them."""
    for answer in answers:
        if isinstance(answer, ChronotileError):
            raise answer
    return answers


def _runnable(stream: Stream) -> bool:
    schedule = stream.schedule
    return stream.clients >= 1 and len(schedule) > 0 and int(schedule.due_ns[-1]) >= schedule.warm_up_ns


def _shares(stream: Stream, processes: int) -> list[_Share]:
    """Assign operations to clients round-robin, so each process gets a share proportional to its clients."""
    owners = np.arange(stream.clients) % processes
    owner = owners[np.arange(len(stream.schedule)) % stream.clients]
    shares = []
    for place in range(processes):
        numbers = np.flatnonzero(owner == place)
        clients = int(np.count_nonzero(owners == place))
        shares.append(_Share(stream.name, stream.target, numbers, stream.schedule.due_ns[numbers], clients))
    return shares


def _joined(stream: Stream, parts: Sequence[Sequence[_StreamResult]], start_ns: int, cpu_s: float) -> Recording:
    worker = np.concatenate([np.full(len(each.numbers), place) for place, part in enumerate(parts) for each in part])
    every = [each for part in parts for each in part]
    numbers = np.concatenate([each.numbers for each in every])
    order = np.argsort(numbers)
    order = order[stream.schedule.due_ns[numbers[order]] >= stream.schedule.warm_up_ns]

    def column(name: str) -> Any:
        return np.concatenate([getattr(each, name) for each in every])[order]

    errors = {kind: words for each in every for kind, words in each.errors.items()}
    return Recording(
        stream.name, stream.schedule.due_ns[numbers[order]], column("started_ns") - start_ns,
        column("ended_ns") - start_ns, column("outcome"), column("rows"), worker[order].astype(np.uint8),
        stream.schedule.end_ns, stream.clients, errors, cpu_s,
    )  # fmt: skip


# ---------------------------------------------------------------------- in the processes


def _serve(pipe: Connection) -> None:
    """Run loads until the other end closes."""
    end_with_parent()
    # Ignore terminal interrupts: the parent handles them and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            shares: list[_Share] = pipe.recv()
            answer = _run_load(pipe, shares)
        except EOFError:
            return
        except ChronotileError as error:
            answer = ("error", error)
        except BaseException:
            answer = ("failed", traceback.format_exc(limit=-6))
        try:
            pipe.send(answer)
        except BrokenPipeError:
            return


def _run_load(pipe: Connection, shares: Sequence[_Share]) -> tuple[str, Any]:
    clients: list[Client] = []
    try:
        for share in shares:
            clients.append(share.target.connect())
        pipe.send(("ready", None))
        if (span := pipe.recv()) is None:
            return "done", ([], 0.0)
        before = os.times()
        # A garbage collection during a run would be measured as time of the target.
        gc.collect()
        gc.disable()
        found = _run_shares(shares, clients, *span)
        after = os.times()
        return "done", (found, after.user + after.system - before.user - before.system)
    finally:
        gc.enable()
        for client in clients:
            client.close()


def _run_shares(
    shares: Sequence[_Share], clients: Sequence[Client], start_ns: int, deadline_ns: int
) -> list[_StreamResult]:
    found: list[_StreamResult] = []
    threads: list[threading.Thread] = []
    broken: list[BaseException] = []
    for share, client in zip(shares, clients, strict=True):
        count = len(share.numbers)
        started_ns, ended_ns, rows = (np.zeros(count, np.int64) for _ in range(3))
        each = _StreamResult(share.stream, share.numbers, started_ns, ended_ns, np.zeros(count, np.uint8), rows, {})
        found.append(each)
        work = _worker(share, client, each, start_ns, deadline_ns, broken)
        threads += [threading.Thread(target=work, daemon=True) for _ in range(min(share.clients, count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if broken:
        raise broken[0]
    return found


def _worker(
    share: _Share, client: Client, found: _StreamResult, start_ns: int, deadline_ns: int, broken: list[BaseException]
) -> Callable[[], None]:
    """Thread loop: run the next operation when it is due."""
    places = itertools.count()
    numbers, due = share.numbers.tolist(), (share.due_ns + start_ns).tolist()
    clock, run, last = time.perf_counter_ns, client.run, len(share.numbers)

    def work() -> None:
        # next() on a counter is atomic in the interpreter: no two threads get the same operation.
        while (place := next(places)) < last and not broken:
            if (early := due[place] - clock()) > 0:
                time.sleep(early / 1e9)
            began = clock()
            found.started_ns[place] = began
            if began >= deadline_ns:
                found.started_ns[place] = found.ended_ns[place] = deadline_ns
                found.outcome[place] = UNSERVED
                continue
            try:
                found.rows[place] = run(numbers[place])
                found.outcome[place] = DONE
            except (ChronotileError, OSError) as error:
                found.outcome[place] = TIMED_OUT if isinstance(error, TimeoutError) else FAILED
                found.errors.setdefault(getattr(error, "kind", type(error).__name__), str(error))
            except BaseException as error:
                broken.append(error)
            found.ended_ns[place] = clock()

    return work
