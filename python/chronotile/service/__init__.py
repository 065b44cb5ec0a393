"""Handlers of ``chronotile serve`` for events and jobs. Rust passes requests in; responses are bytes or Arrow."""

from chronotile.service.front_ends import FrontEnds

__all__ = ["FrontEnds"]
