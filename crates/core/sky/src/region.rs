//! Regions: circles, boxes and convex polygons, and their membership tests.

use crate::SkyError;
use crate::approximate::{Approximate, BLOCK, Side};
use crate::pixelization::check_positions;
use crate::polygon::{self, Polygon};
use crate::vector::{RAD, Vec3, is_position, normalized_degrees};
use rayon::prelude::*;
use std::f64::consts::{PI, TAU};
use std::fmt;

/// Minimum number of points for several threads: below it, waking them takes longer.
const PARALLEL_ROWS_MIN: usize = 20_000;
/// Number of points that a thread takes at a time.
const PART_ROWS: usize = 4_096;

/// The shape of a [`Region`] as given, in degrees.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Shape {
    /// All points within `radius_deg` of a centre.
    Circle {
        /// Right ascension of the centre.
        ra: f64,
        /// Declination of the centre.
        dec: f64,
        /// Radius, 0 to 180.
        radius_deg: f64,
    },
    /// All points from one meridian eastwards to another, and from one parallel to another.
    Box {
        /// Western bound; more than `ra_max` for a box that crosses ra 0.
        ra_min: f64,
        /// Eastern bound; a full turn or more beyond `ra_min` means all right ascensions.
        ra_max: f64,
        /// Southern bound.
        dec_min: f64,
        /// Northern bound.
        dec_max: f64,
    },
    /// A convex polygon with great circles as edges.
    Polygon {
        /// (ra, dec) of the vertices in order, without repeating the first.
        vertices: Vec<(f64, f64)>,
    },
}

/// A shape, prepared for fast tests.
#[derive(Debug, Clone)]
pub(crate) enum Geometry {
    Circle { center: Vec3, radius_rad: f64 },
    Box { lon: Lon, dec_min: f64, dec_max: f64 },
    Polygon(Polygon),
}

/// The right ascensions of a box, degrees.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lon {
    All,
    /// Both in [0, 360); west > east for a box that crosses ra 0.
    Between {
        west: f64,
        east: f64,
    },
}

impl Lon {
    pub(crate) fn new(ra_min: f64, ra_max: f64) -> Self {
        let given = ra_max - ra_min;
        if given >= 360.0 {
            return Lon::All;
        }
        let (west, east) = (normalized_degrees(ra_min), normalized_degrees(ra_max));
        let lon = Lon::Between { west, east };
        // Wrapping rounds, which may swap bounds that differ by almost nothing or by almost a full turn.
        let given = given.rem_euclid(360.0);
        match lon.width() - given {
            lost if lost < -180.0 => Lon::All,
            gained if gained > 180.0 => Lon::Between { west, east: west },
            _ => lon,
        }
    }

    /// Extent in degrees.
    pub fn width(self) -> f64 {
        match self {
            Lon::All => 360.0,
            Lon::Between { west, east } if west <= east => east - west,
            Lon::Between { west, east } => 360.0 - west + east,
        }
    }

    fn contains(self, ra: f64) -> bool {
        match self {
            Lon::All => true,
            Lon::Between { west, east } => {
                let ra = normalized_degrees(ra);
                if west <= east { (west..=east).contains(&ra) } else { ra >= west || ra <= east }
            }
        }
    }
}

/// A closed part of the sphere: a circle, a box or a convex polygon. The boundary is part of the region.
///
/// Membership has no tolerance. It is defined on doubles:
/// - circle: hav(distance) <= hav(radius) by the haversine formula, which is accurate for small circles; the centre is always
///   a member;
/// - box: degrees are compared directly, right ascensions after wrapping into [0, 360); a pole within the box is a member for
///   any right ascension;
/// - polygon: the sign of det(a, b, p) for the unit vectors of each edge a, b and the point p, computed exactly, is not
///   negative; so every vertex is a member, and no point is between two polygons that share an edge.
#[derive(Debug, Clone)]
pub struct Region {
    pub(crate) shape: Shape,
    pub(crate) geometry: Geometry,
}

