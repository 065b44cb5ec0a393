"""Published figures to compare experiments with.

Of a plant's historian and a log store on clusters of three and four machines, and of the prototypes of the alert
production database of the Rubin Observatory (DMTN-113, DMTN-156, DMTN-162). They are of other machines: compare ratios.
"""

__all__ = ["CONSISTENCY", "GROWING", "OVERLOAD", "REQUESTS", "SCALING", "VERSIONS"]

REQUESTS = {"A": (8.9, 22.3), "B": (0.88, 2.32), "C": (1.17, 2.02), "D": (0.21, 0.54)}
"""Requests a second on a single node and on four: averages of hours of a tag's day (A) and of ten tags' (B), of six
hours of a week (C), of days of a month (D), of values a second apart, with 5,000 values a second written."""

OVERLOAD = {0: (5.0, 5.0, 5.0), 1: (21.0, 7.0, 7.0), 2: (25.0, 26.0, 46.0), 3: (68.0, 67.0, 68.0)}
"""Mean milliseconds of a read at each of three nodes, by the number of nodes whose processors were burnt; 40 clients,
up to a day of values a read."""

GROWING = "20 clients, 0.1 to 10 days for 44 h: 16,000-20,500 internode time-outs and 40-95 client failures a node"

CONSISTENCY = {"QUORUM": {"read": 1.15, "write": 1.07}}
"""Time over that at ONE."""

SCALING = {("3 nodes, RF 1", 180_000): 10.0, ("3 nodes, RF 3, QUORUM", 180_000): 23.0, ("12 nodes", 100_000): 1.65,
           ("12 nodes, twelve months full", 300_000): 4.5}  # fmt: skip
"""Seconds of a detector's read after so many visits."""

VERSIONS = {
    "read p50, ms": (2.8, 2.8), "read p95, ms": (8.4, 5.8), "read p99, ms": (17.4, 5.8), "write p99, us": (29.5, 29.5),
    "repair, s": (71.0, 15.0), "compact, s": (61.0, 25.0), "garbagecollect, s": (62.0, 32.0),
}  # fmt: skip
"""Of 3.11 and a beta of 4.0: tables' own times after equal load, and of work on a node after 90 minutes of it."""
