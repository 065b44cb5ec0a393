//! Sky pixels and sky regions, without I/O.
//!
//! [`Pixelization`] turns a position into the integer pixel that holds it, for four schemes: MQ3C, Q3C and HTM as
//! numbered by `lsst-sphgeom`, and HEALPix in nested order. The indices are equal to those packages' bit for bit, so
//! that an archive can be read beside data that were pixelised elsewhere.
//!
//! [`Region`] is a circle, a longitude-latitude box or a convex polygon. [`Region::cover`] lists the pixels that may
//! hold a point of a region, as sorted ranges; [`Region::contains`] decides for one point.
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
