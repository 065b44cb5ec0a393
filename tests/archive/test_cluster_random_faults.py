"""What holds while nodes die, hang and lose their network at random, one or two of three at once: on real nodes.

Three processes write, replace and remove batches, some of them the same ones, and a fourth consolidates. A checker
looks for what contradicts the promises: nothing acknowledged is lost, doubled, mixed with another edition or brought
back.
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support_faults import archive_on
from support_waiting import wait_until

pytest.importorskip("pyarrow")
import support_editions
import support_lab
from support_editions import NONE, Load, Operation, opened, patiently, violations

from chronotile_tools import lab

SECONDS = float(os.environ.get("CHRONOTILE_FAULT_SECONDS", "180"))
"""How long faults go on, in rounds on an archive each."""
ROUND_S = 300.0
SEED = int(os.environ.get("CHRONOTILE_FAULT_SEED", "1"))

# ---------------------------------------------------------------- the checker itself

DAYS = (0, 0)


def write(start: float, edition: int, outcome: str = "done", end: float = 0) -> Operation:
    return Operation("write", start, end or start + 1, outcome, batch=7, edition=edition)


def read(start: float, edition: int) -> Operation:
    return Operation("read", start, start + 1, days=DAYS, seen={"7": edition} if edition else {})


@pytest.mark.parametrize(
    ("operations", "final", "violation"),
    [
        ([write(0, 1)], 1, None),
        ([write(0, 1)], NONE, "edition 0"),
        ([write(0, 1, "unknown")], 1, None),
        ([write(0, 1, "unknown")], NONE, None),
        ([write(0, 1, "refused")], NONE, None),
        ([write(0, 1, "refused")], 1, "never written"),
        ([write(0, 1), write(2, 2)], 2, None),
        ([write(0, 1), write(2, 2)], 1, "overwritten"),
        ([write(0, 1), write(2, 2, "unknown")], 1, None),
        ([write(0, 1), write(2, 2, "unknown")], 2, None),
        # What is not known to be stored is fenced by what is acknowledged later.
        ([write(0, 1, "unknown"), write(2, 2)], 1, "overwritten"),
        # Of two at once either may stay.
        ([write(0, 1, end=5), write(2, 2)], 1, None),
        ([write(0, 1, end=5), write(2, 2)], 2, None),
        # A removal.
        ([write(0, 1), write(2, NONE)], NONE, None),
        ([write(0, 1), write(2, NONE)], 1, "overwritten"),
        ([write(0, 1), write(2, NONE, "unknown"), read(4, 1)], NONE, None),
        # A read beside a write sees it or what was there before.
        ([write(0, 1, end=3), read(1, NONE)], 1, None),
        ([write(0, 1, end=3), read(1, 1)], 1, None),
        ([write(2, 1), read(0, 1)], 1, "never written"),
        ([write(0, 1), read(2, NONE)], 1, "edition 0"),
        # What one read has seen the next one sees.
        ([write(0, 1), write(2, 2, "unknown"), read(4, 2), read(6, 1)], 2, "again after 2"),
        ([write(0, 1), write(2, 2, "unknown"), read(4, 1), read(6, 2)], 2, None),
    ],
)
def test_the_checker_finds_what_is_wrong_and_only_that(
    operations: list[Operation], final: int, violation: str | None
) -> None:
    found = violations(operations, {"7": final} if final else {}, [])
    assert "\n".join(found) if violation else not found, found
    if violation is not None:
        assert violation in "\n".join(found)


def test_a_batch_in_parts_or_in_two_editions_is_wrong() -> None:
    def rows(batch: int, edition: int) -> list[tuple[int, str]]:
        return [(record, f"{batch} {edition}") for record in support_editions.Edition(batch, edition).ids]

    assert support_editions.look([*rows(7, 1), *rows(8, 4)]) == ({"7": 1, "8": 4}, [])
    for wrong in (
        rows(7, 1)[1:],
        [*rows(7, 1), *rows(7, 1)[:1]],
        [*rows(7, 1), *rows(7, 2)],
        rows(7, 3)[:-1] + rows(7, 4)[-1:],
    ):
        assert "not complete in one edition" in support_editions.look(wrong)[1][0]


# ---------------------------------------------------------------- nodes


def disturb(cluster: lab.Cluster, choose: random.Random, load: Load) -> str:
    """Take one or two nodes away for some seconds, in a way of their own each."""
    nodes = choose.sample(cluster.nodes, 2 if choose.random() < 0.25 else 1)
    kinds: list[str] = []
    undo: list[Callable[[], None]] = []
    for node in nodes:
        kind = choose.choice(["kill", "pause", "cut"] if cluster.network == "namespaces" else ["kill", "pause"])
        {"kill": node.kill, "pause": node.pause, "cut": node.cut}[kind]()
        start = functools.partial(node.start, wait=False)
        undo.append({"kill": start, "pause": node.resume, "cut": node.heal}[kind])
        kinds.append(kind)
        load.work(choose.uniform(0, 2))
    load.work(choose.choice([1, 4, 15, 30]))
    for each in undo:
        each()
        load.work(choose.uniform(0, 2))
    return "+".join(sorted(kinds))


@pytest.fixture(scope="module")
def disturbed(lab_home: Path) -> Iterator[lab.Cluster]:
    support_lab.require_software()
    with lab.up("disturbed", nodes=3, **support_lab.QUICK | support_lab.MANY_TABLES) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.timeout(3 * SECONDS + 1_200)
def test_random_faults_lose_double_mix_and_bring_back_nothing(disturbed: lab.Cluster, tmp_path: Path) -> None:
    choose, left, number = random.Random(SEED), SECONDS, 0
    faults: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    while left > 0:
        url = archive_on(disturbed, f"random_{number}", 5)
        began = time.monotonic()
        with Load(url, tmp_path / f"load{number}") as load:
            while time.monotonic() - began < min(left, ROUND_S):
                load.work(choose.uniform(2, 12))
                faults[disturb(disturbed, choose, load)] += 1
                disturbed.wait_until_ready()
            load.work(3)
        operations = load.operations()
        outcomes.update(f"{each.kind} {each.outcome}" for each in operations)
        check(url, operations)
        left -= time.monotonic() - began
        number += 1
        print(f"{SECONDS - left:.0f} s: faults {dict(faults)}, operations {dict(outcomes)}", flush=True)
    for kind in ("write", "read", "consolidate"):
        assert outcomes[f"{kind} done"] > 0, outcomes


def check(url: str, operations: list[Operation]) -> None:
    """Read everything from all replicas, before and after a consolidation, and compare it with what was said."""
    with opened(url) as archive:
        ds = archive["editions"].tuned("ALL", timeout_s=60)
        for _ in range(2):
            found = violations(operations, *patiently(lambda: support_editions.read(ds)))
            assert not found, "\n".join([f"{len(found)} violations", *found[:20]])
            report = patiently(ds.verify)
            assert report.ok, report
            wait_until(lambda: not patiently(ds.consolidate).tiles_contended, "consolidate all", every_s=1)
