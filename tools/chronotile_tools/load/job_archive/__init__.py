"""An archive of a grid's jobs: generated jobs, the same questions for every system, and concurrent clients.

The study `job-archive` and the benchmark `jobs` share it.
"""
