"""Upgrades of real nodes from 4.0 to 4.1 to 5.0 with clients at work, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import support_lab
from support_faults import archive_on, check, check_all_done
from support_history import Load
from support_procedures import context, nodes_of, run_cut_off

import chronotile as ct
from chronotile_tools import lab
from chronotile_tools.lab.versions import RELEASES
from chronotile_tools.ops.procedures import plan
from chronotile_tools.ops.procedures.nodes import all_members
from chronotile_tools.ops.procedures.upgrades import Compatibility, Upgrade

NEVER_S = 1e9
"""Clients stay on one day: a new one would be a new table, and none may come while releases differ."""


@pytest.mark.parametrize(
    ("release", "reason"),
    [("4.1.10", "goes back"), ("5.0.8", "run 5.0.8 already")],
)
def test_an_upgrade_back_or_to_what_runs_is_refused(shared_cluster: lab.Cluster, release: str, reason: str) -> None:
    made = plan(Upgrade.of(context(shared_cluster), release), context(shared_cluster))
    assert made.refused
    assert reason in str(made)


def test_a_release_that_is_none_is_refused(shared_cluster: lab.Cluster) -> None:
    for release in ("5.0", "6.0.1", "latest"):
        with pytest.raises(ct.InvalidInputError, match="give the full number"):
            Upgrade.of(context(shared_cluster), release)


def test_a_mode_without_a_way_back_needs_to_be_confirmed_and_none_is_left_out(shared_cluster: lab.Cluster) -> None:
    asked = plan(Compatibility.of(context(shared_cluster), "UPGRADING", False), context(shared_cluster))
    assert [finding.what for finding in asked.findings if finding.level == "refused"] == ["no way back"]
    skipped = plan(Compatibility.of(context(shared_cluster), "NONE", True), context(shared_cluster))
    assert [finding.what for finding in skipped.findings if finding.level == "refused"] == ["mode"]


@pytest.fixture(scope="module")
def old(lab_home: Path) -> Iterator[lab.Cluster]:
    """Three nodes of 4.0, which end at 5.0."""
    for series in ("4.0", "4.1", "5.0"):
        support_lab.require_software(series)
    with lab.up("old", nodes=3, version="4.0", **support_lab.QUICK) as cluster:
        yield cluster


@pytest.mark.slow
def test_an_upgrade_that_leaves_a_series_out_is_refused(old: lab.Cluster) -> None:
    made = plan(Upgrade.of(context(old), RELEASES["5.0"].version), context(old))
    assert made.refused
    assert "skips a series: upgrade to 4.1 first" in str(made)


@pytest.mark.slow
@pytest.mark.parametrize("series", ["4.1", "5.0"])
def test_an_upgrade_under_load_fails_no_operation_and_loses_nothing(
    old: lab.Cluster, tmp_path: Path, series: str
) -> None:
    release = RELEASES[series].version
    url = archive_on(old, f"to_{series.replace('.', '')}")
    with Load(url, tmp_path / "load", processes=2, day_s=NEVER_S) as load:
        # Cut off when the first node is drained, when it is stopped, and when it has the new release.
        work = Upgrade.of(context(old), release)
        run_cut_off(old, tmp_path / "journals", work, [13, 2, 4, 4])
        history = load.stop()
    assert {one.release for one in all_members(nodes_of(old))} == {release}
    check_all_done(history)
    check(url, history)


@pytest.mark.slow
def test_the_new_release_goes_on_to_its_own_format_under_load(old: lab.Cluster, tmp_path: Path) -> None:
    url = archive_on(old, "mode")
    with Load(url, tmp_path / "load", processes=2, day_s=NEVER_S) as load:
        for mode in ("UPGRADING", "NONE"):
            run_cut_off(old, tmp_path / mode, Compatibility.of(context(old), mode, True), [])
        history = load.stop()
    check_all_done(history)
    check(url, history)
