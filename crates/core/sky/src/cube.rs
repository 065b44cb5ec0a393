//! Q3C (Koposov & Bartunov 2006, ASPC 351, 735) and modified Q3C: a quad tree on the faces of a cube.
//!
//! A position is projected from the centre onto the cube [-1, 1]^3. On its face it has coordinates (u, v), which Q3C
//! divides evenly, numbering the squares in Morton order. MQ3C first applies f(u) = u (4 - |u|) / 3 to either
//! coordinate, so that pixel areas vary by a factor of 1.6 and not 5, and numbers the squares along a Hilbert curve.
//! In both, a pixel's edges are arcs of great circles. Faces and formulas: the documentation of `lsst-sphgeom`.

use crate::vector::Vec3;

pub(crate) const LEVEL_MAX: u32 = 30;

/// The scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Q3c,
    Mq3c,
}

/// An axis of space with a direction: 0, 1, 2 for x, y, z.
#[derive(Clone, Copy)]
struct Axis(usize, f64);

/// A cube face: the axes of u, v and of the outward normal.
struct Face {
    u: Axis,
    v: Axis,
    w: Axis,
}

const fn face(u: (usize, f64), v: (usize, f64), w: (usize, f64)) -> Face {
    Face { u: Axis(u.0, u.1), v: Axis(v.0, v.1), w: Axis(w.0, w.1) }
}

const P: f64 = 1.0;
const N: f64 = -1.0;
const X: usize = 0;
const Y: usize = 1;
const Z: usize = 2;

static Q3C_FACES: [Face; 6] = [
    face((Y, P), (X, N), (Z, P)),
    face((Y, P), (Z, P), (X, P)),
    face((X, N), (Z, P), (Y, P)),
    face((Y, N), (Z, P), (X, N)),
    face((X, P), (Z, P), (Y, N)),
    face((Y, P), (X, P), (Z, N)),
];

static MQ3C_FACES: [Face; 6] = [
    face((X, P), (Y, P), (Z, N)),
    face((Y, P), (Z, P), (X, P)),
    face((Z, P), (X, N), (Y, P)),
    face((X, N), (Y, N), (Z, P)),
    face((Y, N), (Z, N), (X, N)),
    face((Z, N), (X, P), (Y, N)),
];

/// Face numbers in the order that breaks ties: -x, -y, +z, -z, +y, +x.
const Q3C_BY_TIE: [usize; 6] = [3, 4, 0, 5, 2, 1];
const MQ3C_BY_TIE: [usize; 6] = [4, 5, 3, 0, 2, 1];

