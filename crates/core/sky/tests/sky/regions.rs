//! Regions contain the right points, and their covers never miss one.

use chronotile_sky::{PixelRange, Pixelization, Region, Scheme, Shape, SkyError};
use proptest::prelude::*;
use std::f64::consts::PI;

use crate::pixelization;

fn circle(ra: f64, dec: f64, radius: f64) -> Region {
    Region::circle(ra, dec, radius).expect("circle")
}

fn lonlat_box(ra_min: f64, ra_max: f64, dec_min: f64, dec_max: f64) -> Region {
    Region::lonlat_box(ra_min, ra_max, dec_min, dec_max).expect("box")
}

fn covers(ranges: &[PixelRange], index: u64) -> bool {
    let after = ranges.partition_point(|r| r.first <= index);
    after > 0 && ranges[after - 1].contains(index)
}

fn pixel_count(ranges: &[PixelRange]) -> u64 {
    ranges.iter().map(PixelRange::len).sum()
}

/// The point at a distance in degrees from (ra, dec) in direction `bearing`.
fn offset(ra: f64, dec: f64, distance: f64, bearing: f64) -> (f64, f64) {
    let (sin_d, cos_d) = distance.to_radians().sin_cos();
    let (sin_b, cos_b) = bearing.to_radians().sin_cos();
    let (sin_dec, cos_dec) = dec.to_radians().sin_cos();
    // Components towards the centre, to its north, and to its east.
    let up = cos_d * cos_dec - sin_d * cos_b * sin_dec;
    let north = cos_d * sin_dec + sin_d * cos_b * cos_dec;
    let east = sin_d * sin_b;
    let new_dec = north.atan2(up.hypot(east)).to_degrees();
    (ra + east.atan2(up).to_degrees(), new_dec.clamp(-90.0, 90.0))
}

/// Angle between two positions in degrees by Vincenty's formula, which is independent of the haversine.
fn separation(a: (f64, f64), b: (f64, f64)) -> f64 {
    let (sin_l, cos_l) = (b.0 - a.0).to_radians().sin_cos();
    let (sin_a, cos_a) = a.1.to_radians().sin_cos();
    let (sin_b, cos_b) = b.1.to_radians().sin_cos();
    let across = (cos_b * sin_l).hypot(cos_a * sin_b - sin_a * cos_b * cos_l);
    across.atan2(sin_a * sin_b + cos_a * cos_b * cos_l).to_degrees()
}

fn any_position() -> impl Strategy<Value = (f64, f64)> {
    let ra = prop_oneof![
        6 => -400.0..800.0,
        1 => prop::sample::select(vec![0.0, 360.0, 45.0, 90.0, 135.0, 180.0, 270.0, -1e-13, 359.999_999_9]),
    ];
    let dec = prop_oneof![
        6 => (-1.0f64..1.0).prop_map(|z| z.asin().to_degrees()),
        1 => 88.0..90.0,
        1 => prop::sample::select(vec![0.0, 90.0, -90.0, 45.0, -45.0, 35.264_389_682_754_654, 41.810_314_895_778_6]),
    ];
    (ra, dec)
}

/// Sizes from an arc second to the whole sphere.
fn any_radius() -> impl Strategy<Value = f64> {
    prop_oneof![
        5 => (-3.5f64..1.5).prop_map(|log| 10f64.powf(log)),
        1 => 0.0..180.0,
        1 => prop::sample::select(vec![0.0, 90.0, 180.0]),
    ]
}

/// A level at which a region of the given size has a cover of reasonable length.
fn level_for(scheme: Scheme, size_deg: f64, fineness: f64) -> u32 {
    let finest = (60.0 * 40.0 / size_deg.max(1e-7)).log2().max(0.0);
    ((fineness * (finest + 1.0)) as u32).min(scheme.level_max())
}

fn any_scheme() -> impl Strategy<Value = Scheme> {
    prop::sample::select(Scheme::ALL.to_vec())
}

