"""The study of an alert database's growth: files grow as published, and the page says what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support_load import recording_of

from chronotile.apdb import names
from chronotile_tools import studies
from chronotile_tools.load import arms
from chronotile_tools.load.experiments import growth
from chronotile_tools.load.experiments.base import StoreCost
from chronotile_tools.studies import alert_database
from chronotile_tools.survey.simulate.drivers import Footprint

STUDY = studies.find("alert-database")
QUICK = STUDY.scales["quick"]
YEAR = 24
"""Visits of the quick scale in twelve months."""


def test_databases_that_grow_side_by_side_return_the_same_rows(tmp_path: Path) -> None:
    survey = growth.evenly(8, 540, 1, 1)
    days = [survey.time(visit) - survey.time(0) for visit in range(8)]
    assert days == pytest.approx([67.5 * visit for visit in range(8)])
    said: list[str] = []
    found = growth.grow_file(survey, "small", 180, said.append)
    assert [line.partition(":")[0] for line in said] == ["day 0", "day 202", "day 405"], "the days of maintenance"
    stored, maintained = (found.stored[name].reads for name in (growth.AS_STORED, growth.MAINTAINED))
    assert [each.counts for each in stored] == [each.counts for each in maintained]
    sources = [each.counts[names.SOURCE] for each in stored]
    assert sources[5] < sources[6] * 1.3, "sources of twelve months and no more"
    objects = [each.counts[names.OBJECT] for each in stored]
    assert objects == sorted(objects), "objects are never removed"


def test_layouts_of_time_differ_in_windows_and_tables_and_return_the_same_rows() -> None:
    months = ["30d", "120d"]
    assert {name: (each.window, each.slice) for name, each in growth.layouts(months).items()} == {
        "30d, a table each": ("30d", "30d"), "120d, a table each": ("120d", "120d"), "30d in tables of 120d":
        ("30d", "120d"),
    }  # fmt: skip
    found = list(growth.partition_file(growth.evenly(5, 360, 1, 1), "small", months, 2, str).values())
    short, long, inside = (each.slices for each in found)
    assert short > long == inside
    assert [len(each.read_s[state]) for each in found for state in (growth.AS_STORED, growth.MAINTAINED)] == [2] * 6
    assert len({each.stored.rows for each in found}) == 1


# ---------------------------------------------------------------------- pages


def plateau(visit: int) -> float:
    """Milliseconds of a read that grows for twelve months."""
    return 10.0 + min(visit, YEAR)


def cost(read_ms: Callable[[int], float], store_ms: float, visits: int = 36) -> StoreCost:
    """Known times, which scatter by a hundredth."""
    counts, seconds = dict.fromkeys(names.MAIN_TABLES, 100), dict.fromkeys(names.MAIN_TABLES, 0.002)
    scatter = [1 + (visit * 7 % 5 - 2) / 200 for visit in range(visits)]
    return StoreCost(
        [store_ms / 1e3 * each for each in scatter], 1.0, 1_000,
        [read_ms(visit) / 1e3 * each for visit, each in enumerate(scatter)],
        [Footprint(None, counts, seconds) for _ in range(visits)],
    )  # fmt: skip


def grown(read_ms: Callable[[int], float] = plateau, store_ms: float = 1.0, quorum: float = 2.3) -> growth.Grown:
    """Nodes whose reads at QUORUM with three copies take so many times those of a single copy."""
    stored = {
        growth.WHOLE: cost(lambda visit: quorum * read_ms(visit), store_ms), "RF 1, ONE": cost(read_ms, store_ms),
        growth.MAINTAINED: cost(read_ms, store_ms),
    }  # fmt: skip
    times = {growth.WHOLE: 0.01 * quorum, "RF 1, ONE": 0.01, growth.MAINTAINED: 0.01}
    runs: arms.Runs = {}
    for name, took in times.items():
        every = [recording_of([took * 1e3 * (1 + run / 100)] * 20) for run in range(5)]
        runs[name] = [{"read": each} for each in every]
    return growth.Grown(stored, runs)


def layout(read_ms: float, cpu_ms: float) -> growth.Partitioned:
    states = (growth.AS_STORED, growth.MAINTAINED)
    times = {state: [read_ms / 1e3 * (1 + turn / 100) for turn in range(3)] for state in states}
    stored = StoreCost([0.001, 0.002, 0.003], 0.3)
    return growth.Partitioned(stored, times, dict.fromkeys(states, cpu_ms / 1e3), 4, 100, 2**20)


def lost(away_ms: float, first_ms: float, rows_alone: int) -> growth.Outages:
    year, phase = QUICK["outage"]["year"], QUICK["outage"]["phase"]
    each = {name: away_ms if name == growth.AWAY else 10.0 for name in growth.PHASES}
    phases = [""] * year + [name for name in growth.PHASES for _ in range(phase)]
    times = [each.get(name, 5.0) * (1 + visit % 3 / 100) for visit, name in enumerate(phases)]
    stored = StoreCost([ms / 1e3 for ms in times], read_s=[ms / 1e3 for ms in times])
    stored.read_s[year + phase] = first_ms / 1e3
    return growth.Outages(stored, phases, 12.0, 500, rows_alone)


def shared() -> tuple[list[str], arms.Runs]:
    def runs(read_ms: float, cone_ms: float | None = None) -> list[arms.Run]:
        streams = {"read": read_ms} | ({"cone": cone_ms} if cone_ms else {})
        return [{name: recording_of([ms * (1 + run / 100)] * 20) for name, ms in streams.items()} for run in range(5)]

    arm = growth.cones_name(10.0)
    made = {name: runs(10.0) for name in ("alone", arms.control_name("alone"), arms.CONTROL)} | {arm: runs(20.0, 4.0)}
    return ["alone", arm], made


@contextmanager
def no_nodes(parameters: dict[str, Any], echo: Callable[[str], object]) -> Iterator[Any]:
    class NoNodes:
        @contextmanager
        def cluster(self, nodes: int) -> Iterator[Any]:
            yield self

        def url(self, keyspace: str) -> str:
            return f"cassandra://127.0.0.1/{keyspace}"

    yield NoNodes()


def page(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, file: growth.Grown | None = None,
    nodes: growth.Grown | None = None, outages: growth.Outages | None = None, windows_ms: Sequence[float] = (9, 9, 9),
) -> str:  # fmt: skip
    """The page of known measurements; by default, those that were published."""
    files = file or growth.Grown({name: cost(plateau, 1.0) for name in (growth.AS_STORED, growth.MAINTAINED)}, {})
    titles = ("60d, a table each", "120d, a table each", "60d in tables of 120d")
    windows = {
        title: layout(ms, 10 * ms - place) for place, (title, ms) in enumerate(zip(titles, windows_ms, strict=True))
    }
    monkeypatch.setattr(alert_database, "harness", no_nodes)
    monkeypatch.setattr(growth, "grow_file", lambda *given: files)
    monkeypatch.setattr(growth, "grow_nodes", lambda *given, **how: nodes or grown())
    monkeypatch.setattr(growth, "partition_file", lambda *given: windows)
    monkeypatch.setattr(growth, "partition_nodes", lambda *given: windows)
    monkeypatch.setattr(growth, "lose_node", lambda *given: outages or lost(10.0, 3_000.0, 500))
    monkeypatch.setattr(growth, "share", lambda *given, **how: shared())
    studies.run(STUDY, folder, "quick", str)
    return studies.write_page(STUDY, folder).read_text()


def here(text: str, begin: str) -> str:
    """What the page says of something published."""
    (found,) = (each for each in text.splitlines() if each.startswith(f"| {begin}"))
    return found.split(" | ")[1]


def test_measurements_as_published_are_said_to_agree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = page(monkeypatch, tmp_path)
    for where in ("file", "nodes"):
        assert here(text, f"Figure: reads grow linearly with visits; {where}").startswith("agrees: a line explains ")
        assert here(text, f"Figure: reads stay level after twelve months; {where}").startswith("agrees: ")
        assert here(text, f"Figure: stores are nearly constant and far below reads; {where}").startswith("agrees: ")
    assert here(text, "Figures: reads with RF 1") == "agrees, within our interval"
    assert here(text, "The same; clients that never wait").startswith("agrees")
    assert here(text, "Text: no visible change for clients with tables of 60").startswith("agrees")
    assert here(text, "Text: no difference between partitions of time").startswith("agrees")
    assert here(text, "Text: somewhat less work for servers") == "agrees: 90 and 89 ms"
    assert here(text, "Text: time-outs at first").startswith("agrees: the first read took 29")
    assert here(text, "Text: recovery worked") == "agrees: 500 of 500 rows on the returned node"
    assert "| 10 cones a second | 20" in text
    assert "2x slower (2x to 2x)" in text, "reads beside other clients over those alone"
    assert text.count("(images/alert-database-") == len(list((tmp_path / "images").iterdir())) == 3
    assert f"| {names.FORCED} | 100 | 100 | 17,600 to 58,000 |" in text


def test_a_plateau_is_compared_with_reads_after_as_many_visits_as_published(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # 100,000 visits at 800 a night are day 125, visit 8.3 of 24 in twelve months: 34 ms over 18.3.
    text = page(monkeypatch, tmp_path)
    label = f"Figure: plateau over reads at 100,000 visits, {4.5 / 1.65:.2f}x slower; file"
    assert here(text, label).startswith("agrees")
    (why,) = (each for each in text.splitlines() if each.startswith(f"| {label}"))
    assert "Here: 1.8" in why


def test_reads_that_go_on_growing_and_slow_stores_are_said_to_differ(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    growing = grown(lambda visit: 10.0 + visit, 40.0, quorum=0.5)
    text = page(
        monkeypatch, tmp_path, nodes=growing, outages=lost(20.0, 20.0, 499), windows_ms=(9, 18, 18)
    )  # fmt: skip
    assert here(text, "Figure: reads stay level after twelve months; nodes").startswith("differs: ")
    assert here(text, "Figure: reads stay level after twelve months; file").startswith("agrees: ")
    assert here(text, "Figure: stores are nearly constant and far below reads; nodes").startswith("differs: ")
    assert here(text, "Figures: reads with RF 1") == "differs"
    assert here(text, "Text: no visible change for clients with tables of 60").startswith("differs; 2x slower")
    assert here(text, "Text: somewhat less work for servers") == "differs: 90 and 179 ms"
    assert here(text, "Text: one of eight nodes down").startswith("none of two ratios agree")
    assert here(text, "Text: time-outs at first").startswith("differs: the first read took 2.0 times the usual")
    assert here(text, "Text: recovery worked").startswith("differs: 499 of 500")
    assert "repair it, as after every outage" in text


def test_reads_that_never_grew_say_nothing_of_a_plateau(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = page(monkeypatch, tmp_path, nodes=grown(lambda visit: 10.0))
    assert (
        here(text, "Figure: reads stay level after twelve months; nodes")
        == "not decided: no growth before twelve months"
    )
    assert here(text, "Figure: reads grow linearly with visits; nodes").startswith("differs: ")