impl Kind {
    fn faces(self) -> &'static [Face; 6] {
        match self {
            Kind::Q3c => &Q3C_FACES,
            Kind::Mq3c => &MQ3C_FACES,
        }
    }

    /// Number of the first face. MQ3C's begin with a set bit, so that an index determines its level.
    pub fn face_base(self) -> u64 {
        match self {
            Kind::Q3c => 0,
            Kind::Mq3c => 10,
        }
    }

    fn face_of(self, v: Vec3) -> usize {
        let largest = v.x.abs().max(v.y.abs()).max(v.z.abs());
        let tie = if -v.x == largest {
            0
        } else if -v.y == largest {
            1
        } else if v.z == largest {
            2
        } else if -v.z == largest {
            3
        } else if v.y == largest {
            4
        } else {
            5
        };
        match self {
            Kind::Q3c => Q3C_BY_TIE[tie],
            Kind::Mq3c => MQ3C_BY_TIE[tie],
        }
    }

    /// Face coordinate to even coordinate, both in [-1, 1].
    fn even(self, u: f64) -> f64 {
        match self {
            Kind::Q3c => u,
            // Factored as in the reference, for equal rounding.
            Kind::Mq3c => u * (4.0 / 3.0 - (1.0 / 3.0) * u.abs()),
        }
    }

    /// The inverse of [`Kind::even`].
    fn uneven(self, f: f64) -> f64 {
        match self {
            Kind::Q3c => f,
            // The root of u^2 - 4 u + 3 f = 0 in [0, 1], in a form without cancellation near 0.
            Kind::Mq3c => 3.0 * f / (2.0 + (4.0 - 3.0 * f.abs()).sqrt()),
        }
    }

    /// The pixel of a unit vector.
    pub fn index(self, v: Vec3, level: u32) -> u64 {
        let face = self.face_of(v);
        let f = &self.faces()[face];
        let c = [v.x, v.y, v.z];
        let w = c[f.w.0].abs();
        let s = grid(self.even(c[f.u.0] / w * f.u.1), level);
        let t = grid(self.even(c[f.v.0] / w * f.v.1), level);
        let curve = match self {
            Kind::Q3c => morton(s, t),
            Kind::Mq3c => hilbert(s, t, level),
        };
        ((face as u64 + self.face_base()) << (2 * level)) | curve
    }

    /// The unit vector at grid coordinates (s, t), which count pixels of `level` and need not be integers.
    pub fn point(self, face: usize, s: f64, t: f64, level: u32) -> Vec3 {
        let half = 0.5 * (1u64 << level) as f64;
        let u = self.uneven((s - half) / half);
        let v = self.uneven((t - half) / half);
        self.on_face(face, u, v).unit()
    }

    fn on_face(self, face: usize, u: f64, v: f64) -> Vec3 {
        let f = &self.faces()[face];
        let mut c = [0.0; 3];
        c[f.u.0] = u * f.u.1;
        c[f.v.0] = v * f.v.1;
        c[f.w.0] = f.w.1;
        Vec3::new(c[0], c[1], c[2])
    }

    /// Vertices of square (s, t), counter-clockwise as seen from outside.
    pub fn vertices(self, face: usize, s: u32, t: u32, level: u32) -> [Vec3; 4] {
        let half = 0.5 * (1u64 << level) as f64;
        let at = |g: f64| self.uneven((g - half) / half);
        let (u0, u1) = (at(f64::from(s)), at(f64::from(s) + 1.0));
        let (v0, v1) = (at(f64::from(t)), at(f64::from(t) + 1.0));
        let corners = [(u0, v0), (u1, v0), (u1, v1), (u0, v1)].map(|(u, v)| self.on_face(face, u, v).unit());
        let [a, b, c, d] = corners;
        // Three of MQ3C's faces have (u, v) left-handed.
        if self == Kind::Mq3c && matches!(face, 0 | 2 | 4) { [a, d, c, b] } else { corners }
    }

    /// Face, s and t of a valid pixel.
    pub fn locate(self, index: u64, level: u32) -> (usize, u32, u32) {
        let face = ((index >> (2 * level)) - self.face_base()) as usize;
        let curve = index & low_bits(2 * level);
        let (s, t) = match self {
            Kind::Q3c => (even_bits(curve), even_bits(curve >> 1)),
            Kind::Mq3c => hilbert_inverse(curve, level),
        };
        (face, s, t)
    }
}

fn low_bits(count: u32) -> u64 {
    (1u64 << count) - 1
}

/// Grid coordinate of an even coordinate: the edge u = 1 belongs to the last square.
fn grid(f: f64, level: u32) -> u32 {
    let half = 0.5 * (1u64 << level) as f64;
    let last = (1u32 << level) - 1;
    // The cast saturates, so rounding below zero stays in square 0.
    ((f * half + half) as u32).min(last)
}

/// Interleaves two integers: bits of `s` at even positions, bits of `t` at odd ones.
pub(crate) fn morton(s: u32, t: u32) -> u64 {
    spread(s) | (spread(t) << 1)
}

fn spread(v: u32) -> u64 {
    let mut b = u64::from(v);
    b = (b | (b << 16)) & 0x0000_ffff_0000_ffff;
    b = (b | (b << 8)) & 0x00ff_00ff_00ff_00ff;
    b = (b | (b << 4)) & 0x0f0f_0f0f_0f0f_0f0f;
    b = (b | (b << 2)) & 0x3333_3333_3333_3333;
    (b | (b << 1)) & 0x5555_5555_5555_5555
}

