//! Pixels equal those of the reference packages, and their geometry is consistent.

use chronotile_sky::{PixelRange, Pixelization, Scheme, SkyError};
use proptest::prelude::*;

use crate::pixelization;

/// (scheme, level) of each column, and rows of (ra, dec, indices).
type Reference = (Vec<Pixelization>, Vec<(f64, f64, Vec<u64>)>);

fn reference() -> Reference {
    let mut lines = include_str!("reference.csv").lines();
    let columns = lines.next().expect("header").split(',').skip(2).map(|name| {
        let (scheme, level) = name.split_once(':').expect("scheme:level");
        pixelization(scheme.parse().expect("scheme"), level.parse().expect("level"))
    });
    let columns: Vec<_> = columns.collect();
    let rows = lines.map(|line| {
        let mut fields = line.split(',');
        let mut angle = || fields.next().expect("field").parse::<f64>().expect("number");
        let (ra, dec) = (angle(), angle());
        (ra, dec, fields.map(|f| f.parse().expect("index")).collect())
    });
    (columns, rows.collect())
}

#[test]
fn every_index_equals_the_reference() {
    let (columns, rows) = reference();
    assert!(rows.len() > 800 && columns.len() == 20, "reference.csv is cut short");
    for (ra, dec, indices) in &rows {
        for (p, &expected) in columns.iter().zip(indices) {
            assert_eq!(p.index(*ra, *dec), Ok(expected), "{p} at ra {ra:?} dec {dec:?}");
        }
    }
}

#[test]
fn many_points_get_the_same_pixels_as_one_by_one() {
    // Enough rows for several threads.
    let (columns, rows) = reference();
    let repeated = || (0..50).flat_map(|_| rows.iter());
    let ra: Vec<f64> = repeated().map(|r| r.0).collect();
    let dec: Vec<f64> = repeated().map(|r| r.1).collect();
    assert!(ra.len() > 40_000);
    for (column, p) in columns.iter().enumerate() {
        let expected: Vec<u64> = repeated().map(|r| r.2[column]).collect();
        let mut unsigned = vec![0; ra.len()];
        p.index_many_u64(&ra, &dec, &mut unsigned).expect("valid positions");
        assert_eq!(unsigned, expected, "{p}");
        let mut signed = vec![0; ra.len()];
        match p.index_many(&ra, &dec, &mut signed) {
            Ok(()) => assert!(signed.iter().zip(&expected).all(|(a, b)| *a as u64 == *b && *a >= 0)),
            Err(error) => {
                assert!(matches!(error, SkyError::IndexTooWide { scheme: Scheme::Mq3c, level: 30, level_max: 29 }));
            }
        }
    }
}

#[test]
fn what_is_no_position_is_refused_with_its_row() {
    let p = pixelization(Scheme::Mq3c, 10);
    for (ra, dec) in [
        (f64::NAN, 0.0),
        (f64::INFINITY, 0.0),
        (0.0, f64::NAN),
        (0.0, f64::NEG_INFINITY),
        (0.0, 90.0f64.next_up()),
        (0.0, -90.1),
    ] {
        assert!(matches!(p.index(ra, dec), Err(SkyError::BadPosition { row: None, .. })), "{ra} {dec}");
        for count in [3, 30_000] {
            let (mut ras, mut decs, mut out) = (vec![1.0; count], vec![2.0; count], vec![0; count]);
            (ras[count - 2], decs[count - 2]) = (ra, dec);
            let error = p.index_many(&ras, &decs, &mut out).expect_err("bad row");
            assert!(matches!(error, SkyError::BadPosition { row: Some(row), .. } if row == count - 2));
            assert!(error.to_string().starts_with(&format!("row {}", count - 2)));
        }
    }
    let error = p.index_many(&[1.0], &[1.0, 2.0], &mut [0]).expect_err("lengths differ");
    assert_eq!(error, SkyError::LengthMismatch { ra: 1, dec: 2, out: 1 });
}

#[test]
fn names_and_levels_are_checked() {
    for scheme in Scheme::ALL {
        assert_eq!(scheme.to_string().parse(), Ok(scheme));
        assert_eq!(scheme.name().to_uppercase().parse(), Ok(scheme));
        assert!(Pixelization::new(scheme, scheme.level_max()).is_ok());
        assert!(matches!(Pixelization::new(scheme, scheme.level_max() + 1), Err(SkyError::LevelOutOfRange { .. })));
    }
    assert!(matches!("s2".parse::<Scheme>(), Err(SkyError::UnknownScheme { name }) if name == "s2"));
}

