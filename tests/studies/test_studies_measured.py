"""Studies measured on nodes: what their pages say of figures that are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support_load import recording_of

from chronotile_tools import load, published, studies
from chronotile_tools.load import arms
from chronotile_tools.load.experiments import expansion, outage, overload, reads, requests, versions
from chronotile_tools.studies import historian_cluster, log_store_versions, measured

MIB = 2**20


def difference(ratio: float, spread: float, detectable: float) -> load.Difference:
    return load.Difference(ratio, ratio / spread, ratio * spread, detectable, 5)


@pytest.mark.parametrize(
    ("then", "found", "judged"),
    [
        (2.0, difference(2.1, 1.2, 0.2), "agrees"),
        (2.0, difference(9.0, 1.2, 0.2), "agrees"),
        (2.0, difference(0.5, 1.2, 0.2), "differs"),
        (2.0, difference(1.05, 1.2, 0.3), "differs"),
        (2.0, difference(1.05, 1.2, 1.01), "open"),
        (0.5, difference(1.05, 1.2, 1.0), "differs"),
        (0.5, difference(0.6, 1.2, 0.3), "agrees"),
        (1.04, difference(1.0, 1.1, 0.25), "agrees"),
        (1.04, difference(1.0, 1.3, 0.26), "open"),
        (1.04, difference(1.5, 1.1, 0.2), "differs"),
        (0.96, difference(0.9, 1.05, 0.09), "differs"),
    ],
)
def test_a_published_ratio_is_judged_only_by_runs_that_would_have_shown_it(
    then: float, found: load.Difference, judged: str
) -> None:
    assert measured.judge(then, found) == judged
    turned = load.Difference(1 / found.ratio, 1 / found.high, 1 / found.low, found.detectable, found.pairs)
    assert measured.judge(1 / then, turned) == judged, "it does not matter which side is divided by which"


def test_an_agreement_counts_what_agrees_what_differs_and_what_is_open() -> None:
    then = {"a": 2.0, "b": 2.0, "c": 2.0, "d": 2.0}
    close, far = difference(2.1, 1.2, 0.2), difference(9.0, 1.2, 0.2)
    wrong, vague = difference(0.5, 1.2, 0.2), difference(1.5, 9.0, 8.0)
    found = dict(zip(then, (close, far, wrong, vague), strict=True))
    assert measured.agreement(then, found) == ("two of four ratios agree; one not decided")
    assert measured.agreement(then, dict.fromkeys(then, close)) == "all four ratios agree"
    assert measured.agreement(then, {**dict.fromkeys(then, wrong), "a": far}) == "one of four ratios agrees"
    assert measured.agreement(then, dict.fromkeys(then, vague)).startswith("not decided")
    assert measured.agreement({"a": 2.0, "b": 2.0}, found) == "both ratios agree"
    assert measured.agreement({"a": 2.0}, {"a": close}) == "agrees, within our interval"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (difference(1.5, 1.2, 0.2), "1.5x slower (1.25x to 1.8x)"),
        (difference(0.2, 1.25, 0.2), "5x faster (4x to 6.25x)"),
        (difference(1e-4, 2.0, 0.2), "10,000x faster (5,000x to 20,000x)"),
        (difference(1.1, 1.05, 0.2), "no significant difference (20 % would have been detected)"),
        (difference(1.1, 2.0, 3.0), "no significant difference (a factor of 4.0 would have been detected)"),
        (difference(1.1, 99.0, 98.0), "no significant difference (not even a factor of 10 would have been detected)"),
    ],
)
def test_a_ratio_is_shown_only_where_the_runs_allow_it(found: load.Difference, words: str) -> None:
    assert measured.ratio_text(found) == words


def test_a_published_ratio_is_shown_as_a_factor() -> None:
    assert [measured.times_text(ratio) for ratio in (0.25, 1.001, 2.975)] == [
        "4x faster", "no difference", "2.98x slower",
    ]  # fmt: skip
    assert measured.times_text(0.5, "more", "fewer") == "2x fewer"


# ---------------------------------------------------------------------- pages


class NoNodes:
    """Stands for a harness; its clusters are only named."""

    @contextmanager
    def cluster(self, nodes: int) -> Iterator[NoNodes]:
        yield self

    def url(self, keyspace: str) -> str:
        return f"cassandra://127.0.0.1/{keyspace}"


@contextmanager
def no_nodes(parameters: dict[str, Any], echo: Callable[[str], object]) -> Iterator[NoNodes]:
    yield NoNodes()


def runs_of(streams: dict[str, dict[str, float]]) -> load.arms.Runs:
    """Runs by arm, whose streams take given milliseconds, with some scatter; the first arm's control is alike."""

    def runs(means: dict[str, float]) -> list[arms.Run]:
        return [{name: recording_of([ms * (1 + run / 100)] * 20) for name, ms in means.items()} for run in range(5)]

    first = next(iter(streams))
    control = {arms.control_name(first): streams[first], arms.CONTROL: streams[first]}
    return {name: runs(means) for name, means in (control | streams).items()}


