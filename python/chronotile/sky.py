"""Sky pixels and regions.

Pixel numbers equal those of ``lsst.sphgeom`` (MQ3C, Q3C, HTM) and of ``healpy.vec2pix`` and
``lsst.sphgeom.HealpixPixelization`` (HEALPix, nested order), so data pixelised elsewhere can be read side by side.
All angles are degrees.
"""

from chronotile._native import (
    Region,
    pixel_area,
    pixel_center,
    pixel_index,
    pixel_range,
    pixel_vertices,
    region_contains,
    region_cover,
)

circle = Region.circle
box = Region.box
polygon = Region.polygon

__all__ = [
    "Region",
    "box",
    "circle",
    "pixel_area",
    "pixel_center",
    "pixel_index",
    "pixel_range",
    "pixel_vertices",
    "polygon",
    "region_contains",
    "region_cover",
]
