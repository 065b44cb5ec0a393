"""Mutation tests of crates.

    python scripts/mutants_rust.py [--count N | --left] [--seed S] [--seconds S] [--table] [CRATE...]

cargo-mutants lists the changes; .cargo/mutants.toml selects the files and excludes changes that nobody can observe. All
changes of a crate are compiled together, each behind a switch (scripts/mutants_rust_switch.py). Each test of the crate
first runs alone, to measure which changes it reaches and how long it takes. Then, for each change, the tests that reach
it run, quickest first, until one fails. The change survives if all pass. scripts/mutants_rust_left.toml lists survivors
with the reason. Fails if less than 85% of a crate's changes are noticed, or if a survivor is not listed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutants_rust_run import Runner, Test, Verdict
from mutants_rust_switch import NUMBERS, Mutant, at_top, listed, nearest, with_switches
from mutants_table import write_table

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "target" / "mutants"
NOTICED_MIN = 0.85
LEFT = ROOT / "scripts" / "mutants_rust_left.toml"
TABLE = ROOT / "CONTRIBUTING.md"
TABLE_HEAD = "| crate | files | changes | tried | noticed | left |"


@dataclass(frozen=True)
class Crate:
    """A crate's folder, and the packages and targets that contain its tests, as arguments of `cargo test`."""

    folder: str
    tests: tuple[str, ...]


CRATES = {
    "types": Crate("crates/core/types", ("-p", "chronotile-types", "--lib")),
    "sky": Crate("crates/core/sky", ("-p", "chronotile-sky", "--lib", "--tests")),
    "chunk": Crate("crates/core/chunk", ("-p", "chronotile-chunk", "--lib", "--tests")),
    "archive": Crate(
        "crates/core/archive",
        (
            *("-p", "chronotile-archive", "-p", "chronotile-archive-tests", "-p", "chronotile-simulation"),
            *("--lib", "--test", "archive", "--test", "model", "--test", "simulation"),
        ),
    ),
    "historian": Crate("crates/historian", ("-p", "chronotile-historian", "--lib", "--tests")),
    "service": Crate("crates/service", ("-p", "chronotile-service", "--lib")),
}


@dataclass
class Outcome:
    """Outcomes of the changes of a crate. `unplaced` are changes that cannot have a switch, such as in constants."""

    files: int
    unplaced: list[Mutant]
    not_compiled: list[Mutant]
    verdicts: dict[int, Verdict] = field(default_factory=dict)

    def of(self, *verdicts: Verdict) -> list[int]:
        """Numbers of the changes with one of these verdicts."""
        return [number for number, verdict in self.verdicts.items() if verdict in verdicts]

    @property
    def left(self) -> list[int]:
        """Changes that were not noticed."""
        return self.of(Verdict.SURVIVES, Verdict.UNREACHED)

    @property
    def share(self) -> float:
        """Share of the tried changes that tests noticed."""
        return 1 - len(self.left) / len(self.verdicts) if self.verdicts else 1.0

    def row(self, crate: str, total: int) -> str:
        """The row of a crate in the table."""
        tried, left = len(self.verdicts), len(self.left)
        return f"| `{crate}` | {self.files} | {total:,} | {tried:,} | {tried - left:,} ({self.share:.1%}) | {left} |"


def all_mutants() -> list[Mutant]:
    """All changes that cargo-mutants lists."""
    program = ROOT / ".venv" / "cargo" / "bin" / "cargo-mutants"
    if not program.exists():
        sys.exit("cargo-mutants is not installed: run ./dev mutants-rust, which installs it")
    text = subprocess.run(
        [program, "mutants", "--list", "--json", "--dir", ROOT], check=True, capture_output=True, text=True
    ).stdout  # fmt: skip
    return list(listed(json.loads(text)))


