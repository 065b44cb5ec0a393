"""Runs the tests of one module on its mutants, each in a fork of a process that has imported everything else.

Mutants inside functions run in forks of a process that has collected the tests: the fork replaces the code of the
function. Mutants of code that runs at import run in forks of a process that has imported only libraries: the fork
imports the package and the tests. Programs that a test starts import the mutant from the copy of the package.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import hypothesis
import pytest

from mutants_changes import Mutant, defined, mutants

_LIBRARIES = ("numpy", "pandas", "pyarrow", "pyarrow.parquet", "polars", "duckdb", "astropy.time", "astropy.units",
              "fastavro", "healpy", "click", "lsst.sphgeom")  # fmt: skip
_MEMORY_BYTES_MAX = 16 << 30
_LOOP_CPU_S, _LOOP_FACTOR, _STALL_S, _STALL_FACTOR = 4, 5, 60, 20
"""Limits of processor time and of wall time: seconds, plus a multiple of the unmutated test's time. Tests that exceed
either limit are stopped."""
_SECOND_LOOK = 4
"""Factor of the limits when a stopped mutant is tried again."""

TRACE_AT_START = """
import os, sys
_file, _wanted = os.environ.get("MUTANTS_LINES"), os.environ.get("MUTANTS_MODULE")
if _file and _wanted:
    import threading
    _seen = set()
    def _line(frame, event, argument):
        if frame.f_lineno not in _seen:
            _seen.add(frame.f_lineno)
            with open(_file, "a") as file:
                file.write(f"{frame.f_lineno}\\n")
        return _line
    def _call(frame, event, argument):
        return _line(frame, event, argument) if frame.f_code.co_filename == _wanted else None
    sys.settrace(_call)
    threading.settrace(_call)
"""
"""The copy's `sitecustomize`: programs that a test starts record which lines of the module they execute."""


@dataclass
class Reach:
    """Lines of the module that a test executes, and its processor time."""

    seconds: float = 0.0
    lines: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Job:
    """The mutants of one module to try; `cases` are their numbers."""

    path: Path
    source: str
    tests: list[str]
    folder: Path
    cases: list[int]
    seconds_max: float


