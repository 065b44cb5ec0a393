"""Capacity of a whole survey and a whole plant: a model with measured costs, and its error."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from chronotile_tools import published
from chronotile_tools.load.capacity import PlantLoad, SurveyLoad, Year, crowding, plant_nodes, survey_years
from chronotile_tools.load.costs import Costs
from chronotile_tools.load.planner import PARTITION_BYTES_MAX, Cluster, Demand, Measured, plan
from chronotile_tools.studies import charts, markdown
from chronotile_tools.studies.base import Page, Part, Study
from chronotile_tools.studies.record import Record, Values
from chronotile_tools.survey.simulate.universe import HEMISPHERE_VISITS, Survey

__all__ = ["STUDY"]

_CORES = 32
_NODE = Cluster(nodes=3, disks=8, disk_tb=0.375)
"""Node of the published cloud: 32 virtual processors, eight SSDs."""


def _parts(parameters: Values) -> Iterator[Part]:
    costs = Costs.read()
    computed: dict[str, Callable[[], Values]] = {
        "costs": lambda: {name: dataclasses.asdict(cost) for name, cost in costs.by_name.items()},
        "reads": lambda: {"seconds": [_read_s(costs, each) for each in published.FOOTPRINT_READS]},
        "sizes": lambda: {"terabytes": [_terabytes(costs, each) for each in published.SURVEY_BYTES]},
        "growth": _growth,
        "survey": lambda: _survey(costs, parameters["years"], margin=1.0),
        "survey-slower": lambda: _survey(costs, parameters["years"], margin=parameters["margin"]),
        "survey-kept": lambda: _survey(costs, parameters["years"], margin=1.0, keep_all=True),
        "sky": lambda: _sky(costs, parameters["densities"]),
        "maintenance": lambda: _maintenance(costs, parameters["margin"]),
        "plant": lambda: _plant(costs, parameters["tags"], parameters["flush_s"]),
    }
    yield from (Part(name, compute) for name, compute in computed.items())


# ---------------------------------------------------------------------- computations


def _read_s(costs: Costs, then: published.FootprintRead) -> float:
    """Modelled seconds of a read with the peer's layout on a published cluster."""
    measured = Measured.from_costs(costs, system="peer", cores=then.cores // then.nodes)
    cluster = Cluster(nodes=then.nodes, replication=then.replication, consistency=then.consistency)
    return plan(measured, Demand(), cluster, visits=then.visits).read_s


def _terabytes(costs: Costs, then: published.SurveyBytes) -> float:
    return Demand().clients * then.visits * costs["peer.detector_visit"] * then.replication / 1e12


def _growth() -> Values:
    """Growth per node on four nodes, derived from that on three: the same copies on more nodes."""
    three = published.HISTORIAN_GROWTH[3]
    return {"four_bytes_a_day": three * 3 / 4}


def _survey(costs: Costs, years: int, *, margin: float, keep_all: bool = False) -> Values:
    found = survey_years(
        SurveyLoad(), costs, _NODE, years=years, cores=_CORES, margin=margin, keep_all=keep_all
    )  # fmt: skip
    return {"years": [_year(each) for each in found]}


def _year(year: Year) -> Values:
    return {
        "year": year.year,
        "online_tb": year.online_bytes / 1e12,
        "cold_tb": year.cold_bytes / 1e12,
        "partitions": year.partitions,
        "nodes": year.nodes,
        "bound": year.bound,
        "read_s": year.plan.read_s,
        "busy": year.plan.busy,
        "compaction_h": year.node_work.compaction_h,
        "repair_days": year.node_work.repair_days,
        "money_usd": year.money,
    }


def _sky(costs: Costs, densities: dict[str, float]) -> Values:
    """Sizes of partitions by density of the sky, which variable objects follow; new sources are spread uniformly."""
    survey = Survey()
    seen = survey.variables / 2
    visits_a_month = 30 * survey.visits_a_night / HEMISPHERE_VISITS
    sources = seen / (seen + survey.transients)
    forced = survey.variables / (survey.variables + survey.transients * visits_a_month)
    factors = list(densities.values())
    return {
        "varying_sources": sources,
        "varying_forced": forced,
        "source_partition": crowding(factors, (sources + forced) / 2, costs["chronotile.source_partition"]),
        "object_partition": crowding(factors, sources, costs["chronotile.object_partition"]),
    }


def _maintenance(costs: Costs, margin: float) -> Values:
    lines = []
    for chunks_min in (1, 8):
        load = SurveyLoad(chunks_min=chunks_min)
        for factor in (1.0, margin):
            measured = Measured.from_costs(costs, cores=_CORES, margin=factor)
            work = plan(measured, load.demand(), _NODE).maintenance
            assert work is not None, "costs have those of a tile"
            lines.append({
                "chunks_min": chunks_min, "margin": factor, "tiles": work.tiles, "node_h": work.node_h,
                "processes": work.processes, "process_h": work.tiles * measured.tile_s / 3_600, "busy": work.busy,
            })  # fmt: skip
    return {"touched": SurveyLoad().touched_a_night, "lines": lines}


def _plant(costs: Costs, tags: int, flushes_s: Sequence[float]) -> Values:
    lines = []
    for flush_s in flushes_s:
        load = PlantLoad(tags=tags, values_per_s=tags / 4, flush_s=flush_s)
        writes, disks = plant_nodes(load, costs, _NODE, cores=_CORES)
        lines.append({
            "flush_s": flush_s, "chunks_per_s": load.chunks_per_s, "nodes_writes": writes, "nodes_disks": disks,
            "values_a_chunk": load.values_per_s / load.chunks_per_s, "tb_a_year": load.bytes_a_day(costs) * 365 / 1e12,
        })  # fmt: skip
    return {"lines": lines}


# ---------------------------------------------------------------------- the page


def _page(record: Record) -> Page:
    parts, margin = record.parts, record.parameters["margin"]
    factors = _factors(record)
    cloud = [factor for each, factor in factors if each.nodes >= 6]
    sizes = [
        each.terabytes / ours for each, ours in zip(published.SURVEY_BYTES, parts["sizes"]["terabytes"], strict=True)
    ]
    figures = {
        "reads": charts.dots(
            "Seconds of a detector's read: published, and the model from measurements on two cores", "seconds",
            [
                (f"{each.label}, {each.visits:,} visits", (each.seconds, ours))
                for each, ours in zip(published.FOOTPRINT_READS, parts["reads"]["seconds"], strict=True)
            ],
            ["published", "model"],
        ),
        "bytes": _by_year(record, "online_tb", "Terabytes on the nodes, three copies", "TB"),
        "nodes": _by_year(record, "nodes", "Nodes", "nodes"),
    }  # fmt: skip
    text = markdown.page(
        record,
        STUDY.title,
        "A model of a whole survey (ten years, 189 detectors, 800 visits a night) and of the process history of a "
        "plant with a million tags. It answers how many nodes and disks they need, and what keeps the nodes busy, "
        "before any machine exists. All costs were measured on small clusters and are listed in the "
        "[last table](#costs); `chronotile bench plan` uses the same costs and the same model "
        "([guide](../load-tests.md#plan-a-cluster)).",
        "## Against published clusters",
        "From the processor time of a read of lsst-dax-apdb on three small nodes, the model predicts the published "
        "clusters of the same layout (" + published.ALERTS_2020 + "). It assumes that processor time is proportional "
        "to the visits and to the replicas asked, and spread over all processors, with 189 concurrent detectors.",
        _reads(record, factors),
        markdown.figure(record, "reads", "Published and modelled seconds of a read"),
        f"**Error.** On 6 and 12 nodes the published times are {min(cloud):.1f} to {max(cloud):.1f} times the model's. "
        "The factor is nearly the same for both sizes and for 50,000 to 300,000 visits: the model predicts the shape "
        "correctly (1/N, linear in the visits up to twelve months), but not the level. A virtual processor is half a "
        "core, published times include the client's conversion of rows, and the published history was in 13 tables "
        "with finer pixels. The three machines, one of which had slow disks, took "
        f"{factors[0][1]:.1f} and {factors[1][1]:.1f} times the model's. **This page therefore gives plans twice: with "
        f"the measured costs, and with {margin:g} times the processor time.**",
        _sizes(record),
        f"**Error.** Published sizes are {min(sizes):.2f} to {max(sizes):.2f} times the model's. The published "
        "clusters stored objects twice, in a table of all versions and in one of the last versions.",
        _growth_table(record),
        "## The survey by year",
        f"Nodes of the published cloud: {_CORES} virtual processors, {_NODE.disks} SSDs of {_NODE.disk_tb * 1e3:g} GB "
        f"of which data may fill {_NODE.disk_fill_max:.0%}; replication factor 3, QUORUM, processors busy for at most "
        f"{_NODE.busy_max:.0%} of the time between visits. Slices of 120 days of sources and forced sources are "
        "retired to Parquet files once they are older than twelve months; objects stay.",
        _years(record),
        f"With {margin:g} times the processor time, the number of nodes is "
        + ("the same in every year" if _same_nodes(record) else "larger")
        + ". Compaction is given in hours per day of each node, repair in days for each node to validate all its data, "
        "at the speeds in the table of costs. The model includes neither rewrites by maintenance nor the network.",
        markdown.figure(record, "bytes", "Bytes on the nodes by year, with slices retired or kept"),
        markdown.figure(record, "nodes", "Nodes by year, with slices retired or kept"),
        "## An uneven sky",
        _uneven(record),
        "## Maintenance after a night",
        _by_night(record),
        "## A plant of a million tags",
        _plant_table(record),
        "## Costs",
        markdown.table(
            ["cost", "value", "unit", "source"],
            [
                [f"`{name}`", f"{cost['value']:,.6f}".rstrip("0").rstrip("."), cost["unit"], cost["source"]]
                for name, cost in parts["costs"].items()
                if name != "run"
            ],
            words=4,
        ),
        "`chronotile bench plan --costs FILE` replaces single costs; the format is that of "
        "`tools/chronotile_tools/load/costs.toml`.",
        markdown.made_by(record),
    )  # fmt: skip
    return Page(text, figures)


def _factors(record: Record) -> list[tuple[published.FootprintRead, float]]:
    modelled = record.parts["reads"]["seconds"]
    return [(each, each.seconds / ours) for each, ours in zip(published.FOOTPRINT_READS, modelled, strict=True)]


def _reads(record: Record, factors: Sequence[tuple[published.FootprintRead, float]]) -> str:
    rows = [
        [each.label, f"{each.visits:,}", f"{each.seconds:g}", f"{ours:.2f}", f"{factor:.1f}"]
        for (each, factor), ours in zip(factors, record.parts["reads"]["seconds"], strict=True)
    ]
    return markdown.table(["cluster", "visits", "published, s", "model, s", "published over model"], rows)


def _sizes(record: Record) -> str:
    rows = [
        [each.system, str(each.replication), f"{each.visits:,}", f"{each.terabytes:g}", f"{ours:.2f}",
         f"{each.terabytes / ours:.2f}"]
        for each, ours in zip(published.SURVEY_BYTES, record.parts["sizes"]["terabytes"], strict=True)
    ]  # fmt: skip
    header = ["system", "replication factor", "visits", "published, TB", "model, TB", "published over model"]
    return markdown.table(header, rows)


def _growth_table(record: Record) -> str:
    four, ours = published.HISTORIAN_GROWTH[4], record.parts["growth"]["four_bytes_a_day"]
    return (
        f"In {published.HISTORIAN_2023}, a node of three grew by {published.HISTORIAN_GROWTH[3] / 1e9:g} GB a day, a "
        f"node of four by {four / 1e9:g}. From the first figure, the model, with bytes proportional to copies divided "
        f"by nodes, predicts {ours / 1e9:.2f} for four nodes ({ours / four - 1:+.0%})."
    )


def _years(record: Record) -> str:
    rows = []
    for each, slower in zip(
        record.parts["survey"]["years"], record.parts["survey-slower"]["years"], strict=True
    ):  # fmt: skip
        rows.append([
            str(each["year"]), f"{each['online_tb']:.1f}", f"{each['cold_tb']:.1f}", f"{each['partitions'] / 1e6:.2f}",
            f"{each['nodes']} ({each['bound']})", f"{slower['nodes']} ({slower['bound']})",
            f"{each['read_s'] * 1e3:.0f} to {slower['read_s'] * 1e3:.0f}", f"{slower['busy']:.1%}",
            f"{each['compaction_h']:.2f}", f"{each['repair_days']:.1f}", f"{each['money_usd'] / 1e3:,.0f}",
        ])  # fmt: skip
    header = [
        "year", "TB on nodes", "TB archived", "million partitions", "nodes", "nodes, slower", "read, ms",
        "busy, slower", "compaction, h per day", "repair, days", "thousand USD",
    ]  # fmt: skip
    return markdown.table(header, rows)


def _same_nodes(record: Record) -> bool:
    both = (record.parts[name]["years"] for name in ("survey", "survey-slower"))
    return all(one["nodes"] == other["nodes"] for one, other in zip(*both, strict=True))


def _by_year(record: Record, field: str, title: str, unit: str) -> str:
    series = {
        name: ([each["year"] for each in part["years"]], [each[field] for each in part["years"]])
        for name, part in (
            ("older slices retired", record.parts["survey"]), ("all slices kept", record.parts["survey-kept"])
        )
    }  # fmt: skip
    years = [float(year) for year in series["all slices kept"][0]]
    return charts.lines(title, "year", unit, series, y_log=False, x_ticks=[(year, f"{year:g}") for year in years])


def _uneven(record: Record) -> str:
    part, densities, mean = record.parts["sky"], record.parameters["densities"], record.parts["costs"]
    rows = []
    for (share, density), sources, objects in zip(
        densities.items(), part["source_partition"], part["object_partition"], strict=True
    ):
        rows.append([
            "densest pixel" if share == "100" else f"{share} %", f"{density:g}",
            f"{sources / mean['chronotile.source_partition']['value']:.1f}",
            f"{sources / 2**20:.1f}", str(_finer(sources)), f"{objects / 2**20:.1f}", str(_finer(objects)),
        ])  # fmt: skip
    header = ["share of the sky that is less dense", "density, ratio to the mean", "rows of a read, ratio to the mean",
              "sources, MiB", "finer levels", "objects, MiB", "finer levels"]  # fmt: skip
    return (
        "Partitions of sources with forced sources (sixteen pixels, 120 days) and of objects (four pixels, 360 days), "
        "by the density of the sky. Densities are those of 59,099 variable stars of the General Catalogue of Variable "
        "Stars in pixels of 2.6 degrees. Only variable objects follow these densities: "
        f"{part['varying_sources']:.0%} of the sources and {part['varying_forced']:.0%} of the forced sources; new "
        "sources are spread uniformly. `apdb create --density` puts fewer pixels in a partition until it has at most "
        "10 MiB: the table gives the number of levels by which the partition is finer.\n\n"
        + markdown.table(header, rows)
    )


def _finer(size: float) -> int:
    """Number of levels by which a partition must be finer; each level has a quarter of the bytes."""
    levels = 0
    while size > PARTITION_BYTES_MAX:
        size, levels = size / 4, levels + 1
    return levels


def _by_night(record: Record) -> str:
    part = record.parts["maintenance"]
    rows = [
        [
            f"{each['chunks_min']} chunk{'s' if each['chunks_min'] > 1 else ''}", f"{each['margin']:g}",
            f"{each['tiles']:,.0f}", f"{each['process_h']:.1f}", str(each["processes"]), f"{each['node_h']:.2f}",
            f"{each['busy']:.1%}",
        ]
        for each in part["lines"]
    ]  # fmt: skip
    header = ["a tile is rewritten at", "factor on costs", "tiles", "hours of one process", "processes for 8 h",
              "hours of one node", "three nodes busy in 8 h"]  # fmt: skip
    return (
        f"A night writes to {part['touched']:,.0f} of the hemisphere's pixels, in three tables. `maintain` rewrites "
        "the tiles that were written to; with `chunks_min=8` it waits until a tile has eight chunks. Processes work on "
        "different tiles.\n\n" + markdown.table(header, rows)
    )


def _plant_table(record: Record) -> str:
    part = record.parts["plant"]
    rows = [
        [
            f"{each['flush_s']:g}", f"{each['values_a_chunk']:,.1f}", f"{each['chunks_per_s']:,.0f}",
            str(each["nodes_writes"]), f"{each['tb_a_year']:.2f}", str(each["nodes_disks"]),
        ]
        for each in part["lines"]
    ]  # fmt: skip
    header = ["a tag is written every, s", "values per chunk", "chunks per second", "nodes for writes, at least",
              "TB per year and copy", "nodes for the disks, ten years"]  # fmt: skip
    tags = record.parameters["tags"]
    return (
        f"{tags:,} tags change {tags / 4:,.0f} times a second, each as often as in {published.HISTORIAN_2023} (20,000 "
        "tags and 5,000 values a second). The cost on the nodes is per chunk, not per value, so the number of nodes "
        "depends on how long a writer buffers values of a tag. The cost of a chunk is a lower bound. Nodes are those "
        "above.\n\n" + markdown.table(header, rows)
    )


STUDY = Study(
    name="capacity",
    title="A survey and a plant ahead of their machines",
    repeats="3 to 12 nodes of DMTN-156 and DMTN-184",
    scales={
        "full": {
            "years": 10,
            "margin": 3.2,
            "densities": {"50": 0.42, "90": 1.98, "99": 8.94, "99.9": 40.1, "100": 118.0},
            "tags": 1_000_000,
            "flush_s": [1, 10, 60, 600, 3_600],
        },
    },
    parts=_parts,
    page=_page,
)
