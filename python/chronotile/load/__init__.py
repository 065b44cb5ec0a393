"""Load tests: an open-loop load generator, comparisons with their uncertainty, experiments on clusters, capacity.

>>> from chronotile import load
>>> with load.Generator(processes=1) as generator:
...     stream = load.Stream("nothing", load.Noop(), load.Schedule.fixed(1_000, seconds=0.1))
...     recording = generator.run([stream])["nothing"]
>>> len(recording), recording.saturated
(100, False)

What runs on clusters is in :mod:`chronotile.load.experiments`.
"""

from chronotile import optional

optional.require("chronotile.load", "load", "hdrh", "numpy", "pyarrow")

from chronotile.load.generator import Client, Generator, LoadError, Noop, Stream, Target
from chronotile.load.planner import Cluster, Demand, Measured, Plan, plan
from chronotile.load.recording import Latency, Recording, merged, read_log
from chronotile.load.schedule import Schedule
from chronotile.load.statistics import Difference, Estimate, block_bootstrap, compare
from chronotile.load.turns import Arm, Comparison, interleaved, run_arms

__all__ = [
    "Arm",
    "Client",
    "Cluster",
    "Comparison",
    "Demand",
    "Difference",
    "Estimate",
    "Generator",
    "Latency",
    "LoadError",
    "Measured",
    "Noop",
    "Plan",
    "Recording",
    "Schedule",
    "Stream",
    "Target",
    "block_bootstrap",
    "compare",
    "interleaved",
    "merged",
    "plan",
    "read_log",
    "run_arms",
]