class Lines:
    """Records the lines of one file that are executed, in this process and in programs that it starts."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._wanted = str(path)
        self._programs = folder / "lines.txt"
        self.seen: set[int] = set()
        os.environ.update(MUTANTS_MODULE=self._wanted, MUTANTS_LINES=str(self._programs))

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        self.seen.add(frame.f_lineno)
        return self._line

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != self._wanted:
            return None
        self.seen.add(frame.f_lineno)
        return self._line

    def begin(self) -> set[int]:
        """Start with an empty set, which is filled as lines are executed."""
        import threading

        self.seen = set()
        self._programs.unlink(missing_ok=True)
        sys.settrace(self._call)
        threading.settrace(self._call)
        return self.seen

    def end(self) -> None:
        """Stop, and add the lines that programs executed."""
        sys.settrace(None)
        if self._programs.exists():
            self.seen.update(map(int, self._programs.read_text(encoding="utf-8").split()))


class Plugin:
    """Replaces pytest's loop over the tests."""

    def __init__(self, run: Callable[[pytest.Session], None]) -> None:
        self._run = run
        self.lines: Lines | None = None
        self.shared: dict[str, set[int]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Called by pytest once the tests are collected."""
        self._run(session)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        """Record the lines that a shared fixture executes: they count for each test that uses it."""
        if self.lines is None or fixturedef.scope == "function":
            return (yield)
        before, self.lines.seen = self.lines.seen, set()
        try:
            return (yield)
        finally:
            self.shared.setdefault(fixturedef.argname, set()).update(self.lines.seen)
            before |= self.lines.seen
            self.lines.seen = before


def run_items(session: pytest.Session, items: list[pytest.Item], before: Callable[[pytest.Item], None]) -> bool:
    """Run tests until one fails; returns whether all passed."""
    for at, item in enumerate(items):
        before(item)
        following = items[at + 1] if at + 1 < len(items) else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return False
    return True


def processor_s() -> float:
    """Processor time of this process and of the programs that it started, in seconds."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def seconds_of_tests(session: pytest.Session) -> dict[str, float]:
    """Run all tests without a mutant, and measure the processor time of each, which does not depend on the load of the
    machine.
    """
    found: dict[str, float] = {}
    began = 0.0

    def begin(item: pytest.Item) -> None:
        nonlocal began
        began = processor_s()

    for item in session.items:
        if not run_items(session, [item], begin):
            print(f"FAILS WITHOUT A MUTANT: {item.nodeid}", file=sys.stderr)
            return {}
        found[item.nodeid] = processor_s() - began
    return found


def reach_of_tests(session: pytest.Session, plugin: Plugin, job: Job, seconds: dict[str, float]) -> dict[str, Reach]:
    """Run all tests without a mutant, and record the lines that each executes."""
    found: dict[str, Reach] = {}
    plugin.lines = Lines(job.path, job.folder)
    for at, item in enumerate(session.items):
        plugin.lines.begin()
        following = session.items[at + 1] if at + 1 < len(session.items) else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        plugin.lines.end()
        found[item.nodeid] = Reach(seconds[item.nodeid], plugin.lines.seen)
        if session.testsfailed:
            print(f"FAILS WITHOUT A MUTANT: {item.nodeid}", file=sys.stderr)
            return {}
    for item in session.items:
        for name in set(getattr(item, "fixturenames", ())) & set(plugin.shared):
            found[item.nodeid].lines |= plugin.shared[name]
    return found


def chosen_tests(mutant: Mutant, reach: dict[str, Reach], source: str, seconds_max: float) -> list[str]:
    """The tests that can notice a mutant, likeliest and quickest first, up to `seconds_max` in total."""
    near = reached_by(mutant, reach) if mutant.function is not None else set()
    wanted = near
    if not near:
        # If the changed code runs at all, it runs while the package is imported or the tests are collected.
        wanted, uses = set(reach), lines_that_use(mutant.names, source)
        near = {name for name, each in reach.items() if not each.lines.isdisjoint(uses)}
    order = sorted(wanted, key=lambda name: (reach[name].seconds * (1 if name in near else 4), len(reach[name].lines)))
    chosen: list[str] = []
    total = 0.0
    for name in order:
        total += reach[name].seconds
        if chosen and total > seconds_max:
            break
        chosen.append(name)
    return chosen


def reached_by(mutant: Mutant, reach: dict[str, Reach]) -> set[str]:
    """The tests that execute the lines of a mutant."""
    return {name for name, each in reach.items() if not each.lines.isdisjoint(mutant.lines)}


def lines_that_use(names: frozenset[str], source: str) -> set[int]:
    """Lines inside functions that use these module-level names or names derived from them. If a name is a function,
    also the function's own lines.
    """
    body = ast.parse(source).body
    used = set(names)
    for _ in body:
        made = {name for statement in body if used & names_in(statement) for name in defined(statement)}
        if made <= used:
            break
        used |= made
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    return {
        node.lineno
        for function in functions
        for statement in function.body
        for node in ast.walk(statement)
        if (isinstance(node, ast.stmt) and function.name in names) or (isinstance(node, ast.Name) and node.id in used)
    }


def names_in(statement: ast.AST) -> set[str]:
    """Names that a statement uses."""
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}


def forked(work: Callable[[], int], limit_s: float) -> str:
    """Run `work` in a fork. Returns its exit code, the name of the signal that ended it, or "stalled"."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.setsid()
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    ends = time.monotonic() + limit_s
    pause = 0.002
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > ends:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "stalled"
        time.sleep(pause)
        pause = min(pause * 1.3, 0.1)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # Processes that the tests left running.
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return str(os.WEXITSTATUS(status))


def limit_test(seconds: float, factor: int) -> None:
    """Limit the processor time of the next test."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + factor * (_LOOP_CPU_S + _LOOP_FACTOR * seconds)) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