/// The bits at even positions of a Morton index, packed.
pub(crate) fn even_bits(m: u64) -> u32 {
    let mut b = m & 0x5555_5555_5555_5555;
    b = (b | (b >> 1)) & 0x3333_3333_3333_3333;
    b = (b | (b >> 2)) & 0x0f0f_0f0f_0f0f_0f0f;
    b = (b | (b >> 4)) & 0x00ff_00ff_00ff_00ff;
    b = (b | (b >> 8)) & 0x0000_ffff_0000_ffff;
    ((b | (b >> 16)) & 0xffff_ffff) as u32
}

/// State of the Hilbert curve at the top of a face, where it visits (0,0), (0,1), (1,1), (1,0) as (s, t).
pub(crate) const HILBERT_TOP: u8 = 0;

/// For each state, the quadrant (s bit + 2 t bit) visited as k-th. State bit 0: s and t exchanged; bit 1: the curve
/// run from the opposite corner.
const HILBERT_QUADRANT: [[u8; 4]; 4] = [[0, 2, 3, 1], [0, 1, 3, 2], [3, 1, 0, 2], [3, 2, 0, 1]];

/// State of the curve inside the k-th quadrant: the first is exchanged, the last is exchanged and reversed.
const fn hilbert_state(state: u8, k: u8) -> u8 {
    match k {
        0 => state ^ 1,
        3 => state ^ 3,
        _ => state,
    }
}

/// Quadrant (s bit, t bit) and inner state of the k-th part of a square whose curve is in `state`.
pub(crate) fn hilbert_child(state: u8, k: u8) -> (u32, u32, u8) {
    let quadrant = u32::from(HILBERT_QUADRANT[state as usize][k as usize]);
    (quadrant & 1, quadrant >> 1, hilbert_state(state, k))
}

/// Four levels of the curve at a time. Indexed by state, then by four bits of s and of t; holds index (8 bits) and next state.
static HILBERT_STEP: [[u16; 256]; 4] = hilbert_steps();

const fn hilbert_steps() -> [[u16; 256]; 4] {
    // A constant function cannot iterate over ranges, hence the `while` loops.
    let mut table = [[0u16; 256]; 4];
    let mut state = 0;
    while state < 4 {
        let mut st = 0;
        while st < 256 {
            let (s, t) = (st >> 4, st & 15);
            let mut inner = state as u8;
            let mut index = 0u16;
            let mut bit = 4;
            while bit > 0 {
                bit -= 1;
                let quadrant = (((s >> bit) & 1) | (((t >> bit) & 1) << 1)) as u8;
                let mut k = 0;
                while HILBERT_QUADRANT[inner as usize][k] != quadrant {
                    k += 1;
                }
                index = (index << 2) | k as u16;
                inner = hilbert_state(inner, k as u8);
            }
            table[state][st] = (index << 2) | inner as u16;
            st += 1;
        }
        state += 1;
    }
    table
}

/// Position along the Hilbert curve of `level` of square (s, t).
fn hilbert(s: u32, t: u32, level: u32) -> u64 {
    // Steps include leading zero levels, each of which exchanges s and t; the initial state compensates for that.
    let steps = level.div_ceil(4);
    let mut state = ((4 * steps - level) & 1) as usize;
    let mut index = 0u64;
    for step in (0..steps).rev() {
        let st = (((s >> (4 * step)) & 15) << 4) | ((t >> (4 * step)) & 15);
        let entry = HILBERT_STEP[state][st as usize];
        index = (index << 8) | u64::from(entry >> 2);
        state = usize::from(entry & 3);
    }
    index
}

fn hilbert_inverse(curve: u64, level: u32) -> (u32, u32) {
    let (mut s, mut t, mut state) = (0, 0, HILBERT_TOP);
    for step in (0..level).rev() {
        let (s_bit, t_bit, inner) = hilbert_child(state, ((curve >> (2 * step)) & 3) as u8);
        s = (s << 1) | s_bit;
        t = (t << 1) | t_bit;
        state = inner;
    }
    (s, t)
}
