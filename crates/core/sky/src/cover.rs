//! Covers a region with pixels, by descending from the coarsest level.

use crate::node::{Node, Outline};
use crate::polygon::Polygon;
use crate::region::{Geometry, Lon, Region, Shape};
use crate::vector::{RAD, Vec3};
use crate::{PixelRange, Pixelization, SkyError};
use std::f64::consts::{FRAC_PI_2, PI};

/// Maximum number of ranges that [`Region::cover`] returns, about 64 MB.
pub const COVER_RANGES_MAX: usize = 4_000_000;

/// The relation of a pixel to a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    /// Certainly no point in common.
    Disjoint,
    /// The pixel is certainly within the region.
    Within,
    /// Neither is certain.
    Overlaps,
}

/// A region, prepared for many tests against pixels.
enum Target<'a> {
    /// A cap of at most a hemisphere, or if `inverted` its complement.
    Cap {
        center: Vec3,
        radius: f64,
        inverted: bool,
    },
    Box(Zone),
    /// A polygon, and the sine of the distance around it that is also covered.
    Polygon(&'a Polygon, f64),
}

impl<'a> Target<'a> {
    /// `reach` is the distance in radians around a polygon that is also covered; 0 for other shapes.
    fn new(region: &'a Region, reach: f64) -> Self {
        match region.geometry() {
            &Geometry::Circle { center, radius_rad } if radius_rad <= FRAC_PI_2 => {
                Target::Cap { center, radius: radius_rad, inverted: false }
            }
            // Only a cap of at most a hemisphere is convex, as the tests require, so a larger circle is the complement
            // of one.
            &Geometry::Circle { center, radius_rad } => {
                Target::Cap { center: center.neg(), radius: PI - radius_rad, inverted: true }
            }
            &Geometry::Box { lon, dec_min, dec_max } => Target::Box(Zone::new(lon, dec_min, dec_max)),
            Geometry::Polygon(polygon) => Target::Polygon(polygon, reach.sin()),
        }
    }

    fn relation(&self, pixel: &Outline) -> Relation {
        match self {
            Target::Cap { center, radius, inverted: false } => cap_relation(*center, *radius, pixel),
            Target::Cap { center, radius, inverted: true } => match cap_relation(*center, *radius, pixel) {
                Relation::Disjoint => Relation::Within,
                Relation::Within => Relation::Disjoint,
                Relation::Overlaps => Relation::Overlaps,
            },
            Target::Box(zone) => zone.relation(pixel),
            Target::Polygon(polygon, reach) => polygon_relation(polygon, *reach, pixel),
        }
    }
}

/// Angle in radians from a point to the nearest point of an outline; 0 inside.
pub(crate) fn distance(p: Vec3, outline: &Outline) -> f64 {
    if outline.normals().iter().all(|n| n.dot(p) >= 0.0) {
        return 0.0;
    }
    let chord = outline.corners().iter().map(|c| c.sub(p).norm()).fold(2.0, f64::min);
    let mut nearest = 2.0 * (0.5 * chord).min(1.0).asin();
    for (a, b, n) in outline.edges() {
        let below = -n.dot(p);
        // The foot of the perpendicular is between the ends of the edge.
        if below > 0.0 && n.cross(a).dot(p) >= 0.0 && b.cross(n).dot(p) >= 0.0 {
            nearest = nearest.min(below.min(1.0).asin());
        }
    }
    nearest
}

fn cap_relation(center: Vec3, radius: f64, pixel: &Outline) -> Relation {
    let reach = pixel.corners().iter().map(|c| c.sub(center).norm()).fold(0.0, f64::max);
    let inner = radius - pixel.slack;
    // A cap of at most a hemisphere is convex: if it contains the corners, it contains the polygon.
    if inner > 0.0 && reach < 2.0 * (0.5 * inner).sin() {
        return Relation::Within;
    }
    if distance(center, pixel) > radius + pixel.slack { Relation::Disjoint } else { Relation::Overlaps }
}

fn polygon_relation(polygon: &Polygon, reach: f64, pixel: &Outline) -> Relation {
    let slack = pixel.slack;
    // A point beyond a plane by more than this is farther than the reach from every point on the other side.
    let apart_by = slack + reach;
    let mut within = true;
    for n in &polygon.normals {
        let mut beyond = true;
        for c in pixel.corners() {
            let side = n.dot(*c);
            beyond &= side < -apart_by;
            within &= side > slack;
        }
        // Both are convex cones: if a plane through the origin separates them, one is the plane of an edge of either.
        if beyond {
            return Relation::Disjoint;
        }
    }
    if within {
        return Relation::Within;
    }
    let apart = |n: &Vec3| polygon.vertices.iter().all(|v| n.dot(*v) < -apart_by);
    if pixel.normals().iter().any(apart) { Relation::Disjoint } else { Relation::Overlaps }
}

