"""Mutation tests of Python modules.

    python scripts/mutants.py [--count N | --left] [--seed S] [--seconds S] [--table] [MODULE...]

A mutant is a copy of the package with one change of meaning: another comparison or operator, a constant plus or minus
one, a negated condition, two swapped arguments, a removed statement. From the tests that MODULES names for the module,
those that execute the changed lines run on the mutant, quickest first, until one fails: it has noticed the mutant. A
mutant survives if all pass. scripts/mutants_equivalent.toml lists survivors that a caller cannot observe, with the
reason; they do not count. scripts/mutants_left.toml lists all others, with the reason; they count. Fails if less than
85% of a module's mutants are noticed, if a survivor is not listed, or if an entry matches no mutant or one that a test
notices.

`--table` writes the figures of modules whose mutants were all tried into the table of CONTRIBUTING.md. `--left` tries
only the mutants that no test noticed in the last run.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import mutants_listed
from mutants_changes import Mutant, mutants
from mutants_table import write_table
from mutants_worker import TRACE_AT_START, Job, job_file, read_results

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (ROOT / "python" / "chronotile", ROOT / "tools" / "chronotile_tools")
NOTICED_MIN = 0.85
TABLE = ROOT / "CONTRIBUTING.md"
LAST = ROOT / "target" / "mutants" / "left"
TABLE_HEAD = "| module | mutants | noticed | a test did not end | left | equivalent |"
VERDICTS = ("survives", "unreached", "noticed", "stops")

# Modules, and the tests that must notice their mutants: quick tests of that module only. Tests that run polars queries
# are excluded, because threads of polars do not survive a fork.
MODULES: dict[str, tuple[str, ...]] = {
    "times": ("archive/test_times.py",),
    "predicates": ("archive/test_predicates.py",),
    "conditions": ("archive/test_predicates.py", "events/test_scanning.py"),
    "inputs": ("archive/test_inputs_columns.py", "archive/test_inputs.py"),
    "scanning": ("events/test_scanning.py",),
    "urls": ("archive/test_urls.py",),
    "intervals": ("archive/test_intervals.py",),
    "cells": ("archive/test_cells.py",),
    "ring": ("ops/test_ring.py",),
    "apdb.values": ("apdb/test_apdb_values.py",),
    "apdb.rows": ("apdb/test_apdb_rows.py",),
    "casts": ("apdb/test_apdb_rows.py", "apdb/test_apdb_alert_rows.py", "jobs/test_jobs_load.py"),
    "apdb.slice_status": ("apdb/test_apdb_object_index.py",),
    "apdb.object_index": ("apdb/test_apdb_object_index.py",),
    "apdb.alerts": ("apdb/test_apdb_alert_rows.py",),
    "apdb.alert_files": (
        "apdb/test_apdb_alert_tables.py",
        "apdb/test_apdb_alert_files.py",
        "apdb/test_apdb_alert_rows.py",
    ),
    "apdb.schema": ("apdb/test_apdb_schema.py",),
    "apdb.source_counts": ("apdb/test_apdb_counts.py",),
    "apdb.reads": ("apdb/test_apdb_reads.py",),
    "apdb.storing": ("apdb/test_apdb_storing.py",),
    "apdb.updates": ("apdb/test_apdb_updates.py",),
    "apdb.layout": ("apdb/test_apdb_layout.py",),
    "apdb.cold": ("apdb/test_apdb_cold.py",),
    "apdb.maintenance": ("apdb/test_apdb_maintenance_calls.py",),
    "events.moments": ("events/test_events_moments.py",),
    "events.parsing": ("events/test_events_parsing.py",),
    "events.syslog": ("events/test_events_syslog.py",),
    "events.guessing": ("events/test_events_syslog.py",),
    "events.retention": ("events/test_events_retention.py",),
    "events.limits": ("events/test_events_limits.py",),
    "events.searching": ("events/test_events_searching.py",),
    "events.summaries": ("events/test_events_summaries.py",),
    "events.events": ("events/test_events_calls.py", "events/test_events_ingest.py", "events/test_events.py"),
    "events.loading": ("events/test_events_loading.py", "events/test_events_pipes.py"),
    "jobs.jobs": ("jobs/test_jobs_questions.py",),
    "jobs.percentiles": ("jobs/test_jobs_questions.py",),
    "jobs.comparing": ("jobs/test_jobs_comparing.py",),
    "jobs.aggregates": ("jobs/test_jobs_aggregates.py",),
    "jobs.parsing": ("jobs/test_jobs_parsing.py",),
    "jobs.sources": ("jobs/test_jobs_sources.py",),
    "jobs.syncing": ("jobs/test_jobs_sync_files.py",),
    "jobs.loading": ("jobs/test_jobs_loading.py",),
    "jobs.swf": ("jobs/test_jobs_swf.py",),
    "ops.rules": ("ops/test_ops_rules.py",),
    "ops.measures": ("ops/test_ops_rules.py",),
    "ops.repair.segments": ("ops/test_repair_segments.py",),
    "load.statistics": ("load/test_load_statistics.py", "load/test_load.py"),
    "load.schedule": ("load/test_load_schedule.py",),
}


@dataclass(frozen=True)
class Verdicts:
    """Outcomes of the mutants of a module that were tried; on those in `stopped` a test did not end."""

    tried: int
    equivalent: int
    stopped: list[Mutant]
    survivors: list[Mutant]
    unreached: list[Mutant]
    is_complete: bool
    wrongly_listed: list[Mutant]
    """Listed mutants that a test noticed. Complete only if all mutants were tried."""

    @property
    def left(self) -> int:
        """Mutants that were not noticed."""
        return len(self.survivors) + len(self.unreached)

    @property
    def share(self) -> float:
        """Share of mutants that tests detected."""
        return 1 - self.left / self.tried if self.tried else 1.0

    def row(self, module: str) -> str:
        """The row of a module in the table."""
        noticed = f"{self.tried - self.left:,} ({self.share:.1%})"
        return f"| `{module}` | {self.tried:,} | {noticed} | {len(self.stopped)} | {self.left} | {self.equivalent} |"


def source_of(module: str) -> Path:
    """The file of a module."""
    relative = f"{module.replace('.', '/')}.py"
    return next(path for package in PACKAGES if (path := package / relative).exists())


def examine(module: str, count: int | None, seed: int, seconds: float, *, left: bool) -> Verdicts:
    """Try mutants of a module: all, a sample of `count`, or those that were not noticed in the last run."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        folder = Path(temporary)
        path = _copy_of(module, folder)
        # Otherwise Python would import the compiled original.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()
        source = path.read_text(encoding="utf-8")
        all_mutants = mutants(source)
        known = mutants_listed.of_module(module, mutants_listed.read(mutants_listed.EQUIVALENT))
        counted = [at for at, each in enumerate(all_mutants) if mutants_listed.key(each) not in known]
        is_complete = False
        if left:
            before = _left(module)
            cases = [case for case in counted if mutants_listed.key(all_mutants[case]) in before]
        elif count is None or count >= len(counted):
            is_complete, cases = True, counted
        else:
            cases = random.Random(seed).sample(counted, count)
        tried = range(len(all_mutants)) if is_complete else cases
        _run(module, Job(path, source, _tests(module), folder, list(tried), seconds))
        verdicts = dict(read_results(folder))
    if broken := [verdicts.get(case, "none") for case in tried if verdicts.get(case) not in VERDICTS]:
        sys.exit(f"{module}: {len(broken)} mutants could not be tried: {broken[0]}")
    of = {verdict: [all_mutants[case] for case in cases if verdicts[case] == verdict] for verdict in VERDICTS}
    noticed = [mutant for at, mutant in enumerate(all_mutants) if verdicts.get(at) in ("noticed", "stops")]
    listed = known | mutants_listed.of_module(module, mutants_listed.read(mutants_listed.LEFT))
    LAST.mkdir(parents=True, exist_ok=True)
    remaining = [mutants_listed.key(each) for each in (*of["survives"], *of["unreached"])]
    (LAST / f"{module}.json").write_text(json.dumps(remaining), encoding="utf-8")
    return Verdicts(
        tried=len(cases),
        equivalent=len(all_mutants) - len(counted),
        stopped=of["stops"],
        survivors=of["survives"],
        unreached=of["unreached"],
        is_complete=is_complete,
        wrongly_listed=[each for each in noticed if mutants_listed.key(each) in listed],
    )


