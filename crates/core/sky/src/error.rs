//! Errors of positions, pixels and regions.

use crate::Scheme;

/// Why a position, a pixel or a region is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SkyError {
    /// The name is not one of the four schemes.
    #[error("unknown pixelization scheme {name:?}: use one of mq3c, q3c, htm, healpix")]
    UnknownScheme {
        /// The name as given.
        name: String,
    },
    /// The scheme does not have this level.
    #[error("level {level} is out of range for {scheme}: use 0 to {level_max}")]
    LevelOutOfRange {
        /// The scheme asked for.
        scheme: Scheme,
        /// The level asked for.
        level: u32,
        /// The deepest level of the scheme.
        level_max: u32,
    },
    /// A right ascension and declination are not a position on the sphere.
    #[error("{}ra {ra} dec {dec} is not a position: ra must be finite, dec from -90 to 90 degrees", in_row(*row))]
    BadPosition {
        /// Row of the point in the given arrays; `None` for a single point.
        row: Option<usize>,
        /// Right ascension as given, degrees.
        ra: f64,
        /// Declination as given, degrees.
        dec: f64,
    },
    /// A text is not an angle.
    #[error("{text:?} is not an angle: {reason}; write degrees (0.1), a unit (0.1deg, 3arcsec), 10h20m30s or 5d20m10s")]
    BadAngle {
        /// The text, cut to 64 characters.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Arrays that belong together differ in length.
    #[error("arrays differ in length: ra has {ra}, dec has {dec}, output has {out}")]
    LengthMismatch {
        /// Length of the right ascensions.
        ra: usize,
        /// Length of the declinations.
        dec: usize,
        /// Length of the output.
        out: usize,
    },
    /// The index is not a pixel of the pixelization.
    #[error("pixel {index} does not exist in {scheme} level {level}: pixels are {first} to {last}")]
    NoSuchPixel {
        /// The pixel asked for.
        index: u64,
        /// The scheme.
        scheme: Scheme,
        /// The level.
        level: u32,
        /// First pixel of the pixelization.
        first: u64,
        /// Last pixel of the pixelization.
        last: u64,
    },
    /// Indices of this pixelization need all 64 bits, so a signed integer cannot hold them.
    #[error(
        "indices of {scheme} level {level} do not fit a signed 64-bit integer: use level {level_max} or a coarser one"
    )]
    IndexTooWide {
        /// The scheme.
        scheme: Scheme,
        /// The level.
        level: u32,
        /// The deepest level whose indices fit.
        level_max: u32,
    },
    /// A circle's radius is not an angle from 0 to 180 degrees.
    #[error("circle radius {radius_deg} is not an angle from 0 to 180 degrees")]
    BadRadius {
        /// The radius as given, degrees.
        radius_deg: f64,
    },
    /// A box's bounds are not finite, out of range, or upside down.
    #[error(
        "box ra {ra_min} to {ra_max}, dec {dec_min} to {dec_max} is not a region: all four must be finite and \
         -90 <= dec_min <= dec_max <= 90 (ra_min > ra_max means the box that crosses ra 0)"
    )]
    BadBox {
        /// Western bound, degrees.
        ra_min: f64,
        /// Eastern bound, degrees.
        ra_max: f64,
        /// Southern bound, degrees.
        dec_min: f64,
        /// Northern bound, degrees.
        dec_max: f64,
    },
    /// A polygon has too few or too many vertices.
    #[error("a polygon needs {min} to {max} distinct vertices, got {count}")]
    VertexCount {
        /// Distinct vertices given.
        count: usize,
        /// Minimum allowed.
        min: usize,
        /// Maximum allowed.
        max: usize,
    },
    /// Two neighbouring vertices are equal or antipodal, so the edge between them is undefined.
    #[error("polygon vertices {vertex} and {next} are the same point or opposite points: no edge joins them")]
    BadEdge {
        /// Position of the edge's first vertex.
        vertex: usize,
        /// Position of the edge's second vertex.
        next: usize,
    },
    /// The vertices do not go once around a convex polygon.
    #[error("polygon is not convex at vertex {vertex}, or is larger than a hemisphere: split it into convex polygons")]
    NotConvex {
        /// Position of a vertex on the wrong side of an edge.
        vertex: usize,
    },
    /// All vertices lie on one great circle.
    #[error("polygon has no inside: all its vertices lie on one great circle")]
    Flat,
    /// The cover would take more memory than is reasonable.
    #[error(
        "covering this region with {scheme} level {level} pixels takes more than {ranges_max} ranges: \
         use a coarser level, or limit the number of ranges"
    )]
    CoverTooLarge {
        /// The scheme.
        scheme: Scheme,
        /// The level.
        level: u32,
        /// Maximum number of ranges in a cover.
        ranges_max: usize,
    },
}

/// The start of a message about a row: `row 3: `.
fn in_row(row: Option<usize>) -> String {
    row.map_or_else(String::new, |row| format!("row {row}: "))
}
