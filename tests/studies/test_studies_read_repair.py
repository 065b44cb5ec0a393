"""The study of read repair: counters and detectors that it takes, and what its page says of known times."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chronotile_tools import studies
from chronotile_tools.load.experiments import Settings, archive_tables
from chronotile_tools.load.experiments import read_repair as experiment
from chronotile_tools.load.experiments.read_repair import BLOCKING, MODES, NONE, Repairs
from chronotile_tools.studies import read_repair
from chronotile_tools.survey.simulate.universe import DETECTOR_DEG, PLACES

KEYSPACES = {BLOCKING: "one", NONE: "two"}


def beans(**counts: int) -> str:
    """A node's beans as nodetool prints them."""
    listed = [{"name": f"org.apache.cassandra.metrics:{name}", "Count": count} for name, count in counts.items()]
    return "WARN: an agent was loaded\n" + json.dumps({"beans": [*listed, {"name": "other:type=Table", "Value": 1.5}]})


def test_counters_of_a_node_are_told_apart_by_mode_and_summed_over_the_tables_of_a_keyspace() -> None:
    text = beans(
        **{
            "type=ReadRepair,name=RepairedBlocking": 7,
            "type=ReadRepair,name=ReconcileRead": 5,
            "type=Table,keyspace=one,scope=a,name=ReadRepairRequests": 2,
            "type=Table,keyspace=one,scope=b,name=ReadRepairRequests": 1,
            # Cassandra has each table under its former type, too.
            "type=ColumnFamily,keyspace=one,scope=b,name=ReadRepairRequests": 1,
            "type=Table,keyspace=one,scope=b,name=RecentBloomFilterFalsePositives": 50,
            "type=Table,keyspace=one_more,scope=a,name=ReadRepairRequests": 100,
        }
    )
    found = experiment.read_repairs(text, KEYSPACES)
    assert found == {BLOCKING: Repairs(7, 3), NONE: Repairs(5, 0)}
    assert found[BLOCKING].plus(Repairs(1, 2)).since(found[BLOCKING]) == Repairs(1, 2)


def test_detectors_of_the_study_have_a_detector_between_them() -> None:
    chosen = experiment.separate_detectors(44)
    assert len(set(chosen)) == 44
    for one, other in combinations(chosen, 2):
        (x, y), (a, b) = PLACES[one], PLACES[other]
        assert max(abs(x - a), abs(y - b)) > 2 * DETECTOR_DEG
    with pytest.raises(AssertionError, match="not 100"):
        experiment.separate_detectors(100)


class FakeNode:
    """A node without a process, which says what is done with it."""

    cpu_s = 0.0

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def nodetool(self, *arguments: str) -> str:
        if arguments[0] == "sjk":
            names = ("type=ReadRepair,name=RepairedBlocking", "type=ReadRepair,name=ReconcileRead")
            return beans(**dict.fromkeys(names, 1))
        self.said.append(" ".join(arguments))
        return ""

    def stop(self) -> None:
        self.said.append("stop")

    def start(self) -> None:
        self.said.append("start")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: list[str]) -> Any:
    """A harness whose databases are files."""

    @contextmanager
    def cluster(nodes: int, **options: Any) -> Iterator[Any]:
        yield SimpleNamespace(nodes=[FakeNode(said) for _ in range(nodes)])

    modes = {f"read_repair_{mode.lower()}": {"table": mode} for mode in MODES}
    monkeypatch.setattr(experiment, "archive_url", lambda _, keyspace, **options: f"sqlite:{tmp_path / keyspace}.db")
    monkeypatch.setattr(archive_tables, "set_read_repair", lambda *given: None)
    monkeypatch.setattr(archive_tables, "read_repairs", lambda _, keyspace: modes[keyspace])
    return SimpleNamespace(settings=Settings(seed=1), echo=str, cluster=cluster)


LOAD = experiment.Load("small", 30, 1_000, 1)