def stepped(*steps: tuple[int, float, int]) -> list[reads.Step]:
    """A ramp's steps of time-outs between nodes, milliseconds of a write, and failed reads."""
    return [
        reads.Step(
            float(place), 20.0,
            {"read": recording_of([10.0] * 20, failed=failed), "write": recording_of([write_ms] * 20)},
            0, late,
        )
        for place, (late, write_ms, failed) in enumerate(steps, 1)
    ]  # fmt: skip


IN_ORDER = stepped((0, 10, 0), (3, 10, 0), (3, 80, 0), (3, 80, 2))


def setup_rates(gain: float) -> dict[str, dict[str, list[float]]]:
    """Requests a second; three nodes do `gain` times what one does."""
    return {
        name: {"1 node": [5.0, 5.1], "3 nodes, 2 live": [10.0, 10.2], "3 nodes": [5.0 * gain, 5.1 * gain]}
        for kind in "ABCD" for name in (kind, f"{kind} from values")
    }  # fmt: skip


@contextmanager
def known_measurements(ramp: list[reads.Step] = IN_ORDER) -> Iterator[None]:
    """Replaces measurements on nodes by known ones."""
    nodes = {f"node{number}{suffix}": 10.0 for number in (1, 2, 3) for suffix in ("", " write")}
    starved = {arm: {name: ms * 3**count for name, ms in nodes.items()} for count, arm in enumerate(overload.ARMS)}
    late = {arm: count for count, arm in enumerate(overload.ARMS)}
    outages = [outage.Outage(2.0, 1_000, MIB, 5.0, 11.0), outage.Outage(6.0, 3_000, 3 * MIB, 5.0, 13.0)]
    phases = {phase: {"read": 10.0, "write": 20.0} for phase in outage.PHASES}
    grown = expansion.Expansion(
        30.0, [3.0, 2.0, 1.0], [100 * MIB] * 3, [100 * MIB] * 3 + [70 * MIB], [76 * MIB] * 3 + [72 * MIB],
        [8 * MIB] * 3, [6 * MIB] * 4,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(historian_cluster, "harness", no_nodes)
        patch.setattr(requests, "rates", lambda ready, load: setup_rates(2.0))
        patch.setattr(overload, "measure", lambda ready, load: overload.Starved(runs_of(starved), late))
        patch.setattr(historian_cluster.History, "store", lambda history: None)
        patch.setattr(reads, "ramp", lambda *given: iter(ramp))
        patch.setattr(reads, "measure_step", lambda *given: ramp[0])
        patch.setattr(outage, "measure", lambda ready, load: (runs_of(phases), outages))
        patch.setattr(expansion, "measure", lambda ready, load: grown)
        yield


HISTORIAN = studies.find("historian-cluster")


@pytest.fixture(scope="module")
def historian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a quick study of known measurements, and its page."""
    folder = tmp_path_factory.mktemp("historian")
    with known_measurements():
        studies.run(HISTORIAN, folder, "quick", str)
    studies.write_page(HISTORIAN, folder)
    return folder


def page_with(folder: Path, **parts: dict[str, Any]) -> str:
    """The page of the study, of which some parts have other values."""
    record = studies.Record.read(folder / "data" / "historian-cluster.json")
    record.parts |= {name: {"run": 0, **values} for name, values in parts.items()}
    return HISTORIAN.page(record).text


def line(page: str, begin: str) -> str:
    (found,) = (each for each in page.splitlines() if each.startswith(begin))
    return found


def test_the_page_of_a_historians_cluster_has_each_published_figure_beside_ours(historian: Path) -> None:
    page = (historian / "historian-cluster.md").read_text()
    for then in published.REQUESTS["A"][:3]:
        assert f"{then:g} / " in line(page, "| A | 8.94 / 5.05")
    # Half of three nodes' on one, as published (0.51); no less with one down (0.71).
    assert "1.95x fewer; 2x fewer (2x to 2x)" in page
    assert line(page, "| reads; starved").count("node") == 3
    assert "5.2 / 10.2" in line(page, "| none | 5.2")
    assert "4.17x slower; 3x slower (3x to 3x)" in line(page, "| one node | 21.6 / 30.6")
    assert "| 12 / 3 |" in page, "time-outs between nodes"
    assert "hints arrived at 1.00 MiB per second, 32.0 times the throttle, after 10 s" in page
    assert "an old node has 76% of its former bytes, the mean of all four 75% (published: 75%)" in page
    assert line(page, "| Table: daily growth").startswith(
        "| Table: daily growth with four instead of three | agrees: 75%, published 79%"
    )
    assert page.count("(images/historian-cluster-") == len(list((historian / "images").iterdir())) == 4


@pytest.mark.parametrize(
    ("ramp", "words"),
    [
        (IN_ORDER, "agrees: in 1 of 1 ramps"),
        (stepped((0, 10, 0), (3, 80, 0)), "agrees: in 1 of 1 ramps"),
        (stepped((0, 10, 0), (0, 80, 0), (3, 80, 0), (3, 80, 1)), "differs: in 0 of 1 ramps"),
        (stepped((0, 10, 0), (0, 10, 1)), "differs: in 0 of 1 ramps"),
        (stepped((0, 10, 0), (0, 49, 0)), "not decided: no sign appeared in 1 of 1 ramps"),
    ],
)
def test_signs_of_overload_are_compared_by_their_order(historian: Path, ramp: list[reads.Step], words: str) -> None:
    parts = {part.name: part for part in HISTORIAN.parts(HISTORIAN.scales["quick"])}
    with known_measurements(ramp):
        page = page_with(historian, growing=parts["growing"].compute(str))
    assert f"| {words} |" in line(page, "| Text: first time-outs between nodes")


def test_set_ups_that_published_ratios_do_not_fit_are_said_to_differ(historian: Path) -> None:
    page = page_with(historian, requests={"per_s": setup_rates(0.5)})
    assert "| none of eight ratios agree |" in line(page, "| Table: requests A to D")


def test_no_speed_is_given_where_longer_outages_were_not_delivered_later(historian: Path) -> None:
    record = studies.Record.read(historian / "data" / "historian-cluster.json")
    short, long = record.parts["outage"]["outages"]
    page = page_with(historian, outage={**record.parts["outage"], "outages": [short, {**long, "delivery_s": 11.0}]})
    assert "so the speed is unknown" in page
    assert "MiB per second" not in page


def test_the_page_of_versions_subtracts_what_a_command_takes_that_does_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ["Cassandra 3.11.19", "Cassandra 4.0.19"]
    table = {"Read Latency 50%": 1_000.0, "Read Latency 95%": 2_000.0, "Write Latency 99%": 30.0}
    took = {"no-op": [1.0, 1.0], "repair": [9.0, 9.1], "compact": [3.0, 3.1], "garbagecollect": [2.0, 2.1]}
    faster = {**took, "repair": [3.0, 3.025], "compact": [1.0, 0.5]}
    found = versions.Compared(
        names, runs_of({names[0]: {"read": 20.0, "write": 5.0}, names[1]: {"read": 10.0, "write": 5.0}}),
        {name: [table, {}] for name in names}, {names[0]: took, names[1]: faster},
    )  # fmt: skip
    monkeypatch.setattr(log_store_versions, "harness", no_nodes)
    monkeypatch.setattr(versions, "measure", lambda ready, load: found)
    study = studies.find("log-store-versions")
    studies.run(study, tmp_path, "quick", str)
    page = studies.write_page(study, tmp_path).read_text()
    assert "| repair | 4x faster (4x to 4x) |" in page
    assert "| repair, s | 8.0, 8.1 | 2.0, 2.0 |" in page
    assert "| compact, s | 2.0, 2.1 | 0.0, 0.0 |" in page, "never less than nothing"
    assert "| table: read p50, ms | 1.00 (1.00 to 1.00) | 1.00 (1.00 to 1.00) |" in page
    assert "| table: read p99, ms |  |  |" in page
    ratios = [new / old for old, new in zip(*published.MAINTENANCE_S["repair"], strict=True)]
    assert math.prod(ratios) ** 0.25 == pytest.approx(0.30, abs=0.01)
    assert "| agrees |" in line(page, "| Table: repair after 30 min, 90 min, 6 h, 11 h: 32/71/95/77 to 8/15/34/34 s")
    assert "| agrees, within our interval |" in line(page, "| Table: writes, p99, alike")
    assert "| differs |" in line(page, "| Table: garbagecollect"), "alike here, where the published ones are not"