class Judge:
    """Tries mutants one after another and records each verdict."""

    def __init__(self, job: Job, results: Path) -> None:
        self._job = job
        self._results = results

    def try_mutant(self, number: int, mutant: Mutant, tests: list[str], reach: dict[str, Reach],
                   work: Callable[[ast.Module, list[str], int], int]) -> None:  # fmt: skip
        """Run `work(tree, tests, factor)` in a fork. If it exceeds its limits, run it once more with larger ones."""
        tree = mutant.tree()
        total = sum(reach[name].seconds for name in tests)
        verdict = ""
        self._job.path.write_text(ast.unparse(tree), encoding="utf-8")
        try:
            for factor in (1, _SECOND_LOOK):
                limit_s = factor * (_STALL_S + _STALL_FACTOR * total)
                verdict = forked(lambda factor=factor: work(tree, tests, factor), limit_s)  # type: ignore[misc]
                if verdict not in ("stalled", "SIGXCPU"):
                    break
        finally:
            self._job.path.write_text(self._job.source, encoding="utf-8")
        is_reached = mutant.function is None or reached_by(mutant, reach)
        names = {"0": "survives" if is_reached else "unreached", "1": "noticed", "stalled": "stops", "SIGXCPU": "stops"}
        return self._note(number, names.get(verdict, "noticed" if verdict.startswith("SIG") else f"broken {verdict}"))

    def _note(self, number: int, verdict: str) -> None:
        with self._results.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps([number, verdict])}\n")


def examine_collected(session: pytest.Session, plugin: Plugin, job: Job, all_mutants: list[Mutant]) -> None:
    """Measure the tests, then try the mutants inside functions, in a process that has collected the tests."""
    map_file = job.folder / "reach.json"
    times_file = job.folder / "seconds.json"

    def measure() -> int:
        times_file.write_text(json.dumps(seconds_of_tests(session)), encoding="utf-8")
        return 0

    def make_map() -> int:
        # Times were measured in a separate run, because tracing distorts them.
        reach = reach_of_tests(session, plugin, job, json.loads(times_file.read_text(encoding="utf-8")))
        stored = {name: [each.seconds, sorted(each.lines)] for name, each in reach.items()}
        map_file.write_text(json.dumps(stored), encoding="utf-8")
        return 0

    gc.collect()
    gc.freeze()
    if any(forked(work, 1_800) != "0" for work in (measure, make_map)) or not (reach := read_reach(map_file)):
        raise SystemExit("the tests fail without a mutant")
    items = {item.nodeid: item for item in session.items}
    functions = functions_of(job.path)
    judge = Judge(job, job.folder / "results.jsonl")
    later = []
    for number in job.cases:
        mutant = all_mutants[number]
        if mutant.function not in functions or not reached_by(mutant, reach):
            later.append(number)
            continue

        def work(tree: ast.Module, tests: list[str], factor: int, mutant: Mutant = mutant) -> int:
            if not replace_code(functions, mutant, tree, str(job.path)):
                return 3
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
            chosen = [items[name] for name in tests]
            return int(not run_items(session, chosen, lambda item: limit_test(reach[item.nodeid].seconds, factor)))

        judge.try_mutant(number, mutant, chosen_tests(mutant, reach, job.source, job.seconds_max), reach, work)
    (job.folder / "later.json").write_text(json.dumps(later), encoding="utf-8")


def read_reach(file: Path) -> dict[str, Reach]:
    """Read the result of :func:`reach_of_tests`."""
    stored = json.loads(file.read_text(encoding="utf-8"))
    return {name: Reach(seconds, set(lines)) for name, (seconds, lines) in stored.items()}


def functions_of(path: Path) -> dict[tuple[str, int], list[FunctionType]]:
    """The functions that a file defined, by name and first line."""
    found: dict[tuple[str, int], list[FunctionType]] = {}
    gc.unfreeze()
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename == str(path):
            found.setdefault((each.__name__, each.__code__.co_firstlineno), []).append(each)
            found.setdefault((each.__code__.co_name, each.__code__.co_firstlineno), []).append(each)
    gc.freeze()
    return found