def test_both_databases_are_read_equally_often_beside_writers_and_without_them(in_files: Any) -> None:
    found = experiment.read_beside_writers(in_files, LOAD, visits=2, rounds=1, stores=4, every_s=0.05)
    assert list(found.read_s) == [experiment.ALONE, experiment.WRITTEN]
    for kinds in found.read_s.values():
        counts = {len(took) for by_mode in kinds.values() for took in by_mode.values()}
        assert len(counts) == 1
        assert counts.pop() >= 1
    assert {mode: len(took) for mode, took in found.store_s.items()} == dict.fromkeys(MODES, 8)


def test_a_node_is_down_while_half_of_the_footprints_are_written_and_both_databases_are_repaired(
    in_files: Any, said: list[str]
) -> None:
    found = experiment.read_what_was_missed(in_files, LOAD, footprints=2, visits=3, missed=1, rounds=2)
    assert [turn.name for turn in found.rounds] == [experiment.BEFORE, "read 1", "read 2", experiment.REPAIRED]
    for turn in found.rounds:
        assert {len(took) for by_mode in turn.read_s.values() for took in by_mode.values()} == {2}
    assert said == ["stop", "start", "repair -full read_repair_blocking", "repair -full read_repair_none"]
    assert set(found.repaired) == set(MODES)


def test_rows_that_a_node_missed_are_read_through_it_by_one_column_and_by_all(
    monkeypatch: pytest.MonkeyPatch, in_files: Any, said: list[str]
) -> None:
    read: list[tuple[int, str]] = []

    def read_pair(node: FakeNode, id: int, columns: str) -> int:
        read.append((id, columns))
        return 1

    monkeypatch.setattr(archive_tables, "create_pairs", lambda node: "pairs")
    monkeypatch.setattr(archive_tables, "write_pair", lambda node, number: node.nodetool("write", str(number)))
    monkeypatch.setattr(archive_tables, "read_pair", read_pair)
    found = experiment.read_columns(in_files, rows=2, rounds=2)
    assert said == ["stop", "write 0", "write 1", "write 2", "write 3", "start"]
    assert read == 2 * [(0, "first"), (1, "first")] + 2 * [(2, "first, second"), (3, "first, second")]
    assert {name: len(turns) for name, turns in found.items()} == {"one of two columns": 2, "both columns": 2}


EXPERIMENTS: dict[str, Callable[[Any], Any]] = {
    "concurrent": lambda harness: experiment.read_beside_writers(harness, LOAD, 1, 1, 1, 0.05),
    "missed": lambda harness: experiment.read_what_was_missed(harness, LOAD, 1, 2, 1, 1),
}


@pytest.mark.parametrize("wrong", [-1, 1])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_rows_that_are_lost_or_that_nobody_stored_end_the_experiment(
    monkeypatch: pytest.MonkeyPatch, in_files: Any, name: str, wrong: int
) -> None:
    read = experiment.ChronotileDriver.read

    def other(*given: Any) -> Any:
        found = read(*given)
        found.counts = {table: count + wrong for table, count in found.counts.items()}
        return found

    monkeypatch.setattr(experiment.ChronotileDriver, "read", other)
    with pytest.raises(AssertionError, match="rows instead of"):
        EXPERIMENTS[name](in_files)


def reads(blocking_s: float, none_s: float, count: int = 20) -> dict[str, list[float]]:
    """Times that scatter alike in both modes."""
    scatter = [1 + turn % 3 / 100 for turn in range(count)]
    return {BLOCKING: [blocking_s * each for each in scatter], NONE: [none_s * each for each in scatter]}


def beside_writers() -> experiment.Concurrent:
    """Reads to which repair adds a half while others write, and nothing while nobody does."""
    alike = {kind: reads(0.02, 0.02) for kind in (experiment.FRESH, experiment.OLDER)}
    written = {experiment.FRESH: reads(0.045, 0.03), experiment.OLDER: reads(0.03, 0.03)}
    return experiment.Concurrent(
        {experiment.ALONE: alike, experiment.WRITTEN: written},
        {phase: dict.fromkeys(MODES, 1.0) for phase in (experiment.ALONE, experiment.WRITTEN)},
        {
            experiment.ALONE: dict.fromkeys(MODES, Repairs(0, 0)),
            experiment.WRITTEN: {BLOCKING: Repairs(10, 4), NONE: Repairs(30, 0)},
        },
        reads(0.05, 0.05),
    )


