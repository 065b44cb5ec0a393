"""Each extra installs all that its part of the package needs; errors about missing packages give the pip command.

To simulate an environment with one extra only, these tests hide all modules that the extra does not install, in all
processes of a command. The slow tests install each extra in a separate environment, in the lowest allowed versions.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support_alerts import container, packets
from support_data import SAMPLES

from chronotile.optional import DISTRIBUTIONS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOOLS = tomllib.loads((ROOT / "tools" / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

HIDING = """
import os, sys
hidden = frozenset(os.environ["HIDDEN_MODULES"].split(","))
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name in hidden else self.finder.find_spec(name, path, target)
    def find_distributions(self, *where, **more):
        found = getattr(self.finder, "find_distributions", lambda *_: ())(*where, **more)
        return (one for one in found if one.name.replace("-", "_") not in hidden)
sys.meta_path[:] = map(Without, sys.meta_path)
"""

BASE = [
    ["create", "a.db", "d", "--schema", "t:timestamp[us],x:float64", "--single", "--time", "t"],
    ["ingest", "a.db", "d", "points.csv"],
    ["read", "a.db", "d"],
    ["info", "a.db"],
    ["historian", "tags", "a.db", "--define", "oven"],
    ["historian", "aggregate", "a.db", "oven", "--start", "2026-01-01", "--end", "2026-01-02"],
    ["serve", "--help"],
]

READ = "import chronotile as ct; ds = ct.open('a.db')['d']; "

USES: dict[str, list[list[str]]] = {
    "alerts": [
        ["apdb", "create", "small.db", "--schema", "small"],
        ["apdb", "import", "small.db", "alerts.avro"],
        ["apdb", "light-curve", "small.db", "ZTF18aaaaaaa"],
    ],
    "apdb": [
        ["apdb", "create", "lsst.db"],
        ["apdb", "create", "small.db", "--schema", "small"],
        ["apdb", "info", "small.db"],
        ["apdb", "import", "small.db", str(SAMPLES / "alerts" / "ztf_alerts_2024.parquet")],
        ["apdb", "read", "small.db", "sources", "--limit", "3"],
    ],
    "arrow": [
        ["historian", "tags", "a.db", "--define", "oven"],
        ["historian", "plot", "a.db", "oven", "--start", "2026-01-01", "--end", "2026-01-02"],
        ["-c", READ + "assert ds.read().to_arrow().num_rows == ds.count_by('x')['count'].to_pylist()[0]"],
    ],
    "demo": [["demo", "--visits", "4"]],
    "events": [
        ["events", "create", "e.db", "web", "--stream-field", "host"],
        ["events", "ingest", "e.db", "web", "app.ndjson"],
        ["events", "search", "e.db", "web"],
        ["events", "histogram", "e.db", "web"],
    ],
    "jobs": [
        ["jobs", "load", "j.db", "jobs", "jobs.csv", "--create"],
        ["jobs", "count", "j.db", "jobs", "user=ann"],
        ["jobs", "top", "j.db", "jobs", "--by", "user"],
    ],
    "lsst": [
        ["-c", "from chronotile.apdb.lsst import ChronotileApdb as C; C.init_database('sqlite:l.db').save('l.yaml')"],
    ],
    "numpy": [["-c", READ + "import numpy; ds.write({'t': numpy.array(['2026-02-01'], 'M8[us]'), 'x': [0.5]})"]],
    "pandas": [["-c", READ + "ds.write(ds.read().to_pandas())"]],
    "polars": [
        ["-c", READ + "assert ds.read().to_polars().height == ds.scan().collect().height"],
        ["-c", READ + "import polars as p; assert ds.scan().filter(p.col('x') > 1).select('t').collect().height == 1"],
        [
            "-c",
            READ + "import polars as p; ds.scan().filter(p.col('t') < p.date(2026, 1, 2)).head().collect().item(0, 1)",
        ],
    ],
    "tools": [
        ["lab", "--help"],
        ["bench", "--help"],
        ["ops", "backup", "key", "backups.key"],
        ["apdb", "pixels", "--count", "10", "--levels", "8-8"],
        ["-c", "import chronotile_tools.load.page, chronotile_tools.load.experiments, chronotile_tools.ops.report"],
        ["-c", "from chronotile_tools.ops.procedures import settings; settings._yaml()"],
    ],
    "sync": [
        ["jobs", "create", "j.db", "jobs", "--database", "sqlite:///grid.db", "jobs", "--version", "modified"],
        ["jobs", "sync", "j.db", "jobs", "sqlite:///grid.db", "jobs"],
        ["jobs", "compare", "j.db", "jobs", "sqlite:///grid.db", "jobs"],
    ],
}


def brought(extra: str | None) -> set[str]:
    """Names of the distributions in an environment with this extra of the package."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in PROJECT["dependencies"]]
    waiting += [Requirement(text) for text in EXTRAS[extra]] if extra else []
    while waiting:
        one = waiting.pop()
        if one.name == "chronotile":
            waiting += [Requirement(text) for name in one.extras for text in EXTRAS[name]]
            continue
        name = plain(one.name)
        wanted = [{"extra": ""}, *({"extra": word} for word in one.extras)]
        if name not in found or one.extras:
            found.add(name)
            for text in metadata.requires(one.name) or []:
                needed = Requirement(text)
                if needed.marker is None or any(needed.marker.evaluate(each) for each in wanted):
                    waiting.append(needed)
    return found


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def modules(distribution: metadata.Distribution) -> Iterator[str]:
    """Names of the modules of a distribution; for namespace packages, of the distribution's parts."""
    for file in distribution.files or []:
        parts = [part.removesuffix(".py").split(".")[0] for part in file.parts]
        if file.suffix in (".py", ".so") and not file.parts[0].startswith((".", "__")):
            yield ".".join(parts[: 3 if parts[0] == "lsst" else 1])


