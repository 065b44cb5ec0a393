"""Checks that dependencies between crates, and between modules of the Python packages, point one way.

    types -> chunk -> archive -> python
    types -> store -> engines -> archive
    sky   -> archive;   types -> io -> python
    archive -> historian -> service -> python
    cql   -> cassandra (an engine);   cql -> tables -> python
    chunk, store, tables -> rows -> cassandra
    the Python package -> its front ends -> the command line -> chronotile-tools

`python scripts/check_layers.py [WORKSPACE]` prints one line for each breach, and fails if there is any.
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

from rust_modules import module_edges

PREFIX = "chronotile-"
ENGINES = frozenset({"memory", "sqlite", "cassandra"})

# The crates of this workspace that each crate may depend on. A new crate needs a line here.
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
    "archive-tests": frozenset(),
    "simulation": frozenset(),
    "historian": frozenset({"types", "archive"}),
    "service": frozenset({"types", "sky", "store", "archive", "historian", "io"}),
    "python": frozenset({"types", "sky", "chunk", "store", "archive", "historian", "service", "io", "cql", "tables"}),
    "fuzz": frozenset({"types", "chunk", "archive", "historian", "service", "io"}),
}

# Additional dependencies of tests. The Store's suite and wrappers are tested on the simplest engine.
TESTS_MAY_USE: dict[str, frozenset[str]] = {
    "store": frozenset({"memory"}),
    # Tests wrap the bytes of the Store's suite in encoded chunks, which tables of layout `rows` can hold.
    "cassandra": frozenset({"chunk", "arrow-array", "arrow-schema"}),
    # Tests damage the file itself.
    "archive-tests": frozenset({"archive", "types", "sky", "chunk", "store", "memory", "sqlite", "rusqlite"}),
    "simulation": frozenset({"archive", "types", "store", "memory", "sqlite"}),
    "historian": frozenset({"memory"}),
}

# External crates that would break the rules of a layer: engines know no schema, and pure computation does no I/O.
_NO_SCHEMA = re.compile(r"arrow(-.*)?|parquet|pyo3.*")
_NO_IO = re.compile(r"tokio|async-.*|futures|rusqlite|scylla|object_store|reqwest|hyper|pyo3.*")
MAY_NOT_USE: dict[str, re.Pattern[str]] = {
    "types": _NO_IO,
    "sky": _NO_IO,
    "chunk": _NO_IO,
    "store": _NO_SCHEMA,
    **dict.fromkeys(ENGINES, _NO_SCHEMA),
    "archive": re.compile(r"rusqlite|scylla|pyo3.*"),
    "historian": re.compile(r"rusqlite|scylla|pyo3.*"),
    "service": re.compile(r"rusqlite|scylla|pyo3.*"),
    "io": re.compile(r"rusqlite|scylla|pyo3.*"),
    "cql": re.compile(r"arrow(-.*)?|parquet|pyo3.*"),
    "tables": re.compile(r"rusqlite|pyo3.*"),
    "rows": _NO_IO,
}

MAY_HOLD_QUERIES = {
    "client/wire.py": "reads of small system tables",
    "lab/security.py": "the superuser of a laboratory's cluster",
    "load/experiments/archive_tables.py": "table options that an experiment changes",
    "load/job_archive/relational.py": "queries to a database that Chronotile is compared with",
    "ops/procedures/statements.py": "system tables, and the lease of procedures",
}
"""Modules of the Python packages that may hold queries, and what these are about: nothing that an archive stores."""

# The subpackages of each Python package, with the other subpackages that each may use. Top-level modules may use none;
# the command line may use all. Nothing else may use the command line.
SUBPACKAGES: dict[str, dict[str, frozenset[str]]] = {
    "chronotile": {
        "apdb": frozenset(),
        "demo": frozenset({"apdb"}),
        "events": frozenset(),
        "jobs": frozenset(),
        "service": frozenset({"events", "jobs"}),
        "cli": frozenset({"apdb", "demo", "events", "jobs", "service"}),
    },
    "chronotile_tools": {
        "client": frozenset(),
        "lab": frozenset({"client"}),
        "ops": frozenset({"client", "lab"}),
        "survey": frozenset(),
        "load": frozenset({"lab", "survey"}),
        "studies": frozenset({"load", "survey"}),
        "cli": frozenset({"client", "lab", "ops", "survey", "load", "studies"}),
    },
}

# Subpackages of chronotile that subpackages of chronotile_tools may use. All may use its top-level modules.
TOOLS_MAY_USE: dict[str, frozenset[str]] = {
    "survey": frozenset({"apdb"}),
    "load": frozenset({"apdb", "jobs"}),
    "studies": frozenset({"apdb"}),
    "cli": frozenset({"apdb", "cli"}),
}

_ENGINE_NAME = re.compile(rf"\bchronotile_({'|'.join(sorted(ENGINES))})\b")
_TEST_MODULE = re.compile(r"^#\[cfg\(test\)\]\s*\n(?:#\[[^\n]*\n)*(?:pub(?:\(crate\))? )?mod \w+ \{", re.MULTILINE)
_LINE_COMMENT = re.compile(r"//.*")
_QUERY = re.compile(
    r"\b(select\s.+\sfrom|insert\s+into|update\s+\S+\s+set|delete\s+from"
    r"|(create|alter|drop)\s+(table|index|keyspace|role|user|type|materialized\s+view))\b",
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
    """Forbidden dependencies of our crates. `packages` comes from `cargo metadata --no-deps`."""
    for package in packages:
        where = str(package["name"])
        crate = where.removeprefix(PREFIX)
        if not where.startswith(PREFIX) or crate not in MAY_USE:
            yield Breach(where, "is in no layer: add a line to MAY_USE in scripts/check_layers.py")
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
                    yield Breach(where, f"depends on {name}; allowed: {allowed}")
            elif forbidden and forbidden.fullmatch(name) and name not in may_use:
                yield Breach(where, f"depends on {name}, which its layer must not use")


def engine_breaches(archive_sources: Path) -> Iterator[Breach]:
    """Modules of the archive that name an engine. Only `open` and test modules may."""
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


def store_breaches(store_sources: Path) -> Iterator[Breach]:
    """Methods of the trait `Store` with a default body: a wrapper that omits such a method would compile, but not
    forward its calls.
    """
    path = store_sources / "lib.rs"
    text = _LINE_COMMENT.sub("", path.read_text(encoding="utf-8"))
    trait = re.search(r"^pub trait Store\b[^{]*\{(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    for method in re.finditer(r"\bfn (\w+)[^;{]*\{", trait[1] if trait else ""):
        yield Breach(str(path), f"gives Store::{method[1]} a default body: wrappers must not compile without it")


def query_breaches(python_package: Path) -> Iterator[Breach]:
    """Strings with SQL or CQL in a Python package. Docstrings may contain queries."""
    for path in sorted(python_package.rglob("*.py")):
        if path.relative_to(python_package).as_posix() in MAY_HOLD_QUERIES:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        prose = {id(text) for text in _docstrings(tree)}
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.expr) and id(node) not in prose]
        for line in sorted({node.lineno for node in texts if _QUERY.search(_text(node))}):
            yield Breach(f"{path}:{line}", "holds a query: front ends call the archive, never an engine")


def subpackage_breaches(package: Path) -> Iterator[Breach]:
    """Imports of a subpackage by modules that must not use it."""
    for path in sorted(package.rglob("*.py")):
        first, *rest = path.relative_to(package).parts
        if first == "__main__.py":
            continue
        subpackage = first if rest else ""
        for line, imported in _imports(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
            name, _, used = imported.partition(".")
            used = used.partition(".")[0]
            if name == package.name:
                may_use = SUBPACKAGES[name].get(subpackage, frozenset()) | {subpackage}
            elif name == "chronotile_tools":
                yield Breach(f"{path}:{line}", "imports chronotile_tools, which the package must not use")
                continue
            else:
                may_use = TOOLS_MAY_USE.get(subpackage, frozenset())
            if used in SUBPACKAGES[name] and used not in may_use:
                yield Breach(
                    f"{path}:{line}", f"imports {name}.{used}, which {subpackage or 'the library'} must not use"
                )


def cycle_breaches(package: Path) -> Iterator[Breach]:
    """Modules that import each other, including imports in functions and for types; not a package and its children."""
    modules = dict(_modules(package))
    edges: dict[str, set[str]] = {}
    for name, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        found = {_nearest(imported, modules) for _, imported in _imports(tree)}
        edges[name] = {one for one in found if one and not _related(one, name)}
    for cycle in _cycles(edges):
        yield Breach(str(modules[cycle[0]]), f"imports in a cycle: {' -> '.join([*cycle, cycle[0]])}")


def crate_cycle_breaches(source: Path) -> Iterator[Breach]:
    """Modules of a crate that use each other; not a module and its submodules."""
    files, uses = module_edges(source)
    edges = {module: {one for one in used if not _related(one, module, "::")} for module, used in uses.items()}
    for cycle in _cycles(edges):
        yield Breach(str(files[cycle[0]]), f"uses in a cycle: {' -> '.join([*cycle, cycle[0]])}")


def _modules(package: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def _nearest(imported: str, modules: dict[str, Path]) -> str:
    """The module that an imported name refers to, or that defines it."""
    while imported and imported not in modules:
        imported = imported.rpartition(".")[0]
    return imported


def _related(one: str, other: str, mark: str = ".") -> bool:
    return f"{one}{mark}".startswith(f"{other}{mark}") or f"{other}{mark}".startswith(f"{one}{mark}")


def _cycles(edges: dict[str, set[str]]) -> Iterator[list[str]]:
    """One import cycle for each module that is in a cycle and not in one already found."""
    done: set[str] = set()
    for start in sorted(edges):
        if start in done:
            continue
        # Breadth first, so that the cycle is a shortest one.
        paths: list[list[str]] = [[start]]
        visited = {start}
        while paths:
            path = paths.pop(0)
            imported = edges.get(path[-1], set()) - done
            if start in imported:
                done.update(path)
                yield path
                break
            paths += [[*path, one] for one in sorted(imported - visited)]
            visited |= imported


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line numbers and full names of imports from our packages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            package, _, rest = module.partition(".")
            if package in SUBPACKAGES and rest:
                yield node.lineno, module


def _text(node: ast.AST) -> str:
    """The text of a string, or of an f-string with `?` for each of its values."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "?" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def workspace_breaches(workspace: Path) -> list[Breach]:
    """All breaches in `workspace`, the folder of the root Cargo.toml."""
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
        *(
            breach
            for package in metadata["packages"]
            if package["name"] == f"{PREFIX}store"
            for breach in store_breaches(Path(package["manifest_path"]).parent / "src")
        ),
        *(
            breach
            for package in metadata["packages"]
            for breach in crate_cycle_breaches(Path(package["manifest_path"]).parent / "src")
        ),
        *(
            breach
            for package in (workspace / "python" / "chronotile", workspace / "tools" / "chronotile_tools")
            for check in (query_breaches, subpackage_breaches, cycle_breaches)
            for breach in check(package)
        ),
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
