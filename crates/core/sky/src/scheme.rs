//! The schemes that divide the sphere into pixels.

use crate::{cube, healpix, htm};
use std::fmt;

/// A scheme that divides the sphere into pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// Modified Q3C, as `lsst.sphgeom.Mq3cPixelization`: levels 0 to 30, 6 x 4^level pixels.
    Mq3c,
    /// Q3C, as `lsst.sphgeom.Q3cPixelization`: levels 0 to 30, 6 x 4^level pixels.
    Q3c,
    /// Hierarchical Triangular Mesh, as `lsst.sphgeom.HtmPixelization`: levels 0 to 24, 8 x 4^level pixels.
    Htm,
    /// HEALPix in nested order with nside = 2^level, as `lsst.sphgeom.HealpixPixelization` and `healpy.vec2pix`:
    /// levels 0 to 29, 12 x 4^level pixels.
    Healpix,
}

impl Scheme {
    /// All schemes.
    pub const ALL: [Scheme; 4] = [Scheme::Mq3c, Scheme::Q3c, Scheme::Htm, Scheme::Healpix];

    /// The deepest level of the scheme.
    pub fn level_max(self) -> u32 {
        match self {
            Scheme::Mq3c | Scheme::Q3c => cube::LEVEL_MAX,
            Scheme::Htm => htm::LEVEL_MAX,
            Scheme::Healpix => healpix::LEVEL_MAX,
        }
    }

    /// The scheme's name in lower case, which [`FromStr`](std::str::FromStr) reads.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Mq3c => "mq3c",
            Scheme::Q3c => "q3c",
            Scheme::Htm => "htm",
            Scheme::Healpix => "healpix",
        }
    }

    /// First index and number of the pixels at level 0.
    pub(crate) fn roots(self) -> (u64, u64) {
        match self {
            Scheme::Mq3c => (10, 6),
            Scheme::Q3c => (0, 6),
            Scheme::Htm => (8, 8),
            Scheme::Healpix => (0, 12),
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
