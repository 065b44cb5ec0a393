"""The restore test: a backup is restored into nodes of the laboratory, looked at, and the nodes are taken down."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chronotile_tools import lab, ops
from chronotile_tools.ops.backups import restoring
from chronotile_tools.ops.backups.restoring import Restore
from chronotile_tools.ops.backups.signing import Key
from chronotile_tools.ops.backups.stores import Store
from chronotile_tools.ops.procedures.actuators import Laboratory
from chronotile_tools.ops.procedures.engine import Context, run
from chronotile_tools.ops.procedures.nodes import Echo
from chronotile_tools.ops.procedures.reaching import AccessNodes


@dataclass(frozen=True)
class Report:
    """What a restore test saw."""

    backup: str
    release: str
    nodes: int
    bytes: int
    """Of the backup's files, all keyspaces."""
    seconds: float
    """From the start of the nodes to the end of the proof."""
    rows: dict[str, int]
    """By table."""
    proof: str

    def __str__(self) -> str:
        return (
            f"restore test of {self.backup}: passed in {self.seconds:.0f} s\n"
            f"  {self.bytes / 2**20:,.1f} MiB into {self.nodes} nodes of Cassandra {self.release}\n  {self.proof}"
        )


def rehearse(
    url: str,
    backup: str,
    keyspaces: Sequence[str] = (),
    *,
    nodes: int = 1,
    heap: str = "512m",
    key_file: str = "",
    echo: Echo = print,
) -> Report:
    """Restore a backup into a new cluster of this machine, prove what came back, and take the cluster down.

    Parameters
    ----------
    nodes : int
        How many nodes.
    heap : str
        Heap of each.
    key_file : str
        Holds the key that the manifest must be signed with; empty for none.

    Raises
    ------
    ChronotileError
        It did not come back whole; the message says what.
    """
    began = time.monotonic()
    manifest = restoring.found(Store(url), backup, Key.read_optional(key_file))
    with (
        lab.up(nodes=nodes, version=manifest.release, heap=heap) as cluster,
        tempfile.TemporaryDirectory(prefix="chronotile-restore-") as folder,
    ):
        echo(f"{nodes} nodes of Cassandra {manifest.release} serve")
        reached = AccessNodes(ops.for_lab(cluster.name))
        context = Context(reached, Laboratory(cluster, echo), echo, archive_url=reached.archive_url)
        work = Restore.of(context, url, manifest.name, keyspaces, key_file=key_file)
        kept = run(work, context, Path(folder))
        proof = next(entry["seen"] for entry in reversed(list(kept.of("done"))))
        rows = kept.notes()["rows"]
    return Report(manifest.name, manifest.release, nodes, manifest.bytes, time.monotonic() - began, rows, str(proof))