impl PartialEq for Region {
    /// Compares the given shapes: two descriptions of the same set of points may be unequal.
    fn eq(&self, other: &Self) -> bool {
        self.shape == other.shape
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.shape {
            Shape::Circle { ra, dec, radius_deg } => write!(f, "circle({ra:?}, {dec:?}, {radius_deg:?})"),
            Shape::Box { ra_min, ra_max, dec_min, dec_max } => {
                write!(f, "box({ra_min:?}, {ra_max:?}, {dec_min:?}, {dec_max:?})")
            }
            Shape::Polygon { vertices } => write!(f, "polygon({vertices:?})"),
        }
    }
}

impl Region {
    /// The points within `radius_deg` of (ra, dec), all in degrees. 0 is a single point, 180 the whole sphere.
    ///
    /// # Errors
    /// [`SkyError::BadPosition`], [`SkyError::BadRadius`].
    pub fn circle(ra: f64, dec: f64, radius_deg: f64) -> Result<Self, SkyError> {
        if !is_position(ra, dec) {
            return Err(SkyError::BadPosition { row: None, ra, dec });
        }
        if !(0.0..=180.0).contains(&radius_deg) {
            return Err(SkyError::BadRadius { radius_deg });
        }
        Ok(Self {
            shape: Shape::Circle { ra, dec, radius_deg },
            geometry: Geometry::Circle { center: Vec3::from_degrees(ra, dec), radius_rad: radius_deg * RAD },
        })
    }

    /// The points from meridian `ra_min` eastwards to `ra_max` and from parallel `dec_min` to `dec_max`, in degrees.
    ///
    /// A box with `ra_min > ra_max` crosses ra 0: (350, 10) is 20 degrees wide. `ra_max - ra_min >= 360` means all right
    /// ascensions. Equal bounds give a meridian, a parallel or a point.
    ///
    /// # Errors
    /// [`SkyError::BadBox`].
    pub fn lonlat_box(ra_min: f64, ra_max: f64, dec_min: f64, dec_max: f64) -> Result<Self, SkyError> {
        let ordered = dec_min <= dec_max;
        if !(ordered && is_position(ra_min, dec_min) && is_position(ra_max, dec_max)) {
            return Err(SkyError::BadBox { ra_min, ra_max, dec_min, dec_max });
        }
        let lon = Lon::new(ra_min, ra_max);
        Ok(Self {
            shape: Shape::Box { ra_min, ra_max, dec_min, dec_max },
            geometry: Geometry::Box { lon, dec_min, dec_max },
        })
    }

    /// The convex polygon with these vertices, (ra, dec) in degrees, in either direction, joined by great circles.
    /// A last vertex that repeats the first is dropped.
    ///
    /// # Errors
    /// [`SkyError::BadPosition`] with the vertex as row, [`SkyError::VertexCount`], [`SkyError::BadEdge`],
    /// [`SkyError::NotConvex`] (also for polygons larger than a hemisphere), [`SkyError::Flat`].
    pub fn polygon(vertices: &[(f64, f64)]) -> Result<Self, SkyError> {
        let vertices = match vertices {
            [first, inner @ .., last] if first == last && !inner.is_empty() => &vertices[..vertices.len() - 1],
            _ => vertices,
        };
        if let Some(row) = vertices.iter().position(|&(ra, dec)| !is_position(ra, dec)) {
            let (ra, dec) = vertices[row];
            return Err(SkyError::BadPosition { row: Some(row), ra, dec });
        }
        let vectors = vertices.iter().map(|&(ra, dec)| Vec3::from_degrees(ra, dec)).collect();
        Ok(Self {
            geometry: Geometry::Polygon(Polygon::new(vectors)?),
            shape: Shape::Polygon { vertices: vertices.to_vec() },
        })
    }

    /// The region as it was given.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Whether the region contains the point (ra, dec) in degrees, as defined in [`Region`]. False for invalid positions such as
    /// NaN.
    pub fn contains(&self, ra: f64, dec: f64) -> bool {
        is_position(ra, dec) && self.holds(ra, dec)
    }

