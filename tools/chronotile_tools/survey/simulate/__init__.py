"""Simulate a survey: visits of a camera, a database driven by worker processes, and a log of every operation.

The workload is the one published for the prototypes of the LSST's database (technotes DMTN-113, DMTN-156, DMTN-184):
a camera of 189 detectors, each a separate client that reads its footprint, finds sources, and stores them.
"""

from chronotile_tools.survey.simulate.drivers import ChronotileDriver, Driver, PeerDriver
from chronotile_tools.survey.simulate.runner import Run, run
from chronotile_tools.survey.simulate.universe import Survey, Universe

__all__ = ["ChronotileDriver", "Driver", "PeerDriver", "Run", "Survey", "Universe", "run"]
