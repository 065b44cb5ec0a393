//! Approximate positions, to about 1e-11 of the sphere's radius: accurate enough to decide for nearly all points whether a region
//! contains them.
//!
//! Points are processed in blocks by loops without branches, which the compiler vectorizes.

use crate::vector::{RAD, Vec3};

/// Number of points that are processed at a time.
pub(crate) const BLOCK: usize = 64;

/// Upper bound of the error of a position. The error of the polynomials is less than 1e-11.
const ERROR: f64 = 1e-10;

/// The side of a boundary on which a point is, according to the approximation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Side {
    Inside,
    Outside,
    /// Too close to the boundary to decide.
    Unclear,
}

/// A block of points.
pub(crate) struct Approximate {
    x: [f64; BLOCK],
    y: [f64; BLOCK],
    z: [f64; BLOCK],
    sides: [Side; BLOCK],
}

impl Default for Approximate {
    fn default() -> Self {
        Self { x: [0.0; BLOCK], y: [0.0; BLOCK], z: [0.0; BLOCK], sides: [Side::Unclear; BLOCK] }
    }
}

impl Approximate {
    /// Computes the positions of up to [`BLOCK`] points in degrees.
    pub(crate) fn place(&mut self, ra: &[f64], dec: &[f64]) -> &mut Self {
        for (row, (ra, dec)) in ra.iter().zip(dec).take(BLOCK).enumerate() {
            let ((sin_ra, cos_ra), (sin_dec, cos_dec)) = (sin_cos(*ra), sin_cos(*dec));
            (self.x[row], self.y[row], self.z[row]) = (cos_dec * cos_ra, cos_dec * sin_ra, sin_dec);
        }
        self
    }

    /// Tests which points are on the inner side of all planes through the origin with these unit normals.
    pub(crate) fn sides_of(&mut self, normals: &[Vec3]) -> &[Side; BLOCK] {
        let mut least = [f64::INFINITY; BLOCK];
        for normal in normals {
            for (row, least) in least.iter_mut().enumerate() {
                // Rows after the end of a short block still have positions of the block before: nobody reads their
                // sides.
                let height = normal.x * self.x[row] + normal.y * self.y[row] + normal.z * self.z[row];
                *least = if height < *least { height } else { *least };
            }
        }
        self.decide(|row| (least[row] > ERROR, least[row] < -ERROR))
    }

    /// Tests which points are within a circle.
    pub(crate) fn within(&mut self, center: Vec3, radius_rad: f64) -> &[Side; BLOCK] {
        let chord = 2.0 * (0.5 * radius_rad).sin();
        // `max` keeps the bound of a circle smaller than the error at 0, so that no point counts as certainly inside.
        let (inner, outer) = ((chord - ERROR).max(0.0).powi(2), (chord + ERROR).powi(2));
        let mut squares = [0.0; BLOCK];
        for (row, square) in squares.iter_mut().enumerate() {
            let (x, y, z) = (self.x[row] - center.x, self.y[row] - center.y, self.z[row] - center.z);
            *square = x * x + y * y + z * z;
        }
        self.decide(|row| (squares[row] < inner, squares[row] > outer))
    }

    fn decide(&mut self, verdict: impl Fn(usize) -> (bool, bool)) -> &[Side; BLOCK] {
        for (row, side) in self.sides.iter_mut().enumerate() {
            *side = match verdict(row) {
                (true, _) => Side::Inside,
                (_, true) => Side::Outside,
                _ => Side::Unclear,
            };
        }
        &self.sides
    }
}

/// Sine and cosine of an angle in degrees, by their series around the nearest multiple of 90 degrees.
#[inline]
fn sin_cos(degrees: f64) -> (f64, f64) {
    /// Adding and subtracting this constant rounds a number to the nearest integer.
    const ROUNDING: f64 = 1.5 * (1u64 << 52) as f64;
    let shifted = degrees / 90.0 + ROUNDING;
    // The lowest bits of the sum are those of the integer, in two's complement if it is negative.
    let quadrant = shifted.to_bits();
    let x = (degrees - 90.0 * (shifted - ROUNDING)) * RAD;
    let square = x * x;
    let series = |terms: [f64; 6]| terms.into_iter().rev().fold(0.0, |sum, term| (sum + term) * square);
    let sin = x + x * series([-1.0 / 6.0, 1.0 / 120.0, -1.0 / 5_040.0, 1.0 / 362_880.0, -1.0 / 39_916_800.0, 0.0]);
    let cos = 1.0 + series([-0.5, 1.0 / 24.0, -1.0 / 720.0, 1.0 / 40_320.0, -1.0 / 3_628_800.0, 1.0 / 479_001_600.0]);
    let (sin, cos) = if quadrant & 1 == 0 { (sin, cos) } else { (cos, -sin) };
    if quadrant & 2 == 0 { (sin, cos) } else { (-sin, -cos) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn series_are_as_accurate_as_verdicts_need(degrees in -720.0..720.0f64) {
            let (sin, cos) = sin_cos(degrees);
            let exact = degrees * RAD;
            prop_assert!((sin - exact.sin()).abs() < ERROR / 8.0 && (cos - exact.cos()).abs() < ERROR / 8.0);
        }
    }

    #[test]
    fn multiples_of_a_right_angle_are_in_the_right_quadrant() {
        for turn in -8..=8 {
            let degrees = f64::from(turn) * 45.0;
            let (sin, cos) = sin_cos(degrees);
            let exact = degrees * RAD;
            assert!((sin - exact.sin()).abs() < 1e-11 && (cos - exact.cos()).abs() < 1e-11, "{degrees}");
        }
    }
}