    /// [`Region::contains`] for many points; large inputs use all threads of the current rayon pool.
    ///
    /// # Errors
    /// [`SkyError::LengthMismatch`], and [`SkyError::BadPosition`] with the first invalid row.
    pub fn contains_many(&self, ra: &[f64], dec: &[f64]) -> Result<Vec<bool>, SkyError> {
        if ra.len() != dec.len() {
            return Err(SkyError::LengthMismatch { ra: ra.len(), dec: dec.len(), out: ra.len() });
        }
        check_positions(ra, dec)?;
        let mut inside = vec![false; ra.len()];
        if ra.len() < PARALLEL_ROWS_MIN {
            self.test_all(ra, dec, &mut inside);
        } else {
            let parts = inside.par_chunks_mut(PART_ROWS).zip(ra.par_chunks(PART_ROWS)).zip(dec.par_chunks(PART_ROWS));
            parts.for_each(|((inside, ra), dec)| self.test_all(ra, dec, inside));
        }
        Ok(inside)
    }

    /// Tests valid points: by a fast approximation, or exactly if they are close to the boundary.
    fn test_all(&self, ra: &[f64], dec: &[f64], inside: &mut [bool]) {
        let mut blocks = Approximate::default();
        for ((inside, ra), dec) in inside.chunks_mut(BLOCK).zip(ra.chunks(BLOCK)).zip(dec.chunks(BLOCK)) {
            let verdicts = match &self.geometry {
                Geometry::Polygon(polygon) => blocks.place(ra, dec).sides_of(&polygon.normals),
                Geometry::Circle { center, radius_rad } => blocks.place(ra, dec).within(*center, *radius_rad),
                // Membership in a box compares degrees, so there is nothing to approximate.
                Geometry::Box { .. } => &[Side::Unclear; BLOCK],
            };
            for (row, inside) in inside.iter_mut().enumerate() {
                *inside = match verdicts[row] {
                    Side::Inside => true,
                    Side::Outside => false,
                    Side::Unclear => self.holds(ra[row], dec[row]),
                };
            }
        }
    }

    fn holds(&self, ra: f64, dec: f64) -> bool {
        match (&self.geometry, &self.shape) {
            (_, &Shape::Circle { ra: ra0, dec: dec0, radius_deg }) => circle_holds(ra0, dec0, radius_deg, ra, dec),
            (&Geometry::Box { lon, dec_min, dec_max }, _) => {
                (dec_min..=dec_max).contains(&dec) && (dec.abs() == 90.0 || lon.contains(ra))
            }
            (Geometry::Polygon(polygon), _) => polygon.contains(Vec3::from_degrees(ra, dec)),
            // The geometry of a circle always has the shape of a circle, which is matched above.
            (Geometry::Circle { .. }, _) => false,
        }
    }

    /// Area in steradians.
    pub fn area_sr(&self) -> f64 {
        match &self.geometry {
            Geometry::Circle { radius_rad, .. } => {
                let half = (0.5 * radius_rad).sin();
                4.0 * PI * half * half
            }
            Geometry::Box { lon, dec_min, dec_max } => {
                // sin b - sin a without cancellation.
                let (middle, half) = (0.5 * (dec_min + dec_max) * RAD, 0.5 * (dec_max - dec_min) * RAD);
                lon.width() / 360.0 * TAU * 2.0 * middle.cos() * half.sin()
            }
            Geometry::Polygon(polygon) => polygon::area(&polygon.vertices),
        }
    }

