//! The pixels of all schemes as a tree, which is descended to cover a region.

use crate::Scheme;
use crate::cube::{HILBERT_TOP, Kind, hilbert_child};
use crate::vector::Vec3;
use crate::{healpix, htm};

/// Bound in radians of the rounding errors of a point's pixel, its position and a pixel's edge.
pub(crate) const ROUNDING: f64 = 1e-14;

/// Maximum distance that a HEALPix pixel extends beyond the polygon of its corners, times nside and ring number (see
/// [`Node::outline`]).
const HEALPIX_BULGE: f64 = 0.3;

/// A pixel of any level.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    pub index: u64,
    pub level: u32,
    place: Pixel,
}

#[derive(Debug, Clone, Copy)]
enum Pixel {
    Square { kind: Kind, face: u8, state: u8, s: u32, t: u32 },
    Triangle([Vec3; 3]),
    Diamond { face: u8, x: u32, y: u32 },
}

/// A convex spherical polygon that contains a pixel to within `slack`.
pub(crate) struct Outline {
    corners: [Vec3; 4],
    normals: [Vec3; 4],
    count: usize,
    /// Maximum distance in radians that the pixel extends beyond the polygon, rounding included.
    pub slack: f64,
}

impl Outline {
    fn new(corners: &[Vec3], slack: f64) -> Self {
        let count = corners.len();
        let mut outline = Self { corners: [corners[0]; 4], normals: [corners[0]; 4], count, slack };
        for (i, &corner) in corners.iter().enumerate() {
            outline.corners[i] = corner;
            outline.normals[i] = corner.robust_cross(corners[(i + 1) % count]).unit();
        }
        outline
    }

    /// Corners, counter-clockwise.
    pub fn corners(&self) -> &[Vec3] {
        &self.corners[..self.count]
    }

    /// Inward unit normals of the edges that begin at the corners.
    pub fn normals(&self) -> &[Vec3] {
        &self.normals[..self.count]
    }

    /// Each edge as its two ends and its inward normal.
    pub fn edges(&self) -> impl Iterator<Item = (Vec3, Vec3, Vec3)> + '_ {
        (0..self.count).map(|i| (self.corners[i], self.corners[(i + 1) % self.count], self.normals[i]))
    }
}

impl Node {
    /// The pixels of level 0, in order.
    pub fn roots(scheme: Scheme) -> impl Iterator<Item = Node> {
        let (first, count) = scheme.roots();
        (0..count).map(move |n| {
            let face = n as u8;
            let square = |kind| Pixel::Square { kind, face, state: HILBERT_TOP, s: 0, t: 0 };
            let place = match scheme {
                Scheme::Mq3c => square(Kind::Mq3c),
                Scheme::Q3c => square(Kind::Q3c),
                Scheme::Htm => Pixel::Triangle(htm::ROOTS[n as usize]),
                Scheme::Healpix => Pixel::Diamond { face, x: 0, y: 0 },
            };
            Node { index: first + n, level: 0, place }
        })
    }

    /// Child `k`, 0 to 3, in the order of indices.
    pub fn child(&self, k: u8) -> Node {
        let (low, high) = (u32::from(k & 1), u32::from(k >> 1));
        let place = match self.place {
            Pixel::Square { kind: Kind::Mq3c, face, state, s, t } => {
                let (s_bit, t_bit, state) = hilbert_child(state, k);
                Pixel::Square { kind: Kind::Mq3c, face, state, s: 2 * s + s_bit, t: 2 * t + t_bit }
            }
            Pixel::Square { kind, face, state, s, t } => {
                Pixel::Square { kind, face, state, s: 2 * s + low, t: 2 * t + high }
            }
            Pixel::Triangle(corners) => Pixel::Triangle(htm::child(corners, u64::from(k))),
            Pixel::Diamond { face, x, y } => Pixel::Diamond { face, x: 2 * x + low, y: 2 * y + high },
        };
        Node { index: (self.index << 2) | u64::from(k), level: self.level + 1, place }
    }

