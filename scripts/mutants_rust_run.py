"""Runs the tests of a crate on its mutants, which are turned on by switches (mutants_rust_switch.py)."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

_MEMORY_BYTES_MAX = 12 << 30
_LOOP_CPU_S, _LOOP_FACTOR, _STALL_S, _STALL_FACTOR = 3, 5, 20, 10
"""Limits of processor time and of wall time: seconds, plus a multiple of the unmutated test's time. Tests that exceed
either limit are stopped."""
_FIRST_BATCH_S, _BATCH_GROWTH = 0.2, 3
"""Tests run in batches, because starting a process costs more than most tests."""
_NEIGHBOURS, _NEIGHBOUR_S = 12, 3.0
"""Tests that noticed one of this many preceding changes run first, unless they take longer than this."""
_ENVIRONMENT = {
    # Limits of the simulation, which would run for minutes otherwise.
    "CHRONOTILE_HISTORIES": "300",
    "CHRONOTILE_REPEATED": "1",
    "RUST_BACKTRACE": "0",
    "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1",
    "PROPTEST_MAX_SHRINK_ITERS": "0",
}
_FAILED = re.compile(r"^test (\S+) \.\.\. FAILED", re.MULTILINE)


class Verdict(Enum):
    """Outcome of a mutant."""

    NOTICED = "noticed"
    STOPPED = "noticed, a test did not end"
    SURVIVES = "survives"
    UNREACHED = "reached by no test"


@dataclass(frozen=True)
class Test:
    """A test, its program, the folder in which it runs, its processor time, and the mutants that it reaches."""

    program: Path
    folder: Path
    name: str
    seconds: float = 0.0
    reached: frozenset[int] = field(default=frozenset(), hash=False)


class Runner:
    """Tries mutants.

    Attributes
    ----------
    tests : list of Test
        The tests that pass on the unmutated code, quickest first.
    """

    def __init__(self, tests: list[Test], seconds: float) -> None:
        self.tests, self._seconds = tests, seconds
        self._noticed: dict[int, Test] = {}

    def measure(self) -> list[Test]:
        """Run each test alone on the unmutated code. Excludes and returns those that fail or exceed the time limit of a
        mutant.
        """
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            measured = list(pool.map(self._measure, self.tests))
        good = [test for test in measured if test is not None]
        names = {(test.program, test.name) for test in good}
        excluded = [test for test in self.tests if (test.program, test.name) not in names]
        self.tests = sorted(good, key=lambda test: test.seconds)
        return excluded

    def _measure(self, test: Test) -> Test | None:
        with tempfile.NamedTemporaryFile() as reached:
            verdict, _, seconds = _run([test], {"MUTANTS_REACHED": reached.name}, self._seconds)
            numbers = frozenset(int(line) for line in Path(reached.name).read_text("utf-8").split())
        if verdict is not Verdict.SURVIVES or seconds > self._seconds:
            return None
        return Test(test.program, test.folder, test.name, seconds, numbers)

    def try_(self, mutant: int) -> Verdict:
        """Run the tests that reach a mutant, until one fails or the time limit is reached."""
        reaching = [test for test in self.tests if mutant in test.reached]
        if not reaching:
            return Verdict.UNREACHED
        first = self._likely(mutant)
        rest = [test for test in reaching if test not in first]
        for batch in [*({test.program: [test]} for test in first), *self._batches(rest)]:
            for tests in batch.values():
                verdict, test, _ = _run(tests, {"MUTANT": str(mutant)}, sum(test.seconds for test in tests))
                if verdict is not Verdict.SURVIVES:
                    if test is not None:
                        self._noticed[mutant] = test
                    return verdict
        return Verdict.SURVIVES

    def _likely(self, mutant: int) -> list[Test]:
        """Tests that detected nearby changes, nearest first: they probably test the same function."""
        near = (self._noticed.get(number) for number in range(mutant - 1, mutant - 1 - _NEIGHBOURS, -1))
        tests = dict.fromkeys(test for test in near if test is not None and mutant in test.reached)
        return [test for test in tests if test.seconds <= _NEIGHBOUR_S][:3]

    def _batches(self, tests: Iterable[Test]) -> Iterator[dict[Path, list[Test]]]:
        """Batches of tests by program, of increasing duration, quickest tests first."""
        limit, total = _FIRST_BATCH_S, 0.0
        waiting: dict[Path, list[Test]] = defaultdict(list)
        taken = 0.0
        for test in tests:
            if taken + test.seconds > self._seconds and taken:
                break
            waiting[test.program].append(test)
            taken += test.seconds
            total += test.seconds
            if total > limit:
                yield dict(waiting)
                waiting.clear()
                limit, total = limit * _BATCH_GROWTH, 0.0
        yield dict(waiting)


def _run(tests: list[Test], environment: dict[str, str], seconds: float) -> tuple[Verdict, Test | None, float]:
    """Run tests of one program. Returns the verdict, the first test that failed if it is known, and the processor time,
    which does not depend on the load of the machine.
    """
    command = [str(tests[0].program), "--exact", "--test-threads", "1", *(test.name for test in tests)]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=tests[0].folder, env={**os.environ, **_ENVIRONMENT, **environment}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        cpu_s = int(_LOOP_CPU_S + _LOOP_FACTOR * seconds)
        with suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
            resource.prlimit(process.pid, resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
        stalled = threading.Timer(_STALL_S + _STALL_FACTOR * seconds, _kill, [process.pid])
        stalled.start()
        _, status, usage = os.wait4(process.pid, 0)
        stalled.cancel()
        code = process.returncode = os.waitstatus_to_exitcode(status)
        # Includes processes that the tests started.
        _kill(process.pid)
        taken = usage.ru_utime + usage.ru_stime
        if code == 0:
            return Verdict.SURVIVES, None, taken
        output.seek(0)
        failed = _FAILED.search(output.read().decode(errors="replace"))
    verdict = Verdict.STOPPED if code in (-signal.SIGXCPU, -signal.SIGKILL) else Verdict.NOTICED
    return verdict, next((test for test in tests if failed and test.name == failed[1]), None), taken


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
