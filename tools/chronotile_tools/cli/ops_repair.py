"""``chronotile ops repair``."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import click

from chronotile.cli.common import json_option
from chronotile.terminal import count_text, table_text
from chronotile_tools import ring
from chronotile_tools.cli.ops_work import Session, procedure, session_options
from chronotile_tools.ops.procedures import Journal, journal
from chronotile_tools.ops.procedures.nodes import any_serving
from chronotile_tools.ops.repair import Repair, reading, segments

repair = procedure(
    Repair,
    click.option("--keyspace", "keyspaces", multiple=True, metavar="NAME", help="Only this keyspace; repeatable."),
    click.option("--table", "tables", multiple=True, metavar="KEYSPACE.TABLE", help="Only this table; repeatable."),
    click.option("--capacity", "capacity_mbit", type=click.FloatRange(0), default=0.0, metavar="MBIT/S",
                 help="Bandwidth of streams to one node; the nodes' limits are set accordingly and restored "
                 "afterwards. [default: the nodes' own]"),
    click.option("--segment-time", "segment_s", type=click.FloatRange(10), default=segments.SECONDS_MAX,
                 show_default=True, metavar="SECONDS", help="Segments that take longer are stopped and halved."),
    click.option("--anyway", is_flag=True, help="Repair even if the nodes repair automatically (auto_repair)."),
)  # fmt: skip


@repair.command(short_help="Show the progress of repairs.")
@session_options
@json_option
def status(session: Session, as_json: bool) -> None:
    """Show the progress of the newest repair, whether nodes repair automatically, and the share marked by incremental
    repairs.
    """
    found = [path for path in journal.paths(session.folder) if path.stem.endswith("-repair")]
    newest = _progress(found[-1]) if found else None
    nodes = session.context.nodes
    asked = any_serving(nodes)
    native = reading.native_scheduler(nodes, asked)
    incremental = {}
    for name in reading.repairable(nodes, [], []):
        keyspace, table = name.split(".", 1)
        incremental[name] = reading.percent_repaired(nodes, asked, keyspace).get(table, 0.0)
    if as_json:
        record = {
            "repair": None if newest is None else dataclasses.asdict(newest), "repairs_automatically": native,
            "incremental_percent": incremental,
        }  # fmt: skip
        click.echo(json.dumps(record, indent=2))
        return
    click.echo(f"no repairs in {session.folder}" if newest is None else str(newest))
    click.echo(f"the nodes {'repair automatically (auto_repair)' if native else 'do not repair automatically'}")
    rows = [[name, f"{percent:.1f}"] for name, percent in incremental.items()]
    click.echo(table_text(["table", "% repaired incrementally"], rows, right=frozenset({1})))


@dataclass(frozen=True)
class _Group:
    """Progress of tables that are repaired together: small ones by node, others by segment."""

    tables: list[str]
    segments: int
    nodes: int
    failed: int
    share: float

    def cells(self) -> list[str]:
        """Cells of its row in the table."""
        name = self.tables[0] if len(self.tables) == 1 else f"{self.tables[0]} and {len(self.tables) - 1} more"
        by_node = self.nodes and not self.segments
        pieces = count_text(self.nodes, "node") if by_node else count_text(self.segments, "segment")
        return [name, pieces, str(self.failed), f"{self.share:.0%}"]


@dataclass(frozen=True)
class _Repair:
    """Progress of a repair."""

    journal: str
    ended: bool
    groups: list[_Group]

    def __str__(self) -> str:
        table = table_text(
            ["tables", "repaired", "failed", "done"], [group.cells() for group in self.groups],
            right=frozenset({1, 2, 3}),
        )  # fmt: skip
        return f"{'ended' if self.ended else 'UNFINISHED'}: {self.journal}\n{table}"


def _progress(path: Path) -> _Repair:
    with Journal(path) as kept:
        groups = [_group(kept, tables) for tables in kept.header["arguments"]["groups"]]
        return _Repair(str(kept.path), journal.ended(kept.path), groups)


def _group(kept: Journal, tables: list[str]) -> _Group:
    key = ",".join(tables)
    done = [entry for entry in kept.of("segment") if entry["tables"] == key]
    nodes = [entry for entry in kept.of("node") if entry["tables"] == key]
    failed = sum(entry["tables"] == key for entry in kept.of("segment-failed"))
    share = sum(entry["width"] for entry in done) / ring.SIZE
    if nodes and not done:
        share = len(nodes) / nodes[0]["of"]
    return _Group(tables, len(done), len(nodes), failed, share)
