"""A simulated survey, and studies of its layout."""