/// A longitude-latitude box.
struct Zone {
    meridians: Option<Meridians>,
    south: Parallel,
    north: Parallel,
}

/// A latitude: its sine and cosine, and whether it is a pole.
struct Parallel {
    sin: f64,
    cos: f64,
    pole: bool,
}

struct Meridians {
    west: Vec3,
    east: Vec3,
    /// Normal of the western meridian's plane, towards the east, and of the eastern meridian's, towards the west.
    eastward: Vec3,
    westward: Vec3,
    /// Whether the width is at most half a turn: then points are on the inner side of both planes, else of at least one.
    narrow: bool,
}

impl Zone {
    fn new(lon: Lon, dec_min: f64, dec_max: f64) -> Self {
        let parallel = |dec: f64| Parallel { sin: (dec * RAD).sin(), cos: (dec * RAD).cos(), pole: dec.abs() == 90.0 };
        let meridians = match lon {
            Lon::All => None,
            Lon::Between { west, east } => {
                let (west, east) = (Vec3::from_degrees(west, 0.0), Vec3::from_degrees(east, 0.0));
                Some(Meridians {
                    west,
                    east,
                    eastward: Vec3::new(-west.y, west.x, 0.0),
                    westward: Vec3::new(east.y, -east.x, 0.0),
                    narrow: lon.width() <= 180.0,
                })
            }
        };
        Self { meridians, south: parallel(dec_min), north: parallel(dec_max) }
    }

    fn relation(&self, pixel: &Outline) -> Relation {
        let slack = pixel.slack;
        let (low, high) = z_range(pixel);
        // The sine of the latitude changes by at most the angle.
        if high < self.south.sin - slack || low > self.north.sin + slack {
            return Relation::Disjoint;
        }
        let lon = self.meridians.as_ref().map_or(Relation::Within, |m| m.relation(pixel));
        if lon == Relation::Disjoint || pixel.normals().iter().any(|n| self.support(*n) < -slack) {
            return Relation::Disjoint;
        }
        let dec_within =
            (self.south.pole || low > self.south.sin + slack) && (self.north.pole || high < self.north.sin - slack);
        if dec_within && lon == Relation::Within { Relation::Within } else { Relation::Overlaps }
    }

    /// The maximum of n . p over all points p of the box.
    fn support(&self, n: Vec3) -> f64 {
        let axial = n.x.hypot(n.y);
        // Maximum projection onto the equatorial plane over the box's longitudes.
        let equatorial = match &self.meridians {
            Some(m) if !m.holds(n) => n.dot(m.west).max(n.dot(m.east)),
            _ => axial,
        };
        let at = |p: &Parallel| equatorial * p.cos + n.z * p.sin;
        let slope = |p: &Parallel| n.z * p.cos - equatorial * p.sin;
        // The maximum is between the parallels only if the sum grows at the southern one and falls at the northern one.
        if equatorial > 0.0 && slope(&self.south) > 0.0 && slope(&self.north) < 0.0 {
            return equatorial.hypot(n.z);
        }
        at(&self.south).max(at(&self.north))
    }
}

impl Meridians {
    fn relation(&self, pixel: &Outline) -> Relation {
        let slack = pixel.slack;
        let all = |test: &dyn Fn(f64) -> bool, n: Vec3| pixel.corners().iter().all(|c| test(n.dot(*c)));
        let outside = |n: Vec3| all(&|side| side < -slack, n);
        let inside = |n: Vec3| all(&|side| side > slack, n);
        let (outside, inside) =
            ((outside(self.eastward), outside(self.westward)), (inside(self.eastward), inside(self.westward)));
        let (disjoint, within) = if self.narrow {
            (outside.0 || outside.1, inside.0 && inside.1)
        } else {
            (outside.0 && outside.1, inside.0 || inside.1)
        };
        match (disjoint, within) {
            (true, _) => Relation::Disjoint,
            (_, true) => Relation::Within,
            _ => Relation::Overlaps,
        }
    }

    /// Whether the longitude of a vector is between the meridians.
    fn holds(&self, v: Vec3) -> bool {
        let (a, b) = (self.eastward.dot(v) >= 0.0, self.westward.dot(v) >= 0.0);
        if self.narrow { a && b } else { a || b }
    }
}

