"""Tools to rehearse, study and operate archives on Cassandra.

:mod:`chronotile_tools.lab` runs real clusters on one machine, :mod:`chronotile_tools.ops` monitors and maintains
clusters, :mod:`chronotile_tools.load` runs load tests, :mod:`chronotile_tools.survey` simulates a sky survey. Their
commands appear in ``chronotile``.
"""
