"""The layer check reports each kind of breach."""

from __future__ import annotations

import itertools
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[2] / "scripts" / "check_layers.py"
ROOT = CHECK.parents[1]
CRATES = ("types", "sky", "chunk", "store", "memory", "sqlite", "archive", "python")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A small workspace without breaches."""
    (tmp_path / "Cargo.toml").write_text('[workspace]\nresolver = "2"\nmembers = ["crates/*"]\n')
    for crate in CRATES:
        add_crate(tmp_path, crate)
    (tmp_path / "python" / "chronotile").mkdir(parents=True)
    (tmp_path / "tools" / "chronotile_tools").mkdir(parents=True)
    use(tmp_path, "chunk", '[dependencies]\nchronotile-types = { path = "../types" }\n')
    use(tmp_path, "archive", '[dependencies]\nchronotile-sqlite = { path = "../sqlite" }\n')
    write(tmp_path, "crates/archive/src/open.rs", "use chronotile_sqlite::SqliteStore;\n")
    return tmp_path


def add_crate(workspace: Path, crate: str) -> None:
    source = workspace / "crates" / crate / "src"
    source.mkdir(parents=True)
    (source / "lib.rs").write_text("")
    manifest = f'[package]\nname = "chronotile-{crate}"\nversion = "0.1.0"\nedition = "2024"\n'
    (source.parent / "Cargo.toml").write_text(manifest)


def use(workspace: Path, crate: str, dependencies: str) -> None:
    with (workspace / "crates" / crate / "Cargo.toml").open("a") as manifest:
        manifest.write(dependencies)


def write(workspace: Path, path: str, text: str) -> None:
    (workspace / path).write_text(text)


def check(workspace: Path) -> tuple[int, str]:
    done = subprocess.run([sys.executable, CHECK, workspace], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def breaches(workspace: Path) -> str:
    status, output = check(workspace)
    assert status == 1
    return output


def test_a_workspace_in_order_passes(workspace: Path) -> None:
    assert check(workspace) == (0, "layers: dependencies point one way\n")


@pytest.mark.parametrize(
    ("crate", "dependencies", "complaint"),
    [
        ("sky", '[dependencies]\nchronotile-types = { path = "../types" }\n', "depends on chronotile-types"),
        ("store", '[dependencies]\nchronotile-chunk = { path = "../chunk" }\n', "depends on chronotile-chunk"),
        ("store", '[dependencies]\nchronotile-memory = { path = "../memory" }\n', "depends on chronotile-memory"),
        ("sqlite", '[dev-dependencies]\nchronotile-chunk = { path = "../chunk" }\n', "depends on chronotile-chunk"),
        ("python", '[dependencies]\nchronotile-sqlite = { path = "../sqlite" }\n', "depends on chronotile-sqlite"),
        ("store", '[dependencies]\narrow-array = "59"\n', "depends on arrow-array"),
        ("sqlite", '[build-dependencies]\nparquet = "59"\n', "depends on parquet"),
        ("chunk", '\n[target."cfg(unix)".dependencies]\ntokio = "1"\n', "depends on tokio"),
    ],
)
def test_a_forbidden_dependency_is_reported(workspace: Path, crate: str, dependencies: str, complaint: str) -> None:
    use(workspace, crate, dependencies)
    output = breaches(workspace)
    assert complaint in output
    assert output.endswith("layers: 1 breaches\n")


def test_the_tests_of_store_may_use_the_memory_engine(workspace: Path) -> None:
    use(workspace, "store", '[dev-dependencies]\nchronotile-memory = { path = "../memory" }\n')
    assert check(workspace)[0] == 0


def test_a_crate_without_a_layer_is_seen(workspace: Path) -> None:
    add_crate(workspace, "extras")
    assert "chronotile-extras: is in no layer" in breaches(workspace)


def test_an_engine_named_outside_open_is_seen(workspace: Path) -> None:
    write(workspace, "crates/archive/src/read.rs", "// fine\n\nuse chronotile_sqlite::SqliteStore;\n")
    assert "read.rs:3: names the engine sqlite" in breaches(workspace)


def test_comments_and_test_modules_may_name_an_engine(workspace: Path) -> None:
    code = "// chronotile_sqlite\n#[cfg(test)]\nmod tests {\n    use chronotile_sqlite::SqliteStore;\n}\n"
    write(workspace, "crates/archive/src/read.rs", code)
    assert check(workspace)[0] == 0


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM chunks",
        "insert into t values (1)",
        "DROP TABLE t",
        "select a,\n  b from t",
        "ALTER KEYSPACE k WITH replication = {}",
        "CREATE ROLE r",
    ],
)
def test_a_query_in_python_is_seen(workspace: Path, query: str) -> None:
    write(workspace, "python/chronotile/front.py", f'"""Docs."""\n\nQUERY = """{query}"""\n')
    assert "front.py:3: holds a query" in breaches(workspace)


def test_a_query_in_an_f_string_is_seen_once(workspace: Path) -> None:
    write(workspace, "python/chronotile/front.py", 'QUERY = f"DROP TABLE {t}"\n\n\nOTHER = f"SELECT {a} FROM {b}"\n')
    output = breaches(workspace)
    assert "front.py:1: holds a query" in output
    assert "front.py:4: holds a query" in output
    assert output.endswith("layers: 2 breaches\n")


def test_prose_and_docstrings_are_no_queries(workspace: Path) -> None:
    text = '"""With DuckDB: SELECT a FROM t."""\n\nHELP = "select the columns you want, then read"\n'
    write(workspace, "python/chronotile/front.py", text)
    assert check(workspace)[0] == 0


@pytest.mark.parametrize(
    ("place", "code", "breach"),
    [
        ("archive.py", "from chronotile import jobs\n", "imports chronotile.jobs, which the library must not use"),
        ("text.py", "from chronotile.cli.common import x\n", "imports chronotile.cli, which the library must not use"),
        ("jobs/load.py", "import chronotile.events.loading\n", "imports chronotile.events, which jobs must not use"),
        ("apdb/run.py", "def f():\n    from chronotile.jobs import x\n", "apdb must not use"),
        ("cli/serve.py", "from chronotile_tools import ops\n", "imports chronotile_tools"),
        ("cli/jobs.py", "from chronotile import jobs\n", ""),
        ("../../tools/chronotile_tools/ops/access.py", "from chronotile_tools.lab import up\n", ""),
        ("../../tools/chronotile_tools/lab/up.py", "from chronotile_tools import ops\n", "lab must not use"),
        ("../../tools/chronotile_tools/lab/up.py", "from chronotile.cli import common\n", "lab must not use"),
        ("../../tools/chronotile_tools/load/page.py", "from chronotile.apdb import names\n", ""),
    ],
)
def test_subpackages_are_imported_only_where_allowed(workspace: Path, place: str, code: str, breach: str) -> None:
    (workspace / "python" / "chronotile" / place).parent.mkdir(exist_ok=True, parents=True)
    write(workspace, f"python/chronotile/{place}", code)
    status, output = check(workspace)
    assert (status, breach in output) == (int(bool(breach)), True)


@pytest.mark.parametrize("late", ["from chronotile.one import x\n", "def f():\n    from chronotile.one import x\n"])
def test_modules_that_import_each_other_are_reported(workspace: Path, late: str) -> None:
    write(workspace, "python/chronotile/one.py", "from chronotile.two import x\n")
    write(workspace, "python/chronotile/two.py", "from chronotile import three\n")
    write(workspace, "python/chronotile/three.py", late)
    cycle = "chronotile.one -> chronotile.two -> chronotile.three -> chronotile.one"
    assert f"imports in a cycle: {cycle}" in breaches(workspace)


def test_a_package_and_its_children_are_one(workspace: Path) -> None:
    (workspace / "python/chronotile/whole").mkdir()
    write(workspace, "python/chronotile/whole/__init__.py", "from chronotile.whole.part import x\n")
    write(workspace, "python/chronotile/whole/part.py", "from chronotile.whole import y\n")
    assert check(workspace)[0] == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("use crate::other::B;\n", "use crate::one::A;\n"),
        ("use crate::{other::{self, B}, three};\n", "fn b() {\n    super::one::a();\n}\n"),
        ("use crate::B;\n", "pub use super::one::{A as Another};\n"),
    ],
)
def test_modules_of_a_crate_that_use_each_other_are_a_cycle(workspace: Path, one: str, other: str) -> None:
    write(workspace, "crates/sky/src/lib.rs", "mod one;\nmod other;\npub use other::B;\n")
    write(workspace, "crates/sky/src/one.rs", one)
    write(workspace, "crates/sky/src/other.rs", other)
    assert "one.rs: uses in a cycle: crate::one -> crate::other -> crate::one" in breaches(workspace)


def test_a_module_and_its_children_tests_and_comments_make_no_cycle(workspace: Path) -> None:
    write(workspace, "crates/sky/src/lib.rs", "mod one;\nmod other;\npub use one::A;\n")
    (workspace / "crates/sky/src/one").mkdir()
    write(workspace, "crates/sky/src/one.rs", "mod child;\nmod tests;\npub use child::C;\nuse crate::other::B;\n")
    write(workspace, "crates/sky/src/one/child.rs", "use crate::A;\nuse super::super::other::B;\n")
    tests = "// use crate::one::A;\n#[cfg(test)]\nmod tests {\n    use crate::one::A;\n}\n"
    write(workspace, "crates/sky/src/other.rs", tests)
    assert check(workspace)[0] == 0


def test_a_method_of_store_with_a_default_body_is_reported(workspace: Path) -> None:
    methods = "    async fn scan(&self) -> Result<()>;\n    fn view(&self) -> bool {\n        true\n    }\n"
    write(workspace, "crates/store/src/lib.rs", f"pub trait Store {{\n{methods}}}\n")
    assert "gives Store::view a default body" in breaches(workspace)


def test_arrows_in_the_picture_lead_to_all_that_a_crate_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(CHECK.parent)
    may_use = runpy.run_path(str(CHECK))["MAY_USE"]
    picture = (ROOT / "ARCHITECTURE.md").read_text().partition("```mermaid")[2].partition("```")[0]
    arrows: dict[str, set[str]] = {}
    for line in picture.splitlines():
        groups = [re.findall(r"(?:^| & )\s*(\w+)", text) for text in re.split(r' --(?: "[^"]*" --)?> ', line)]
        for tails, heads in itertools.pairwise(groups):
            for tail in tails:
                arrows.setdefault(tail, set()).update(heads)

    def reached(crate: str) -> set[str]:
        return {crate}.union(*map(reached, arrows.get(crate, ())))

    missing = {crate: used - reached(crate) for crate, used in may_use.items() if crate != "fuzz"}
    assert {crate: left for crate, left in missing.items() if left} == {}
