//! HEALPix in nested order, nside = 2^level (Gorski et al. 2005, ApJ 622, 759, sections 4 and 5).
//!
//! The pixel of a position is that of its unit vector, as in `healpy.vec2pix`, `hpgeom.vector_to_pixel` and
//! `lsst.sphgeom.HealpixPixelization.index`. The functions of healpy and hpgeom that take angles differ from these,
//! and from each other, for points that are on a pixel edge to within rounding.

use crate::cube::{even_bits, morton};
use crate::vector::{RAD, Vec3, normalized_radians};
use std::f64::consts::{FRAC_2_PI, FRAC_PI_4};

pub(crate) const LEVEL_MAX: u32 = 29;

/// Ring of the southernmost corner of each base pixel, in units of nside from the north pole.
const CORNER_RING: [i64; 12] = [2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4];
/// Longitude of that corner in units of 45 degrees.
const CORNER_LON: [i64; 12] = [1, 3, 5, 7, 0, 2, 4, 6, 1, 3, 5, 7];

/// The pixel of a position. The position must have been checked.
pub(crate) fn index_degrees(ra: f64, dec: f64, level: u32) -> u64 {
    match away_from_edges(ra, dec, level) {
        Some(index) => index,
        None => index(Vec3::from_degrees(ra, dec), level),
    }
}

/// The pixel computed from angles, which saves the sines, cosines and arc tangent of the vector. `None` if rounding might change
/// it: within a few rounding errors of a pixel edge, and near the poles. On the border of a polar cap both formulas agree.
fn away_from_edges(ra: f64, dec: f64, level: u32) -> Option<u64> {
    let nside = (1u64 << level) as f64;
    // The results from angle and vector differ by a few ulp of a number up to 4; the margin is ten times that.
    let margin = 2e-14 * nside;
    let z = (dec * RAD).sin();
    let quarter_turns = normalized_radians(ra) * FRAC_2_PI;
    let za = z.abs();
    // Near the poles, the sine of the declination loses precision.
    if za > 0.98 {
        return None;
    }
    let (a, b) = if za <= 2.0 / 3.0 {
        equator_lines(z, quarter_turns, nside)
    } else {
        let (_, a, b) = cap_lines(z, quarter_turns.min(3.999_999_999_999), nside, None);
        // In the polar caps, meridians at multiples of 90 degrees separate base pixels. Near one, rounding may change
        // the quarter.
        let whole = quarter_turns - quarter_turns.floor();
        if !(1e-13..=1.0 - 1e-13).contains(&whole) {
            return None;
        }
        (a, b)
    };
    let clear = |line: f64| (line - line.round()).abs() > margin;
    (clear(a) && clear(b) && quarter_turns > 1e-13 && quarter_turns < 4.0 - 1e-13)
        .then(|| from_lines(z, quarter_turns, level, None))
}

/// The pixel of a unit vector.
pub(crate) fn index(v: Vec3, level: u32) -> u64 {
    let scale = 1.0 / v.norm();
    let z = v.z * scale;
    let quarter_turns = v.y.atan2(v.x) * FRAC_2_PI;
    let quarter_turns = if quarter_turns < 0.0 { quarter_turns + 4.0 } else { quarter_turns };
    // A tiny negative number plus 4 rounds to 4, which is 0.
    let quarter_turns = if quarter_turns >= 4.0 { 0.0 } else { quarter_turns };
    // Near the poles 1 - |z| loses precision, which the distance from the axis preserves.
    let axis_distance = (z.abs() > 0.99).then(|| (v.x * v.x + v.y * v.y).sqrt() * scale);
    from_lines(z, quarter_turns, level, axis_distance)
}

/// Coordinates across the two families of pixel edges in the equatorial belt, in pixels: edges that ascend with longitude, and
/// edges that descend.
fn equator_lines(z: f64, quarter_turns: f64, nside: f64) -> (f64, f64) {
    let across = nside * (0.5 + quarter_turns);
    let along = nside * (z * 0.75);
    (across - along, across + along)
}

/// Quarter of the polar cap, and coordinates across its two families of edges.
fn cap_lines(z: f64, quarter_turns: f64, nside: f64, axis_distance: Option<f64>) -> (u32, f64, f64) {
    let za = z.abs();
    let quarter = (quarter_turns as u32).min(3);
    let within = quarter_turns - f64::from(quarter);
    let rings = match axis_distance {
        None => nside * (3.0 * (1.0 - za)).sqrt(),
        Some(distance) => nside * distance / ((1.0 + za) / 3.0).sqrt(),
    };
    (quarter, within * rings, (1.0 - within) * rings)
}

fn from_lines(z: f64, quarter_turns: f64, level: u32, axis_distance: Option<f64>) -> u64 {
    let nside = 1u64 << level;
    let last = nside - 1;
    let (face, ix, iy) = if z.abs() <= 2.0 / 3.0 {
        let (down, up) = equator_lines(z, quarter_turns, nside as f64);
        let (down, up) = (down as u64, up as u64);
        let (face_down, face_up) = (down >> level, up >> level);
        let face = match face_up.cmp(&face_down) {
            // Equatorial faces are 4 to 7. Strip 4 is strip 0 after a full turn, and both give face 4.
            std::cmp::Ordering::Equal => face_up | 4,
            std::cmp::Ordering::Less => face_up + 8,
            std::cmp::Ordering::Greater => face_down,
        };
        (face, up & last, last - (down & last))
    } else {
        let (quarter, west, east) = cap_lines(z, quarter_turns, nside as f64, axis_distance);
        let (west, east) = (west as u64, east as u64);
        if z >= 0.0 { (u64::from(quarter), last - east, last - west) } else { (u64::from(quarter) + 8, west, east) }
    };
    (face << (2 * level)) | morton(ix as u32, iy as u32)
}