/// Convex polygons: points around a small circle.
fn any_polygon() -> impl Strategy<Value = (Region, f64)> {
    (
        any_position(),
        (-3.5f64..1.8).prop_map(|log| 10f64.powf(log)),
        prop::collection::vec(0.3f64..1.0, 3..8),
        any::<bool>(),
    )
        .prop_filter_map("not a polygon", |((ra, dec), size, steps, backwards)| {
            let total: f64 = steps.iter().sum();
            let mut bearing = 0.0;
            let mut vertices: Vec<_> = steps
                .iter()
                .map(|step| {
                    bearing += 360.0 * step / total;
                    offset(ra, dec, size, bearing)
                })
                .collect();
            if backwards {
                vertices.reverse();
            }
            Some((Region::polygon(&vertices).ok()?, size))
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn cover_of_a_circle_never_misses_a_point(
        (ra, dec) in any_position(), radius in any_radius(), scheme in any_scheme(), fineness in 0.0..1.0f64,
        points in prop::collection::vec((0.0..=1.0f64, 0.0..360.0f64), 40),
    ) {
        let region = circle(ra, dec, radius);
        let p = pixelization(scheme, level_for(scheme, radius, fineness));
        let ranges = region.cover(&p).expect("small cover");
        let limited = region.cover_limited(&p, 3);
        prop_assert!(limited.len() <= 3);
        let edge = [0.0, 90.0, 180.0, 270.0, 33.0].map(|bearing| (1.0, bearing));
        for (fraction, bearing) in points.into_iter().chain(edge).chain([(0.0, 0.0)]) {
            let (ra, dec) = offset(ra, dec, radius * fraction, bearing);
            // A point on the edge has a rounding error, which is within the margin of a cover but not of the definition.
            let index = p.index(ra, dec).expect("position");
            prop_assert!(covers(&ranges, index), "{region} {p} misses {ra:?} {dec:?}");
            prop_assert!(covers(&limited, index), "{region} {p} limited misses {ra:?} {dec:?}");
        }
    }

    #[test]
    fn cover_of_a_box_never_misses_a_point(
        (ra, dec) in any_position(), width in any_radius(), height in any_radius(), scheme in any_scheme(),
        fineness in 0.0..1.0f64, points in prop::collection::vec((0.0..=1.0f64, 0.0..=1.0f64), 40),
    ) {
        let top = (dec + height).min(90.0);
        let region = lonlat_box(ra, ra + 2.0 * width, dec, top);
        let p = pixelization(scheme, level_for(scheme, width.max(height), fineness));
        let ranges = region.cover(&p).expect("small cover");
        let limited = region.cover_limited(&p, 5);
        prop_assert!(limited.len() <= 5);
        let corners = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 0.0), (0.5, 1.0)];
        for (x, y) in points.into_iter().chain(corners) {
            let point = (ra + 2.0 * width * x, (dec + (top - dec) * y).min(top));
            let index = p.index(point.0, point.1).expect("position");
            prop_assert!(covers(&ranges, index), "{region} {p} misses {point:?}");
            prop_assert!(covers(&limited, index), "{region} {p} limited misses {point:?}");
        }
    }

    #[test]
    fn cover_of_a_polygon_never_misses_a_point(
        (region, size) in any_polygon(), scheme in any_scheme(), fineness in 0.0..1.0f64,
        points in prop::collection::vec((0.0..=1.0f64, 0.0..360.0f64), 60),
    ) {
        let p = pixelization(scheme, level_for(scheme, size, fineness));
        let ranges = region.cover(&p).expect("small cover");
        let limited = region.cover_limited(&p, 3);
        let cap = region.bounding_cap();
        let Shape::Polygon { vertices } = region.shape() else { unreachable!("a polygon") };
        let Shape::Circle { ra, dec, radius_deg } = *cap.shape() else { unreachable!("a circle") };
        let inside = points.into_iter().map(|(d, bearing)| offset(ra, dec, radius_deg.min(90.0) * d, bearing));
        let mut held = 0;
        for (ra, dec) in vertices.iter().copied().chain(inside) {
            if region.contains(ra, dec) {
                held += 1;
                let index = p.index(ra, dec).expect("position");
                prop_assert!(covers(&ranges, index), "{region} {p} misses {ra:?} {dec:?}");
                prop_assert!(covers(&limited, index), "{region} {p} limited misses {ra:?} {dec:?}");
                prop_assert!(cap.contains(ra, dec));
            }
        }
        prop_assert!(held >= vertices.len(), "every vertex belongs to its polygon");
    }

    #[test]
    fn cover_holds_every_contained_point_far_from_the_principal_turn(
        ra in -1e12..1e12f64, dec in -89.0..89.0f64, scheme in any_scheme(),
    ) {
        // The box is defined around the same meridian by its small right ascension.
        let p = pixelization(scheme, scheme.level_max().min(20));
        let near = ra.rem_euclid(360.0);
        let region = lonlat_box(near - 1e-4, near + 1e-4, dec, dec);
        let ranges = region.cover(&p).expect("small cover");
        if region.contains(ra, dec) {
            prop_assert!(covers(&ranges, p.index(ra, dec).expect("position")));
        }
    }

    #[test]
    fn a_circle_holds_the_points_an_independent_formula_says(
        center in any_position(), radius in any_radius(), fraction in 0.0..2.0f64, bearing in 0.0..360.0f64,
    ) {
        let region = circle(center.0, center.1, radius);
        let point = offset(center.0, center.1, (radius * fraction).min(180.0), bearing);
        let distance = separation(center, point);
        // Near 180 degrees the haversine resolves 1e-8 radians; elsewhere the formulas agree to rounding.
        let resolution = if radius > 179.0 { 2e-6 } else { 1e-12 };
        if (distance - radius).abs() > resolution {
            prop_assert_eq!(region.contains(point.0, point.1), distance < radius, "distance {}", distance);
        }
        prop_assert!(region.contains(center.0, center.1), "the centre is a member");
    }

    #[test]
    fn bounding_caps_hold_their_boxes(
        (ra, dec) in any_position(), width in 0.0..360.0f64, height in any_radius(),
        points in prop::collection::vec((0.0..=1.0f64, 0.0..=1.0f64), 20),
    ) {
        let top = (dec + height).min(90.0);
        let region = lonlat_box(ra, ra + width, dec, top);
        let cap = region.bounding_cap();
        for (x, y) in points.into_iter().chain([(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)]) {
            let point = (ra + width * x, (dec + (top - dec) * y).min(top));
            prop_assert!(cap.contains(point.0, point.1), "{} of {} misses {:?}", cap, region, point);
        }
    }

    #[test]
    fn bounding_caps_of_boxes_are_no_larger_than_a_pole_or_the_middle_needs(
        (ra, dec) in any_position(), width in 0.0..360.0f64, height in any_radius(),
    ) {
        let top = (dec + height).min(90.0);
        let Shape::Circle { radius_deg, .. } = *lonlat_box(ra, ra + width, dec, top).bounding_cap().shape() else {
            unreachable!("a circle")
        };
        let middle = (ra + 0.5 * width, 0.5 * (dec + top));
        let corner = [dec, top].map(|dec| separation(middle, (ra, dec))).into_iter().fold(0.0, f64::max);
        let around_middle = if width <= 180.0 - 1e-9 { corner } else { 180.0 };
        let least = around_middle.min(90.0 - dec).min(90.0 + top);
        prop_assert!(radius_deg <= least + 1e-6, "{} for {}", radius_deg, least);
    }

    #[test]
    fn bounding_caps_of_polygons_reach_to_the_farthest_vertex((region, size) in any_polygon()) {
        let Shape::Circle { ra, dec, radius_deg } = *region.bounding_cap().shape() else { unreachable!("a circle") };
        let Shape::Polygon { vertices } = region.shape() else { unreachable!("a polygon") };
        let farthest = vertices.iter().map(|vertex| separation((ra, dec), *vertex)).fold(0.0, f64::max);
        prop_assert!(size > 60.0 || (radius_deg - farthest).abs() < 1e-9, "{} for {}", radius_deg, farthest);
    }

    #[test]
    fn points_close_to_a_boundary_are_tested_as_one_by_one(
        (region, _) in any_polygon(), (ra, dec) in any_position(), radius in any_radius(), bearing in 0.0..360.0f64,
    ) {
        for region in [region, circle(ra, dec, radius)] {
            let rim: Vec<(f64, f64)> = match region.shape() {
                Shape::Polygon { vertices } => vertices.clone(),
                _ => (0..4).map(|turn| offset(ra, dec, radius, bearing + 90.0 * f64::from(turn))).collect(),
            };
            // From distances at which the approximation decides to distances below the precision of doubles.
            let steps = (6..16).map(|digit| 10.0f64.powi(-digit));
            let near = steps.flat_map(|step| rim.iter().map(move |(ra, dec)| offset(*ra, *dec, step, bearing)));
            let (ra, dec): (Vec<f64>, Vec<f64>) = rim.iter().copied().chain(near).unzip();
            let many = region.contains_many(&ra, &dec).expect("positions");
            for (row, held) in many.into_iter().enumerate() {
                prop_assert_eq!(held, region.contains(ra[row], dec[row]), "{} of {}", row, region);
            }
        }
    }

    #[test]
    fn many_points_are_tested_as_one_by_one((region, _) in any_polygon(), seed in 0.0..360.0f64) {
        let count = if seed < 5.0 { 25_000 } else { 50 };
        let ra: Vec<f64> = (0..count).map(|i| (seed * f64::from(i)) % 360.0).collect();
        let dec: Vec<f64> = (0..count).map(|i| 90.0 * (f64::from(i) + seed).sin()).collect();
        let many = region.contains_many(&ra, &dec).expect("positions");
        for (i, held) in many.into_iter().enumerate() {
            prop_assert_eq!(held, region.contains(ra[i], dec[i]));
        }
    }
}

