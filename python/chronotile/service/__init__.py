"""What ``chronotile serve`` answers for events and jobs: requests come from Rust, answers are bytes or Arrow."""

from chronotile.service.front_ends import FrontEnds

__all__ = ["FrontEnds"]
