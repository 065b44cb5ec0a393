"""Every command that prints figures prints them as JSON too, whichever distribution brings it."""

from __future__ import annotations

import importlib
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

pytest.importorskip("pyarrow")
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner
from support_backups import FakeNode, back_up
from support_procedures import Marks
from support_shell import Run, Shell

from chronotile.cli.main import cli
from chronotile_tools import ring
from chronotile_tools.cli import ops_repair, ops_work
from chronotile_tools.ops.backups.stores import Store
from chronotile_tools.ops.procedures import Context, Finding, Journal

TOOLS = Path(__file__).parents[2] / "tools" / "pyproject.toml"

WITHOUT_FIGURES = {
    "apdb migrate": "names tables and columns",
    "completion": "prints a script",
    "index create": "names the index",
    "index drop": "names the index",
    "lab add": "names the node", "lab cut": "names nodes", "lab decommission": "names nodes",
    "lab down": "names clusters", "lab drain": "names nodes", "lab heal": "names nodes", "lab kill": "names nodes",
    "lab pause": "names nodes", "lab remove": "names nodes", "lab replace": "names the nodes",
    "lab restart": "says that it is done", "lab resume": "names nodes", "lab start": "names nodes",
    "lab stop": "names nodes", "lab up": "prints a URL",
    "lab cql": "a shell: prints what the statement answers",
    "lab logs": "prints the node's log",
    "lab nodetool": "prints what nodetool prints",
    "ops abandon": "names the journal",
    "ops backup key": "names the file",
    "ops backup send": "run by `ops backup run` on a node: prints progress",
    "ops dashboard": "writes a dashboard, which is JSON",
    "ops export": "prints or serves metrics in the text format of Prometheus",
    "ops journal": "names journals; --last prints JSON lines",
    "ops record": "logs each look; the figures are stored in an archive",
    "ops report": "writes a page",
    "ops restore fetch": "run by `ops restore run` on a node: prints progress",
    "ops resume": "prints progress; the journal has JSON lines",
    "ops settings": "prints lines of cassandra.yaml",
    "ops watch": "a screen; `ops status` has the same as JSON",
    "serve": "serves; --log-format json",
    "study page": "names the page",
    "study run": "names the page, which has its figures beside it as JSON",
}  # fmt: skip
"""Commands without --json, each with the reason; ``run`` of procedures prints progress, and its journal is JSON."""


def leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    """The commands below `command` that are no groups, with their names."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None, name
        yield from leaves(below, (*path, name))


def all_commands() -> dict[str, click.Command]:
    """Commands of the package, and of the entry points of the tools, installed or not."""
    points = tomllib.loads(TOOLS.read_text())["project"]["entry-points"]["chronotile.commands"]
    found = dict(leaves(cli, ()))
    for name, target in points.items():
        module, attribute = target.split(":")
        found |= dict(leaves(getattr(importlib.import_module(module), attribute), tuple(name.split("."))))
    return found


def has_json(command: click.Command) -> bool:
    return any("--json" in option.opts for option in command.params)


def test_every_command_prints_json_or_has_no_figures() -> None:
    found = all_commands()
    assert len(found) > 140
    procedures = {name.removesuffix(" plan") + " run" for name in found if name.endswith(" plan")} & found.keys()
    assert "ops repair run" in procedures
    without = {name for name, command in found.items() if not has_json(command)} - procedures
    assert sorted(without - WITHOUT_FIGURES.keys()) == [], "give it --json, or its reason"
    assert sorted(WITHOUT_FIGURES.keys() - without) == [], "it has --json, or is no command: remove its reason"


@pytest.fixture
def shell(chronotile: Run, tmp_path: Path) -> Shell:
    return Shell(chronotile, tmp_path)


def test_what_is_created_changed_and_dropped_is_described(shell: Shell) -> None:
    define = ["--schema", "t:timestamp[us],x:float64,ra:float64,dec:float64", "--sky", "ra,dec", "--time", "t"]
    made = shell.json("create", "a.db", "d", *define, "--window", "1d")
    assert (made["name"], made["cell"]["level"], made["window"]) == ("d", 10, "1d")
    assert "level 10, the default" in shell.errors
    assert made == shell.json("datasets", "a.db")[0]
    added = shell.json("add-columns", "a.db", "d", "y:int32=1")
    assert (added["added"], added["columns"]["y"]) == ({"y": "int32"}, "int32")
    shell.write("d.csv", "t,x,ra,dec\n2026-01-01T00:00:00,1,1,1\n2026-03-02T00:00:00,2,1,1\n")
    shell("ingest", "a.db", "d", "d.csv")
    size = shell.json("info", "a.db", "d")["statistics"]["bytes"]
    done = shell.json("drop", "a.db", "d", "--yes")
    assert done == {"dropped": "d", "datasets": {"d": {"rows": 2, "slices": 2, "bytes": size}}}
    assert "2 rows in 2 slices" in shell.errors
    made = shell.json("jobs", "create", "a.db", "jobs", "--schema", "job_id:int64,submitted:timestamp[us],user:utf8")
    assert made["id"] == ["job_id"]
    made = shell.json("events", "create", "a.db", "web", "--field", "level=utf8", "--ttl", "30d")
    assert made == {"name": "web", "fields": {"level": "utf8"}, "ttl": "30d"}


def test_a_survey_and_its_simulation_give_their_figures(shell: Shell) -> None:
    ra = np.linspace(0, 359, 400)
    pq.write_table(pa.table({"ra": ra, "dec": np.zeros(400)}), shell.folder / "stars.parquet")
    dense = ["--density", "stars.parquet", "--objects", "1e7", "--visits-a-month", "30"]
    made = shell.json("apdb", "create", "s.db", "--schema", "small", *dense)
    assert (made["schema"], made["layout"]["scheme"], made["columns"]["DiaSource"]) == ("SmallSurvey", "mq3c", 18)
    assert 0 < made["cell_bytes_expected_max"] <= 10 * 2**20
    assert shell.json("apdb", "create", "t.db", "--schema", "small")["cell_bytes_expected_max"] is None
    few = ["--visits", "1", "--detectors", "1", "--variables", "50", "--transients", "20", "--log", "logs"]
    done = shell.json("apdb", "simulate", "t.db", *few)
    assert (done["visits"], done["detectors"]) == (1, 1)
    assert all((shell.folder / path).is_file() for path in done["logs"])


def test_the_demo_gives_its_figures(shell: Shell) -> None:
    done = shell.json("demo", "--visits", "4")
    assert {table["rows"] > 0 for table in done["tables"].values()} == {True}
    assert {kind["count"] for kind in done["times"].values()} == {16}
    assert done["reads_checked"] == 48
    assert "footprint reads returned exactly" in shell.errors


def test_commands_on_backups_give_their_figures(shell: Shell, tmp_path: Path) -> None:
    store, node = Store(str(tmp_path / "store")), FakeNode(tmp_path / "node", "h1")
    node.write()
    for name in ("b1", "b2", "b3"):
        back_up(store, [node], name)
        node.write()
    whole = shell.json("ops", "backup", "verify", store.url, "b3")
    assert (whole["ok"], whole["name"], whole["damaged"]) == (True, "b3", [])
    assert whole["files"] > 0
    removed = shell.json("ops", "backup", "remove", store.url, "b1", "--yes")
    assert removed["backups"] == ["b1"]
    retained = shell.json("ops", "backup", "retain", store.url, "--keep", "1", "--yes")
    assert (retained["backups"], retained["files"] >= 0, retained["bytes"] >= 0) == (["b2"], True, True)
    broken = next(path for path in (tmp_path / "store" / "files").rglob("*") if path.is_file())
    broken.chmod(0o600)
    broken.write_bytes(b"other")
    found = shell.json("ops", "backup", "verify", store.url, "b3", code=5)
    assert not found["ok"]
    assert {"key", "what", "files"} == found["damaged"][0].keys()
    assert "DAMAGED" in shell.errors


class Session:
    """A session with no cluster: what a procedure asks and says is of this class."""

    def __init__(self, access: Any, folder: str | None, *_: object, quiet: bool = False) -> None:
        self.context = Context(None, None, lambda line: click.echo(line, err=quiet))  # type: ignore[arg-type]
        self.folder = Path(folder or ".")


class Refused(Marks):
    """One that says something while it is planned, and is refused."""

    name = "refused-marks"

    def checks(self, context: Context) -> list[Finding]:
        context.echo("measuring")
        return [Finding("refused", "clocks", "node 2 is 9 s ahead")]

    def cost(self, context: Context) -> list[str]:
        return ["about 12 MiB"]


def test_a_plan_gives_its_checks_steps_and_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops_work, "Session", Session)
    group = ops_work.procedure(Refused, click.option("--folder"), click.option("--count", type=int))
    words = ["plan", "127.0.0.1", "--nodetool", "true {host}", "--folder", str(tmp_path), "--count", "2"]
    done = CliRunner().invoke(group, [*words, "--json"], catch_exceptions=False)
    assert (done.exit_code, done.stderr) == (1, "measuring\n")
    assert json.loads(done.stdout) == {
        "procedure": "refused-marks", "refused": True, "cost": ["about 12 MiB"],
        "findings": [{"level": "refused", "what": "clocks", "text": "node 2 is 9 s ahead"}],
        "steps": [{"name": "mark 0", "text": "make 0"}, {"name": "mark 1", "text": "make 1"}],
    }  # fmt: skip
    assert "refused: clocks: node 2 is 9 s ahead" in CliRunner().invoke(group, words).stdout


def test_the_status_of_repairs_gives_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops_work, "Session", Session)
    for name, answer in (
        ("native_scheduler", False), ("repairable", ["app.t", "app.u"]), ("percent_repaired", {"t": 25.0}),
    ):  # fmt: skip
        monkeypatch.setattr(ops_repair.reading, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(ops_repair, "any_serving", lambda _: "127.0.0.1")
    words = ["status", "127.0.0.1", "--nodetool", "true {host}", "--journal", str(tmp_path)]
    empty = json.loads(CliRunner().invoke(ops_repair.repair, [*words, "--json"], catch_exceptions=False).stdout)
    assert empty == {
        "repair": None, "repairs_automatically": False, "incremental_percent": {"app.t": 25.0, "app.u": 0.0},
    }  # fmt: skip
    with Journal.begin(tmp_path, "1-repair", {"arguments": {"groups": [["app.t"], ["app.u", "app.v"]]}}) as kept:
        kept.write("segment", tables="app.t", width=ring.SIZE // 4)
        kept.write("segment-failed", tables="app.t")
        kept.write("node", tables="app.u,app.v", of=2)
    found = json.loads(CliRunner().invoke(ops_repair.repair, [*words, "--json"], catch_exceptions=False).stdout)[
        "repair"
    ]
    assert (found["ended"], Path(found["journal"]).parent) == (False, tmp_path)
    assert found["groups"] == [
        {"tables": ["app.t"], "segments": 1, "nodes": 0, "failed": 1, "share": 0.25},
        {"tables": ["app.u", "app.v"], "segments": 0, "nodes": 1, "failed": 0, "share": 0.5},
    ]
    text = CliRunner().invoke(ops_repair.repair, words).stdout
    assert "app.u and 1 more 1 node 0 50%" in " ".join(text.split())
