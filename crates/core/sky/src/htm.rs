//! Hierarchical Triangular Mesh (Szalay et al. 2007, arXiv:cs/0701164).
//!
//! Eight root triangles, numbered 8 to 15, are split at the midpoints of their edges; child k of triangle i is 4 i + k.

use crate::exact::orientation;
use crate::vector::Vec3;

pub(crate) const LEVEL_MAX: u32 = 24;

const PX: Vec3 = Vec3::new(1.0, 0.0, 0.0);
const PY: Vec3 = Vec3::new(0.0, 1.0, 0.0);
const PZ: Vec3 = Vec3::new(0.0, 0.0, 1.0);
const NX: Vec3 = Vec3::new(-1.0, 0.0, 0.0);
const NY: Vec3 = Vec3::new(0.0, -1.0, 0.0);
const NZ: Vec3 = Vec3::new(0.0, 0.0, -1.0);

/// Vertices of the roots S0 to S3 and N0 to N3, counter-clockwise as seen from outside.
pub(crate) const ROOTS: [[Vec3; 3]; 8] =
    [[PX, NZ, PY], [PY, NZ, NX], [NX, NZ, NY], [NY, NZ, PX], [PX, PZ, NY], [NY, PZ, NX], [NX, PZ, PY], [PY, PZ, PX]];

/// The pixel of a unit vector.
pub(crate) fn index(v: Vec3, level: u32) -> u64 {
    let root = root_of(v);
    let mut index = root as u64 + 8;
    let [mut v0, mut v1, mut v2] = ROOTS[root];
    for _ in 0..level {
        let m01 = v0.add(v1).unit();
        let m20 = v2.add(v0).unit();
        index <<= 2;
        // A point on the edge between a corner child and the middle one belongs to the corner child.
        if orientation(v, m01, m20) >= 0 {
            (v1, v2) = (m01, m20);
            continue;
        }
        let m12 = v1.add(v2).unit();
        if orientation(v, m12, m01) >= 0 {
            (v0, v1, v2) = (v1, m12, m01);
            index += 1;
        } else if orientation(v, m20, m12) >= 0 {
            (v0, v1, v2) = (v2, m20, m12);
            index += 2;
        } else {
            (v0, v1, v2) = (m12, m20, m01);
            index += 3;
        }
    }
    index
}

/// Position in [`ROOTS`] of the octant that contains `v`. A point on the planes between octants belongs to the northern one, and
/// along the equator and the meridians to the octant that the reference chooses.
fn root_of(v: Vec3) -> usize {
    let quarter = if v.y > 0.0 {
        if v.x > 0.0 { 0 } else { 1 }
    } else if v.y == 0.0 {
        if v.x >= 0.0 { 0 } else { 2 }
    } else if v.x < 0.0 {
        2
    } else {
        3
    };
    if v.z < 0.0 { quarter } else { 7 - quarter }
}

/// Vertices of child `k` (0 to 3) of a triangle.
pub(crate) fn child([v0, v1, v2]: [Vec3; 3], k: u64) -> [Vec3; 3] {
    let m01 = v0.add(v1).unit();
    let m12 = v1.add(v2).unit();
    let m20 = v2.add(v0).unit();
    match k {
        0 => [v0, m01, m20],
        1 => [v1, m12, m01],
        2 => [v2, m20, m12],
        _ => [m12, m20, m01],
    }
}

/// Vertices of a valid pixel.
pub(crate) fn vertices(index: u64, level: u32) -> [Vec3; 3] {
    // Roots are numbered from 8, so their lower three bits are the position in `ROOTS`.
    let mut triangle = ROOTS[((index >> (2 * level)) & 7) as usize];
    for step in (0..level).rev() {
        triangle = child(triangle, (index >> (2 * step)) & 3);
    }
    triangle
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::{FRAC_PI_4, TAU};

    /// Points exactly between octants. Positions in degrees never give such points, since their cosines are never exactly 0.
    #[test]
    fn an_octant_begins_at_its_western_meridian_and_the_equator_is_northern() {
        for place in (0..27).filter(|place| *place != 13) {
            let [x, y, z] = [9, 3, 1].map(|digit| f64::from(place / digit % 3) - 1.0);
            // Longitude in units of 45 degrees, two per octant; a pole belongs to the first.
            let eighths = if x == 0.0 && y == 0.0 { 0.0 } else { y.atan2(x).rem_euclid(TAU) / FRAC_PI_4 };
            let quarter = eighths.round() as usize / 2;
            let expected = if z < 0.0 { quarter } else { 7 - quarter };
            assert_eq!(root_of(Vec3::new(x, y, z)), expected, "{x} {y} {z}");
        }
    }
}