/// Face, ix and iy of a valid pixel.
pub(crate) fn locate(index: u64, level: u32) -> (usize, u32, u32) {
    let face = (index >> (2 * level)) as usize;
    let within = index & ((1u64 << (2 * level)) - 1);
    (face, even_bits(within), even_bits(within >> 1))
}

/// The unit vector at face coordinates (x, y), which count pixels of `level` and need not be integers.
pub(crate) fn point(face: usize, x: f64, y: f64, level: u32) -> Vec3 {
    let nside = (1u64 << level) as f64;
    let (x, y) = (x / nside, y / nside);
    // Ring number from the north pole in units of nside, 0 to 4.
    let ring = CORNER_RING[face] as f64 - x - y;
    let (pole_distance, north) = if ring < 1.0 {
        (ring, true)
    } else if ring > 3.0 {
        (4.0 - ring, false)
    } else {
        (1.0, true)
    };
    // At the pole, where the quotient would be 0 / 0, every longitude is the same point.
    let lon_45 = CORNER_LON[face] as f64 + if pole_distance > 0.0 { (x - y) / pole_distance } else { 0.0 };
    let (sin_lon, cos_lon) = (lon_45 * FRAC_PI_4).sin_cos();
    let (z, axis) = if (1.0..=3.0).contains(&ring) {
        let z = (2.0 - ring) * 2.0 / 3.0;
        (z, ((1.0 - z) * (1.0 + z)).sqrt())
    } else {
        // The distance from the axis follows from 1 - |z|, which would lose precision if it were computed from z.
        let below = pole_distance * pole_distance / 3.0;
        let z = 1.0 - below;
        (if north { z } else { -z }, (below * (2.0 - below)).sqrt())
    };
    Vec3::new(axis * cos_lon, axis * sin_lon, z)
}

/// Corners of pixel (ix, iy), counter-clockwise as seen from outside: north, west, south, east.
pub(crate) fn vertices(face: usize, ix: u32, iy: u32, level: u32) -> [Vec3; 4] {
    let (x, y) = (f64::from(ix), f64::from(iy));
    [(1.0, 1.0), (0.0, 1.0), (0.0, 0.0), (1.0, 0.0)].map(|(dx, dy)| point(face, x + dx, y + dy, level))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Declinations for which angle and vector could give different pixels: near the poles, where the sine of the declination
    /// loses precision, and near the border of the polar caps, where the formulas change.
    fn any_declination() -> impl Strategy<Value = f64> {
        let border = (2.0f64 / 3.0).asin().to_degrees();
        let dec = prop_oneof![
            2 => (-1.0f64..1.0).prop_map(|z| z.asin().to_degrees()),
            3 => (-9.0f64..1.0).prop_map(|log| 90.0 - 10f64.powf(log)),
            2 => (-16.0f64..0.0, any::<bool>())
                .prop_map(move |(log, up)| border + if up { 10f64.powf(log) } else { -10f64.powf(log) }),
        ];
        (dec, any::<bool>()).prop_map(|(dec, south): (f64, bool)| if south { -dec } else { dec })
    }

    #[test]
    fn coordinates_in_a_polar_cap_stay_within_its_quarter() {
        for level in 0..=29 {
            let nside = (1u64 << level) as f64;
            for quarter_turns in [0.0, 1f64.next_down(), 1.0, 4f64.next_down()] {
                let (_, west, east) = cap_lines((2.0f64 / 3.0).next_up(), quarter_turns, nside, None);
                assert!(west < nside && east < nside, "level {level}, {quarter_turns} quarter turns");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn where_angles_decide_a_pixel_it_is_that_of_the_vector(
            ra in prop_oneof![0.0..360.0, (0u32..16, -14.0f64..0.0).prop_map(|(n, log)| 22.5 * f64::from(n) + 10f64.powf(log))],
            dec in any_declination(),
            level in 0..=LEVEL_MAX,
        ) {
            if let Some(found) = away_from_edges(ra, dec, level) {
                prop_assert_eq!(found, index(Vec3::from_degrees(ra, dec), level), "{} {} at {}", ra, dec, level);
            }
        }
    }

    /// The shortcut by angles applies to all positions but those near the poles.
    #[test]
    fn angles_decide_all_but_the_pixels_near_the_poles() {
        for level in [0, 10, 20] {
            for step in 0..10_000 {
                let (ra, z) =
                    ((f64::from(step) * 222.492_235_949_962_14) % 360.0, (f64::from(step) + 0.5) / 5_000.0 - 1.0);
                let decided = away_from_edges(ra, z.asin().to_degrees(), level).is_some();
                assert_eq!(decided, z.abs() <= 0.98, "ra {ra} z {z} at level {level}");
            }
        }
    }
}
