"""What people use to rehearse, study and operate archives on Cassandra.

:mod:`chronotile_tools.lab` runs real clusters on one machine, :mod:`chronotile_tools.ops` looks after clusters,
:mod:`chronotile_tools.load` puts load on them, :mod:`chronotile_tools.survey` simulates a sky survey. Their commands
appear in ``chronotile``.
"""
