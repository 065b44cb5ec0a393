"""Load tests: an open-loop load generator, comparisons with uncertainty, experiments on clusters, and capacity plans.

>>> from chronotile_tools import load
>>> with load.Generator(processes=1) as generator:
...     stream = load.Stream("nothing", load.Noop(), load.Schedule.fixed(1_000, seconds=0.1))
...     recording = generator.run([stream])["nothing"]
>>> len(recording), recording.saturated
(100, False)

Experiments on clusters are in :mod:`chronotile_tools.load.experiments`.
"""

from chronotile_tools.load.arms import Arm, Comparison, interleaved, run_arms
from chronotile_tools.load.capacity import PlantLoad, SurveyLoad, Year, plant_nodes, survey_years
from chronotile_tools.load.costs import Cost, Costs
from chronotile_tools.load.generator import Client, Generator, LoadError, Noop, Stream, Target
from chronotile_tools.load.planner import Cluster, Demand, Maintenance, Measured, Plan, plan
from chronotile_tools.load.recording import Latency, Recording, merged, read_log
from chronotile_tools.load.schedule import Schedule
from chronotile_tools.load.statistics import Difference, Estimate, block_bootstrap, compare, compare_values

__all__ = [
    "Arm",
    "Client",
    "Cluster",
    "Comparison",
    "Cost",
    "Costs",
    "Demand",
    "Difference",
    "Estimate",
    "Generator",
    "Latency",
    "LoadError",
    "Maintenance",
    "Measured",
    "Noop",
    "Plan",
    "PlantLoad",
    "Recording",
    "Schedule",
    "Stream",
    "SurveyLoad",
    "Target",
    "Year",
    "block_bootstrap",
    "compare",
    "compare_values",
    "interleaved",
    "merged",
    "plan",
    "plant_nodes",
    "read_log",
    "run_arms",
    "survey_years",
]
