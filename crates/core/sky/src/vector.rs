//! Unit vectors, and their conversion from and to degrees.

use std::f64::consts::{FRAC_PI_2, PI};

/// Radians per degree; a constant, so that all conversions round alike.
pub(crate) const RAD: f64 = 0.017_453_292_519_943_295;
const TWO_PI: f64 = 2.0 * PI;

/// A vector of three doubles; of unit length where the context says so.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Vec3 {
    pub x: f64,
    pub y: f64,
    pub z: f64,
}

impl Vec3 {
    pub const fn new(x: f64, y: f64, z: f64) -> Self {
        Self { x, y, z }
    }

    pub fn dot(self, o: Self) -> f64 {
        self.x * o.x + self.y * o.y + self.z * o.z
    }

    pub fn cross(self, o: Self) -> Self {
        Self::new(self.y * o.z - self.z * o.y, self.z * o.x - self.x * o.z, self.x * o.y - self.y * o.x)
    }

    pub fn add(self, o: Self) -> Self {
        Self::new(self.x + o.x, self.y + o.y, self.z + o.z)
    }

    pub fn sub(self, o: Self) -> Self {
        Self::new(self.x - o.x, self.y - o.y, self.z - o.z)
    }

    pub fn neg(self) -> Self {
        Self::new(-self.x, -self.y, -self.z)
    }

    pub fn norm(self) -> f64 {
        self.dot(self).sqrt()
    }

    /// The vector scaled to unit length. Zero vectors give NaN.
    ///
    /// The components are first divided by the largest one, whose square is added last: the midpoints of HTM, and thus the
    /// pixels of points on an edge, depend on this rounding.
    pub fn unit(self) -> Self {
        let (x, y, z) = (self.x.abs(), self.y.abs(), self.z.abs());
        let largest = x.max(y).max(z);
        let s = Self::new(self.x / largest, self.y / largest, self.z / largest);
        let squares = if x == largest {
            s.y * s.y + s.z * s.z
        } else if y == largest {
            s.z * s.z + s.x * s.x
        } else {
            s.x * s.x + s.y * s.y
        };
        let n = (squares + 1.0).sqrt();
        Self::new(s.x / n, s.y / n, s.z / n)
    }

    /// Twice the cross product of two unit vectors, accurate to a few ulp even if they are nearly equal or nearly
    /// opposite: (a - b) x (a + b) = 2 a x b, and the difference of close vectors is exact.
    pub fn robust_cross(self, o: Self) -> Self {
        self.sub(o).cross(self.add(o))
    }

    /// Unit vector of a position. The position must have passed [`is_position`].
    ///
    /// The order of operations is that of `UnitVector3d(LonLat.fromDegrees(ra, dec))`, so that indices are equal to those of
    /// `lsst-sphgeom`.
    pub fn from_degrees(ra: f64, dec: f64) -> Self {
        let (sin_lon, cos_lon) = normalized_radians(ra).sin_cos();
        let (sin_lat, cos_lat) = (dec * RAD).sin_cos();
        Self::new(cos_lon * cos_lat, sin_lon * cos_lat, sin_lat)
    }

    /// Right ascension in [0, 360) and declination in [-90, 90], in degrees, of a vector of any non-zero length.
    pub fn to_degrees(self) -> (f64, f64) {
        let lon = self.y.atan2(self.x).to_degrees();
        let lat = self.z.atan2(self.x.hypot(self.y)).to_degrees();
        // Adding 360 to a tiny negative longitude rounds to 360, which is 0.
        let lon = if lon < 0.0 { lon + 360.0 } else { lon };
        (if lon >= 360.0 { 0.0 } else { lon.abs() }, lat.clamp(-90.0, 90.0))
    }
}

/// Whether (ra, dec) in degrees is a valid position. Right ascension may be any finite number.
pub(crate) fn is_position(ra: f64, dec: f64) -> bool {
    // The second test, in radians, is that of the reference; both agree for every double.
    ra.is_finite() && dec.abs() <= 90.0 && (dec * RAD).abs() <= FRAC_PI_2
}

/// Longitude in radians, in [0, 2 pi]: exactly one turn stays one turn, larger and negative angles wrap.
pub(crate) fn normalized_radians(lon_deg: f64) -> f64 {
    let a = lon_deg * RAD;
    if a < 0.0 {
        a % TWO_PI + TWO_PI
    } else if a > TWO_PI {
        a % TWO_PI
    } else {
        a
    }
}

/// Longitude in degrees, in [0, 360).
///
/// Angles within a turn of this range are wrapped in degrees, which is exact or nearly so. Others are wrapped by
/// [`normalized_radians`], so that regions and pixels use the same meridian.
pub(crate) fn normalized_degrees(lon_deg: f64) -> f64 {
    let wrapped = if (0.0..360.0).contains(&lon_deg) {
        // Not -0.0.
        lon_deg.abs()
    } else if (-360.0..0.0).contains(&lon_deg) {
        lon_deg + 360.0
    } else if (360.0..720.0).contains(&lon_deg) {
        lon_deg - 360.0
    } else {
        normalized_radians(lon_deg) / RAD
    };
    if wrapped >= 360.0 { 0.0 } else { wrapped }
}
