"""The rules by which procedures decide, on what nodes say: no cluster is needed."""

from __future__ import annotations

import inspect

import pytest
import support_procedures  # its procedure is one of those that are known

from chronotile_tools.lab.tools import NodeStatus, parse_status
from chronotile_tools.ops.procedures import preflight
from chronotile_tools.ops.procedures.disruptions import downtime_finding
from chronotile_tools.ops.procedures.engine import Procedure
from chronotile_tools.ops.procedures.findings import Finding, require
from chronotile_tools.ops.procedures.upgrades import adjacent

HOUR = 3600.0

STATUS = """Datacenter: dc1
===============
Status=Up/Down
|/ State=Normal/Leaving/Joining/Moving
--  Address     Load        Tokens  Owns (effective)  Host ID                               Rack
UN  198.18.2.3  114.66 KiB  16      66.7%             398c6145-5a3c-447c-9dee-d295dd5d061f  rack1
DN  198.18.2.2  114.66 KiB  16      66.7%             8bdac5cd-451e-42e1-ada6-788c3248d222  rack1
UJ  198.18.2.4  ?           16      ?                 2c4dbbfc-5315-42eb-802f-6e2a53f86997  rack1
UL  198.18.2.1  114.53 KiB  16      66.7%             0c4dbbfc-5315-42eb-802f-6e2a53f86997  rack1
"""


class NoQueries:
    """Nodes that answer each query with nothing."""

    def query(self, *_: object) -> list[dict[str, str]]:
        return []


def test_a_node_that_another_does_not_list_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, down = (NodeStatus(name, name, name != "c", "N") for name in ("a", "b", "c"))
    views = {"a": [a, down], "b": [a, b, down]}
    monkeypatch.setattr(preflight, "node_statuses", lambda _, address: views[address])
    assert [finding.text for finding in preflight._status(NoQueries(), ["a", "b"], ["c"])] == [  # type: ignore[arg-type]
        "a does not list b: every node must be up and normal"
    ]
    views["a"] += [NodeStatus("b", "b", False, "L")]
    assert [finding.text for finding in preflight._status(NoQueries(), ["a", "b"], ["c"])] == [  # type: ignore[arg-type]
        "a sees b down/L: every node must be up and normal"
    ]
    views["a"][-1] = b
    assert preflight._status(NoQueries(), ["a", "b"], ["c"])[0].text == (  # type: ignore[arg-type]
        "2 nodes up and normal, and accepting clients"
    )


def test_every_known_procedure_can_be_created() -> None:
    assert support_procedures.Marks.name in Procedure.known
    assert [name for name, known in Procedure.known.items() if inspect.isabstract(known)] == []


def test_a_node_is_well_only_when_it_is_up_and_normal() -> None:
    seen = {one.address: one for one in parse_status(STATUS)}
    assert {address: one.normal for address, one in seen.items()} == {
        "198.18.2.3": True, "198.18.2.2": False, "198.18.2.4": False, "198.18.2.1": False,
    }  # fmt: skip
    assert seen["198.18.2.4"].state == "J"
    assert seen["198.18.2.2"].host_id.startswith("8bdac5cd")


@pytest.mark.parametrize(
    ("before", "after", "level", "message"),
    [
        ("4.0.19", "4.1.10", "ok", "supported"),
        ("4.1.9", "4.1.10", "ok", "supported"),
        ("4.1.10", "5.0.8", "ok", "supported"),
        ("3.11.19", "4.0.19", "ok", "supported"),
        ("4.0.19", "5.0.8", "refused", "upgrade to 4.1 first"),
        ("3.11.19", "5.0.8", "refused", "upgrade to 4.0 first"),
        ("5.0.8", "4.1.10", "refused", "goes back"),
        ("4.1.10", "4.1.9", "refused", "goes back"),
        ("5.0.8", "5.0.8", "refused", "already"),
    ],
)
def test_releases_must_follow_each_other(before: str, after: str, level: str, message: str) -> None:
    found = adjacent(before, after)
    assert found.level == level
    assert message in found.text


@pytest.mark.parametrize(
    ("away_h", "level", "message"),
    [
        (0.5, "ok", "less than hints are kept"),
        (3.5, "warning", "will be repaired"),
        (238.9, "warning", "will be repaired"),
        # An hour before ten days: a repair would not begin in time.
        (239.1, "refused", "would reappear"),
        (300, "refused", "Replace the node"),
    ],
)
def test_how_long_a_node_was_away_decides_how_it_may_come_back(away_h: float, level: str, message: str) -> None:
    found = downtime_finding(away_h * HOUR, 3 * HOUR, 240 * HOUR)
    assert found.level == level
    assert message in found.text


def test_every_reason_to_refuse_is_named_and_a_warning_is_none() -> None:
    require([Finding("warning", "copies", "few"), Finding("unknown", "disks", "no way")], "restart")
    with pytest.raises(
        ValueError, match=r"(?s)restart is refused, and nothing was changed:.*clocks: apart.*disks: full"
    ):
        require([Finding("refused", "clocks", "apart"), Finding("refused", "disks", "full")], "restart")
