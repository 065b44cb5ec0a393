"""Studies: published tables and figures, repeated with Chronotile, and the pages that show both.

A study computes or measures its parts one after the other, stores them as JSON
(:mod:`chronotile_tools.studies.record`), and writes its page from that file alone.
"""

from chronotile_tools.studies.base import Page, Part, Study, run, write_page
from chronotile_tools.studies.record import Record
from chronotile_tools.studies.registry import STUDIES, find

__all__ = ["STUDIES", "Page", "Part", "Record", "Study", "find", "run", "write_page"]
