"""Questions to an archive of jobs, and clients that ask them concurrently."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from chronotile_tools.load.generator import LoadError
from chronotile_tools.load.job_archive.generated import DAY_US, FIRST_US

__all__ = ["KINDS", "Answered", "Question", "Questions", "System", "ask_at_once", "check_alike", "comparable"]


class System(Protocol):
    """A system that stores the jobs; used by several threads.

    Answers are numbers, Arrow tables, or lists of tuples that begin with the id.
    """

    name: str

    def by_ids(self, ids: list[int]) -> Any:
        """Complete rows of the jobs with these ids, at any time."""

    def count(self, user: str, cloud: str, start: int) -> Any:
        """Number of a user's failed jobs in a cloud within five days."""

    def rows(self, user: str, cloud: str, start: int) -> Any:
        """The jobs that :meth:`count` counts."""

    def jobsets(self, user: str, jobsets: list[int]) -> Any:
        """Jobs of a user's jobsets, at any time."""

    def tasks(self, tasks: list[int]) -> Any:
        """Jobs of tasks, at any time."""

    def year(self) -> Any:
        """Sum of the counts by cloud and status."""


Question = Callable[[System], Any]


class Questions:
    """Random questions, the same for every system.

    Parameters
    ----------
    table : pyarrow.Table
        A block of the jobs; users, clouds and tasks are taken from it.
    jobs : int
        Total number of jobs.
    many : int
        Number of ids in a lookup of many ids.
    """

    def __init__(self, table: pa.Table, jobs: int, many: int = 10_000) -> None:
        self._users, self._clouds, tasks = table["user"], table["cloud"], table["task"]
        self._submitted = table["submitted"].cast(pa.int64())
        self._tasks = range(tasks[0].as_py(), tasks[len(tasks) - 1].as_py() + 1)
        self._ids, self._many = range(1, jobs + 1), min(many, jobs)

    def of(self, kind: str, number: int) -> Question:
        """Question `number` of a kind."""
        # Parameters are drawn here, so that drawing them is not measured.
        return _DRAW[kind](self, random.Random(f"{kind} {number}"))

    def _five_days(self, choose: random.Random) -> tuple[str, str, int]:
        row = choose.randrange(len(self._users))
        day = (self._submitted[row].as_py() - FIRST_US) // DAY_US
        return self._users[row].as_py(), self._clouds[row].as_py(), day * DAY_US + FIRST_US

    def _count(self, choose: random.Random) -> Question:
        place = self._five_days(choose)
        return lambda system: system.count(*place)

    def _rows(self, choose: random.Random) -> Question:
        place = self._five_days(choose)
        return lambda system: system.rows(*place)

    def _jobsets(self, choose: random.Random) -> Question:
        user = self._users[choose.randrange(len(self._users))].as_py()
        first = int(user.removeprefix("user")) * 1_000
        jobsets = [first + choose.randrange(400) for _ in range(52)]
        return lambda system: system.jobsets(user, jobsets)

    def _hundred_tasks(self, choose: random.Random) -> Question:
        tasks = choose.choices(self._tasks, k=100)
        return lambda system: system.tasks(tasks)

    def _many_ids(self, choose: random.Random) -> Question:
        ids = choose.sample(self._ids, self._many)
        return lambda system: system.by_ids(ids)

    def _one_id(self, choose: random.Random) -> Question:
        ids = [choose.choice(self._ids)]
        return lambda system: system.by_ids(ids)

    def _year(self, choose: random.Random) -> Question:
        return lambda system: system.year()


_DRAW: Mapping[str, Callable[[Questions, random.Random], Question]] = {
    "count": Questions._count, "rows": Questions._rows, "jobsets": Questions._jobsets,
    "tasks": Questions._hundred_tasks, "ids": Questions._many_ids, "one id": Questions._one_id,
    "year": Questions._year,
}  # fmt: skip
KINDS = tuple(_DRAW)


def comparable(answer: Any) -> int | list[int]:
    """An answer in a form that is the same for every system: a number, or the sorted ids of the jobs."""
    if isinstance(answer, pa.Table):
        return list(np.sort(answer["job_id"].to_numpy()).tolist())
    return sorted(row[0] for row in answer) if isinstance(answer, list) else answer


@dataclass(frozen=True)
class Answered:
    """Response times of questions, and the answers in comparable form, in the order of clients."""

    seconds: list[float]
    answers: list[int | list[int]]


def ask_at_once(system: System, clients: Sequence[Sequence[Question]]) -> Answered:
    """Let clients, each a thread with its own questions, start together and ask one question after the other."""
    begin = threading.Barrier(len(clients))

    def client(asked: Sequence[Question]) -> list[tuple[float, int | list[int]]]:
        begin.wait()
        return [_timed(system, question) for question in asked]

    with ThreadPoolExecutor(len(clients)) as pool:
        found = [each for answered in pool.map(client, clients) for each in answered]
    return Answered([seconds for seconds, _ in found], [answer for _, answer in found])


def _timed(system: System, question: Question) -> tuple[float, int | list[int]]:
    began = time.perf_counter()
    answer = question(system)
    return time.perf_counter() - began, comparable(answer)


def check_alike(kind: str, answers: Mapping[str, Sequence[int | list[int]]]) -> None:
    """Check that all systems gave the same answers.

    Raises
    ------
    LoadError
        Answers differ.
    """
    first, *others = answers
    for other in others:
        for number, (one, another) in enumerate(zip(answers[first], answers[other], strict=True)):
            if one != another:
                raise LoadError(
                    f"{kind}, question {number}: {first} answers {_brief(one)}, {other} answers {_brief(another)}",
                    kind="load-failed",
                )


def _brief(answer: int | list[int]) -> str:
    return str(answer) if isinstance(answer, int) else f"{len(answer)} jobs {str(answer)[:60]}"
