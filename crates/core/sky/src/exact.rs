//! The exact sign of a 3 x 3 determinant of doubles.
//!
//! The sign of det(a, b, p) tells whether a point is left or right of the great circle through two others. Near the circle,
//! rounding could decide differently for two neighbouring pixels, so there the sign is computed exactly, with
//! floating-point expansions (Shewchuk 1997, "Adaptive precision floating-point arithmetic").

use crate::vector::Vec3;

/// Bound of the error of the rounded determinant of unit vectors.
const FILTER: f64 = 2e-15;

/// The exact sign of det(a, b, c) = a . (b x c): -1, 0 or 1. The vectors are of unit length.
pub(crate) fn orientation(a: Vec3, b: Vec3, c: Vec3) -> i32 {
    let rough = a.dot(b.cross(c));
    if rough > FILTER {
        1
    } else if rough < -FILTER {
        -1
    } else {
        exact_sign(a, b, c)
    }
}

#[cold]
fn exact_sign(a: Vec3, b: Vec3, c: Vec3) -> i32 {
    let mut sum = Expansion::default();
    for (p, q, r) in
        [(a.x, b.y, c.z), (a.y, b.z, c.x), (a.z, b.x, c.y), (-a.z, b.y, c.x), (-a.x, b.z, c.y), (-a.y, b.x, c.z)]
    {
        sum.add_product(p, q, r);
    }
    sum.sign()
}

/// A number as an unevaluated sum of non-overlapping doubles, smallest first.
#[derive(Default)]
struct Expansion {
    // Six products of three doubles are four components each.
    parts: [f64; 24],
    len: usize,
}

impl Expansion {
    /// Adds p q r exactly.
    fn add_product(&mut self, p: f64, q: f64, r: f64) {
        let (high, low) = two_product(p, q);
        for factor in [low, high] {
            let (h, l) = two_product(factor, r);
            self.add(l);
            self.add(h);
        }
    }

    fn add(&mut self, value: f64) {
        let mut carry = value;
        let mut kept = 0;
        for i in 0..self.len {
            let (sum, error) = two_sum(carry, self.parts[i]);
            if error != 0.0 {
                self.parts[kept] = error;
                kept += 1;
            }
            carry = sum;
        }
        if carry != 0.0 {
            self.parts[kept] = carry;
            kept += 1;
        }
        self.len = kept;
    }

    /// The sign is that of the largest component.
    fn sign(&self) -> i32 {
        match self.len {
            0 => 0,
            n if self.parts[n - 1] > 0.0 => 1,
            _ => -1,
        }
    }
}

fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    // This form is exact for any two numbers; a shorter one needs the larger number first.
    let b_part = sum - a;
    let a_part = sum - b_part;
    (sum, (a - a_part) + (b - b_part))
}

fn two_product(a: f64, b: f64) -> (f64, f64) {
    let product = a * b;
    // The fused operation rounds once, so it gives the exact error of the product.
    (product, a.mul_add(b, -product))
}
