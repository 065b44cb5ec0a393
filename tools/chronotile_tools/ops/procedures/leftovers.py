"""Find and remove a node's leftover files of dropped tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import ClassVar

from chronotile.errors import ChronotileError, InvalidInputError
from chronotile.terminal import count_text
from chronotile_tools.ops.procedures import statements, steps
from chronotile_tools.ops.procedures.engine import Context, Procedure, Step
from chronotile_tools.ops.procedures.findings import Finding
from chronotile_tools.ops.procedures.nodes import any_serving
from chronotile_tools.ops.procedures.preflight import data_folders
from chronotile_tools.ops.procedures.restarts import known_addresses, unreplicated


@dataclass(frozen=True)
class Leftovers(Procedure):
    """Remove a node's leftover files of dropped tables. "plan" lists them. They are removed only with --confirm and
    while the node is stopped: snapshots in these folders are the last copy of the dropped data.
    """

    name: ClassVar[str] = "leftovers"
    needs: ClassVar[tuple[str, ...]] = ("stop", "start")
    address: str
    folders: list[str]
    """Folders to remove."""
    confirmed: bool = False

    @classmethod
    def of(cls, context: Context, address: str, confirmed: bool = False) -> Leftovers:
        """Create the procedure for a node of the cluster."""
        known_addresses(context, [address])
        return cls(address, [path for path, _ in find(context, address)], confirmed)

    def checks(self, context: Context) -> list[Finding]:
        """The preflight checks, existence of leftovers, and confirmation."""
        found = [*super().checks(context), *unreplicated(context)]
        if not self.folders:
            found.append(Finding("refused", "folders", f"{self.address} has no folders of dropped tables"))
        elif not self.confirmed:
            text = (
                "snapshots in these folders are the last copy of the dropped data: check the list, then pass --confirm"
            )
            found.append(Finding("refused", "confirmation", text))
        return found

    def cost(self, context: Context) -> list[str]:
        """Folders to remove, with sizes."""
        return [f"{size / 2**20:,.1f} MiB  {path}" for path, size in find(context, self.address)]

    def steps(self, context: Context) -> list[Step]:
        """Stop, remove, start."""
        return [
            *steps.down_steps(context, self.address),
            Step(
                "remove",
                f"remove {count_text(len(self.folders), 'folder')} of dropped tables",
                lambda: self._remove(context),
                lambda: self._confirmed(context),
                lambda: self._require_dropped(context),
            ),
            steps.up_step(context, self.address),
            steps.hints_step(context, self.address),
        ]

    def _require_dropped(self, context: Context) -> None:
        """Check again: a table may have been recreated with a folder's id since the folders were listed."""
        asked = any_serving(context.nodes, without=[self.address])
        kept = [folder for folder in self.folders if _id_of(folder) in _ids(context, asked)]
        if kept:
            raise InvalidInputError(f"{', '.join(kept)} belongs to an existing table: nothing removed", kind="refused")

    def _remove(self, context: Context) -> None:
        for folder in self.folders:
            context.nodes.shell(self.address, "rm", "-rf", "--one-file-system", "--", folder, timeout_s=context.node_s)

    def _confirmed(self, context: Context) -> str:
        parents = {str(PurePosixPath(folder).parent) for folder in self.folders}
        left = context.nodes.shell(
            self.address, "find", *sorted(parents), "-mindepth", "1", "-maxdepth", "1"
        ).splitlines()
        still = set(left) & set(self.folders)
        if still:
            raise ChronotileError(f"cannot remove {', '.join(sorted(still))}", kind="not-confirmed")
        return f"{count_text(len(self.folders), 'folder')} removed"


def find(context: Context, address: str) -> list[tuple[str, int]]:
    """Folders of tables that are not in the schema, with sizes.

    Raises
    ------
    UnavailableError
        The node's machine is not accessible.
    """
    known = _ids(context, address)
    roots = data_folders(context.nodes, address)
    output = context.nodes.shell(
        address, "find", *roots, "-mindepth", "2", "-maxdepth", "2", "-type", "d", "-name", "*-*"
    )
    dropped = [path for path in output.splitlines() if len(_id_of(path)) == 32 and _id_of(path) not in known]
    if not dropped:
        return []
    sizes = context.nodes.shell(address, "du", "-sb", "--", *dropped, timeout_s=600).splitlines()
    pairs = (line.split("\t", 1) for line in sizes)
    return sorted((path, int(size)) for size, path in pairs)


def _id_of(folder: str) -> str:
    return PurePosixPath(folder).name.rpartition("-")[2]


def _ids(context: Context, asked: str) -> set[str]:
    rows = context.nodes.query(asked, statements.select("id", "system_schema.tables"))
    return {row["id"].replace("-", "") for row in rows}