    /// The polygon of the pixel's corners.
    ///
    /// The edges of MQ3C, Q3C and HTM pixels are great circles, so the polygon is the pixel. Those of HEALPix deviate
    /// from the great circle by at most (length)^2 / 8 times their curvature, which is that of a circle around
    /// the pole: about 1 / (distance to the pole). Lengths scale as 1 / nside and distances as ring / nside, so the deviation
    /// scales as 1 / (nside ring), with the ring number counted from the nearer pole, and is constant in the equatorial
    /// belt. The factor was measured on every pixel of coarse levels and rounded up; a test repeats the measurement.
    pub fn outline(&self) -> Outline {
        match self.place {
            Pixel::Square { kind, face, s, t, .. } => {
                Outline::new(&kind.vertices(usize::from(face), s, t, self.level), ROUNDING)
            }
            Pixel::Triangle(corners) => Outline::new(&corners, ROUNDING),
            Pixel::Diamond { face, x, y } => {
                let face = usize::from(face);
                let nside = (1u64 << self.level) as f64;
                let corners = healpix::vertices(face, x, y, self.level);
                let bulge = HEALPIX_BULGE / (nside * pole_ring(face, x, y, self.level).min(nside));
                Outline::new(&corners, ROUNDING + bulge)
            }
        }
    }
}

/// Number of the ring through the centre of a HEALPix pixel, counted from 1 at the nearer pole.
fn pole_ring(face: usize, x: u32, y: u32, level: u32) -> f64 {
    let nside = (1u64 << level) as f64;
    let up = f64::from(x) + f64::from(y) + 1.0;
    match face / 4 {
        0 => 2.0 * nside - up,
        1 => nside,
        _ => up,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cover::distance;

    #[test]
    fn rings_are_counted_from_the_nearer_pole() {
        for level in [0, 2, 5] {
            let last = (1u32 << level) - 1;
            let nside = f64::from(last + 1);
            for (face, at_start, at_end) in
                [(1, 2.0 * nside - 1.0, 1.0), (6, nside, nside), (9, 1.0, 2.0 * nside - 1.0)]
            {
                assert_eq!(pole_ring(face, 0, 0, level), at_start);
                assert_eq!(pole_ring(face, last, last, level), at_end);
            }
            assert_eq!((pole_ring(0, last, 0, level), pole_ring(8, 0, last, level)), (nside, nside));
        }
    }

    /// The maximum deviation of a pixel's edges, times nside and ring.
    fn bulge(face: usize, x: u32, y: u32, level: u32) -> f64 {
        const STEPS: u32 = 32;
        let nside = (1u64 << level) as f64;
        let outline = Outline::new(&healpix::vertices(face, x, y, level), 0.0);
        let mut worst: f64 = 0.0;
        for step in 0..=STEPS {
            let along = f64::from(step) / f64::from(STEPS);
            for (dx, dy) in [(along, 0.0), (along, 1.0), (0.0, along), (1.0, along)] {
                let p = healpix::point(face, f64::from(x) + dx, f64::from(y) + dy, level);
                let outside = outline.normals().iter().map(|n| -n.dot(p)).fold(0.0, f64::max);
                worst = worst.max(outside).max(distance(p, &outline));
            }
        }
        worst * nside * pole_ring(face, x, y, level).min(nside)
    }

    #[test]
    fn no_healpix_pixel_bulges_beyond_its_slack() {
        let mut worst: f64 = 0.0;
        for level in 0..=5 {
            for face in 0..12 {
                for x in 0..1 << level {
                    for y in 0..1 << level {
                        worst = worst.max(bulge(face, x, y, level));
                    }
                }
            }
        }
        for level in [8, 12] {
            let n = 1u32 << level;
            // Pixels along the diagonal to the pole, the border of the cap, and a meridian edge.
            for i in 0..n.min(256) {
                for (x, y) in [(n - 1 - i, n - 1 - i), (n - 1 - i, i), (n - 1, n - 1 - i), (i, i), (0, i)] {
                    for face in [0, 4, 8] {
                        worst = worst.max(bulge(face, x, y, level));
                    }
                }
            }
        }
        assert!(worst < 0.9 * HEALPIX_BULGE, "bulge factor {worst}");
        assert!(worst > 0.3 * HEALPIX_BULGE, "slack is generous: bulge factor {worst}");
    }
}
