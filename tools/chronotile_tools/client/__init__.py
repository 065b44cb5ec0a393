"""A small CQL client that speaks to one node at a time."""