def examine(name: str, wanted: list[Mutant], seconds: float, known: list[Listed]) -> Outcome:
    """Try changes of a crate; prints those that no test notices as they are found."""
    crate = CRATES[name]
    tree = WORK / "tree"
    _copy(tree)
    placed, programs, bad = _build(tree, crate, wanted)
    outcome = Outcome(
        files=len({each.file for each in wanted}),
        unplaced=[each for each in wanted if each.number not in placed | bad],
        not_compiled=[each for each in wanted if each.number in bad],
    )
    tests = [test for program, folder in programs.items() for test in _tests_of(program, folder)]
    runner = Runner(tests, seconds)
    print(f"{name}: {len(placed)} changes compiled, {len(tests)} tests", flush=True)
    for test in runner.measure():
        print(f"  excluded, fails or takes too long without a change: {test.name}", flush=True)
    print(f"  {sum(test.seconds for test in runner.tests):.0f} s of tests", flush=True)
    began = time.monotonic()
    mutants = {each.number: each for each in wanted}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        numbers = sorted(placed)
        for done, (number, verdict) in enumerate(zip(numbers, pool.map(runner.try_, numbers), strict=True), start=1):
            outcome.verdicts[number] = verdict
            if verdict in (Verdict.SURVIVES, Verdict.UNREACHED):
                reason = ", listed" if _is_listed(mutants[number], known) else ""
                print(f"  {verdict.value}{reason}: {mutants[number].name}", flush=True)
            if done % 200 == 0:
                print(f"  {done} tried in {time.monotonic() - began:.0f} s, {len(outcome.left)} left", flush=True)
    return outcome