/// Number of pixels that contain a point of a dense grid over the region.
fn overlapped(region: &Region, p: &Pixelization, points: impl Iterator<Item = (f64, f64)>) -> u64 {
    let mut pixels: Vec<u64> = points
        .filter(|&(ra, dec)| region.contains(ra, dec))
        .map(|(ra, dec)| p.index(ra, dec).expect("position"))
        .collect();
    pixels.sort_unstable();
    pixels.dedup();
    pixels.len() as u64
}

#[test]
fn covers_are_tight_for_survey_sizes() {
    let steps = 240;
    for (ra, dec) in [(10.3, -5.2_f64), (45.01, 35.3), (200.0, 61.0), (0.0, 0.0), (77.0, -83.0)] {
        let half = 0.25 / dec.to_radians().cos();
        let grid = |region: &Region| {
            let Shape::Circle { radius_deg, .. } = *region.bounding_cap().shape() else { unreachable!("a circle") };
            let span = move |i: i32| (f64::from(i) / f64::from(steps) - 0.5) * 2.1 * radius_deg;
            (0..=steps).flat_map(move |i| (0..=steps).map(move |j| (ra + span(i) * 4.0 * half, dec + span(j))))
        };
        let tile = |radius: f64| {
            let corners = [45.0, 135.0, 225.0, 315.0].map(|b| offset(ra, dec, radius, b + 10.0));
            Region::polygon(&corners).expect("square")
        };
        for scheme in Scheme::ALL {
            let p = pixelization(scheme, 10);
            for region in [
                lonlat_box(ra - half / 2.0, ra + half / 2.0, dec - 0.125, dec + 0.125),
                lonlat_box(ra - 2.0 * half, ra + 2.0 * half, dec - 0.5, dec + 0.5),
                circle(ra, dec, 0.2),
                circle(ra, dec, 0.5),
                tile(0.2),
                tile(0.5),
            ] {
                let truth = overlapped(&region, &p, grid(&region));
                let covered = pixel_count(&region.cover(&p).expect("small cover"));
                assert!(covered >= truth);
                assert!(covered as f64 <= 1.1 * truth as f64 + 2.0, "{region} at {p}: {covered} pixels for {truth}");
            }
        }
    }
}