def after_return() -> experiment.Missed:
    """The first read is repaired at twice the time; without repair each read takes half as long again."""
    complete = reads(0.02, 0.02)

    def turn(name: str, blocking_s: float, none_s: float, mismatches: int) -> experiment.Round:
        return experiment.Round(
            name,
            {experiment.COMPLETE: complete, experiment.MISSED: reads(blocking_s, none_s)},
            {kind: dict.fromkeys(MODES, 0.8) for kind in (experiment.COMPLETE, experiment.MISSED)},
            {BLOCKING: Repairs(mismatches, mismatches), NONE: Repairs(20, 0)},
        )

    turns = [
        turn(experiment.BEFORE, 0.02, 0.02, 0), turn(experiment.round_name(1), 0.04, 0.03, 30),
        turn(experiment.round_name(2), 0.02, 0.03, 1), turn(experiment.REPAIRED, 0.02, 0.02, 0),
    ]  # fmt: skip
    return experiment.Missed(
        turns, {BLOCKING: experiment.Repaired(4.0, 2.0), NONE: experiment.Repaired(6.0, 3.0)}
    )  # fmt: skip


@contextmanager
def no_nodes(parameters: dict[str, Any], echo: Callable[[str], object]) -> Iterator[None]:
    yield None


def test_an_interrupted_study_keeps_its_first_part_and_the_page_says_what_repair_costs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    computed = []

    def missed(*given: Any) -> experiment.Missed:
        computed.append("missed")
        if computed.count("missed") == 1:
            raise KeyboardInterrupt
        return after_return()

    def concurrent(*given: Any) -> experiment.Concurrent:
        computed.append("concurrent")
        return beside_writers()

    monkeypatch.setattr(read_repair, "harness", no_nodes)
    monkeypatch.setattr(experiment, "read_beside_writers", concurrent)
    monkeypatch.setattr(experiment, "read_what_was_missed", missed)
    turns = {"one of two columns": [Repairs(20, 20), Repairs(20, 0)], "both columns": [Repairs(20, 20), Repairs(0, 0)]}
    monkeypatch.setattr(experiment, "read_columns", lambda *given: turns)
    study = studies.find("read-repair")
    with pytest.raises(KeyboardInterrupt):
        studies.run(study, tmp_path, "quick", str)
    studies.run(study, tmp_path, "quick", str)
    assert computed == ["concurrent", "missed", "missed"]
    lines = studies.write_page(study, tmp_path).read_text().splitlines()
    assert any(
        line.startswith("| nobody writes, older: `NONE` | 20 | 20.2 | 20.4 | 20.4 | no significant") for line in lines
    )
    assert "| others write, being written: `NONE` | 20 | 30.3 | 30.6 | 30.6 | 1.5x faster (1.5x to 1.5x) |" in lines
    assert "| others write: `BLOCKING` | 25.0 | 10.0 | 25.0 |" in lines
    assert "| read 1: `BLOCKING` | 20 | 40.4 | 20.2 | 2x slower (2x to 2x) | baseline |" in lines
    assert "| read 2: `NONE` | 20 | 30.3 | 20.2 | 1.5x slower (1.5x to 1.5x) | 1.5x slower (1.5x to 1.5x) |" in lines
    (every,) = (line for line in lines if line.startswith("| all before repair: `NONE` |"))
    assert every.startswith("| all before repair: `NONE` | 40 | 30.3 | 20.2 | 1.5x slower (1.5x to 1.5x) |")
    assert "| read 1: `BLOCKING` | 75.0 | 75.0 | 40.0 | 40.0 |" in lines
    assert any("took 4.0 s for the database with `BLOCKING`" in line for line in lines)
    assert "| one of two columns, read 2 | 20 | 20 | 0 |" in lines
    assert "| both columns, read 2 | 20 | 0 | 0 |" in lines
    assert any("40 partitions differed in 80 reads" in line and "writes of repair: 4." in line for line in lines)
    assert (tmp_path / "images" / "read-repair-missed.svg").exists()
