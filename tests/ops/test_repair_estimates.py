"""How much a repair believes to be there, and what it makes of it: without nodes."""

from __future__ import annotations

import pytest
from support_nodes import MemoryNodes, RecordingActuator

from chronotile_tools.ops.procedures import Context
from chronotile_tools.ops.repair import Repair, reading, running

NODES = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
MIB = 2**20

TABLESTATS = """Total number of tables: 2
----------------
Keyspace : field
\tRead Count: 0
\tRead Latency: NaN ms
\t\tTable: c_0000
\t\tSSTable count: 1
\t\tSpace used (live): {live}
\t\tSpace used (total): {live}
\t\tSpace used by snapshots (total): 99999999999
\t\tOff heap memory used (total): 44
\t\tSSTable Compression Ratio: {ratio}
\t\tNumber of partitions (estimate): {partitions}
\t\tMemtable cell count: 3
\t\tMemtable data size: {memory}
\t\tPercent repaired: 0.0

\t\tTable (index): c_0000.by_text
\t\tSpace used (live): 777777777777
\t\tNumber of partitions (estimate): 999999999

\t\tTable: empty
\t\tSpace used (live): 0
\t\tSSTable Compression Ratio: -1.0
\t\tNumber of partitions (estimate): 0
\t\tMemtable data size: 0

----------------
Keyspace : other
\tRead Count: 0
\t\tTable: c_0000
\t\tSpace used (live): 5
\t\tNumber of partitions (estimate): 1
----------------
"""


def statistics_text(live: int, partitions: int, ratio: str = "-1.0", memory: int = 0) -> str:
    return TABLESTATS.format(live=live, partitions=partitions, ratio=ratio, memory=memory)


def ring_of_48() -> str:
    """Sixteen ranges a node, with three copies of each."""
    step, least = 2**64 // 48, -(2**63)
    tokens = [least + 1 + k * step for k in range(48)]
    ends = [*tokens[1:], tokens[0]]
    return "\n".join(
        f"TokenRange(start_token:{a}, end_token:{b}, endpoints:[], rpc_endpoints:[{', '.join(NODES)}], x)"
        for a, b in zip(tokens, ends, strict=True)
    )


def nodes_that_tell(by_node: dict[str, str]) -> MemoryNodes:
    nodes = MemoryNodes(list(NODES))
    nodes.tools["tablestats"] = lambda address, _: by_node[address]
    nodes.tools["describering"] = lambda *_: ring_of_48()
    nodes.answers["keyspace_name, table_name FROM system_schema.tables"] = [
        {"keyspace_name": "field", "table_name": name} for name in ("c_0000", "empty")
    ]
    # What the nodes estimate of each of 48 ranges: a sample of an index, times the mean size.
    nodes.answers["size_estimates"] = [
        {"table_name": "c_0000", "range_start": str(k), "range_end": str(k + 1), "partitions_count": "128",
         "mean_partition_size": str(MIB)} for k in range(48)
    ]  # fmt: skip
    return nodes


def test_sizes_are_read_from_what_nodes_print() -> None:
    found = reading.sizes_of(statistics_text(18 * MIB, 16, "0.25", memory=100))
    assert found == {"field.c_0000": (16, 72 * MIB + 100), "field.empty": (0, 0), "other.c_0000": (1, 5)}
    assert reading.sizes_of("") == {}


def test_few_large_partitions_are_taken_for_what_they_are() -> None:
    """Sixteen partitions of 18 MiB in all, in three copies."""
    nodes = nodes_that_tell(dict.fromkeys(NODES, statistics_text(18 * MIB, 16)))
    (known,) = reading.estimates(nodes, ["field.c_0000", "field.empty"])["field.c_0000"]
    assert (known.partitions, known.bytes) == (16, 18 * MIB)
    context = Context(nodes, RecordingActuator(nodes), str)
    work = Repair.of(context, keyspaces=["field"])
    assert work.groups == [["field.c_0000", "field.empty"]]
    assert work.cost(context)[0] == "field.c_0000 and 1 more: about 16 partitions, 18 MiB in each copy, 3 nodes."


def test_they_are_repaired_by_one_command_a_node() -> None:
    nodes = nodes_that_tell(dict.fromkeys(NODES, statistics_text(600 * MIB, 60)))
    nodes.tools["repair"] = lambda *_: "Repair completed successfully"
    nodes.tools["compactionstats"] = lambda *_: "pending tasks: 0"
    context = Context(nodes, RecordingActuator(nodes), str)
    running.repair_tables(context, ["field.c_0000"], "test")
    repairs = [words for words in nodes.ran if words[1] == "repair"]
    assert repairs == [(one, "repair", "-full", "-pr", "field", "c_0000") for one in NODES]


@pytest.mark.parametrize(
    ("partitions", "size"), [(2**16 + 1, 18 * MIB), (16, 2**30 + 1)], ids=["many partitions", "many bytes"]
)
def test_what_is_larger_is_repaired_in_segments(partitions: int, size: int) -> None:
    nodes = nodes_that_tell(dict.fromkeys(NODES, statistics_text(size, partitions)))
    context = Context(nodes, RecordingActuator(nodes), str)
    assert Repair.of(context, keyspaces=["field"]).cost(context)[0].endswith("49 segments.")


def test_a_replica_that_lacks_much_does_not_make_a_table_small() -> None:
    by_node = {NODES[0]: statistics_text(9 * MIB, 9), NODES[1]: statistics_text(0, 0), NODES[2]: statistics_text(0, 0)}
    (known,) = reading.estimates(nodes_that_tell(by_node), ["field.c_0000"])["field.c_0000"]
    assert (known.partitions, known.bytes) == (9, 9 * MIB)


def test_where_each_node_has_a_part_the_parts_add_up() -> None:
    nodes = nodes_that_tell(dict.fromkeys(NODES, statistics_text(10 * MIB, 10)))
    nodes.answers["system_schema.keyspaces"] = [
        {"keyspace_name": "field", "replication": "{'class': 'NetworkTopologyStrategy', 'dc1': '2'}"}
    ]
    (known,) = reading.estimates(nodes, ["field.c_0000"])["field.c_0000"]
    assert (known.partitions, known.bytes) == (15, 15 * MIB)
