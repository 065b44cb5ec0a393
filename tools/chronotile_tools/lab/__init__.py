"""A laboratory: real Cassandra clusters of several nodes on one machine, to develop, test, measure and rehearse on.

>>> from chronotile_tools import lab
>>> with lab.up(nodes=3) as cluster:  # doctest: +SKIP
...     cluster.url("survey")
...     cluster.nodes[2].kill()
'cassandra://127.77.1.1:9042,127.77.1.2:9042,127.77.1.3:9042/survey'

Linux only. It fetches the server by Maven coordinates, needs Java 17, and starts every node as a process of its own.
"""

from __future__ import annotations

from chronotile_tools.lab.cluster import Cluster, Node
from chronotile_tools.lab.errors import (
    LabBusyError,
    LabError,
    LabExistsError,
    LabNotFoundError,
    LabTimeoutError,
    MissingToolError,
    NodeFailedError,
)
from chronotile_tools.lab.making import attach, up
from chronotile_tools.lab.tls import Tls, make_authority

__all__ = [
    "Cluster",
    "LabBusyError",
    "LabError",
    "LabExistsError",
    "LabNotFoundError",
    "LabTimeoutError",
    "MissingToolError",
    "Node",
    "NodeFailedError",
    "Tls",
    "attach",
    "make_authority",
    "up",
]
