"""Restore test: restore a backup into laboratory nodes, verify it, and take the nodes down."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chronotile.terminal import count_text
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
    """Report of a restore test."""

    backup: str
    release: str
    nodes: int
    bytes: int
    """Bytes of the backup's files, in all keyspaces."""
    seconds: float
    """From the start of the nodes to the end of verification."""
    rows: dict[str, int]
    """Rows by table."""
    proof: str

    def __str__(self) -> str:
        return (
            f"restore test of {self.backup}: passed in {self.seconds:.0f} s\n"
            f"  {self.bytes / 2**20:,.1f} MiB into {count_text(self.nodes, 'node')} of Cassandra {self.release}\n"
            f"  {self.proof}"
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
    """Restore a backup into a new cluster on this machine, verify the result, and take the cluster down.

    Parameters
    ----------
    nodes : int
        Number of nodes.
    heap : str
        Heap of each node.
    key_file : str
        Key file that the manifest must be signed with; empty for none.

    Raises
    ------
    ChronotileError
        The restore is incomplete; the message names what is missing.
    """
    began = time.monotonic()
    manifest = restoring.find_backup(Store(url), backup, Key.read_optional(key_file))
    with (
        lab.up(nodes=nodes, version=manifest.release, heap=heap) as cluster,
        tempfile.TemporaryDirectory(prefix="chronotile-restore-") as folder,
    ):
        echo(f"ready: {count_text(nodes, 'node')} of Cassandra {manifest.release}")
        reached = AccessNodes(ops.for_lab(cluster.name))
        context = Context(reached, Laboratory(cluster, echo), echo, archive_url=reached.archive_url)
        work = Restore.of(context, url, manifest.name, keyspaces, key_file=key_file)
        kept = run(work, context, Path(folder))
        proof = next(entry["seen"] for entry in reversed(list(kept.of("done"))))
        rows = kept.notes()["rows"]
    return Report(manifest.name, manifest.release, nodes, manifest.bytes, time.monotonic() - began, rows, str(proof))