    /// A circle that contains the region, though not always the smallest. Its radius is 180 if a box or polygon is nearly a
    /// hemisphere.
    pub fn bounding_cap(&self) -> Region {
        let (ra, dec, radius) = match (&self.geometry, &self.shape) {
            (_, &Shape::Circle { ra, dec, radius_deg }) => return Self::cap(ra, dec, radius_deg),
            (&Geometry::Box { lon, dec_min, dec_max }, _) => box_cap(lon, dec_min, dec_max),
            (Geometry::Polygon(polygon), _) => polygon_cap(polygon),
            (Geometry::Circle { center, radius_rad }, _) => {
                let (ra, dec) = center.to_degrees();
                (ra, dec, radius_rad / RAD)
            }
        };
        // The radius is off by a few ulp of a turn at most.
        Self::cap(ra, dec, (radius + 1e-12).min(180.0))
    }

    pub(crate) fn cap(ra: f64, dec: f64, radius_deg: f64) -> Region {
        Region {
            shape: Shape::Circle { ra, dec, radius_deg },
            geometry: Geometry::Circle { center: Vec3::from_degrees(ra, dec), radius_rad: radius_deg * RAD },
        }
    }
}

/// Haversine test of a point against a circle.
fn circle_holds(ra0: f64, dec0: f64, radius: f64, ra: f64, dec: f64) -> bool {
    // The distance is at least the difference in declination; the slack leaves close cases to the formula.
    if (dec - dec0).abs() > radius * (1.0 + 1e-12) + 1e-12 {
        return false;
    }
    let delta_ra = normalized_degrees(ra) - normalized_degrees(ra0);
    let hav_dec = (0.5 * (dec - dec0) * RAD).sin().powi(2);
    let hav_ra = (0.5 * delta_ra * RAD).sin().powi(2);
    let distance = hav_dec + parallel_radius(dec0) * parallel_radius(dec) * hav_ra;
    // Above 90 degrees the haversine is near 1 and a rounded sum may exceed it.
    distance.min(1.0) <= (0.5 * radius * RAD).sin().powi(2)
}

/// Cosine of a declination in degrees; exactly 0 at the poles, where the rounded angle has a cosine of 6e-17.
fn parallel_radius(dec: f64) -> f64 {
    if dec.abs() == 90.0 { 0.0 } else { (dec * RAD).cos() }
}

/// Centre and radius, degrees, of a cap around a box.
fn box_cap(lon: Lon, dec_min: f64, dec_max: f64) -> (f64, f64, f64) {
    let width = lon.width();
    let west = match lon {
        Lon::All => 0.0,
        Lon::Between { west, .. } => west,
    };
    let north = (0.0, 90.0, 90.0 - dec_min);
    let south = (0.0, -90.0, 90.0 + dec_max);
    let polar = if north.2 <= south.2 { north } else { south };
    if width > 180.0 {
        return polar;
    }
    // For widths up to half a turn the farthest point is a corner: no meridian of the box is more than 90 degrees of longitude
    // from the centre.
    let (ra, dec) = (west + 0.5 * width, 0.5 * (dec_min + dec_max));
    let center = Vec3::from_degrees(ra, dec);
    let radius = [dec_min, dec_max]
        .map(|corner| angle(center, Vec3::from_degrees(west, corner)))
        .into_iter()
        .fold(0.0, f64::max);
    if radius / RAD <= polar.2 { (normalized_degrees(ra), dec, radius / RAD) } else { polar }
}

/// Centre and radius, degrees, of a cap around a polygon.
fn polygon_cap(polygon: &Polygon) -> (f64, f64, f64) {
    let sum = polygon.vertices.iter().fold(Vec3::new(0.0, 0.0, 0.0), |sum, v| sum.add(*v));
    let (ra, dec) = sum.to_degrees();
    let center = Vec3::from_degrees(ra, dec);
    let radius = polygon.vertices.iter().map(|v| angle(center, *v)).fold(0.0, f64::max);
    // Only a cap up to a hemisphere is convex; a larger one may contain the vertices but not the edges.
    let radius = if radius < 0.5 * PI - 1e-9 { radius / RAD } else { 180.0 };
    (ra, dec, radius)
}

/// The angle between two unit vectors in radians, accurate for all angles.
fn angle(a: Vec3, b: Vec3) -> f64 {
    a.sub(b).norm().atan2(a.add(b).norm()) * 2.0
}