/// Numbers of pixels in covers of boxes, by scheme: two boxes of a few pixels, boxes across a pole and a meridian, flat, high and
/// wide ones. Larger covers would be correct but slower to read.
#[test]
fn covers_of_boxes_have_no_more_pixels_than_before() {
    let boxes = [
        (10.0, 12.0, 20.0, 23.0),
        (40.0, 50.0, 30.0, 40.0),
        (350.0, 371.0, -7.0, 11.0),
        (80.0, 100.0, 70.0, 82.0),
        (130.0, 170.0, 60.0, 61.0),
        (200.0, 290.0, -75.0, -40.0),
        (10.0, 300.0, -31.0, -28.0),
        (100.0, 280.0, 84.0, 90.0),
        (0.0, 360.0, -90.0, -80.0),
        (301.0, 302.0, -60.0, 60.0),
    ];
    let found = Scheme::ALL.map(|scheme| {
        let counts = boxes.map(|(west, east, south, north)| {
            let cover = |level: u32| lonlat_box(west, east, south, north).cover(&pixelization(scheme, level));
            [2, 4, 6].map(|level| pixel_count(&cover(level).expect("cover"))).iter().sum::<u64>()
        });
        (scheme, counts)
    });
    let known = [
        (Scheme::Mq3c, [12, 84, 248, 58, 41, 1194, 842, 59, 220, 232]),
        (Scheme::Q3c, [9, 155, 162, 38, 38, 1235, 868, 39, 136, 172]),
        (Scheme::Htm, [14, 61, 439, 106, 52, 1508, 1054, 100, 384, 276]),
        (Scheme::Healpix, [21, 151, 558, 114, 75, 2312, 1441, 121, 472, 376]),
    ];
    assert_eq!(found, known);
}

