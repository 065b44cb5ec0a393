"""Published figures that ours are compared with. All published figures are in this module.

They were measured on other machines: compare ratios and shapes, not absolute times.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ALERTS_2020",
    "CONSISTENCY",
    "CPU_BURNT",
    "CPU_BURNT_TIMEOUTS",
    "CPU_BURNT_WRITES",
    "FOOTPRINT_READS",
    "FOOTPRINT_READS_180K",
    "FOOTPRINT_ROWS",
    "FOURTH_NODE",
    "GROWING",
    "GROWING_SIGNS",
    "GROWING_WRITE_P99_MS",
    "HINTS",
    "HISTORIAN_2023",
    "HISTORIAN_GROWTH",
    "JOB_ARCHIVE_2011",
    "JOB_INDEX_SHARE",
    "JOB_LOAD_ROWS_S",
    "JOB_ROWS_HOT_S",
    "JOB_SECONDS",
    "LOG_STORE_2020",
    "MAINTENANCE_AFTER",
    "MAINTENANCE_S",
    "NODE_GONE",
    "REQUESTS",
    "SETUPS",
    "SURVEY_BYTES",
    "TIME_PARTITIONS",
    "VERSIONS",
    "FootprintRead",
    "FourthNode",
    "HintDelivery",
    "SurveyBytes",
]

# ---------------------------------------------------------------------- alert production databases

ALERTS_2020 = "DMTN-156 and DMTN-184, Rubin Observatory, 2020 and 2021"
"""The prototypes of an alert production database: three machines, then 3, 6 and 12 nodes in a cloud."""


@dataclass(frozen=True)
class FootprintRead:
    """Time for a detector to read its three tables, while 189 detectors read concurrently.

    Attributes
    ----------
    label : str
        Cluster, replication factor and consistency level.
    nodes, cores : int
        Nodes, and hardware threads of all of them.
    replication, consistency : int, str
        Replication factor, and consistency level of reads.
    visits : int
        Visits stored before the read.
    seconds : float
        Mean of all detectors.
    """

    label: str
    nodes: int
    cores: int
    replication: int
    consistency: str
    visits: int
    seconds: float


# Three machines: 2 x 14, 2 x 16 and 2 x 16 cores with two threads each. Nodes of the cloud: 32 virtual processors.
_THREE_MACHINES, _CLOUD_NODE = 184, 32

FOOTPRINT_READS = (
    FootprintRead("3 nodes, RF 1", 3, _THREE_MACHINES, 1, "ONE", 180_000, 10.0),
    FootprintRead("3 nodes, RF 3, QUORUM", 3, _THREE_MACHINES, 3, "QUORUM", 180_000, 23.0),
    FootprintRead("3 nodes in a cloud, RF 3, QUORUM", 3, 3 * _CLOUD_NODE, 3, "QUORUM", 50_000, 5.0),
    FootprintRead("6 nodes", 6, 6 * _CLOUD_NODE, 3, "QUORUM", 50_000, 1.67),
    FootprintRead("6 nodes", 6, 6 * _CLOUD_NODE, 3, "QUORUM", 100_000, 3.26),
    FootprintRead("12 nodes", 12, 12 * _CLOUD_NODE, 3, "QUORUM", 100_000, 1.65),
    FootprintRead("12 nodes, plateau", 12, 12 * _CLOUD_NODE, 3, "QUORUM", 300_000, 4.5),
)
"""The first two are from DMTN-156, the others from DMTN-184. In the third ("below 5 seconds"), clients converted rows
to another table format; in later ones they converted them to pandas."""

FOOTPRINT_READS_180K = {
    ("Cassandra", 1): 10.0, ("Cassandra", 2): 10.5, ("Cassandra, 14 nodes in containers", 3): 17.0, ("Scylla", 1): 11.0,
    ("Scylla", 3): 12.5, ("Cassandra, QUORUM", 3): 23.0, ("Cassandra, ONE", 3): 15.0,
}  # fmt: skip
"""Seconds of a detector's read after 180,000 visits on three machines, by system and replication factor: from the
summary of DMTN-156, extrapolated where fewer visits were stored."""


FOOTPRINT_ROWS = {"DiaSource": (3_800, 11_500), "DiaForcedSource": (17_600, 58_000)}
"""Rows of such a read by table, smallest and largest."""

TIME_PARTITIONS = 1.0
"""Ratio of read times with tables of 60 days to those with 30, and with time partitions inside a table to those with
separate tables: no visible change for clients (DMTN-184)."""

NODE_GONE = 1.0
"""Ratio of latencies while one of eight nodes was down for hours to those before: no change except time-outs at first
(DMTN-184)."""


@dataclass(frozen=True)
class SurveyBytes:
    """Total bytes of a survey on all disks."""

    system: str
    replication: int
    visits: int
    terabytes: float


SURVEY_BYTES = (
    SurveyBytes("Cassandra, 14 nodes in containers", 3, 100_000, 5.8),
    SurveyBytes("Scylla", 1, 150_000, 3.03),
    SurveyBytes("Scylla", 3, 178_000, 10.7),
    SurveyBytes("Cassandra", 3, 190_000, 11.1),
)
"""DMTN-156, "Data sizes"."""

CONSISTENCY = {"QUORUM": {"read": 1.15, "write": 1.07}}
"""Ratio of times to those at ONE."""

# ---------------------------------------------------------------------- process history

HISTORIAN_2023 = "a plant's historian on one to four Cassandra nodes, 2023"

SETUPS = ("1 node", "3 nodes, 2 live", "3 nodes", "4 nodes, 3 live", "4 nodes")
"""Clusters of :data:`REQUESTS`: replication factor 1 on the single node, otherwise 3 at LOCAL_QUORUM."""

REQUESTS = {
    "A": (8.94, 12.32, 17.42, 17.34, 22.32),
    "B": (0.88, 1.24, 1.71, 1.85, 2.32),
    "C": (1.17, 1.52, 1.90, 1.72, 2.02),
    "D": (0.21, 0.32, 0.46, 0.45, 0.54),
}
"""Requests per second in each of :data:`SETUPS`, with one value per second and tag, while 5,000 values per second are
written: hourly averages of a day of one tag (A) and of ten tags (B), six-hour averages of a week (C), daily averages of
a month (D)."""

CPU_BURNT = {
    0: (5.17, 5.37, 5.29), 1: (21.58, 6.96, 7.08), 2: (25.01, 25.73, 46.41), 3: (67.65, 67.22, 67.56),
}  # fmt: skip
"""Mean milliseconds of a read at each of three nodes, by the number of nodes whose processors were kept busy; 40
clients, up to a day of values per read."""

CPU_BURNT_WRITES = {0: (7.0, 7.1, 7.2), 1: (23.8, 58.1, 56.6), 2: (80.6, 73.2, 79.7), 3: (105.0, 106.0, 110.0)}
"""The same for writes; 5,000 values per second."""

CPU_BURNT_TIMEOUTS = {0: 0, 1: 0, 2: 1, 3: 12}
"""The same: requests between nodes that timed out. No request of a client failed."""

GROWING = "20 clients, 0.1 to 10 days for 44 h: 16,000-20,500 internode time-outs and 40-95 client failures a node"

GROWING_SIGNS = ("time-outs between nodes", "slow writes", "failures")
"""Signs of overload in the order in which they appeared while reads grew."""

GROWING_WRITE_P99_MS = 2_400.0
"""Largest 99th percentile of writes during the growing reads."""


@dataclass(frozen=True)
class HintDelivery:
    """Hints for a node that was down, and their delivery."""

    away_s: float
    values_per_s: float
    hints: float
    delivery_s: float
    bytes_per_s: float


HINTS = HintDelivery(away_s=7_200, values_per_s=5_000, hints=2.29e6, delivery_s=900, bytes_per_s=20.5e6 / 8)
"""One of three nodes was down for two hours, and received 20.5 Mbit/s afterwards."""

HISTORIAN_GROWTH = {3: 4.25e9, 4: 3.35e9}
"""Bytes per day on each node, by the number of nodes: 5,000 values per second, three copies."""


@dataclass(frozen=True)
class FourthNode:
    """A fourth node for a cluster of three.

    Attributes
    ----------
    before_gib, after_gib : float
        Load of each old node before the fourth joined, and after the cleanup.
    cleanup_s : tuple of float
        Seconds of the cleanup on each of them.
    """

    before_gib: float
    after_gib: float
    cleanup_s: tuple[float, ...]


FOURTH_NODE = FourthNode(130.0, 97.0, (8 * 3_600 + 15 * 60, 4 * 3_600 + 33 * 60, 7 * 3_600 + 35 * 60))
"""Cleanup took 8 h 15, 4 h 33 and 7 h 35."""

# ---------------------------------------------------------------------- log records

LOG_STORE_2020 = "a log store on three nodes, 3.11 and a beta of 4.0, 2020"
"""Three copies; 3 million rows per hour with a time to live, 1,000 rows in a partition of 16 MB."""

MAINTENANCE_AFTER = ("30 min", "90 min", "6 h", "11 h")
"""Time under load before each of the figures of :data:`MAINTENANCE_S`."""

MAINTENANCE_S = {
    "repair": ((32.0, 71.0, 95.0, 77.0), (8.0, 15.0, 34.0, 34.0)),
    "compact": ((28.0, 61.0, 80.0, 79.0), (15.0, 25.0, 41.0, 38.0)),
    "garbagecollect": ((29.0, 62.0, 85.0, 86.0), (19.0, 32.0, 45.0, 57.0)),
}
"""Seconds of maintenance on a node: with 3.11 and with the beta of 4.0."""

VERSIONS = {
    "read p50, ms": (2.8, 2.8), "read p95, ms": (8.4, 5.8), "read p99, ms": (17.4, 5.8), "write p99, us": (29.5, 29.5),
    **{f"{what}, s": (old[1], new[1]) for what, (old, new) in MAINTENANCE_S.items()},
}  # fmt: skip
"""Figures of 3.11 and of a beta of 4.0: latencies reported by the tables after equal load, and times of maintenance on
a node after 90 minutes of this load."""

# ---------------------------------------------------------------------- jobs of a grid

JOB_ARCHIVE_2011 = "a grid's job archive on Cassandra, compared with Oracle, 2011"
"""A hundred consecutive ids per Cassandra row; daily indexes, built by map-reduce."""

JOB_LOAD_ROWS_S = {"threads": 10_000.0, "small virtual machines": 500.0}
"""Rows loaded per second, by loading method."""

JOB_INDEX_SHARE = (0.01, 0.03)
"""Ratio of a daily index's bytes to those of the data: smallest and largest."""

JOB_SECONDS: dict[str, dict[int, tuple[float, float]]] = {
    "count": {1: (0.005, 60.0)},
    "rows": {1: (5.8, 60.0)},
    "jobsets": {1: (0.5, 1.45), 30: (2.8, 7.05)},
    "tasks": {1: (27.0, 50.0)},
    "ids": {1: (361.0, 531.0), 2: (401.0, 512.0), 10: (682.0, 400.0), 30: (1_490.0, 500.0)},
    "one id": {30: (0.051, 0.071)},
}
"""Seconds of Cassandra and of Oracle, by question and number of clients: number and rows of a user's failed jobs in a
cloud over five days; 52 jobsets; 100 tasks, by an unpublished number of clients; 10,000 random ids; one id."""

JOB_ROWS_HOT_S = 2.7
"""Cassandra's seconds when the rows are read again."""