def replace_code(
    functions: dict[tuple[str, int], list[FunctionType]], mutant: Mutant, tree: ast.Module, path: str
) -> bool:
    """Replace the code of the function around a mutant, and of inner functions that it created during imports."""
    assert mutant.function is not None
    found = list(codes(compile(tree, path, "exec")))
    places = [(code.co_name, code.co_firstlineno) for code in found]
    for place, code in zip(places, found, strict=True):
        for function in functions.get(place, []):
            if function.__code__ == code:
                continue
            if places.count(place) > 1 or len(code.co_freevars) != len(function.__code__.co_freevars):
                return False
            function.__code__ = code
    return True


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and all code objects inside it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes(each)


def examine_imported(job: Job, all_mutants: list[Mutant], later: Iterable[int]) -> None:
    """Try the mutants of code that runs at import, in forks of a process that has not imported the package."""
    reach = read_reach(job.folder / "reach.json")
    judge = Judge(job, job.folder / "results.jsonl")
    for number in later:

        def work(tree: ast.Module, tests: list[str], factor: int) -> int:
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
            order = {name: at for at, name in enumerate(tests)}
            passed = []

            def run(session: pytest.Session) -> None:
                items = sorted((item for item in session.items if item.nodeid in order), key=lambda i: order[i.nodeid])
                # A mutant that changes which tests are collected is noticed.
                complete = len(items) == len(order)
                passed.append(
                    complete and run_items(session, items, lambda item: limit_test(reach[item.nodeid].seconds, factor))
                )

            files = list(dict.fromkeys(name.partition("::")[0] for name in tests))
            limit_test(10, factor)
            run_pytest(job, files, Plugin(run))
            return int(passed != [True])

        mutant = all_mutants[number]
        judge.try_mutant(number, mutant, chosen_tests(mutant, reach, job.source, job.seconds_max), reach, work)


def run_pytest(job: Job, tests: list[str], plugin: Plugin) -> None:
    """Have pytest collect tests; the plugin runs them."""
    pytest.main(
        ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:logging", "-m", "not cluster and not slow",
         f"--basetemp={job.folder / 'tmp'}", "--hypothesis-seed=1",
         "-W", "ignore::pytest.PytestAssertRewriteWarning", *tests],
        plugins=[plugin],
    )  # fmt: skip


def examine(job: Job) -> None:
    """Try the mutants of one module; the verdicts are in `results.jsonl` of the job's folder."""
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    checks = list(hypothesis.HealthCheck)
    hypothesis.settings.register_profile(
        "mutants", database=None, phases=phases, suppress_health_check=checks, deadline=None
    )
    hypothesis.settings.load_profile("mutants")
    for name in _LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    all_mutants = mutants(job.source)

    def collected() -> int:
        done: list[bool] = []

        def run(session: pytest.Session) -> None:
            examine_collected(session, plugin, job, all_mutants)
            done.append(True)

        plugin = Plugin(run)
        run_pytest(job, job.tests, plugin)
        return 0 if done else 1

    if forked(collected, 6 * 3_600) != "0":
        raise SystemExit("could not run the tests: see above")
    later = json.loads((job.folder / "later.json").read_text(encoding="utf-8"))
    again = [number for number, verdict in read_results(job.folder) if verdict == "broken 3"]
    examine_imported(job, all_mutants, [*later, *again])


def read_results(folder: Path) -> list[tuple[int, str]]:
    """Numbers of mutants and their outcomes."""
    file = folder / "results.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [(number, verdict) for number, verdict in map(json.loads, lines)]


@contextmanager
def job_file(job: Job) -> Iterator[Path]:
    """Write a job to a file for a worker."""
    path = job.folder / "job.json"
    stored = {**job.__dict__, "path": str(job.path), "folder": str(job.folder)}
    path.write_text(json.dumps(stored), encoding="utf-8")
    yield path


def main() -> None:
    """Run the job in the file named by the first argument."""
    stored = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    examine(Job(**{**stored, "path": Path(stored["path"]), "folder": Path(stored["folder"])}))


if __name__ == "__main__":
    main()
