"""A simulated survey, and studies of how its records should lie."""
