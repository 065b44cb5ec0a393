"""Maintenance in a plan, costs with their sources, and the years of a survey and a plant."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from pathlib import Path

import pytest

from chronotile.errors import DataFileError, InvalidInputError
from chronotile_tools import load
from chronotile_tools.load import capacity

ROOT = Path(__file__).parents[2]
COSTS = load.Costs.read()
NODE = load.Cluster(nodes=3, disks=8, disk_tb=0.375)
MEASURED = load.Measured(
    visits=100_000, read_node_s=1e-6, tile_s=0.1, tile_node_s=0.05, replication=3, consistency="ONE"
)


def nightly(tiles: float, **cluster: float) -> load.Maintenance:
    found = load.plan(MEASURED, load.Demand(tiles_per_day=tiles), load.Cluster(**cluster)).maintenance  # type: ignore[arg-type]
    assert found is not None
    return found


def test_maintenance_ends_in_time_with_its_processes_and_not_with_one_less() -> None:
    tiles = 3 * 8 * 3_600 / 0.1
    assert nightly(tiles).processes == 3
    assert nightly(tiles + 1).processes == 4
    assert nightly(tiles, maintenance_h_max=6).processes == 4
    assert nightly(1).processes == 1


def test_maintenance_loads_nodes_by_their_number_speed_and_copies() -> None:
    tiles = 100_000
    found = nightly(tiles, nodes=10)
    assert found.node_h == pytest.approx(tiles * 0.05 / 3_600)
    assert found.busy == pytest.approx(found.node_h / 10 / 8)
    assert nightly(tiles, nodes=20, core_speed=2).busy == pytest.approx(found.busy / 4)
    assert nightly(tiles, nodes=10, replication=6).node_h == pytest.approx(2 * found.node_h)


def test_nodes_that_maintenance_needs_are_enough_and_one_less_is_not() -> None:
    demand = load.Demand(tiles_per_day=20e6)
    needed = load.plan(MEASURED, demand, load.Cluster(nodes=3)).nodes_needed
    assert needed is not None
    assert needed > 3
    assert load.plan(MEASURED, demand, load.Cluster(nodes=needed)).problems == ()
    short = load.plan(MEASURED, demand, load.Cluster(nodes=needed - 1)).problems
    assert len(short) == 1
    assert "maintenance keeps nodes busy" in short[0]


def test_maintenance_is_not_planned_without_its_cost_or_tiles() -> None:
    assert load.plan(MEASURED, load.Demand(), load.Cluster()).maintenance is None
    free = dataclasses.replace(MEASURED, tile_s=0.0)
    assert load.plan(free, load.Demand(tiles_per_day=5), load.Cluster()).maintenance is None


@pytest.mark.parametrize(
    "make", [lambda: load.Demand(tiles_per_day=-1), lambda: load.Cluster(maintenance_h_max=0),
             lambda: load.Cluster(maintenance_h_max=25), lambda: load.PlantLoad(tags=0),
             lambda: load.PlantLoad(flush_s=0)]
)  # fmt: skip
def test_work_that_makes_no_sense_is_refused(make: object) -> None:
    with pytest.raises(InvalidInputError):
        make()  # type: ignore[operator]


# ---------------------------------------------------------------------- costs


def test_every_cost_names_its_source_and_pages_it_names_exist() -> None:
    for name, cost in COSTS.by_name.items():
        assert all((cost.unit, cost.source)), name
        pages = re.findall(r"\b(?:docs|bench)/[\w./-]+\.md", cost.source)
        assert pages or cost.source.startswith(("assumed", "published", "default")), name
        assert all((ROOT / page).is_file() for page in pages), name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not toml", "is not TOML"), ("a = " + "[" * 10_000, "is not TOML"),
        (f'[peer.read]\nvalue = 1{"0" * 400}\nunit = "s"\nsource = "s"', "peer.read lacks"),
        ("value = 1", "value is not a table"),
        ("[peer.read]\nvalue = 1", "peer.read lacks a number `value`, a `unit` or a `source`"),
        ('[peer]\nread = 1', "peer.read lacks"),
        ('[peer.read]\nvalue = "x"\nunit = "s"\nsource = "s"', "peer.read lacks"),
        ('[peer.read]\nvalue = 0\nunit = "s"\nsource = "s"', "peer.read: value 0 is not above 0"),
        ('[peer.read]\nvalue = nan\nunit = "s"\nsource = "s"', "peer.read: value nan is not above 0"),
        ('[peer.raed]\nvalue = 1\nunit = "s"\nsource = "s"', "no cost 'peer.raed': did you mean peer.read"),
    ],
)  # fmt: skip
def test_a_file_of_costs_that_cannot_be_used_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "costs.toml"
    path.write_text(text)
    with pytest.raises(DataFileError, match=re.escape(message)):
        load.Costs.read(path)


def test_a_file_of_costs_replaces_those_it_names(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match="no such file"):
        load.Costs.read(tmp_path / "costs.toml")
    (tmp_path / "costs.toml").write_text('[peer.read]\nvalue = 9\nunit = "s"\nsource = "a stopwatch"\n')
    found = load.Costs.read(tmp_path / "costs.toml")
    assert found["peer.read"] == 9
    assert found["peer.store"] == COSTS["peer.store"]


# ---------------------------------------------------------------------- a survey


def test_a_night_touches_at_most_what_it_writes_and_at_most_the_hemisphere() -> None:
    published = load.SurveyLoad()
    assert published.touched_a_night < min(published.pixels, published.chunks_a_night)
    assert published.touched_a_night == pytest.approx(290_000, rel=0.05), "a third of the hemisphere's pixels"
    endless = load.SurveyLoad(visits_a_night=1e6)
    assert endless.touched_a_night == pytest.approx(endless.pixels)
    assert load.SurveyLoad(chunks_min=1).tiles_a_night == 3 * published.touched_a_night
    assert published.tiles_a_night == 3 * published.chunks_a_night / 8


def test_sources_stay_for_twelve_months_and_a_slice_and_objects_for_ever() -> None:
    years = load.survey_years(load.SurveyLoad(), COSTS, NODE)
    kept = load.survey_years(load.SurveyLoad(), COSTS, NODE, keep_all=True)
    assert (years[0].cold_bytes, years[0].online_bytes) == (0, kept[0].online_bytes)
    objects = (786_432 / 4) * COSTS["chronotile.object_partition"] * 3
    sources = 3 * (786_432 / 16) * COSTS["chronotile.source_partition"] * 3
    assert years[0].online_bytes == pytest.approx(objects + sources)
    for before, after in itertools.pairwise(years[1:]):
        assert after.online_bytes - before.online_bytes == pytest.approx(objects)
        assert after.cold_bytes - before.cold_bytes == pytest.approx(sources / 3)
    assert kept[-1].online_bytes == pytest.approx(10 * years[0].online_bytes)
    assert kept[-1].online_bytes == pytest.approx(years[-1].online_bytes + 3 * years[-1].cold_bytes)


def test_bytes_by_partitions_agree_with_bytes_by_detector_visits() -> None:
    first = load.survey_years(load.SurveyLoad(), COSTS, NODE, years=1)[0]
    by_visits = 189 * 288_000 * COSTS["chronotile.detector_visit"] * 3
    assert first.online_bytes == pytest.approx(by_visits, rel=0.1), "two measurements of the same"


def test_nodes_of_a_year_are_bound_by_what_is_said() -> None:
    disks = load.survey_years(load.SurveyLoad(), COSTS, NODE, years=1)[0]
    assert (disks.bound, disks.nodes) == ("disks", math.ceil(disks.online_bytes / 1.5e12))
    large = dataclasses.replace(NODE, disk_tb=100.0)
    copies = load.survey_years(load.SurveyLoad(), COSTS, large, years=1)[0]
    assert (copies.bound, copies.nodes) == ("copies", 3)
    slow = load.survey_years(load.SurveyLoad(), COSTS, large, years=2, margin=500)
    assert [each.bound for each in slow] == ["processors", "processors"]
    assert slow[0].nodes == slow[1].nodes > 3
    assert slow[0].plan.busy <= large.busy_max


def test_money_is_nodes_disks_and_archive() -> None:
    last = load.survey_years(load.SurveyLoad(), COSTS, NODE, cores=16)[-1]
    nodes = last.nodes * 16 * 8_766 * COSTS["money.core_hour"]
    disks = last.nodes * 3 * 12 * COSTS["money.disk_tb_month"]
    archive = last.cold_bytes / 1e12 * 12 * COSTS["money.cold_tb_month"]
    assert last.money == pytest.approx(nodes + disks + archive)


def test_only_what_varies_with_density_crowds_a_partition() -> None:
    assert capacity.crowding([1.0, 3.0], varying=0.5, mean=10.0) == [10.0, 20.0]
    assert capacity.crowding([100.0], varying=0.0, mean=10.0) == [10.0]


# ---------------------------------------------------------------------- a plant


def test_a_tag_writes_at_most_one_chunk_for_each_flush_and_for_each_change() -> None:
    rare = load.PlantLoad(tags=1_000, values_per_s=1.0, flush_s=1.0)
    assert rare.chunks_per_s == pytest.approx(1.0, rel=0.01), "a chunk for each value"
    busy = load.PlantLoad(tags=1_000, values_per_s=1e6, flush_s=10.0)
    assert busy.chunks_per_s == pytest.approx(100.0), "each tag every ten seconds"


def test_nodes_of_a_plant_follow_from_chunks_and_from_what_is_kept() -> None:
    load_ = load.PlantLoad(tags=1_000_000, values_per_s=1e9, flush_s=1.0, kept_days=1.0)
    writes, disks = load.plant_nodes(load_, COSTS, NODE, cores=32)
    assert writes == math.ceil(1_000_000 * COSTS["historian.chunk"] / 32 / 0.5)
    assert disks == math.ceil(1e9 * 86_400 * COSTS["historian.value"] * 3 / 1.5e12)
    few = load.PlantLoad(tags=10, values_per_s=1.0)
    assert load.plant_nodes(few, COSTS, NODE) == (3, 3)
