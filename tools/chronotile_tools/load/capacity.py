"""Models of whole installations over years: a sky survey, and the process history of a plant.

Both give the daily work and the yearly bytes; :func:`chronotile_tools.load.planner.plan` computes the resulting load of
a cluster. All costs come from :class:`~chronotile_tools.load.costs.Costs`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from chronotile.apdb import Layout, names
from chronotile.apdb.density import sky_pixels, slice_days
from chronotile.errors import InvalidInputError
from chronotile_tools.load.costs import Costs
from chronotile_tools.load.planner import Cluster, Demand, Measured, Plan, plan
from chronotile_tools.survey.simulate.universe import CAMERA_DETECTORS, VISIT_S, VISITS_A_NIGHT

__all__ = ["NodeWork", "PlantLoad", "SurveyLoad", "Year", "crowding", "plant_nodes", "survey_years"]

_LAYOUT = Layout()
_TABLES = len(names.MAIN_TABLES)


@dataclass(frozen=True)
class SurveyLoad:
    """A survey of a hemisphere.

    Attributes
    ----------
    nights_a_year, visits_a_night, detectors : float, float, int
        By default as published: twelve months of 30 nights.
    pixels_a_detector, clients_a_pixel : float
        Pixels that a detector touches, and detectors of a camera that touch the same pixel, without padding. Default:
        the values for MQ3C level 9 from the study ``pixels``.
    chunks_min : int
        Number of chunks from which maintenance rewrites a tile.
    """

    nights_a_year: float = 360.0
    visits_a_night: float = VISITS_A_NIGHT
    detectors: int = CAMERA_DETECTORS
    pixels_a_detector: float = 6.5
    clients_a_pixel: float = 2.75
    chunks_min: int = 8

    @property
    def visits_a_year(self) -> float:
        """Visits per year."""
        return self.nights_a_year * self.visits_a_night

    @property
    def pixels(self) -> float:
        """Pixels of the hemisphere."""
        return sky_pixels(_LAYOUT.scheme, _LAYOUT.level) / 2

    @property
    def chunks_a_night(self) -> float:
        """Chunks written to each table per night: one for each detector and pixel that it touches."""
        return self.visits_a_night * self.detectors * self.pixels_a_detector

    @property
    def touched_a_night(self) -> float:
        """Pixels written to per night, for random pointings."""
        mean = self.chunks_a_night / self.clients_a_pixel / self.pixels
        # Of random pointings, the share exp(-mean) of the pixels gets none.
        return self.pixels * -math.expm1(-mean)

    @property
    def tiles_a_night(self) -> float:
        """Tiles that maintenance rewrites after a night, in all tables: those written to, or, if fewer, those that
        reach `chunks_min` chunks.
        """
        return _TABLES * min(self.touched_a_night, self.chunks_a_night / self.chunks_min)

    def demand(self) -> Demand:
        """The survey's workload, as input for a plan."""
        return Demand(
            clients=self.detectors, visits_per_day=self.visits_a_year / 360, visit_s=VISIT_S,
            history_days=_LAYOUT.history_days, tiles_per_day=self.tiles_a_night,
        )  # fmt: skip


@dataclass(frozen=True)
class NodeWork:
    """Background work of each node.

    Attributes
    ----------
    compaction_h : float
        Hours of compaction per day, at full speed.
    repair_days : float
        Days to validate all data of a node once.
    """

    compaction_h: float
    repair_days: float


@dataclass(frozen=True)
class Year:
    """A survey at the end of a year.

    Attributes
    ----------
    year : int
        Number of the year, from 1.
    online_bytes, cold_bytes : float
        Bytes on the nodes' disks, in all copies; bytes in the archive of retired slices.
    partitions : float
        Partitions that hold data, in one copy.
    plan : Plan
        A full day's work on the fewest nodes that suffice.
    nodes : int
        Number of these nodes.
    bound : str
        Resource that determines their number: processors, disks, or copies.
    node_work : NodeWork
        Compaction and repair.
    money : float
        Cost of this year in USD: nodes, their disks, the archive.
    """

    year: int
    online_bytes: float
    cold_bytes: float
    partitions: float
    plan: Plan
    nodes: int
    bound: str
    node_work: NodeWork
    money: float