@pytest.fixture
def surroundings(tmp_path: Path) -> Path:
    (tmp_path / "hiding").mkdir()
    (tmp_path / "hiding" / "sitecustomize.py").write_text(HIDING)
    (tmp_path / "points.csv").write_text("t,x\n2026-01-01T00:00:00,1.5\n")
    (tmp_path / "jobs.csv").write_text("job_id,submitted,user\n1,2026-01-01T00:00:00,ann\n")
    (tmp_path / "app.ndjson").write_text('{"time": "2026-01-01T00:00:00Z", "host": "web1"}\n')
    (tmp_path / "alerts.avro").write_bytes(container(packets(2)))
    with closing(sqlite3.connect(tmp_path / "grid.db")) as database:
        database.execute("CREATE TABLE jobs (job_id INTEGER PRIMARY KEY, submitted DATETIME, modified DATETIME)")
        database.execute("INSERT INTO jobs VALUES (1, '2026-01-01 00:00:00.000000', '2026-01-02 00:00:00.000000')")
        database.commit()
    (tmp_path / "store").mkdir()
    return tmp_path


@functools.cache
def hidden(extra: str | None) -> str:
    """The modules that are missing in an environment with this extra, separated by commas."""
    kept = brought(extra)
    present, absent = set[str](), set[str]()
    for distribution in metadata.distributions():
        if plain(distribution.name) not in ("chronotile", "pip", "setuptools"):
            (present if plain(distribution.name) in kept else absent).update(modules(distribution))
    if "chronotile-tools" not in kept:
        # An editable installation lists no modules.
        absent.add("chronotile_tools")
    return ",".join(sorted(absent - present - {"lsst"}))


def run(folder: Path, extra: str | None, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command, or Python code after ``-c``, where only the package with one extra is installed."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("CHRONOTILE_ARCHIVE", "PYTHONPATH")
    }
    environment |= {"HIDDEN_MODULES": hidden(extra), "PYTHONPATH": str(folder / "hiding")}
    command = arguments if arguments[0] == "-c" else ["-m", "chronotile", *arguments]
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=folder, env=environment, timeout=120,
        check=False,
    )  # fmt: skip


def test_every_extra_is_tried() -> None:
    assert set(USES) == set(EXTRAS) - {"all"}


@pytest.mark.parametrize("extra", [None, *USES])
def test_an_extra_brings_what_its_commands_need(extra: str | None, surroundings: Path) -> None:
    for arguments in [*BASE[:2], *USES[extra]] if extra else BASE:
        done = run(surroundings, extra, arguments)
        assert done.returncode == 0, (extra, arguments, done.stderr)