#[test]
fn covers_are_sorted_and_have_gaps() {
    for scheme in Scheme::ALL {
        let p = pixelization(scheme, 9);
        let ranges = circle(33.0, 44.0, 7.0).cover(&p).expect("cover");
        assert!(ranges.len() > 10);
        assert!(ranges.windows(2).all(|w| w[0].last + 1 < w[1].first));
        let sky = p.index_range();
        assert!(ranges.iter().all(|r| r.first <= r.last && sky.contains(r.first) && sky.contains(r.last)));
        let pixels = ranges.iter().flat_map(|r| r.first..=r.last);
        let covered: f64 = pixels.map(|i| p.pixel_area(i).expect("pixel")).sum();
        let area = circle(33.0, 44.0, 7.0).area_sr();
        assert!(covered >= area && covered < 1.06 * area, "{p}: {covered} for {area}");
    }
}

#[test]
fn the_whole_sky_is_one_range_at_every_level() {
    let circle = circle(0.0, 0.0, 180.0);
    for region in [circle, lonlat_box(0.0, 360.0, -90.0, 90.0), lonlat_box(-20.0, 340.0, -90.0, 90.0)] {
        for scheme in Scheme::ALL {
            for level in [0, 1, 12, scheme.level_max()] {
                let p = pixelization(scheme, level);
                assert_eq!(region.cover_limited(&p, 1), vec![p.index_range()], "{region} {p}");
                assert_eq!(region.cover(&p), Ok(vec![p.index_range()]), "{region} {p}");
            }
        }
    }
}

#[test]
fn a_cover_beyond_reason_can_be_limited() {
    let region = circle(10.0, 20.0, 60.0);
    let p = pixelization(Scheme::Htm, 24);
    let limited = region.cover_limited(&p, 100);
    assert!(limited.len() <= 100);
    let share = pixel_count(&limited) as f64 / p.index_range().len() as f64;
    let exact = region.area_sr() / (4.0 * PI);
    assert!(share >= exact && share < 1.25 * exact, "{share} for {exact}");
}

#[test]
fn a_limited_cover_of_a_box_is_refined_at_its_border_alone() {
    // All pixels of HEALPix have the same size, so the share of pixels is the share of the area.
    let p = pixelization(Scheme::Healpix, 20);
    for region in [lonlat_box(10.0, 70.0, -20.0, 40.0), lonlat_box(10.0, 270.0, -20.0, 40.0)] {
        let limited = region.cover_limited(&p, 1_000);
        assert!(limited.len() <= 1_000);
        let share = pixel_count(&limited) as f64 / p.index_range().len() as f64;
        let exact = region.area_sr() / (4.0 * PI);
        // Pixels of one size over the whole box, within this limit, would cover 1.03 of its area.
        assert!(share >= exact && share < 1.01 * exact, "{region}: {share} for {exact}");
    }
}

#[test]
fn the_cap_of_a_polygon_near_a_hemisphere_holds_the_edges_beyond_its_vertices() {
    // Vertices concentrated at one meridian move the centre there, and the longest edge passes behind the sphere.
    let ras = [0.0, 10.0, 20.0, 30.0, 40.0, 140.0, 260.0];
    let region = Region::polygon(&ras.map(|ra| (ra, 0.1))).expect("nearly a hemisphere");
    let cap = region.bounding_cap();
    let points = (0..3_600).flat_map(|ra| [0.1, 0.15, 1.0, 80.0].map(|dec| (0.1 * f64::from(ra), dec)));
    let held: Vec<_> = points.filter(|(ra, dec)| region.contains(*ra, *dec)).collect();
    assert!(held.len() > 3_600);
    assert!(held.iter().all(|(ra, dec)| cap.contains(*ra, *dec)), "{cap}");
}

#[test]
fn a_limit_that_is_not_needed_changes_nothing() {
    let region = lonlat_box(10.0, 10.25, -5.0, -4.75);
    for scheme in Scheme::ALL {
        let p = pixelization(scheme, 10);
        let full = region.cover(&p).expect("cover");
        assert_eq!(region.cover_limited(&p, 1_000), full);
        let fewer = region.cover_limited(&p, full.len() - 1);
        assert_eq!(fewer.len(), full.len() - 1);
        assert!(full.iter().all(|r| covers(&fewer, r.first) && covers(&fewer, r.last)));
    }
}