/// Minimum and maximum z of an outline's points.
fn z_range(outline: &Outline) -> (f64, f64) {
    let (mut low, mut high) = (1.0f64, -1.0f64);
    let (mut north_inside, mut south_inside) = (true, true);
    for (a, b, n) in outline.edges() {
        low = low.min(a.z);
        high = high.max(a.z);
        // A great circle reaches |sine of its inclination| between two points if it ascends at the first and descends at the
        // second.
        let climb = |p: Vec3| n.x * p.y - n.y * p.x;
        if climb(a) > 0.0 && climb(b) < 0.0 {
            high = high.max(n.x.hypot(n.y));
        } else if climb(a) < 0.0 && climb(b) > 0.0 {
            low = low.min(-n.x.hypot(n.y));
        }
        north_inside &= n.z >= -outline.slack;
        south_inside &= n.z <= outline.slack;
    }
    (if south_inside { -1.0 } else { low }, if north_inside { 1.0 } else { high })
}

/// Ranges in order; adjacent ranges are merged.
#[derive(Default)]
struct Ranges(Vec<PixelRange>);

impl Ranges {
    fn push(&mut self, range: PixelRange) {
        match self.0.last_mut() {
            // Ranges ascend, so one that ends at 2^64 - 1 is the last, and the sum does not overflow.
            Some(before) if before.last + 1 == range.first => before.last = range.last,
            _ => self.0.push(range),
        }
    }
}

fn descendants(node: &Node, level: u32) -> PixelRange {
    let shift = 2 * (level - node.level);
    PixelRange { first: node.index << shift, last: (node.index << shift) | ((1u64 << shift) - 1) }
}

impl Region {
    /// The pixels that may contain a point of the region, as sorted ranges with gaps between them.
    ///
    /// Never misses a pixel with a point for which [`Region::contains`] is true. May list a pixel that only comes close to
    /// the region: within rounding, or for HEALPix, whose pixel edges are not great circles, within a small fraction of a
    /// pixel.
    ///
    /// # Errors
    /// [`SkyError::CoverTooLarge`] beyond [`crate::COVER_RANGES_MAX`] ranges: see [`Region::cover_limited`].
    pub fn cover(&self, pixelization: &Pixelization) -> Result<Vec<PixelRange>, SkyError> {
        cover(self, pixelization, COVER_RANGES_MAX)
    }

    /// A cover of at most `ranges_max` ranges (at least one), which may therefore list many more pixels than
    /// [`Region::cover`]. Pixels are refined level by level while their number stays in proportion to `ranges_max`, then
    /// the smallest gaps are closed. Time and memory do not grow with the level.
    pub fn cover_limited(&self, pixelization: &Pixelization, ranges_max: usize) -> Vec<PixelRange> {
        cover_limited(self, pixelization, 0.0, ranges_max.max(1))
    }

    /// As [`Region::cover_limited`], for the region and its surroundings: never misses a pixel with a point within `reach_deg`
    /// of the region. A reach of more than 45 degrees covers the whole sky.
    pub fn cover_around(&self, pixelization: &Pixelization, reach_deg: f64, ranges_max: usize) -> Vec<PixelRange> {
        if reach_deg > 45.0 {
            return vec![pixelization.index_range()];
        }
        let wider = match (&self.geometry, &self.shape) {
            (_, &Shape::Circle { ra, dec, radius_deg }) => Region::cap(ra, dec, (radius_deg + reach_deg).min(180.0)),
            (&Geometry::Box { lon, dec_min, dec_max }, _) => box_around(lon, dec_min, dec_max, reach_deg),
            _ => return cover_limited(self, pixelization, reach_deg * RAD, ranges_max.max(1)),
        };
        wider.cover_limited(pixelization, ranges_max)
    }
}

