"""What ``chronotile serve`` answers for events and jobs: requests as Rust hands them over, answers as bytes or Arrow."""

from chronotile.service.front_ends import FrontEnds

__all__ = ["FrontEnds"]