#[test]
fn boxes_wrap_and_close_at_the_poles() {
    let wrap = lonlat_box(350.0, 10.0, -1.0, 1.0);
    for ra in [350.0, 355.0, 360.0, 0.0, 10.0, -10.0, 370.0, -1e-13] {
        assert!(wrap.contains(ra, 0.0), "{ra}");
    }
    for ra in [349.999, 10.001, 180.0, f64::NAN] {
        assert!(!wrap.contains(ra, 0.0), "{ra}");
    }
    for same in [lonlat_box(-10.0, 10.0, -1.0, 1.0), lonlat_box(350.0, 370.0, -1.0, 1.0)] {
        assert!(same.contains(350.0, 1.0) && same.contains(10.0, -1.0) && !same.contains(11.0, 0.0));
        assert!((same.area_sr() - wrap.area_sr()).abs() < 1e-16);
    }
    let to_360 = lonlat_box(350.0, 360.0, 0.0, 1.0);
    assert!(to_360.contains(0.0, 0.0) && to_360.contains(360.0, 0.0) && !to_360.contains(0.001, 0.0));
    let polar = lonlat_box(0.0, 10.0, 80.0, 90.0);
    assert!(polar.contains(200.0, 90.0) && !polar.contains(200.0, 90.0f64.next_down()));
    let point = lonlat_box(12.5, 12.5, 3.0, 3.0);
    assert!(point.contains(12.5, 3.0) && !point.contains(12.5f64.next_up(), 3.0));
    assert_eq!(point.area_sr(), 0.0);
}

#[test]
fn circles_of_extreme_radius_are_exact() {
    let point = circle(12.3, 45.6, 0.0);
    assert!(point.contains(12.3, 45.6));
    assert!(!point.contains(12.3, 45.6f64.next_up()) && !point.contains(12.300_000_000_000_1, 45.6));
    let tiny = circle(12.3, 0.0, 1e-9);
    assert!(tiny.contains(12.3, 0.99e-9) && !tiny.contains(12.3, 1.01e-9));
    assert!(circle(0.0, 90.0, 180.0).contains(17.0, -90.0));
    assert!(circle(0.0, 90.0, 90.0).contains(17.0, 0.0));
    assert!(circle(0.0, 90.0, 1.0).contains(211.0, 89.0) && !circle(0.0, 90.0, 1.0).contains(211.0, 88.999));
}

#[test]
fn polygons_are_closed_convex_and_either_way_round() {
    let square = [(10.0, -1.0), (12.0, -1.0), (12.0, 1.0), (10.0, 1.0)];
    let mut back = square;
    back.reverse();
    let closed: Vec<_> = square.iter().copied().chain([square[0]]).collect();
    for vertices in [&square[..], &back[..], &closed[..]] {
        let region = Region::polygon(vertices).expect("square");
        assert!(square.iter().all(|&(ra, dec)| region.contains(ra, dec)));
        assert!(region.contains(11.0, 0.0));
        // Great circles between equal declinations curve towards the pole.
        assert!(region.contains(11.0, 1.0) && region.contains(11.0, 1.000_1) && !region.contains(11.0, 1.001));
        assert!(!region.contains(13.0, 0.0) && !region.contains(191.0, 0.0) && !region.contains(11.0, -89.0));
        let expected = lonlat_box(10.0, 12.0, -1.0, 1.0).area_sr();
        assert!((region.area_sr() / expected - 1.0).abs() < 2e-4);
    }
    let octant = Region::polygon(&[(0.0, 0.0), (90.0, 0.0), (0.0, 90.0)]).expect("octant");
    // Points in the planes y = 0 and z = 0 are exact in doubles.
    assert!(octant.contains(45.0, 0.0) && octant.contains(0.0, 45.0) && !octant.contains(45.0, -1e-15));
    assert!((octant.area_sr() - PI / 2.0).abs() < 1e-15);
    // A vertex on a straight edge is allowed.
    assert!(Region::polygon(&[(10.0, 0.0), (11.0, 0.0), (12.0, 0.0), (11.0, 1.0)]).is_ok());
}