def test_all_brings_what_any_extra_brings(surroundings: Path) -> None:
    assert brought("all") == {name for extra in set(USES) - {"tools"} for name in brought(extra)}
    assert brought("all") >= {plain(distribution) for distribution in DISTRIBUTIONS.values()}
    for arguments in (["demo", "--visits", "4"], *USES["lsst"], *USES["events"][:2], *USES["jobs"][:2]):
        done = run(surroundings, "all", arguments)
        assert done.returncode == 0, (arguments, done.stderr)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["apdb", "create", "s.db"], "chronotile.apdb needs numpy: pip install 'chronotile[apdb]'"),
        (["demo"], "the demo needs numpy: pip install 'chronotile[demo]'"),
        (["events", "create", "e.db", "web"], "chronotile.events needs numpy: pip install 'chronotile[events]'"),
        (["jobs", "load", "j.db", "jobs", "jobs.csv", "--create"],
         "chronotile.jobs needs numpy: pip install 'chronotile[jobs]'"),
    ],
)  # fmt: skip
def test_a_command_names_the_missing_package_and_leaves_no_file(
    arguments: list[str], sentence: str, surroundings: Path
) -> None:
    before = set(surroundings.iterdir())
    done = run(surroundings, None, arguments)
    assert (done.returncode, done.stderr) == (1, f"chronotile: {sentence}\n")
    assert set(surroundings.iterdir()) == before


@pytest.mark.parametrize(
    ("url", "driver", "package"),
    [
        ("postgresql+psycopg://grid:s3cret@db1/production", "psycopg", "psycopg[binary]"),
        ("mysql://db1/production", "MySQLdb", "mysqlclient"),
        ("oracle+oracledb://db1/production", "oracledb", "oracledb"),
    ],
)
def test_a_database_whose_driver_is_missing_names_its_package(
    url: str, driver: str, package: str, surroundings: Path
) -> None:
    before = set(surroundings.iterdir())
    plain = url.replace("grid:s3cret@", "")
    for command in (["sync", "--create", "--version", "modified"], ["create", "--version", "modified"]):
        name, *options = command
        source = ["--database", url, "jobs"] if name == "create" else [url, "jobs"]
        done = run(surroundings, "sync", ["jobs", name, "j.db", "jobs", *source, *options])
        assert (done.returncode, done.stderr) == (
            1, f"chronotile: reading {plain} needs the driver {driver}: pip install '{package}'\n",
        )  # fmt: skip
    assert set(surroundings.iterdir()) == before


EVERY_MODULE = """
import importlib, pkgutil, re
# Their importers check for missing packages first: demo.run(), apdb, events, jobs, their first requests, and reports.
checked = re.compile(r"chronotile\\.(__main__|casts|counting|demo\\..*|pages\\.plot|service\\.(events|jobs))")
import chronotile
for found in pkgutil.walk_packages(chronotile.__path__, "chronotile.", onerror=lambda name: None):
    if checked.fullmatch(found.name):
        continue
    try:
        importlib.import_module(found.name)
    except chronotile.MissingPackageError as error:
        print(error)
    except ImportError as error:
        raise SystemExit(f"{found.name}: {error!r}")
"""


@pytest.mark.parametrize("extra", [None, "arrow", "numpy"])
def test_every_module_is_importable_or_names_the_extra_that_brings_what_it_lacks(
    extra: str | None, surroundings: Path
) -> None:
    done = run(surroundings, extra, ["-c", EVERY_MODULE])
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        package, line_for_pip = line.split(" needs ")[1].split(": ")
        named = re.fullmatch(r"pip install 'chronotile\[(\w+)\]'", line_for_pip)
        assert named is not None, line
        assert plain(package) in brought(named[1]), line


@pytest.mark.parametrize("command", sorted(TOOLS["entry-points"]["chronotile.commands"]))
def test_a_command_of_the_tools_says_how_to_get_them(command: str, surroundings: Path) -> None:
    words = command.split(".")
    done = run(surroundings, "apdb" if len(words) > 1 else None, [*words, "--help"])
    assert done.returncode == 2
    advice = "build its wheel with `./dev wheel native`, then pip install dist/chronotile_tools-*.whl"
    assert f"'{' '.join(words)}' is a command of chronotile-tools: {advice}" in done.stderr


