"""Changes one operator of a Python module at a time and looks whether its tests notice.

    python scripts/mutants.py [--count N] [--seed S] [MODULE...]

Each mutant is one change of meaning: a comparison, an operator, a constant, a condition. It is made in a copy of the
package, and the tests that MODULES names for the module run on it. A mutant that they pass on survives. Survivors that
change nothing a caller could see are listed in scripts/mutants_equivalent.toml with the reason, and do not count.
Fails where fewer than 85 of a hundred mutants of a module are noticed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTICED_MIN = 0.85
EQUIVALENT = ROOT / "scripts" / "mutants_equivalent.toml"

# Modules that carry meaning, and the tests that have to notice when it changes.
MODULES: dict[str, tuple[str, ...]] = {
    "times": ("test_times.py", "test_inputs.py"),
    "predicates": ("test_predicates.py", "test_inputs.py", "test_polars.py"),
    "conditions": ("test_predicates.py",),
    "inputs": ("test_inputs.py", "test_times.py"),
    "cells": ("test_inputs.py", "test_sky.py"),
    "apdb.values": ("test_apdb_values.py",),
    "apdb.rows": ("test_apdb_values.py", "test_apdb.py"),
    "events.moments": ("test_events_moments.py",),
    "events.retention": ("test_events.py",),
    "jobs.jobs": ("test_jobs.py",),
    "jobs.comparing": ("test_jobs_sync.py",),
    "jobs.swf": ("test_jobs_load.py",),
    "ops.rules": ("test_ops.py", "test_ops_rules.py"),
    "ops.measures": ("test_ops.py", "test_ops_rules.py"),
    "load.statistics": ("test_load.py", "test_load_statistics.py"),
    "load.schedule": ("test_load.py",),
}

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: the line and the statement that it is in, what became what, and the module's source with it."""

    line: int
    statement: str
    change: str
    source: str


def mutants(source: str) -> Iterator[Mutant]:
    """All mutants of a module."""
    tree = ast.parse(source)
    for node, statement in _meaningful(tree):
        for changed in _changes(node):
            mutated = copy.deepcopy(tree)
            target = _at(mutated, _index(tree, node))
            target.__class__ = changed.__class__
            target.__dict__.clear()
            target.__dict__.update(changed.__dict__)
            change = f"{ast.unparse(node)} -> {ast.unparse(target)}"
            first = ast.unparse(statement).partition("\n")[0]
            yield Mutant(getattr(node, "lineno", 0), first, change, ast.unparse(ast.fix_missing_locations(mutated)))


def _index(tree: ast.AST, wanted: ast.AST) -> int:
    return next(number for number, node in enumerate(ast.walk(tree)) if node is wanted)


def _at(tree: ast.AST, place: int) -> ast.AST:
    return next(node for number, node in enumerate(ast.walk(tree)) if number == place)


def _meaningful(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Nodes whose change may change what the module does, with the statement that each is in: not types, not
    docstrings, not the words of messages."""
    stack: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while stack:
        node, statement = stack.pop()
        statement = node if isinstance(node, ast.stmt) else statement
        yield node, statement
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params", "type_comment"):
                continue
            children = value if isinstance(value, list) else [value]
            stack += [(child, statement) for child in children if isinstance(child, ast.AST) and not _is_words(child)]


def _is_words(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr | ast.Raise | ast.Import | ast.ImportFrom | ast.Assert)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[place] = _COMPARE[type(operator)]()
            yield changed
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _BINARY:
        if not any(
            isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.iter_child_nodes(node)
        ):
            changed_op = copy.deepcopy(node)
            changed_op.op = _BINARY[type(node.op)]()
            yield changed_op
    elif isinstance(node, ast.BoolOp):
        changed_bool = copy.deepcopy(node)
        changed_bool.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield changed_bool
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield copy.deepcopy(node.operand)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(copy.deepcopy(node.test), copy.deepcopy(node.orelse), copy.deepcopy(node.body))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)


def equivalent(module: str) -> set[tuple[str, str]]:
    """Statements and changes of the mutants of a module that change nothing."""
    listed = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["mutant"]
    return {(each["statement"], each["change"]) for each in listed if each["module"] == module and each["why"]}


class Copy:
    """A copy of the package in which one module is changed at a time."""

    def __init__(self, module: str, folder: Path) -> None:
        shutil.copytree(
            ROOT / "python" / "chronotile", folder / "chronotile", ignore=shutil.ignore_patterns("__pycache__")
        )
        self.path = folder / "chronotile" / f"{module.replace('.', '/')}.py"
        self.source = self.path.read_text(encoding="utf-8")
        self.tests = [str(ROOT / "tests" / name) for name in MODULES[module] if (ROOT / "tests" / name).exists()]
        self.environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}

    def passes(self, source: str, timeout_s: float) -> bool:
        """Whether the tests pass on this source of the module."""
        self.path.write_text(source, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *self.tests]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=self.environment, timeout=timeout_s, check=False, capture_output=True,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def examine(module: str, count: int | None, seed: int) -> tuple[int, list[Mutant]]:
    """How many mutants of a module were tried, and which of them its tests pass on."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        package = Copy(module, Path(folder))
        began = time.monotonic()
        if not package.passes(package.source, 600):
            sys.exit(f"{module}: its tests fail as it is: {', '.join(package.tests)}")
        timeout_s = 20 + 5 * (time.monotonic() - began)
        known = equivalent(module)
        found = [mutant for mutant in mutants(package.source) if (mutant.statement, mutant.change) not in known]
        chosen = found if count is None or count >= len(found) else random.Random(seed).sample(found, count)
        return len(chosen), [mutant for mutant in chosen if package.passes(mutant.source, timeout_s)]


def main() -> int:
    """Examine modules; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="by default all of them")
    parser.add_argument("--count", type=int, help="mutants of each module, chosen at random; by default all")
    parser.add_argument("--seed", type=int, default=1, help="of the choice")
    given = parser.parse_args()
    if unknown := [name for name in given.modules if name not in MODULES]:
        parser.error(f"no tests are named for {', '.join(unknown)}: use one of {', '.join(MODULES)}")
    good = True
    for module in given.modules or MODULES:
        tried, survivors = examine(module, given.count, given.seed)
        share = 1 - len(survivors) / tried if tried else 1.0
        good &= share >= NOTICED_MIN
        print(f"{module}: {tried - len(survivors)} of {tried} mutants noticed, {share:.0%}", flush=True)
        for mutant in sorted(survivors, key=lambda each: each.line):
            print(f"  line {mutant.line}: {mutant.statement}\n    {mutant.change}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
