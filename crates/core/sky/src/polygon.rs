//! Convex spherical polygons: validation, membership test, area.

use crate::SkyError;
use crate::exact::orientation;
use crate::vector::Vec3;

pub(crate) const VERTICES_MIN: usize = 3;
/// Maximum number of vertices: the check for convexity takes quadratic time.
pub(crate) const VERTICES_MAX: usize = 4096;

/// A vertex may be this far on the wrong side of an edge, in radians: rounding moves vertices that are meant to be on one line.
const CONVEX_TOLERANCE: f64 = 1e-15;

/// Distance from an edge, in radians, beyond which its rounded normal decides the side of a point; nearer, the exact sign decides.
const NEAR_EDGE: f64 = 1e-14;

/// A checked convex polygon, counter-clockwise seen from outside.
#[derive(Debug, Clone)]
pub(crate) struct Polygon {
    pub vertices: Vec<Vec3>,
    /// Unit normal of the edge from each vertex to the next, towards the inside.
    pub normals: Vec<Vec3>,
}

impl Polygon {
    /// A polygon with these unit vectors as vertices, in either direction.
    pub fn new(mut vertices: Vec<Vec3>) -> Result<Self, SkyError> {
        let count = vertices.len();
        if !(VERTICES_MIN..=VERTICES_MAX).contains(&count) {
            return Err(SkyError::VertexCount { count, min: VERTICES_MIN, max: VERTICES_MAX });
        }
        let mut normals = edge_normals(&vertices)?;
        // Chooses the direction in which the vertex farthest from the first edge is on the inside.
        let first = normals[0];
        let farthest = vertices.iter().map(|v| first.dot(*v)).max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0);
        let reversed = farthest < 0.0;
        if reversed {
            vertices.reverse();
            normals = edge_normals(&vertices)?;
        }
        let given = |i: usize| if reversed { count - 1 - i } else { i };
        let mut thickness: f64 = 0.0;
        for normal in &normals {
            for (i, v) in vertices.iter().enumerate() {
                let side = normal.dot(*v);
                if side < -CONVEX_TOLERANCE {
                    return Err(SkyError::NotConvex { vertex: given(i) });
                }
                thickness = thickness.max(side);
            }
        }
        if thickness <= CONVEX_TOLERANCE {
            return Err(SkyError::Flat);
        }
        Ok(Self { vertices, normals })
    }

    /// Whether the point is on the inner side of every edge, or exactly on it.
    pub fn contains(&self, p: Vec3) -> bool {
        let next = self.vertices.iter().cycle().skip(1);
        self.normals.iter().zip(self.vertices.iter().zip(next)).all(|(normal, (a, b))| {
            let height = normal.dot(p);
            height > NEAR_EDGE || (height >= -NEAR_EDGE && orientation(*a, *b, p) >= 0)
        })
    }
}

fn edge_normals(vertices: &[Vec3]) -> Result<Vec<Vec3>, SkyError> {
    (0..vertices.len())
        .map(|vertex| {
            let next = (vertex + 1) % vertices.len();
            let (a, b) = (vertices[vertex], vertices[next]);
            // Between antipodes, the rounded direction of the edge would be arbitrary.
            if a == b || a.add(b).norm() < 1e-12 {
                return Err(SkyError::BadEdge { vertex, next });
            }
            Ok(a.robust_cross(b).unit())
        })
        .collect()
}

/// Area in steradians of a convex polygon smaller than a hemisphere: the sum of the triangles of a fan.
///
/// The area E of a triangle follows from tan(E / 2) = det(a, b, c) / (1 + a.b + b.c + c.a) (Eriksson 1990, Math. Mag.
/// 63, 184). The determinant is computed from differences, which keeps it accurate for small triangles.
pub(crate) fn area(vertices: &[Vec3]) -> f64 {
    let Some((&a, rest)) = vertices.split_first() else {
        return 0.0;
    };
    rest.windows(2)
        .map(|edge| {
            let (b, c) = (edge[0], edge[1]);
            let determinant = a.dot(b.sub(a).cross(c.sub(a)));
            2.0 * determinant.atan2(1.0 + a.dot(b) + b.dot(c) + c.dot(a))
        })
        .sum()
}