def survey_years(
    load: SurveyLoad, costs: Costs, cluster: Cluster, *, years: int = 10, cores: int = 32, margin: float = 1.0,
    keep_all: bool = False,
) -> list[Year]:  # fmt: skip
    """Model a survey year by year.

    Parameters
    ----------
    load : SurveyLoad
        The survey.
    costs : Costs
        Measured costs.
    cluster : Cluster
        Its nodes, with `cores` cores each; their number is computed.
    margin : float
        Factor on processor times: the error of the model.
    keep_all : bool
        Keep sources on the nodes; by default, slices older than the history are retired to an archive.
    """
    measured = Measured.from_costs(costs, cores=cores, margin=margin)
    found = []
    for year in range(1, years + 1):
        online, cold, partitions = _bytes(load, costs, year, keep_all)
        online *= cluster.replication
        nodes, made, bound = _fewest(measured, load.demand(), cluster, year * load.visits_a_year, online)
        written = load.detectors * load.visits_a_night * measured.bytes_per_row * cluster.replication / nodes
        node_work = NodeWork(
            compaction_h=written * costs["cluster.rewrites"] / costs["cluster.compaction"] / 3_600,
            repair_days=online / nodes / costs["cluster.validation"] / 86_400,
        )
        disks_tb = nodes * cluster.disks * cluster.disk_tb
        money = nodes * cores * 8_766 * costs["money.core_hour"] + disks_tb * 12 * costs["money.disk_tb_month"]
        money += cold / 1e12 * 12 * costs["money.cold_tb_month"]
        found.append(Year(year, online, cold, partitions, made, nodes, bound, node_work, money))
    return found


def _bytes(load: SurveyLoad, costs: Costs, year: int, keep_all: bool) -> tuple[float, float, float]:
    """Bytes of one copy on the nodes, bytes in the archive, and number of partitions, at the end of a year. Objects
    stay on the nodes. Assumes that a row takes as many bytes in the archive as in one copy on a node.
    """
    visited = load.visits_a_year / (360 * VISITS_A_NIGHT)
    slices_a_year = 360 / slice_days(_LAYOUT, names.SOURCE)
    # The slices of the history, and one more that is needed in part.
    kept = year * slices_a_year if keep_all else min(year * slices_a_year, slices_a_year + 1)
    places = load.pixels / _LAYOUT.partition_cells(names.SOURCE)
    object_places = load.pixels / _LAYOUT.partition_cells(names.OBJECT)
    slice_bytes = places * costs["chronotile.source_partition"] * visited
    objects = object_places * costs["chronotile.object_partition"] * visited * year
    cold = (year * slices_a_year - kept) * slice_bytes
    return kept * slice_bytes + objects, cold, kept * places + year * object_places


def _fewest(
    measured: Measured, demand: Demand, cluster: Cluster, visits: float, online: float
) -> tuple[int, Plan, str]:  # fmt: skip
    """The fewest nodes for the work and for the bytes, their plan, and the resource that determines their number."""
    # The plan would count the bytes of a full history; here the bytes of the year are known.
    work = dataclasses.replace(measured, bytes_per_row=0.0)
    by_work = plan(work, demand, cluster, visits=visits).nodes_needed or cluster.replication
    by_bytes = math.ceil(online / (cluster.disks * cluster.disk_tb * 1e12 * cluster.disk_fill_max) - 1e-9)
    nodes = max(by_work, by_bytes, cluster.replication)
    bound = "copies" if nodes == cluster.replication else "disks" if by_bytes >= by_work else "processors"
    return nodes, plan(work, demand, dataclasses.replace(cluster, nodes=nodes), visits=visits), bound


def crowding(densities: Sequence[float], varying: float, mean: float) -> list[float]:
    """Sizes of partitions where the density of variable objects is a given factor of the mean. Variable objects take
    the share `varying` of the bytes of a partition of mean size `mean`.
    """
    return [mean * (1 + varying * (density - 1)) for density in densities]


@dataclass(frozen=True)
class PlantLoad:
    """Process history.

    Attributes
    ----------
    tags : int
        Number of tags.
    values_per_s : float
        Value changes per second, of all tags.
    flush_s : float
        Seconds for which a writer buffers values of a tag before it writes them as one chunk.
    kept_days : float
        Days for which values are kept.
    """

    tags: int = 1_000_000
    values_per_s: float = 250_000.0
    flush_s: float = 600.0
    kept_days: float = 3_600.0

    def __post_init__(self) -> None:
        if not (self.tags >= 1 and min(self.values_per_s, self.flush_s, self.kept_days) > 0):
            raise InvalidInputError("tags, values, seconds and days must be above 0", kind="invalid-setting")

    @property
    def chunks_per_s(self) -> float:
        """Chunks written per second; a tag that does not change within `flush_s` writes none."""
        changes = self.values_per_s / self.tags * self.flush_s
        return self.tags / self.flush_s * -math.expm1(-changes)

    def bytes_a_day(self, costs: Costs) -> float:
        """Bytes per day, in one copy."""
        return self.values_per_s * 86_400 * costs["historian.value"]


def plant_nodes(load: PlantLoad, costs: Costs, cluster: Cluster, *, cores: int = 32) -> tuple[int, int]:
    """The fewest nodes with `cores` cores each for the writes, and the fewest for the stored bytes."""
    share = load.chunks_per_s * costs["historian.chunk"] * cluster.replication / 3 / (cores * cluster.core_speed)
    kept = load.bytes_a_day(costs) * load.kept_days * cluster.replication
    disk = cluster.disks * cluster.disk_tb * 1e12 * cluster.disk_fill_max
    return max(cluster.replication, math.ceil(share / cluster.busy_max)), max(
        cluster.replication, math.ceil(kept / disk)
    )