def without(module: str, folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command where one module cannot be imported."""
    path = os.pathsep.join(filter(None, [str(folder / "hiding"), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "chronotile", *arguments], capture_output=True, text=True, cwd=folder,
        env=os.environ | {"HIDDEN_MODULES": module, "PYTHONPATH": path}, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("module", "arguments", "sentence"),
    [
        ("hdrh", ["study", "run", "pixels"],
         "the module hdrh, which is not installed: pip install 'chronotile-tools'"),
        ("pyarrow.parquet", ["apdb", "create", "s.db"],
         "the module pyarrow.parquet, which is not installed: pip install 'chronotile[all]'"),
        ("fcntl", ["apdb", "create", "s.db"],
         "fcntl, which this Python lacks: install a Python with its whole standard library"),
    ],
)  # fmt: skip
def test_a_module_that_is_missing_is_named_with_what_brings_it(
    module: str, arguments: list[str], sentence: str, surroundings: Path
) -> None:
    done = without(module, surroundings, arguments)
    assert (done.returncode, done.stderr) == (1, f"chronotile: this command needs {sentence}\n")


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("chronotile.apdb.survey", ["apdb", "info", "a.db"]), ("chronotile_tools.studies", ["study", "list"])],
)
def test_a_module_of_the_package_itself_that_is_missing_shows_where(
    module: str, arguments: list[str], surroundings: Path
) -> None:
    done = without(module, surroundings, arguments)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert f"No module named '{module}'" in done.stderr


def test_the_tools_and_the_package_have_the_same_version() -> None:
    assert TOOLS["version"] == metadata.version("chronotile")
    assert f"chronotile[apdb]=={TOOLS['version']}" in TOOLS["dependencies"]


# ---------------------------------------------------------------- the lowest versions


def lowest(extra: str | None) -> list[str]:
    """Requirements of an extra, each pinned to the lowest version that the project allows."""
    found: set[str] = set()
    waiting = [*PROJECT["dependencies"], *(EXTRAS[extra] if extra else [])]
    while waiting:
        one = Requirement(waiting.pop())
        if one.name == "chronotile":
            waiting += [text for name in one.extras for text in EXTRAS[name]]
        elif one.name == "chronotile-tools":
            waiting += TOOLS["dependencies"]
        else:
            (bound,) = one.specifier
            assert bound.operator == ">=", one
            found.add(f"{one.name}=={bound.version}")
    return sorted(found)


@functools.cache
def oldest_python() -> str:
    """Path of an interpreter of the oldest Python that the package supports."""
    version = PROJECT["requires-python"].removeprefix(">=")
    command = [sys.executable, ROOT / "scripts" / "check_wheel.py", "--interpreter", version]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"found no Python {version}, the oldest that the package supports")
    return found.stdout.strip()


def install(python: str, packages: list[str], folder: Path) -> Path:
    """Create an environment with these packages and this project; returns its interpreter."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder / "env"], check=True)
    inside = folder / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(inside), "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *packages], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (packages, done.stderr)
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    (site / "chronotile.pth").write_text(f"{ROOT / 'python'}\n{ROOT / 'tools'}\n")
    # chronotile finds the commands of the tools through the metadata of the distribution.
    for name in ("chronotile", "chronotile_tools"):
        info = f"{name}-{TOOLS['version']}.dist-info"
        shutil.copytree(str(metadata.distribution(name).locate_file(info)), site / info)
    return inside


@pytest.mark.slow
@pytest.mark.parametrize("extra", [None, *USES, "all"])
def test_an_extra_works_in_the_lowest_versions_that_it_allows(extra: str | None, surroundings: Path) -> None:
    inside = install(oldest_python(), lowest(extra), surroundings)
    environment = {name: value for name, value in os.environ.items() if name != "CHRONOTILE_ARCHIVE"}
    environment.pop("PYTHONPATH", None)
    uses = [*BASE[:2], *USES[extra]] if extra in USES else BASE
    if extra == "all":
        uses = [*USES["demo"], *USES["lsst"], *USES["alerts"], *USES["events"], *USES["sync"]]
    for arguments in uses:
        command = arguments if arguments[0] == "-c" else ["-m", "chronotile", *arguments]
        done = subprocess.run(
            [inside, *command], capture_output=True, text=True, cwd=surroundings, env=environment, timeout=300,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, (extra, arguments, done.stderr)