def _left(module: str) -> set[tuple[str, str]]:
    """Statements and changes of the mutants that were not noticed in the last run."""
    file = LAST / f"{module}.json"
    if not file.exists():
        sys.exit(f"{module}: no results of an earlier run: run without --left first")
    return {(statement, change) for statement, change in json.loads(file.read_text(encoding="utf-8"))}


def _copy_of(module: str, folder: Path) -> Path:
    """Copy the packages into a folder; returns the path of the module there."""
    for package in PACKAGES:
        there = folder / package.name
        shutil.copytree(package, there, ignore=shutil.ignore_patterns("__pycache__", "_native*.so"))
        for library in package.glob("_native*.so"):
            (there / library.name).symlink_to(library)
        compileall.compile_dir(there, quiet=1)
    (folder / "sitecustomize.py").write_text(TRACE_AT_START, encoding="utf-8")
    source = source_of(module)
    return next(folder / each.name / source.relative_to(each) for each in PACKAGES if source.is_relative_to(each))


def _tests(module: str) -> list[str]:
    missing = [name for name in MODULES[module] if not (ROOT / "tests" / name).exists()]
    if missing:
        sys.exit(f"{module}: test file {missing[0]} does not exist: correct MODULES in scripts/mutants.py")
    return [f"tests/{name}" for name in MODULES[module]]


