//! Sky pixels and sky regions, without I/O.
//!
//! [`Pixelization`] computes the pixel of a position in four schemes: MQ3C, Q3C and HTM as numbered by `lsst-sphgeom`, and
//! HEALPix in nested order. Indices are identical to those of the reference packages, so an archive can be combined with data
//! that was pixelized elsewhere.
//!
//! [`Region`] is a circle, a longitude-latitude box or a convex polygon. [`Region::cover`] lists the pixels that may
//! contain a point of a region, as sorted ranges; [`Region::contains`] tests one point.
//!
//! All angles in the public interface are degrees (ICRS or any other spherical frame), areas are steradians.

mod angle;
mod approximate;
mod cover;
mod cube;
mod error;
mod exact;
mod healpix;
mod htm;
mod node;
mod pixelization;
mod polygon;
mod region;
mod scheme;
mod vector;

pub use angle::{AngleKind, parse_angle};
pub use cover::COVER_RANGES_MAX;
pub use error::SkyError;
pub use pixelization::{PixelRange, Pixelization};
pub use region::{Region, Shape};
pub use scheme::Scheme;