/// A box that contains all points within `reach_deg` of a box; `reach_deg` is less than 90.
fn box_around(lon: Lon, dec_min: f64, dec_max: f64, reach_deg: f64) -> Region {
    // Rounding must not make the box narrower: a cover may list too many pixels, never too few.
    let reach = reach_deg * (1.0 + 1e-12) + 1e-12;
    let (south, north) = ((dec_min - reach).max(-90.0), (dec_max + reach).min(90.0));
    let farthest = dec_min.abs().max(dec_max.abs());
    let lon = match lon {
        Lon::Between { west, east } if farthest + reach < 90.0 => {
            // The meridian tangent to the circle of this radius around the point nearest to a pole.
            let aside = ((reach * RAD).sin() / (farthest * RAD).cos()).min(1.0).asin() / RAD + 1e-12;
            let width = Lon::Between { west, east }.width() + 2.0 * aside;
            Lon::new(west - aside, west - aside + width)
        }
        // Near a pole all meridians are in reach.
        _ => Lon::All,
    };
    let (ra_min, ra_max) = match lon {
        Lon::All => (0.0, 360.0),
        Lon::Between { west, east } => (west, east),
    };
    let shape = Shape::Box { ra_min, ra_max, dec_min: south, dec_max: north };
    Region { shape, geometry: Geometry::Box { lon, dec_min: south, dec_max: north } }
}

fn cover(region: &Region, pixelization: &Pixelization, ranges_max: usize) -> Result<Vec<PixelRange>, SkyError> {
    let mut descent = Descent { target: Target::new(region, 0.0), pixelization, ranges: Ranges::default(), ranges_max };
    for root in Node::roots(pixelization.scheme()) {
        descent.visit(&root)?;
    }
    Ok(descent.ranges.0)
}

/// Descends the tree of pixels in index order and collects the pixels that are not disjoint.
struct Descent<'a> {
    target: Target<'a>,
    pixelization: &'a Pixelization,
    ranges: Ranges,
    ranges_max: usize,
}

impl Descent<'_> {
    fn visit(&mut self, node: &Node) -> Result<(), SkyError> {
        let level = self.pixelization.level();
        let relation = self.target.relation(&node.outline());
        if relation == Relation::Disjoint {
            return Ok(());
        }
        if relation == Relation::Overlaps && node.level < level {
            return (0..4).try_for_each(|k| self.visit(&node.child(k)));
        }
        self.ranges.push(descendants(node, level));
        if self.ranges.0.len() > self.ranges_max {
            return Err(SkyError::CoverTooLarge {
                scheme: self.pixelization.scheme(),
                level,
                ranges_max: self.ranges_max,
            });
        }
        Ok(())
    }
}

/// A pixel of a cover during refinement.
enum Piece {
    Whole(Node),
    Partial(Node),
}

impl Piece {
    fn new(target: &Target<'_>, node: Node) -> Option<Self> {
        match target.relation(&node.outline()) {
            Relation::Disjoint => None,
            Relation::Within => Some(Piece::Whole(node)),
            Relation::Overlaps => Some(Piece::Partial(node)),
        }
    }
}

fn cover_limited(region: &Region, pixelization: &Pixelization, reach: f64, ranges_max: usize) -> Vec<PixelRange> {
    // Many pieces merge into one range, and closing gaps among too few would be coarse.
    let pieces_max = ranges_max.saturating_mul(16).clamp(256, COVER_RANGES_MAX);
    let target = Target::new(region, reach);
    let mut pieces: Vec<Piece> =
        Node::roots(pixelization.scheme()).filter_map(|root| Piece::new(&target, root)).collect();
    for _ in 0..pixelization.level() {
        let mut finer = Vec::with_capacity(2 * pieces.len());
        for piece in &pieces {
            match piece {
                Piece::Whole(node) => finer.push(Piece::Whole(*node)),
                Piece::Partial(node) => {
                    finer.extend((0..4).filter_map(|k| Piece::new(&target, node.child(k))));
                }
            }
        }
        // The pieces of this level cover the region as well: they are only coarser.
        if finer.len() > pieces_max {
            break;
        }
        pieces = finer;
    }
    let mut ranges = Ranges::default();
    for piece in &pieces {
        let (Piece::Whole(node) | Piece::Partial(node)) = piece;
        ranges.push(descendants(node, pixelization.level()));
    }
    close_gaps(ranges.0, ranges_max)
}