def _run(module: str, job: Job) -> None:
    environment = {**os.environ, "PYTHONPATH": str(job.folder), "PYTHONDONTWRITEBYTECODE": "1"}
    log = job.folder / "log.txt"
    with job_file(job) as file, log.open("w", encoding="utf-8") as output:
        worker = [sys.executable, str(ROOT / "scripts" / "mutants_worker.py"), str(file)]
        done = subprocess.run(
            worker, cwd=ROOT, env=environment, check=False, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    if done.returncode != 0:
        sys.exit(f"{module}: could not run its tests without a mutant:\n{log.read_text(encoding='utf-8')[-3000:]}")


def explained(module: str, verdicts: Verdicts) -> bool:
    """Print problems of the lists of survivors; returns whether there are none."""
    equivalent, left = mutants_listed.read(mutants_listed.EQUIVALENT), mutants_listed.read(mutants_listed.LEFT)
    all_mutants = mutants(source_of(module).read_text(encoding="utf-8"))
    found = mutants_listed.problems(module, all_mutants, equivalent, left)
    if new := mutants_listed.unexplained(module, [*verdicts.survivors, *verdicts.unreached], left):
        lines = ", ".join(str(mutant.lines.start) for mutant in sorted(new, key=lambda each: each.lines.start))
        found.append(
            f"{len(new)} mutants are neither noticed nor listed, in lines {lines}: "
            f"add a test, or an entry with the reason to {mutants_listed.LEFT.name}"
        )
    for mutant in verdicts.wrongly_listed:
        found.append(f"a test notices {mutant.statement!r}, {mutant.change!r}: remove the entry")
    for problem in found:
        print(f"  {problem}", flush=True)
    return not found


def _print(module: str, verdicts: Verdicts) -> None:
    noticed, stopped = verdicts.tried - verdicts.left, len(verdicts.stopped)
    print(
        f"{module}: {noticed} of {verdicts.tried} mutants noticed, {verdicts.share:.1%}; {stopped} of them "
        f"because a test did not end; {verdicts.equivalent} equivalent",
        flush=True,
    )
    kinds = (
        ("survives", verdicts.survivors),
        ("reached by no test", verdicts.unreached),
        ("noticed, a test did not end", verdicts.stopped),
    )
    for words, listed in kinds:
        for mutant in sorted(listed, key=lambda each: each.lines.start):
            print(f"  line {mutant.lines.start}: {words}: {mutant.statement}\n    {mutant.change}", flush=True)


def main() -> int:
    """Try mutants of modules; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="default: all")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--count", type=int, help="number of random mutants per module; default: all")
    which.add_argument("--left", action="store_true", help="only mutants that were not noticed in the last run")
    parser.add_argument("--table", action="store_true", help="write the figures into the table of CONTRIBUTING.md")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random choice")
    parser.add_argument("--seconds", type=float, default=5, help="time limit for the tests of one mutant; default 5")
    options = parser.parse_args()
    if unknown := [name for name in options.modules if name not in MODULES]:
        parser.error(f"unknown module {', '.join(unknown)}: use one of {', '.join(MODULES)}")
    good = True
    for module in options.modules or MODULES:
        verdicts = examine(module, options.count, options.seed, options.seconds, left=options.left)
        good &= verdicts.share >= NOTICED_MIN
        _print(module, verdicts)
        good &= explained(module, verdicts)
        if options.table and verdicts.is_complete:
            write_table({module: verdicts.row(module)}, TABLE_HEAD, MODULES, TABLE)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
