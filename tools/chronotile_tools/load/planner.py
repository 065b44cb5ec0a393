"""Capacity planning: from measured operation costs to the performance of a given cluster.

The model is linear with few terms, and reports all of them as assumptions. The cost of a read grows with its rows,
which grow with the visits in the history until the history is full. The cost is node time, spread evenly over the nodes
and multiplied by the number of replicas asked. If all clients of a visit read concurrently, as detectors of one camera
do, each waits for all: the read time is clients times node time divided by nodes. Daily maintenance costs node time for
each tile that is rewritten, and time of the processes that rewrite them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from chronotile.errors import DataFileError, InvalidInputError
from chronotile_tools.load.costs import Costs
from chronotile_tools.survey.simulate.universe import HEMISPHERE_VISITS

__all__ = ["Cluster", "Demand", "Maintenance", "Measured", "Plan", "plan", "replicas_asked"]

PARTITION_BYTES_MAX = 10 * 2**20
NODES_MAX = 10_000


@dataclass(frozen=True)
class Measured:
    """Measured costs of one client's operations.

    Attributes
    ----------
    visits : float
        Visits in the history that was read.
    read_node_s : float
        Node time of one client's read, summed over all replicas: processor seconds divided by a node's cores. If
        measured while all clients read concurrently: the seconds that each waited, times nodes divided by clients
        (:meth:`loaded`).
    store_node_s : float
        Node time of one client's store.
    read_alone_s : float
        Seconds of a read on an idle cluster; more nodes do not make it faster.
    store_rows : float
        Rows that one client stores at a visit.
    bytes_per_row : float
        Bytes per row on disk, in one replica.
    partition_bytes : float
        Size of the largest partition, with `visits` visits in the history.
    tile_s, tile_node_s : float
        Maintenance of a tile: seconds of the process that rewrites it, and node time.
    replication, consistency : int, str
        Replication factor, and consistency level of reads.
    """

    visits: float
    read_node_s: float
    store_node_s: float = 0.0
    read_alone_s: float = 0.0
    store_rows: float = 0.0
    bytes_per_row: float = 0.0
    partition_bytes: float = 0.0
    tile_s: float = 0.0
    tile_node_s: float = 0.0
    replication: int = 1
    consistency: str = "ONE"

    def __post_init__(self) -> None:
        replicas_asked(self.replication, self.consistency)
        numbers = [getattr(self, part.name) for part in fields(self) if part.name not in ("replication", "consistency")]
        if self.visits <= 0 or self.read_node_s <= 0 or not all(math.isfinite(n) and n >= 0 for n in numbers):
            raise InvalidInputError(
                "visits and read_node_s must be above 0, and other measures 0 or more", kind="invalid-setting"
            )

    @classmethod
    def loaded(cls, read_s: float, *, nodes: int, clients: int, visits: float, **others: Any) -> Self:
        """Measures from the seconds that each of `clients` waited for a read while all queried `nodes` nodes
        concurrently.
        """
        return cls(visits=visits, read_node_s=read_s * nodes / clients, **others)

    @classmethod
    def from_costs(
        cls, costs: Costs, overrides: Mapping[str, Any] | None = None, *, system: str = "chronotile", cores: int = 32,
        margin: float = 1.0,
    ) -> Self:  # fmt: skip
        """Measures from costs with three copies at QUORUM, on nodes with `cores` processors as fast as the measured
        ones. `overrides` replace single values. Processor times are multiplied by `margin`.
        """
        tile_s, tile_core_s = (
            (costs["chronotile.maintain_tile"], costs["chronotile.maintain_tile_nodes"])
            if system == "chronotile"
            else (0.0, 0.0)
        )
        values: dict[str, Any] = {
            "visits": costs["chronotile.history"] * HEMISPHERE_VISITS,
            "read_node_s": costs[f"{system}.read"] * margin / cores,
            "store_node_s": costs[f"{system}.store"] * margin / cores,
            "store_rows": 1.0,  # a detector-visit counts as one row
            "bytes_per_row": costs[f"{system}.detector_visit"],
            "tile_s": tile_s * margin,
            "tile_node_s": tile_core_s * margin / cores,
            "replication": 3,
            "consistency": "QUORUM",
        }
        return cls(**{**values, **(overrides or {})})

    @classmethod
    def from_results(cls, path: Path, overrides: Mapping[str, Any] | None = None) -> Self:
        """Measures from the ``results.json`` of the experiment ``scaling``; `overrides` replace single values.

        Raises
        ------
        DataFileError
            The file lacks these measures.
        """
        try:
            given = json.loads(path.read_text(encoding="utf-8"))["measured"]
            return cls(**{**given, **(overrides or {})})
        except FileNotFoundError:
            raise DataFileError(f"no such file: {path}", kind="file-not-found") from None
        except InvalidInputError:
            raise
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise DataFileError(
                f"{path} contains no measures of a read: use results.json of `chronotile bench cluster scaling`",
                kind="file-content",
            ) from error


@dataclass(frozen=True)
class Demand:
    """Workload of the cluster.

    Attributes
    ----------
    clients : int
        Clients that read and store at every visit, concurrently: detectors of a camera.
    visits_per_day : float
        Visits per day, averaged over the year.
    visit_s : float
        Seconds between visits during the night.
    history_days : float
        Length of the history that is read and kept.
    tiles_per_day : float
        Tiles that maintenance rewrites per day: see :class:`~chronotile_tools.load.capacity.SurveyLoad`.
    """

    clients: int = 189
    visits_per_day: float = 800.0
    visit_s: float = 45.0
    history_days: float = 360.0
    tiles_per_day: float = 0.0

    def __post_init__(self) -> None:
        if not (self.clients >= 1 and min(self.visits_per_day, self.visit_s, self.history_days) > 0):
            raise InvalidInputError("clients, visits, seconds and days must be above 0", kind="invalid-setting")
        if self.tiles_per_day < 0:
            raise InvalidInputError("tiles_per_day must be 0 or more", kind="invalid-setting")

    @property
    def plateau_visits(self) -> float:
        """Visits in a full history."""
        return self.visits_per_day * self.history_days


@dataclass(frozen=True)
class Cluster:
    """A planned cluster.

    Attributes
    ----------
    nodes, replication, consistency : int, int, str
        Number of nodes, replication factor, and consistency level of reads.
    core_speed : float
        Speed of a node (sum of its cores), relative to the measured node.
    disks, disk_tb : int, float
        Disks per node, and the size of each in 10^12 bytes.
    disk_fill_max : float
        Largest share of the disks for data; the rest is for compaction, repair and growth.
    busy_max : float
        Largest share of time for which a node may be busy during visits or maintenance; the rest is for compaction,
        repair and a lost node.
    maintenance_h_max : float
        Hours available for one day's maintenance.
    """

    nodes: int = 12
    replication: int = 3
    consistency: str = "QUORUM"
    core_speed: float = 1.0
    disks: int = 1
    disk_tb: float = 4.0
    disk_fill_max: float = 0.5
    busy_max: float = 0.5
    maintenance_h_max: float = 8.0

    def __post_init__(self) -> None:
        replicas_asked(self.replication, self.consistency)
        if not 0 < self.maintenance_h_max <= 24:
            raise InvalidInputError("maintenance_h_max must be above 0 and at most 24", kind="invalid-setting")
        if not self.replication <= self.nodes <= NODES_MAX:
            raise InvalidInputError(
                f"{self.nodes} nodes cannot hold {self.replication} copies: use {self.replication} to {NODES_MAX:,}",
                kind="invalid-setting",
            )
        if not (self.core_speed > 0 and self.disks >= 1 and self.disk_tb > 0):
            raise InvalidInputError("speed, disks and their size must be above 0", kind="invalid-setting")
        if not (0 < self.disk_fill_max <= 1 and 0 < self.busy_max <= 1):
            raise InvalidInputError("shares must be above 0 and at most 1", kind="invalid-setting")


@dataclass(frozen=True)
class Maintenance:
    """Maintenance of one day.

    Attributes
    ----------
    tiles : float
        Tiles that are rewritten.
    node_h : float
        Node hours, with all processors of the node busy.
    processes : int
        Fewest processes that finish within the available hours; they share the work.
    busy : float
        Share of the available hours for which the nodes are busy.
    """

    tiles: float
    node_h: float
    processes: int
    busy: float


@dataclass(frozen=True)
class Plan:
    """Expected performance.

    Attributes
    ----------
    visits : float
        Visits in the history.
    read_s, store_s : float
        Seconds that each client waits if all are active concurrently.
    busy : float
        Share of time for which nodes are busy during visits.
    bytes_per_node : float
        Bytes on a node's disks, with a full history.
    disk_fill : float
        Share of the disks in use.
    partition_bytes : float
        Size of the largest partition.
    maintenance : Maintenance or None
        Maintenance of a day; None if its cost or the number of tiles was not given.
    nodes_needed : int or None
        Fewest nodes that suffice; None if more nodes do not help.
    problems : tuple of str
        Exceeded limits.
    assumptions : tuple of str
        Assumptions behind the figures.
    """

    visits: float
    read_s: float
    store_s: float
    busy: float
    bytes_per_node: float
    disk_fill: float
    partition_bytes: float
    maintenance: Maintenance | None
    nodes_needed: int | None
    problems: tuple[str, ...]
    assumptions: tuple[str, ...]


def replicas_asked(replication: int, consistency: str) -> int:
    """Replicas whose answers a read waits for."""
    asked = {
        "ONE": 1, "LOCAL_ONE": 1, "TWO": 2, "THREE": 3, "ALL": replication,
        "QUORUM": replication // 2 + 1, "LOCAL_QUORUM": replication // 2 + 1,
    }.get(consistency.upper())  # fmt: skip
    if replication < 1 or asked is None or asked > replication:
        raise InvalidInputError(
            f"consistency level {consistency} is invalid with {replication} replicas: use ONE, TWO, THREE, "
            "QUORUM, LOCAL_QUORUM or ALL, with at most as many replicas as the replication factor",
            kind="invalid-setting",
        )
    return asked


def plan(measured: Measured, demand: Demand, cluster: Cluster, *, visits: float | None = None) -> Plan:
    """Plan the capacity of a cluster.

    Parameters
    ----------
    measured : Measured
        Measured costs of operations.
    demand : Demand
        Workload.
    cluster : Cluster
        The planned cluster.
    visits : float, optional
        Visits since the survey began. Default: those of a full history.
    """
    first = _figures(measured, demand, cluster, visits)
    needed = _nodes_needed(measured, demand, cluster, visits)
    return replace(
        first,
        nodes_needed=needed,
        problems=_problems(first, cluster),
        assumptions=_assumptions(measured, demand, cluster),
    )


def _figures(measured: Measured, demand: Demand, cluster: Cluster, visits: float | None) -> Plan:
    held = min(demand.plateau_visits, demand.plateau_visits if visits is None else visits)
    growth = held / measured.visits
    asked = replicas_asked(cluster.replication, cluster.consistency)
    asked_then = replicas_asked(measured.replication, measured.consistency)
    strength = cluster.nodes * cluster.core_speed
    busy_read_s = demand.clients * measured.read_node_s * growth * asked / asked_then / strength
    store_s = demand.clients * measured.store_node_s * cluster.replication / measured.replication / strength
    rows = measured.store_rows * demand.clients * held
    on_node = rows * measured.bytes_per_row * cluster.replication / cluster.nodes
    return Plan(
        visits=held,
        read_s=max(busy_read_s, measured.read_alone_s * growth / cluster.core_speed),
        store_s=store_s,
        busy=(busy_read_s + store_s) / demand.visit_s,
        bytes_per_node=on_node,
        disk_fill=on_node / (cluster.disks * cluster.disk_tb * 1e12),
        partition_bytes=measured.partition_bytes * growth,
        maintenance=_maintenance(measured, demand, cluster),
        nodes_needed=None,
        problems=(),
        assumptions=(),
    )


def _maintenance(measured: Measured, demand: Demand, cluster: Cluster) -> Maintenance | None:
    if not demand.tiles_per_day or not (measured.tile_s and measured.tile_node_s):
        return None
    copies = cluster.replication / measured.replication
    node_h = demand.tiles_per_day * measured.tile_node_s * copies / cluster.core_speed / 3_600
    return Maintenance(
        tiles=demand.tiles_per_day,
        node_h=node_h,
        processes=max(1, math.ceil(demand.tiles_per_day * measured.tile_s / 3_600 / cluster.maintenance_h_max - 1e-9)),
        busy=node_h / cluster.nodes / cluster.maintenance_h_max,
    )


def _problems(found: Plan, cluster: Cluster) -> tuple[str, ...]:
    problems = []
    if found.busy > cluster.busy_max:
        problems.append(f"nodes are busy for {found.busy:.0%} of their time, above {cluster.busy_max:.0%}: add nodes")
    if found.maintenance and found.maintenance.busy > cluster.busy_max:
        problems.append(
            f"maintenance keeps nodes busy for {found.maintenance.busy:.0%} of {cluster.maintenance_h_max:g} hours, "
            f"above {cluster.busy_max:.0%}: add nodes, or allow more hours"
        )
    if found.disk_fill > cluster.disk_fill_max:
        problems.append(
            f"data take {found.disk_fill:.0%} of the disks, above {cluster.disk_fill_max:.0%}: add nodes or disks"
        )
    if found.partition_bytes > PARTITION_BYTES_MAX:
        problems.append(
            f"the largest partition reaches {found.partition_bytes / 2**20:.0f} MiB, above "
            f"{PARTITION_BYTES_MAX >> 20} MiB: use finer pixels or shorter slices; more nodes do not help"
        )
    return tuple(problems)


def _nodes_needed(measured: Measured, demand: Demand, cluster: Cluster, visits: float | None) -> int | None:
    """The fewest nodes that suffice. One plan tells, because time and bytes are inversely proportional to the nodes."""
    single = _figures(measured, demand, replace(cluster, nodes=cluster.replication), visits)
    if single.partition_bytes > PARTITION_BYTES_MAX:
        return None
    by_day = single.maintenance.busy if single.maintenance else 0.0
    over = max(max(single.busy, by_day) / cluster.busy_max, single.disk_fill / cluster.disk_fill_max)
    return max(cluster.replication, math.ceil(cluster.replication * over - 1e-9))


def _assumptions(measured: Measured, demand: Demand, cluster: Cluster) -> tuple[str, ...]:
    asked = replicas_asked(cluster.replication, cluster.consistency)
    asked_then = replicas_asked(measured.replication, measured.consistency)
    speed = "as fast" if cluster.core_speed == 1 else f"{cluster.core_speed:g} times as fast"
    lines = [
        f"rows of a read grow in step with the visits in the history: measured with {measured.visits:,.0f}, full with "
        f"{demand.plateau_visits:,.0f} ({demand.visits_per_day:g} a day for {demand.history_days:g} days)",
        f"a read takes {measured.read_node_s * 1e3:.3g} ms of a node at the measured history and with {asked_then} "
        f"replicas asked; here {asked} are asked, and the cost is proportional to their number",
        f"a node is {speed} as the measured one, and the load is spread evenly over {cluster.nodes} nodes",
        f"{demand.clients} clients ask at once, every {demand.visit_s:g} s; each waits for all",
        f"{1 - cluster.busy_max:.0%} of the time and {1 - cluster.disk_fill_max:.0%} of the disks are reserved for "
        "compaction, repair and a lost node",
    ]
    if measured.read_alone_s:
        lines.append(
            f"a read alone takes {measured.read_alone_s * 1e3:.3g} ms at the measured history; no number of nodes "
            "makes it faster"
        )
    if measured.store_node_s:
        lines.append(
            f"a store takes {measured.store_node_s * 1e3:.3g} ms of a node with {measured.replication} copies; the "
            f"cost is proportional to the copies, here {cluster.replication}"
        )
    if found := _maintenance(measured, demand, cluster):
        lines.append(
            f"maintenance rewrites {found.tiles:,.0f} tiles a day, each {measured.tile_s * 1e3:.3g} ms of a process "
            f"and {measured.tile_node_s * 1e3:.3g} ms of a node; processes do not wait for each other"
        )
    if measured.bytes_per_row and measured.store_rows:
        rows = f"{measured.store_rows:,.0f} rows of " if measured.store_rows > 1 else ""
        lines.append(
            f"a store adds {rows}{measured.bytes_per_row:,.0f} bytes per copy, regardless of their age, dropped after "
            f"{demand.history_days:g} days"
        )
    else:
        lines.append("bytes per row or rows per store were not given: disks are not planned")
    if not measured.store_node_s:
        lines.append("the cost of a store was not given: storing is not planned")
    return tuple(lines)