/// Merges ranges across the smallest gaps until `ranges_max` are left.
fn close_gaps(ranges: Vec<PixelRange>, ranges_max: usize) -> Vec<PixelRange> {
    let Some(excess) = ranges.len().checked_sub(ranges_max).filter(|n| *n > 0) else {
        return ranges;
    };
    // The position breaks ties, so that the result is deterministic.
    let mut gaps: Vec<(u64, usize)> =
        ranges.windows(2).enumerate().map(|(i, pair)| (pair[1].first - pair[0].last, i)).collect();
    // A selection suffices: all gaps up to this one are closed, in whatever order they come.
    gaps.select_nth_unstable(excess - 1);
    let mut closed = vec![false; gaps.len()];
    for (_, i) in &gaps[..excess] {
        closed[*i] = true;
    }
    let mut joined: Vec<PixelRange> = Vec::with_capacity(ranges_max);
    for (i, range) in ranges.into_iter().enumerate() {
        match joined.last_mut() {
            Some(before) if closed[i - 1] => before.last = range.last,
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scheme;

    #[test]
    fn the_smallest_gaps_are_closed_first() {
        let ranges = |parts: &[(u64, u64)]| -> Vec<PixelRange> {
            parts.iter().map(|&(first, last)| PixelRange { first, last }).collect()
        };
        let given = ranges(&[(10, 10), (21, 22), (40, 1_000), (1_012, 1_100), (1_115, 1_115)]);
        assert_eq!(close_gaps(given.clone(), 5), given);
        assert_eq!(close_gaps(given.clone(), 4), ranges(&[(10, 22), (40, 1_000), (1_012, 1_100), (1_115, 1_115)]));
        assert_eq!(close_gaps(given.clone(), 3), ranges(&[(10, 22), (40, 1_100), (1_115, 1_115)]));
        assert_eq!(close_gaps(given.clone(), 2), ranges(&[(10, 22), (40, 1_115)]));
        assert_eq!(close_gaps(given, 1), ranges(&[(10, 1_115)]));
    }

    proptest::proptest! {
        #[test]
        fn the_support_of_a_box_is_that_of_its_farthest_point(
            (west, width) in (0.0..360.0f64, 0.1..359.9f64),
            (south, height) in (-90.0..89.9f64, 0.001..1.0f64),
            (ra, dec) in (0.0..360.0f64, -90.0..90.0f64),
        ) {
            const STEPS: u32 = 60;
            let north = south + (90.0 - south) * height;
            let zone = Zone::new(Lon::Between { west, east: (west + width) % 360.0 }, south, north);
            let n = Vec3::from_degrees(ra, dec);
            let at = |first: f64, length: f64, step: u32| first + length * f64::from(step) / f64::from(STEPS);
            let points = (0..=STEPS).flat_map(|i| (0..=STEPS).map(move |j| (i, j)));
            let farthest = points
                .map(|(i, j)| n.dot(Vec3::from_degrees(at(west, width, i), at(south, north - south, j))))
                .fold(f64::MIN, f64::max);
            let support = zone.support(n);
            // Some sample is within 3.2 degrees of the farthest point.
            proptest::prop_assert!(farthest - 1e-12 <= support && support <= farthest + 0.002, "{farthest} {support}");
        }
    }

    #[test]
    fn an_edge_reaches_beyond_its_corners() {
        // The middle triangle of an octant: its edge between two corners at 45 degrees reaches 54.7 in the middle.
        for sign in [1.0, -1.0] {
            let p = Pixelization::new(Scheme::Htm, 1).expect("level");
            let middle = p.index(45.0, sign * 53.0).expect("position");
            let (south, north) = if sign > 0.0 { (53.8, 54.2) } else { (-54.2, -53.8) };
            let ranges = Region::lonlat_box(44.0, 46.0, south, north).expect("box").cover(&p).expect("cover");
            assert_eq!(ranges, vec![PixelRange { first: middle, last: middle }]);
            let children = Node::roots(Scheme::Htm).flat_map(|root| (0..4).map(move |k| root.child(k)));
            let outline =
                children.filter(|node| node.index == middle).map(|node| node.outline()).next().expect("pixel");
            let (low, high) = z_range(&outline);
            let (near, far) = ((0.5f64).sqrt(), (2.0f64 / 3.0).sqrt());
            let (least, most) = if sign > 0.0 { (0.0, far) } else { (-far, 0.0) };
            assert!((low - least).abs() < 1e-12 && (high - most).abs() < 1e-12 && far > near, "{low} {high}");
        }
    }

    #[test]
    fn a_cover_of_too_many_ranges_is_refused() {
        let region = Region::circle(10.0, 20.0, 60.0).expect("circle");
        for scheme in Scheme::ALL {
            let p = Pixelization::new(scheme, scheme.level_max()).expect("level");
            let error = cover(&region, &p, 500).expect_err("long boundary");
            let level = p.level();
            assert_eq!(error, SkyError::CoverTooLarge { scheme, level, ranges_max: 500 });
            let coarse = Pixelization::new(scheme, 6).expect("level");
            let count = cover(&region, &coarse, 10_000).expect("short enough").len();
            assert!(cover(&region, &coarse, count).is_ok() && cover(&region, &coarse, count - 1).is_err());
        }
    }
}
