"""The service's hook for figures of a cluster's nodes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from chronotile.archive import Archive
from chronotile.cli.common import Command
from chronotile.errors import ChronotileError
from chronotile_tools.cli.access import nodes_options
from chronotile_tools.ops import Access

__all__ = ["options", "recording"]


def options(command: Command) -> Command:
    """Options that say which nodes; the command gets `nodes`, or None where none are named."""
    return nodes_options(command)


def recording(
    archive: Archive, nodes: Access, every_s: float, failed: Callable[[ChronotileError], None]
) -> AbstractContextManager[None]:
    """Store the figures of the nodes in the archive while this lasts."""
    from chronotile_tools import ops
    from chronotile_tools.ops.recording import Recorder
    from chronotile_tools.ops.recording import recording as recorded

    return recorded(Recorder(archive), lambda: ops.observe(nodes), every_s, failed)
