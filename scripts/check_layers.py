"""Proves that dependencies point one way: between the crates, and inside the Python package.

    types -> chunk -> archive -> python
    types -> store -> engines -> archive
    sky   -> archive;   types -> io -> python
    archive -> historian -> service -> python
    cql   -> cassandra (an engine);   cql -> tables -> python
    chunk, store, tables -> rows -> cassandra
    the Python package -> its front ends -> the command line

`python scripts/check_layers.py [WORKSPACE]` prints what is wrong, a line each, and fails if anything is.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX = "chronotile-"
ENGINES = frozenset({"memory", "sqlite", "cassandra"})

# What each crate may depend on among ours. A new crate gets its line here.
MAY_USE: dict[str, frozenset[str]] = {
    "types": frozenset(),
    "sky": frozenset(),
    "chunk": frozenset({"types"}),
    "store": frozenset({"types"}),
    "cql": frozenset(),
    "tables": frozenset({"cql"}),
    **{engine: frozenset({"types", "store"}) for engine in ENGINES},
    "rows": frozenset({"types", "chunk", "store", "cql", "tables"}),
    "cassandra": frozenset({"types", "store", "cql", "rows"}),
    "io": frozenset({"types"}),
    "archive": frozenset({"types", "sky", "chunk", "store"}) | ENGINES,
    "historian": frozenset({"types", "archive"}),
    "service": frozenset({"types", "sky", "store", "archive", "historian", "io"}),
    "python": frozenset({"types", "sky", "chunk", "store", "archive", "historian", "service", "io", "cql", "tables"}),
}

# What tests may use besides: the Store's suite and wrappers are tried on the simplest engine.
TESTS_MAY_USE: dict[str, frozenset[str]] = {
    "store": frozenset({"memory"}),
    # The Store's suite is wrapped in chunks of records.
    "cassandra": frozenset({"chunk", "arrow-array", "arrow-schema"}),
    # Damage is done to the file itself.
    "archive": frozenset({"rusqlite"}),
    "historian": frozenset({"memory"}),
}

# Crates of others that would break a layer's promise: an engine knows no schema, and what computes does no I/O.
_NO_SCHEMA = re.compile(r"arrow(-.*)?|parquet|pyo3.*")
_NO_INPUT_OUTPUT = re.compile(r"tokio|async-.*|futures|rusqlite|scylla|object_store|reqwest|hyper|pyo3.*")
MAY_NOT_USE: dict[str, re.Pattern[str]] = {
    "types": _NO_INPUT_OUTPUT,
    "sky": _NO_INPUT_OUTPUT,
    "chunk": _NO_INPUT_OUTPUT,
    "store": _NO_SCHEMA,
    **dict.fromkeys(ENGINES, _NO_SCHEMA),
    "archive": re.compile(r"rusqlite|scylla|pyo3.*"),
    "historian": re.compile(r"rusqlite|scylla|pyo3.*"),
    "service": re.compile(r"rusqlite|scylla|pyo3.*"),
    "io": re.compile(r"rusqlite|scylla|pyo3.*"),
    "cql": re.compile(r"arrow(-.*)?|parquet|pyo3.*"),
    "tables": re.compile(r"rusqlite|pyo3.*"),
    "rows": _NO_INPUT_OUTPUT,
}

SPEAKING = frozenset({"ops/procedures/statements.py"})
"""Modules of the Python package that may hold queries: on a cluster's own tables, which no archive knows."""

# Front ends of the Python package, with those each may use. Only the command line may use all of them, and nothing else
# of the package may use any.
FRONT_ENDS: dict[str, frozenset[str]] = {
    "apdb": frozenset(),
    "demo": frozenset({"apdb"}),
    "events": frozenset(),
    "jobs": frozenset(),
    "lab": frozenset(),
    "load": frozenset({"apdb", "lab"}),
    "ops": frozenset({"lab"}),
    "service": frozenset({"events", "jobs"}),
}

