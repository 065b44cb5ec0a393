"""The study of a changing alert database: what it does to a real one, and what its page says of known times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chronotile_tools import studies
from chronotile_tools.load.experiments import changes, growth
from chronotile_tools.load.experiments.base import StoreCost
from chronotile_tools.studies import alert_changes


def test_slices_are_archived_restored_and_removed_and_rows_are_where_they_should_be() -> None:
    survey = growth.evenly(16, 365, 1, 1)
    found = changes.change_file(survey, "small", 5, 120, 2, str)
    assert len(found.changed) == len(found.change_s) == 15
    assert all(count > 0 for count in found.changed)
    plain, changed = (found.stored[name] for name in (changes.UNCHANGED, changes.REASSOCIATED))
    assert [read.counts for read in plain.reads] == [read.counts for read in changed.reads]
    assert [step.name for step in found.steps] == [changes.ARCHIVED, changes.RESTORED, changes.RETIRED]
    archived, restored, retired = found.steps
    assert (archived.slices, archived.rows, archived.bytes) == (restored.slices, restored.rows, restored.bytes)
    rows = found.rows
    assert rows[changes.AS_STORED] == rows[changes.WITH_FILES] == rows[changes.RESTORED]
    assert rows[changes.ARCHIVED] == rows[changes.RETIRED] < rows[changes.AS_STORED]
    # Removal also drops records of detector-visits; the detector's margin is read, all of the slice moves.
    assert retired.rows > archived.rows >= rows[changes.AS_STORED] - rows[changes.ARCHIVED]
    states = {changes.AS_STORED, changes.ARCHIVED, changes.WITH_FILES, changes.RESTORED, changes.RETIRED}
    for times in (found.recent_s, found.whole_s):
        assert {state: len(each) for state, each in times.items()} == dict.fromkeys(states, 2)


def known(factor: float) -> changes.Changes:
    """Reads that re-association makes `factor` times as slow, and that files make twice as slow."""
    scatter = [1 + turn % 3 / 100 for turn in range(24)]
    plain = StoreCost([0.002 * each for each in scatter], read_s=[0.01 * each for each in scatter])
    changed = StoreCost([0.002 * each for each in scatter], read_s=[0.01 * factor * each for each in scatter])
    states = (changes.AS_STORED, changes.ARCHIVED, changes.WITH_FILES, changes.RESTORED, changes.RETIRED)
    slow = {state: [0.02 if state == changes.WITH_FILES else 0.01] * 3 for state in states}
    steps = [
        changes.Step(changes.ARCHIVED, 2.5, 1.5, 4, 2_000, 3 << 20),
        changes.Step(changes.RESTORED, 0.5, 0.5, 4, 2_000, 3 << 20),
        changes.Step(changes.RETIRED, 0.25, 0.25, 5, 2_100),
    ]
    rows = {state: 900 if state in (changes.ARCHIVED, changes.RETIRED) else 2_900 for state in states}
    return changes.Changes(
        {changes.UNCHANGED: plain, changes.REASSOCIATED: changed}, [0.004] * 23, [7] * 23, 2.3, steps, slow,
        {state: [2 * each for each in times] for state, times in slow.items()}, rows,
    )  # fmt: skip


@contextmanager
def no_nodes(parameters: dict[str, Any], echo: Callable[[str], object]) -> Iterator[None]:
    yield None


def test_the_page_says_what_changes_cost_and_what_they_do_to_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(alert_changes, "harness", no_nodes)
    monkeypatch.setattr(changes, "change_file", lambda *given: known(1.0))
    monkeypatch.setattr(changes, "change_nodes", lambda *given: known(1.5))
    study = studies.find("alert-changes")
    studies.run(study, tmp_path, "quick", str)
    lines = studies.write_page(study, tmp_path).read_text().splitlines()
    (file,) = (line for line in lines if line.startswith("| file | "))
    assert file.startswith("| file | 23 | 7 | 4.0 | 4.0 | 100 | no significant difference")
    (nodes,) = (line for line in lines if line.startswith("| nodes | "))
    assert "| 1.5x slower (1.5x to 1.5x) | no significant difference" in nodes
    assert "| nodes: archive | 4 | 2,000 | 3.0 | 2.50 | 1.5 |" in lines
    assert "| file: remove | 5 | 2,100 |  | 0.25 | 0.2 |" in lines
    (files,) = (line for line in lines if line.startswith("| nodes: archived, with the files"))
    assert files == "| nodes: archived, with the files | 20.0 | 2x slower (2x to 2x) | 2,900 | 40.0 |"
    assert (tmp_path / "images" / "alert-changes-reads.svg").exists()