#[test]
fn neighbouring_polygons_leave_no_gap() {
    let (a, b) = ((10.123, -3.3), (10.777, 4.4));
    let left = Region::polygon(&[a, b, (8.0, 0.0)]).expect("triangle");
    let right = Region::polygon(&[a, b, (13.0, 0.0)]).expect("triangle");
    let mut both = 0;
    for i in 0..=10_000 {
        let (ra, dec) = offset(a.0, a.1, 7.5 * f64::from(i) / 10_000.0, 4.85);
        let held = (left.contains(ra, dec), right.contains(ra, dec));
        assert!(held.0 || held.1, "{ra} {dec} is in neither");
        both += i32::from(held.0 && held.1);
    }
    assert!(both < 10_000);
}

#[test]
fn what_is_no_region_is_refused() {
    assert!(matches!(Region::circle(0.0, 91.0, 1.0), Err(SkyError::BadPosition { .. })));
    for radius in [-1e-9, 180.1, f64::NAN, f64::INFINITY] {
        assert!(matches!(Region::circle(0.0, 0.0, radius), Err(SkyError::BadRadius { .. })));
    }
    for (a, b, c, d) in [
        (0.0, 1.0, 2.0, 1.0),
        (0.0, 1.0, -91.0, 1.0),
        (0.0, 1.0, 0.0, 90.1),
        (f64::NAN, 1.0, 0.0, 1.0),
        (0.0, f64::INFINITY, 0.0, 1.0),
        (0.0, 1.0, f64::NAN, 1.0),
    ] {
        assert!(matches!(Region::lonlat_box(a, b, c, d), Err(SkyError::BadBox { .. })), "{a} {b} {c} {d}");
    }
    let refused = |vertices: &[(f64, f64)]| Region::polygon(vertices).expect_err("no polygon");
    assert!(matches!(refused(&[(0.0, 0.0), (1.0, 0.0)]), SkyError::VertexCount { count: 2, .. }));
    assert!(matches!(refused(&[(0.0, 0.0), (1.0, 0.0), (0.0, 0.0)]), SkyError::VertexCount { count: 2, .. }));
    assert!(matches!(refused(&vec![(0.0, 0.0); 5000]), SkyError::VertexCount { .. }));
    assert!(matches!(
        refused(&[(0.0, 0.0), (1.0, 0.0), (1.0, 0.0), (0.0, 1.0)]),
        SkyError::BadEdge { vertex: 1, next: 2 }
    ));
    assert!(matches!(refused(&[(0.0, 0.0), (180.0, 0.0), (0.0, 45.0)]), SkyError::BadEdge { .. }));
    assert!(matches!(refused(&[(0.0, 0.0), (4.0, 0.0), (4.0, 4.0), (3.0, 1.0)]), SkyError::NotConvex { .. }));
    assert!(matches!(refused(&[(0.0, 0.0), (10.0, 0.0), (20.0, 0.0)]), SkyError::Flat));
    // Turns left at each vertex, yet goes around twice.
    let star: Vec<_> = (0..5).map(|i| offset(50.0, 20.0, 3.0, 144.0 * f64::from(i))).collect();
    assert!(matches!(refused(&star), SkyError::NotConvex { .. }));
    // Vertices distributed over the whole sphere.
    assert!(matches!(
        refused(&[(0.0, -60.0), (90.0, 60.0), (180.0, -60.0), (270.0, 60.0)]),
        SkyError::NotConvex { .. }
    ));
    assert!(matches!(refused(&[(0.0, 0.0), (1.0, f64::NAN), (0.0, 1.0)]), SkyError::BadPosition { row: Some(1), .. }));
}

#[test]
fn contains_many_names_the_bad_row() {
    let region = circle(0.0, 0.0, 1.0);
    assert!(matches!(
        region.contains_many(&[0.0, 1.0], &[0.0, f64::NAN]),
        Err(SkyError::BadPosition { row: Some(1), .. })
    ));
    assert!(matches!(region.contains_many(&[0.0], &[]), Err(SkyError::LengthMismatch { .. })));
}

#[test]
fn regions_print_and_compare_as_given() {
    assert_eq!(circle(1.0, 2.5, 0.25).to_string(), "circle(1.0, 2.5, 0.25)");
    assert_eq!(lonlat_box(350.0, 10.0, -1.0, 1.0).to_string(), "box(350.0, 10.0, -1.0, 1.0)");
    let triangle = Region::polygon(&[(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)]).expect("triangle");
    assert_eq!(triangle.to_string(), "polygon([(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)])");
    assert_eq!(circle(1.0, 2.0, 3.0), circle(1.0, 2.0, 3.0));
    assert_ne!(circle(1.0, 2.0, 3.0), circle(1.0, 2.0, 3.5));
}