#[test]
fn pixels_of_a_level_fill_the_sky_once() {
    for scheme in Scheme::ALL {
        for level in [0, 1, 3] {
            let p = pixelization(scheme, level);
            let PixelRange { first, last } = p.index_range();
            let area: f64 = (first..=last).map(|i| p.pixel_area(i).expect("pixel")).sum();
            assert!((area - 4.0 * std::f64::consts::PI).abs() < 1e-11, "{p}: {area}");
            for i in first..=last {
                let (ra, dec) = p.pixel_center(i).expect("pixel");
                assert_eq!(p.index(ra, dec), Ok(i), "centre of {i} of {p}");
            }
        }
        let p = pixelization(scheme, 3);
        let PixelRange { first, last } = p.index_range();
        for outside in [first.wrapping_sub(1), last + 1] {
            assert!(matches!(p.pixel_area(outside), Err(SkyError::NoSuchPixel { .. })));
            assert!(p.pixel_center(outside).is_err() && p.pixel_vertices(outside).is_err());
            assert!(p.parent(outside).is_err() && p.children(outside).is_err());
        }
    }
}

fn any_pixel() -> impl Strategy<Value = (Pixelization, u64)> {
    (prop::sample::select(Scheme::ALL.to_vec()), any::<u64>(), 0u32..=30).prop_map(|(scheme, pick, level)| {
        let p = pixelization(scheme, level.min(scheme.level_max()));
        let range = p.index_range();
        (p, range.first + pick % range.len())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_pixel_holds_its_centre_and_points_near_its_corners((p, index) in any_pixel()) {
        let (ra, dec) = p.pixel_center(index).expect("pixel");
        prop_assert_eq!(p.index(ra, dec), Ok(index));
        // Edges of coarse pixels are curved in degrees, and degrees do not resolve the deepest pixels.
        if (6..=20).contains(&p.level()) {
            for (corner_ra, corner_dec) in p.pixel_vertices(index).expect("pixel") {
                let turn = (corner_ra - ra + 540.0).rem_euclid(360.0) - 180.0;
                // At a pole the longitude of a corner is arbitrary.
                if corner_dec.abs() < 89.0 && dec.abs() < 89.0 && turn.abs() < 1.0 {
                    let inside = (ra + 0.98 * turn, dec + 0.98 * (corner_dec - dec));
                    prop_assert_eq!(p.index(inside.0, inside.1), Ok(index), "towards {} {}", corner_ra, corner_dec);
                }
            }
        }
    }

    #[test]
    fn parents_hold_their_children((p, index) in any_pixel()) {
        let (ra, dec) = p.pixel_center(index).expect("pixel");
        match p.parent(index).expect("pixel") {
            None => prop_assert_eq!(p.level(), 0),
            Some(parent) => {
                let coarser = pixelization(p.scheme(), p.level() - 1);
                prop_assert_eq!(coarser.index(ra, dec), Ok(parent));
                let children = coarser.children(parent).expect("pixel").expect("not the deepest");
                prop_assert!(children.contains(index) && children.len() == 4);
                let area: f64 = (children.first..=children.last).map(|i| p.pixel_area(i).expect("pixel")).sum();
                let whole = coarser.pixel_area(parent).expect("pixel");
                // Corners are rounded to 1e-16, and a pixel of the deepest level is 1e-9 wide.
                prop_assert!((area / whole - 1.0).abs() < 1e-5, "{} {}", area, whole);
            }
        }
    }

    #[test]
    fn whole_turns_do_not_change_the_pixel(ra in 0.0..360.0, dec in -90.0..90.0, turns in -3i32..=3) {
        for scheme in Scheme::ALL {
            let p = pixelization(scheme, 10);
            prop_assert_eq!(p.index(ra, dec), p.index(ra + 360.0 * f64::from(turns), dec));
        }
    }
}

#[test]
fn a_range_holds_its_ends_and_what_is_between() {
    let range = PixelRange { first: 5, last: 9 };
    assert!(range.contains(5) && range.contains(7) && range.contains(9));
    assert!(!range.contains(4) && !range.contains(10));
    assert_eq!(range.len(), 5);
}

#[test]
fn pixels_of_the_deepest_level_have_no_children_and_those_of_the_first_no_parent() {
    for scheme in Scheme::ALL {
        let deepest = pixelization(scheme, scheme.level_max());
        let PixelRange { first, last } = deepest.index_range();
        assert_eq!((deepest.children(first), deepest.children(last)), (Ok(None), Ok(None)));
        let above = pixelization(scheme, scheme.level_max() - 1).index_range();
        let above = pixelization(scheme, scheme.level_max() - 1).children(above.first);
        assert_eq!(above, Ok(Some(PixelRange { first, last: first + 3 })));
        let top = pixelization(scheme, 0);
        assert_eq!(top.parent(top.index_range().last), Ok(None));
    }
}
