"""Runs the tests of a crate on its mutants, each of which a switch turns on (mutants_rust_switch.py)."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

_MEMORY_BYTES_MAX = 12 << 30
_LOOP_CPU_S, _LOOP_FACTOR, _STALL_S, _STALL_FACTOR = 3, 5, 20, 10
"""Tests that take more processor time than this and so many times what they take as they are, or more time by the
clock, are stopped."""
_FIRST_BATCH_S, _BATCH_GROWTH = 0.2, 3
"""Tests run in batches, as a process costs more than most tests do."""
_ENVIRONMENT = {
    "RUST_BACKTRACE": "0",
    "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1",
    "PROPTEST_MAX_SHRINK_ITERS": "0",
}


class Verdict(Enum):
    """What became of a mutant."""

    NOTICED = "noticed"
    STOPPED = "noticed, a test did not end"
    SURVIVES = "survives"
    UNREACHED = "reached by no test"


@dataclass(frozen=True)
class Test:
    """A test, its program, and the folder in which it runs."""

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
        The tests that pass on the code as it is, the quickest first, with what they reach.
    """

    def __init__(self, tests: list[Test], seconds: float) -> None:
        self.tests, self._seconds = tests, seconds

    def look(self) -> list[Test]:
        """Run each test alone on the code as it is. Those that fail or take longer than a mutant may take are returned
        and left out.
        """
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            looked = list(pool.map(self._look, self.tests))
        good = [test for test in looked if test is not None]
        names = {(test.program, test.name) for test in good}
        left_out = [test for test in self.tests if (test.program, test.name) not in names]
        self.tests = sorted(good, key=lambda test: test.seconds)
        return left_out

    def _look(self, test: Test) -> Test | None:
        with tempfile.NamedTemporaryFile() as reached:
            began = time.monotonic()
            verdict = _run([test], {"MUTANTS_REACHED": reached.name}, self._seconds)
            seconds = time.monotonic() - began
            numbers = frozenset(int(line) for line in Path(reached.name).read_text("utf-8").split())
        if verdict is not Verdict.SURVIVES or seconds > self._seconds:
            return None
        return Test(test.program, test.folder, test.name, seconds, numbers)

    def try_(self, mutant: int) -> Verdict:
        """Run the tests that reach a mutant until one fails, or as long as a mutant may take."""
        reaching = [test for test in self.tests if mutant in test.reached]
        if not reaching:
            return Verdict.UNREACHED
        for batch in self._batches(reaching):
            verdict = _run(batch, {"MUTANT": str(mutant)}, sum(test.seconds for test in batch))
            if verdict is not Verdict.SURVIVES:
                return verdict
        return Verdict.SURVIVES

    def _batches(self, tests: Iterable[Test]) -> Iterator[list[Test]]:
        """Tests of one program each, longer and longer, the quickest first."""
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
                yield from waiting.values()
                waiting.clear()
                limit, total = limit * _BATCH_GROWTH, 0.0
        yield from waiting.values()


def _run(tests: list[Test], environment: dict[str, str], seconds: float) -> Verdict:
    """Run tests of one program; `Verdict.SURVIVES` if they pass."""
    command = [str(tests[0].program), "--exact", "--test-threads", "1", *(test.name for test in tests)]
    process = subprocess.Popen(
        command, cwd=tests[0].folder, env={**os.environ, **_ENVIRONMENT, **environment}, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    cpu_s = int(_LOOP_CPU_S + _LOOP_FACTOR * seconds)
    with suppress(ProcessLookupError):
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
        resource.prlimit(process.pid, resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    try:
        code = process.wait(_STALL_S + _STALL_FACTOR * seconds)
    except subprocess.TimeoutExpired:
        code = -signal.SIGXCPU
    finally:
        # Also what the tests started.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if code == 0:
        return Verdict.SURVIVES
    return Verdict.STOPPED if code in (-signal.SIGXCPU, -signal.SIGKILL) else Verdict.NOTICED
