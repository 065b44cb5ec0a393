"""What the page of cut networks says of seconds that are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_studies_measured import no_nodes

from chronotile_tools import studies
from chronotile_tools.load.experiments import recovery
from chronotile_tools.load.recording import DONE, FAILED, Recording
from chronotile_tools.load.schedule import Schedule
from chronotile_tools.studies import client_recovery


def stream(p50_ms: list[float], failed: tuple[int, ...] = ()) -> dict[str, Any]:
    return {
        "due": [1] * len(p50_ms),
        "failed": [int(second in failed) for second in range(len(p50_ms))],
        "p50_ms": p50_ms,
    }


@pytest.mark.parametrize(
    ("p50_ms", "failed", "restored"),
    [
        ([20.0] * 10, (), 0.0),
        # Three times the usual 20 ms is as usual, more is not.
        ([20.0] * 4 + [60.0] * 6, (), 0.0),
        ([20.0] * 4 + [500.0, 61.0] + [20.0] * 4, (), 2.0),
        ([20.0] * 4 + [20.0, 20.0, 61.0] + [20.0] * 3, (), 3.0),
        ([20.0] * 9 + [61.0], (), None),
        ([20.0] * 10, (5,), 2.0),
        ([20.0] * 10, (9,), None),
        # What was before does not count.
        ([20.0] * 3 + [900.0] + [20.0] * 6, (3,), 0.0),
    ],
)
def test_a_stream_is_restored_after_its_last_unusual_second(
    p50_ms: list[float], failed: tuple[int, ...], restored: float | None
) -> None:
    seconds = stream(p50_ms, failed)
    assert client_recovery.usual_ms(seconds, 3.5) == 20.0
    assert client_recovery.restored_s(seconds, 20.0, 4, 10) == restored


def test_medians_below_50_ms_are_always_usual() -> None:
    assert client_recovery.restored_s(stream([1.0] * 5 + [50.0] * 5), 1.0, 4, 10) == 0.0


def test_a_timeline_counts_operations_by_the_second_in_which_they_were_due() -> None:
    due = np.array([0, 500, 2_000, 2_999]) * 1_000_000
    took = np.array([10, 30, 5_000, 7]) * 1_000_000
    outcome = np.array([DONE, DONE, FAILED, DONE], np.uint8)
    rows, worker = np.ones(4, np.int64), np.zeros(4, np.uint8)
    found = recovery.Timeline.of(Recording("s", due, due, due + took, outcome, rows, worker, 3_000_000_000, 8))
    assert found == recovery.Timeline([2, 0, 2], [0, 0, 1], [20.0, 0.0, 2_503.5], [30.0, 0.0, 5_000.0], {})


def test_the_page_says_what_was_late_what_never_came_back_and_which_node_was_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    length = len(Schedule.fixed(1, 8 + 3 * (3 + 8)))

    def timeline(unusual: dict[int, float]) -> recovery.Timeline:
        p50_ms = [unusual.get(second, 20.0) for second in range(length)]
        return recovery.Timeline([4] * length, [0] * length, p50_ms, p50_ms, {})

    # Networks are back after 11, 22 and 33 seconds.
    found = {name: timeline({8: 3_000.0, 9: 900.0}) for name in client_recovery._STREAMS}
    found["service read"] = timeline({12: 400.0, 33: 400.0, 39: 400.0})
    even = {front_end: [10, 10, 10] for front_end in recovery.FRONT_ENDS}
    cuts = [recovery.Cut(number, 8 + 11.0 * (number - 1), 11.0 * number, even) for number in (1, 2, 3)]
    cuts[1] = recovery.Cut(2, 19.0, 22.0, {**even, "archive": [50, 5, 45]})
    monkeypatch.setattr(client_recovery, "harness", no_nodes)
    monkeypatch.setattr(client_recovery, "RECOVERED_S", 1.5)
    monkeypatch.setattr(recovery, "measure", lambda ready, load, cut_s: (found, cuts))
    study = studies.find("client-recovery")
    studies.run(study, tmp_path, "quick", str)
    page = studies.write_page(study, tmp_path).read_text()
    assert "Of 18 recoveries, one per stream and cut, 16 took at most 1.5 s, 1 longer, and 1 had not ended" in page
    assert "less than 15% of operations: archive on node 2 after a cut of 3 s." in page
    assert "| archive write, cut of 3 s | 0 of 164 | 20 | 3.0 | 2, 0, 0 | 0, 0, 0 | 33%, 5%, 33% |" in page
    assert "| service read, cut of 3 s | 0 of 164 | 20 | 0.4 | 0, 0, 0 | 2, 0, not | 33%, 33%, 33% |" in page