def _copy(tree: Path) -> None:
    """Copy the sources. The folder is always the same, so that cargo reuses earlier builds."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, check=True,
        capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    wanted = {name for name in names if name and (ROOT / name).is_file()}
    for old in [path for path in tree.rglob("*") if path.is_file() and str(path.relative_to(tree)) not in wanted]:
        old.unlink()
    for name in wanted:
        source, copy = ROOT / name, tree / name
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)


def _build(tree: Path, crate: Crate, mutants: list[Mutant]) -> tuple[set[int], dict[Path, Path], set[int]]:
    """Compile a crate with switches. Returns the numbers of the changes with a switch, the test programs with the
    folders in which they run, and the numbers of the changes that do not compile.
    """
    assert all(each.number < NUMBERS for each in mutants)
    bad: set[int] = set()
    by_file: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_file[mutant.file].append(mutant)
    root = f"{crate.folder}/src/lib.rs"
    while True:
        placed: set[int] = set()
        for file in sorted({*by_file, root}):
            text, here = with_switches(
                (ROOT / file).read_text("utf-8"), [each for each in by_file[file] if each.number not in bad]
            )
            placed |= here
            text = at_top(text) if file == root else text
            if (tree / file).read_text("utf-8") != text:
                (tree / file).write_text(text, "utf-8")
        messages = list(_cargo(tree, *crate.tests))
        errors = [each for each in messages if _is_error(each)]
        if not errors:
            programs = [each for each in messages if each.get("executable")]
            return placed, {Path(each["executable"]): Path(each["manifest_path"]).parent for each in programs}, bad
        found = {number for error in errors for number in _blamed(tree, error, root)}
        if not found:
            sys.exit("".join(["the crate does not compile:\n", *(each["message"]["rendered"] for each in errors[:5])]))
        print(f"  {len(found)} changes do not compile", flush=True)
        bad |= found


def _is_error(message: dict[str, Any]) -> bool:
    about = message.get("message", {})
    return bool(about.get("level") == "error" and about["spans"])


def _blamed(tree: Path, error: dict[str, Any], root: str) -> Iterator[int]:
    """The changes that cause a compiler error."""
    for span in error["message"]["spans"]:
        expanded = span
        while expanded.get("expansion"):
            expanded = expanded["expansion"]["span"]
        for place in (span, expanded):
            file = tree / place["file_name"]
            if not span["is_primary"] or not file.exists():
                continue
            number = nearest(file.read_text("utf-8"), place["line_start"], place["column_start"])
            if number is not None:
                yield number
                return


def _cargo(tree: Path, *arguments: str) -> Iterator[dict[str, Any]]:
    """Build tests; yields cargo's messages. Builds have a separate target directory: cargo identifies packages by path
    within the workspace and by time, so it would mistake these builds for the workspace's own.
    """
    environment = {**os.environ, "CARGO_TARGET_DIR": str(WORK / "build"), "CARGO_INCREMENTAL": "0"}
    command = ["cargo", "test", "--no-run", "--quiet", "--message-format", "json", *arguments]
    done = subprocess.run(command, cwd=tree, env=environment, check=False, capture_output=True, text=True)
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 and not any(_is_error(each) for each in messages):
        sys.exit(f"cargo could not build the tests:\n{done.stderr[-3000:]}")
    yield from messages


def _tests_of(program: Path, folder: Path) -> Iterator[Test]:
    """The tests of a test program."""
    text = subprocess.run(
        [program, "--list", "--format", "terse"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout  # fmt: skip
    for line in text.splitlines():
        if line.endswith(": test"):
            yield Test(program, folder, line.removesuffix(": test"))


def _sample(mutants: list[Mutant], count: int | None, seed: int) -> list[Mutant]:
    """A random sample of changes from each file."""
    by_file: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_file[mutant.file].append(mutant)
    chosen = [
        each if count is None or len(each) <= count else random.Random(f"{seed} {file}").sample(each, count)
        for file, each in sorted(by_file.items())
    ]
    return sorted((mutant for each in chosen for mutant in each), key=lambda mutant: mutant.number)


@dataclass(frozen=True)
class Listed:
    """An entry of the list of survivors: a file, a regular expression of changes, and why no test notices them."""

    file: str
    change: str
    why: str

    def covers(self, mutant: Mutant) -> bool:
        """Whether this entry applies to a survivor."""
        return mutant.file == self.file and re.fullmatch(self.change, mutant.change) is not None


def _is_listed(mutant: Mutant, known: list[Listed]) -> bool:
    return any(entry.covers(mutant) for entry in known)


def _left_list() -> list[Listed]:
    entries = [Listed(**each) for each in tomllib.loads(LEFT.read_text("utf-8")).get("left", [])]
    if missing := [each.file for each in entries if not (ROOT / each.file).exists() or not each.why]:
        sys.exit(f"{LEFT.name}: entry without reason or with a file that does not exist: {missing[0]}")
    return entries


def _report(crate: str, outcome: Outcome, mutants: dict[int, Mutant], known: list[Listed]) -> bool:
    """Print the outcomes of a crate and save the names of survivors for --left; returns whether the crate passes."""
    counts = Counter(outcome.verdicts.values())
    print(
        f"{crate}: {len(outcome.verdicts) - len(outcome.left):,} of {len(outcome.verdicts):,} changes noticed, "
        f"{outcome.share:.1%}; {counts[Verdict.STOPPED]} of them because a test did not end; "
        f"{len(outcome.not_compiled)} did not compile, {len(outcome.unplaced)} cannot have a switch",
        flush=True,
    )
    unexplained = sum(not _is_listed(mutants[number], known) for number in outcome.left)
    if unexplained:
        print(f"  {unexplained} survivors are not listed in {LEFT.name}", flush=True)
    (WORK / f"left-{crate}.json").write_text(json.dumps([mutants[number].name for number in outcome.left]), "utf-8")
    return outcome.share >= NOTICED_MIN and not unexplained


def main() -> int:
    """Try changes of crates; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("crates", nargs="*", metavar="CRATE", help=f"default: all of {', '.join(CRATES)}")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--count", type=int, help="number of random changes per file; default: all")
    which.add_argument("--left", action="store_true", help="only changes that were not noticed in the last run")
    parser.add_argument("--files", default="", metavar="TEXT", help="only files whose path contains TEXT")
    parser.add_argument("--table", action="store_true", help="write the figures into the table of CONTRIBUTING.md")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random choice")
    parser.add_argument("--seconds", type=float, default=20, help="time limit for the tests of one change; default 20")
    options = parser.parse_args()
    if unknown := [name for name in options.crates if name not in CRATES]:
        parser.error(f"unknown crate {', '.join(unknown)}: use one of {', '.join(CRATES)}")
    every = all_mutants()
    WORK.mkdir(parents=True, exist_ok=True)
    known = _left_list()
    good = True
    for crate in options.crates or CRATES:
        folder = f"{CRATES[crate].folder}/"
        own = [each for each in every if each.file.startswith(folder) and options.files in each.file]
        wanted = _sample(own, options.count, options.seed)
        if options.left:
            last = WORK / f"left-{crate}.json"
            if not last.exists():
                sys.exit(f"{crate}: no results of an earlier run: run without --left first")
            before = set(json.loads(last.read_text("utf-8")))
            wanted = [each for each in own if each.name in before]
        outcome = examine(crate, wanted, options.seconds, known)
        good &= _report(crate, outcome, {each.number: each for each in own}, known)
        if options.table and not options.left and not options.files:
            write_table({crate: outcome.row(crate, len(own))}, TABLE_HEAD, CRATES, TABLE)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
