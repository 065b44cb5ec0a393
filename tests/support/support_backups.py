"""Backups without nodes, from folders that look like a node's data.

The files contain random bytes; product code sends, records, checks, removes and fetches them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from chronotile_tools.ops.backups import jobs, manifests
from chronotile_tools.ops.backups.jobs import Fetch, Send
from chronotile_tools.ops.backups.making import tags_of
from chronotile_tools.ops.backups.manifests import Manifest, Schema
from chronotile_tools.ops.backups.stores import Store

TABLE_ID = "0" * 31 + "1"
COMPONENTS = ("Data.db", "Index.db", "Statistics.db", "TOC.txt")


@dataclass
class FakeNode:
    """A folder with the SSTables of one table; snapshots are hard links."""

    folder: Path
    host_id: str
    generation: int = 0
    choose: random.Random = field(default_factory=random.Random)

    @property
    def table(self) -> Path:
        """The table's folder."""
        return self.folder / "field" / f"rows-{TABLE_ID}"

    def write(self) -> None:
        """Add an SSTable."""
        self.generation += 1
        self.table.mkdir(parents=True, exist_ok=True)
        for component in COMPONENTS:
            path = self.table / f"nb-{self.generation}-big-{component}"
            path.write_bytes(self.choose.randbytes(self.choose.randint(0, 2_000)))

    def compact(self) -> None:
        """Replace all SSTables by one."""
        for path in self.table.glob("nb-*"):
            path.unlink()
        self.write()

    def snapshot(self, tag: str) -> None:
        """Link all files, and add the files that Cassandra adds to a snapshot."""
        target = self.table / "snapshots" / tag
        target.mkdir(parents=True)
        for path in self.table.glob("nb-*"):
            (target / path.name).hardlink_to(path)
        (target / "manifest.json").write_text("{}")
        (target / "schema.cql").write_text("CREATE TABLE ...")

    def files(self) -> dict[str, bytes]:
        """Content of its files by name."""
        return {path.name: path.read_bytes() for path in self.table.glob("nb-*")}


def back_up(store: Store, nodes: list[FakeNode], name: str, *, finish: bool = True) -> dict[str, dict[str, bytes]]:
    """Back up nodes; returns the expected content by node and file."""
    about = [{"host_id": n.host_id, "address": n.host_id, "dc": "dc1", "rack": "r1", "tokens": ["1"]} for n in nodes]
    tags = tags_of(name)
    record = {"cluster": "plant", "keyspaces": ["field"], "first": [], "nodes": about, "tags": tags}
    store.create()
    newest = manifests.newest(store, "plant")
    base = manifests.pinned(store, newest.name) if newest is not None else ""
    manifests.begin(store, name, record)
    results = []
    for node in nodes:
        node.snapshot(tags["second"])
        Send(store.url, name, node.host_id, (str(node.folder),), base=base).run(str)
        results.append(jobs.result_of(store.get_json(jobs.part_key(name, node.host_id))))
    held = {node.host_id: node.files() for node in nodes}
    if finish:
        schema = Schema({"field": {"dc1": 3}}, [], [{"keyspace": "field", "name": "rows", "id": TABLE_ID}], {})
        parts = [one[0] for one in results]
        sent = sum(one[1] for one in results), sum(one[2] for one in results)
        manifests.save(store, Manifest(name, "plant", "5.0.8", name, name, schema, parts, [], *sent))
    return held


def fetched(store: Store, name: str, host_id: str, folder: Path) -> dict[str, bytes]:
    """Fetch the files of a node; returns their content by name."""
    Fetch(store.url, name, (host_id,), ("field",), str(folder)).run(str)
    inner = folder / host_id / "field" / f"rows-{TABLE_ID}"
    return {path.name: path.read_bytes() for path in inner.iterdir()} if inner.is_dir() else {}