_ENGINE_NAME = re.compile(rf"\bchronotile_({'|'.join(sorted(ENGINES))})\b")
_TEST_MODULE = re.compile(r"^#\[cfg\(test\)\]\s*\n(?:#\[[^\n]*\n)*(?:pub(?:\(crate\))? )?mod \w+ \{", re.MULTILINE)
_LINE_COMMENT = re.compile(r"//.*")
_QUERY = re.compile(
    r"\b(select\s.+\sfrom|insert\s+into|update\s+\S+\s+set|delete\s+from|create\s+(table|index|keyspace)"
    r"|drop\s+(table|index|keyspace)|alter\s+table)\b",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Breach:
    """One rule broken in one place."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def manifest_breaches(packages: list[dict[str, Any]]) -> Iterator[Breach]:
    """Dependencies that a crate of ours may not have. `packages` is that of `cargo metadata --no-deps`."""
    for package in packages:
        where = str(package["name"])
        crate = where.removeprefix(PREFIX)
        if not where.startswith(PREFIX) or crate not in MAY_USE:
            yield Breach(where, "is in no layer: give it a line in MAY_USE of scripts/check_layers.py")
            continue
        forbidden = MAY_NOT_USE.get(crate)
        for dependency in package["dependencies"]:
            name = str(dependency["name"])
            may_use = MAY_USE[crate]
            if dependency["kind"] == "dev":
                may_use |= TESTS_MAY_USE.get(crate, frozenset())
            if name.startswith(PREFIX):
                if name.removeprefix(PREFIX) not in may_use:
                    allowed = ", ".join(sorted(may_use)) or "none of ours"
                    yield Breach(where, f"depends on {name}; allowed are: {allowed}")
            elif forbidden and forbidden.fullmatch(name) and name not in may_use:
                yield Breach(where, f"depends on {name}, which its layer must not know")


def engine_breaches(archive_sources: Path) -> Iterator[Breach]:
    """Modules of the archive that name an engine. Only `open` chooses one; test modules may."""
    for path in sorted(archive_sources.rglob("*.rs")):
        parts = path.relative_to(archive_sources).parts
        if parts[0] in {"open.rs", "open"} or parts[-1] == "tests.rs" or "tests" in parts:
            continue
        text = path.read_text(encoding="utf-8")
        test_module = _TEST_MODULE.search(text)
        code = text[: test_module.start()] if test_module else text
        for number, line in enumerate(code.splitlines(), 1):
            named = _ENGINE_NAME.search(_LINE_COMMENT.sub("", line))
            if named:
                yield Breach(f"{path}:{number}", f"names the engine {named[1]}: only the module `open` may")


def query_breaches(python_package: Path) -> Iterator[Breach]:
    """Query language in strings of the Python package. Docstrings may show a recipe."""
    for path in sorted(python_package.rglob("*.py")):
        if path.relative_to(python_package).as_posix() in SPEAKING:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        prose = {id(text) for text in _docstrings(tree)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in prose:
                continue
            if _QUERY.search(node.value):
                yield Breach(
                    f"{path}:{node.lineno}", "holds a query: front ends speak to the archive, never to an engine"
                )


def front_end_breaches(python_package: Path) -> Iterator[Breach]:
    """Imports of a front end by the library or by a front end that may not use it."""
    for path in sorted(python_package.rglob("*.py")):
        first, *rest = path.relative_to(python_package).parts
        place = first if rest else "the library"
        if place == "cli" or first == "__main__.py":
            continue
        may_use = FRONT_ENDS.get(place, frozenset()) | {place}
        for line, name in _imports(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
            if name in FRONT_ENDS and name not in may_use:
                yield Breach(f"{path}:{line}", f"imports the front end {name}, which {place} must not know")


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines and names of what is imported from the package `chronotile` itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            package, _, rest = module.partition(".")
            if package == "chronotile" and rest:
                yield node.lineno, rest.partition(".")[0]


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def workspace_breaches(workspace: Path) -> list[Breach]:
    """Everything that breaks a layer in `workspace`, a folder with the root Cargo.toml."""
    manifest = str(workspace / "Cargo.toml")
    command = ["cargo", "metadata", "--no-deps", "--format-version", "1", "--manifest-path", manifest]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return [
        *manifest_breaches(metadata["packages"]),
        *(
            breach
            for package in metadata["packages"]
            if package["name"] == f"{PREFIX}archive"
            for breach in engine_breaches(Path(package["manifest_path"]).parent / "src")
        ),
        *query_breaches(workspace / "python" / "chronotile"),
        *front_end_breaches(workspace / "python" / "chronotile"),
    ]


def main(arguments: list[str]) -> int:
    workspace = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    breaches = workspace_breaches(workspace)
    for breach in breaches:
        print(breach)
    print(f"layers: {len(breaches)} breaches" if breaches else "layers: dependencies point one way")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