fn any_small_region() -> impl Strategy<Value = Region> {
    prop_oneof![
        (any_position(), any_radius()).prop_map(|((ra, dec), radius)| circle(ra, dec, radius.min(60.0))),
        (any_position(), any_radius(), any_radius())
            .prop_map(|((ra, dec), width, height)| { lonlat_box(ra, ra + width, (dec - height).max(-90.0), dec) }),
        (any_position(), any_radius(), prop::collection::vec(0.0..360.0, 3..7)).prop_filter_map(
            "flat",
            |((ra, dec), radius, mut bearings)| {
                bearings.sort_by(f64::total_cmp);
                let vertices: Vec<_> = bearings.iter().map(|b| offset(ra, dec, radius.clamp(1e-4, 40.0), *b)).collect();
                Region::polygon(&vertices).ok()
            }
        ),
    ]
}

proptest! {
    #[test]
    fn a_cover_around_a_region_misses_no_point_within_reach(
        region in any_small_region(),
        reach in prop_oneof![Just(0.0), (-4.0..1.0).prop_map(|log: f64| 10f64.powf(log)), 0.0..60.0],
        (scheme, fineness) in (any_scheme(), 0.0..1.0),
        bearings in prop::collection::vec((0.0..360.0, 0.0..1.0), 1..8),
        inner in (0.0..360.0, 0.0..1.0),
    ) {
        let Shape::Circle { ra, dec, radius_deg } = region.bounding_cap().shape().clone() else { unreachable!() };
        let pixels = pixelization(scheme, level_for(scheme, radius_deg + reach, fineness));
        let cover = region.cover_around(&pixels, reach, 512);
        let corner = match region.shape() {
            Shape::Polygon { vertices } => vertices[0],
            Shape::Box { ra_max, dec_max, .. } => (*ra_max, *dec_max),
            _ => (ra, dec),
        };
        let inner = offset(ra, dec, radius_deg * inner.1, inner.0);
        for point in [corner, inner, (ra, dec)].into_iter().filter(|(ra, dec)| region.contains(*ra, *dec)) {
            for (bearing, share) in &bearings {
                for distance in [reach, reach * share] {
                    // Slightly less, since the point is rounded.
                    let (ra, dec) = offset(point.0, point.1, distance * (1.0 - 1e-9), *bearing);
                    let index = pixels.index(ra, dec).expect("position");
                    prop_assert!(covers(&cover, index), "{ra} {dec} within {distance} of {point:?} in {region}");
                }
            }
        }
    }
}

#[test]
fn a_reach_of_45_degrees_is_the_last_that_is_not_the_whole_sky() {
    for scheme in Scheme::ALL {
        let p = pixelization(scheme, 4);
        let around = |reach: f64| circle(30.0, 20.0, 1.0).cover_around(&p, reach, 10_000);
        assert!(pixel_count(&around(45.0)) < p.index_range().len() / 3);
        assert_eq!(around(45.0f64.next_up()), vec![p.index_range()]);
    }
}

#[test]
fn covers_around_a_region_are_tight() {
    // The area of a cap around the region and its surroundings, against which a cover of all right ascensions would be too large.
    // Near a pole a box needs slightly more of it, since the meridians tangent to the surroundings diverge.
    for (ra, dec) in [(10.3, -5.2_f64), (200.0, 61.0), (77.0, -83.0)] {
        let half = 0.5 / dec.to_radians().cos();
        let corners = [45.0, 135.0, 225.0, 315.0].map(|bearing| offset(ra, dec, 0.7, bearing));
        for region in [
            circle(ra, dec, 0.7),
            lonlat_box(ra - half, ra + half, dec - 0.5, dec + 0.5),
            Region::polygon(&corners).expect("square"),
        ] {
            for (scheme, reach) in
                Scheme::ALL.into_iter().flat_map(|scheme| [(scheme, 0.1), (scheme, 1.0), (scheme, 5.0)])
            {
                let p = pixelization(scheme, 10);
                let covered = pixel_count(&region.cover_around(&p, reach, 10_000)) as f64;
                let around = circle(ra, dec, 0.75 + reach).area_sr() / (4.0 * PI) * p.index_range().len() as f64;
                assert!(covered < 2.0 * around, "{region} and {reach} degrees around at {p}: {covered} for {around}");
            }
        }
    }
}
