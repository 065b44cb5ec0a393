//! Records that move across pixel edges: a read of a region returns their newest version if that is in the region, as a model
//! predicts.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use chronotile_archive::{ArchiveError, CellSelection, ConsolidateOptions, Dataset, ReadRequest, WriteOptions};
use chronotile_memory::MemoryStore;
use chronotile_sky::Region;
use chronotile_store::Store;
use chronotile_types::{CellRule, DatasetSpec, MergeRule};
use futures::TryStreamExt;
use proptest::prelude::*;

use crate::common::{create, write};

const ARCSEC: f64 = 1.0 / 3_600.0;
/// Maximum distance between versions of a record, in degrees.
const MOVES: f64 = 5.0 * ARCSEC;

fn spec(level: u8, moves_deg: f64, version: Option<&str>) -> DatasetSpec {
    let field = |name: &str, kind: DataType| Field::new(name, kind, false);
    DatasetSpec {
        schema: Arc::new(Schema::new(vec![
            field("id", DataType::Int64),
            field("t", DataType::Timestamp(TimeUnit::Microsecond, None)),
            field("ra", DataType::Float64),
            field("dec", DataType::Float64),
            field("version", DataType::Int64),
        ])),
        cell: CellRule::Sky { ra: "ra".into(), dec: "dec".into(), scheme: "mq3c".into(), level },
        merge: MergeRule::Latest { version: version.map(str::to_owned) },
        moves_deg,
        ..crate::common::spec()
    }
}

/// One version of a record.
#[derive(Clone, Copy, Debug)]
struct Row {
    id: i64,
    t: i64,
    ra: f64,
    dec: f64,
    version: i64,
}

fn batch(rows: &[Row]) -> RecordBatch {
    let whole = |get: fn(&Row) -> i64| -> ArrayRef { Arc::new(rows.iter().map(get).collect::<Int64Array>()) };
    let real = |get: fn(&Row) -> f64| -> ArrayRef {
        Arc::new(rows.iter().map(|row| Some(get(row))).collect::<Float64Array>())
    };
    let t: ArrayRef = Arc::new(TimestampMicrosecondArray::from(rows.iter().map(|row| row.t).collect::<Vec<_>>()));
    let columns = [("id", whole(|r| r.id)), ("t", t), ("ra", real(|r| r.ra)), ("dec", real(|r| r.dec))];
    RecordBatch::try_from_iter(columns.into_iter().chain([("version", whole(|r| r.version))])).unwrap()
}

async fn read(dataset: &Dataset, region: &Region) -> BTreeMap<i64, (i64, f64)> {
    let request = ReadRequest { cells: CellSelection::Region(region.clone()), ..ReadRequest::default() };
    let count = dataset.count(request.clone()).await.unwrap();
    let rows: Vec<RecordBatch> = dataset.read(request).await.unwrap().try_collect().await.unwrap();
    let mut found = BTreeMap::new();
    for rows in rows {
        let (id, version) = (rows.column(0).as_primitive::<Int64Type>(), rows.column(4).as_primitive::<Int64Type>());
        let ra = rows.column(2).as_primitive::<Float64Type>();
        for row in 0..rows.num_rows() {
            assert_eq!(found.insert(id.value(row), (version.value(row), ra.value(row))), None, "an id came twice");
        }
    }
    assert_eq!(found.len() as u64, count);
    found
}

/// The point at an offset in arc seconds from a position far from the poles.
fn beside(ra: f64, dec: f64, east: f64, north: f64) -> (f64, f64) {
    (ra + east * ARCSEC / (dec.to_radians().cos()), dec + north * ARCSEC)
}

#[derive(Debug, Clone)]
struct World {
    level: u8,
    versioned: bool,
    center: (f64, f64),
    /// For each write: ids of records, and offsets of their versions in arc seconds.
    writes: Vec<Vec<(i64, f64, f64)>>,
    /// Number of the write after which to consolidate, if any.
    consolidate: Option<usize>,
    /// Half the width of the region in arc seconds, and its shape.
    region: (f64, u8),
}

fn worlds() -> impl Strategy<Value = World> {
    // A pixel of level 16 is 5 arc seconds wide, one of level 12 an arc minute.
    let write = prop::collection::vec((0..12_i64, -1.7..1.7_f64, -1.7..1.7_f64), 1..8);
    (
        12..17_u8,
        any::<bool>(),
        (0.0..360.0_f64, -60.0..60.0_f64),
        prop::collection::vec(write, 1..6),
        prop::option::of(0..5_usize),
        (0.5..12.0_f64, 0..3_u8),
    )
        .prop_map(|(level, versioned, center, writes, consolidate, region)| World {
            level,
            versioned,
            center,
            writes,
            consolidate,
            region,
        })
}

fn region(world: &World) -> Region {
    let ((ra, dec), (half, shape)) = (world.center, world.region);
    let (east, north) = beside(ra, dec, half, half);
    let (west, south) = (2.0 * ra - east, 2.0 * dec - north);
    match shape {
        0 => Region::circle(ra, dec, half * ARCSEC).unwrap(),
        1 => Region::lonlat_box(west, east, south, north).unwrap(),
        _ => Region::polygon(&[(west, south), (east, south), (east, north), (west, north)]).unwrap(),
    }
}

async fn check(world: World) -> std::result::Result<(), TestCaseError> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let version = world.versioned.then_some("version");
    let dataset = create(&store, spec(world.level, MOVES, version)).await;
    let mut newest: BTreeMap<i64, Row> = BTreeMap::new();
    for (number, write_rows) in world.writes.iter().enumerate() {
        let mut rows: BTreeMap<i64, Row> = BTreeMap::new();
        for &(id, east, north) in write_rows {
            // Records are on a spiral of some arc seconds; their versions within 2.5 arc seconds of their positions.
            let (angle, radius) = (id as f64 * 2.4, id as f64);
            let (east, north) = (east + radius * angle.cos(), north + radius * angle.sin());
            let (ra, dec) = beside(world.center.0, world.center.1, east, north);
            let t = (number as i64 * 7 + id) % 5 * crate::common::HOUR;
            rows.insert(id, Row { id, t, ra: ra.rem_euclid(360.0), dec, version: number as i64 });
        }
        let rows: Vec<Row> = rows.into_values().collect();
        write(&dataset, &batch(&rows), WriteOptions::default()).await.unwrap();
        newest.extend(rows.into_iter().map(|row| (row.id, row)));
        if world.consolidate == Some(number) {
            dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
        }
        let region = region(&world);
        let wanted: BTreeMap<i64, (i64, f64)> = newest
            .values()
            .filter(|row| region.contains(row.ra, row.dec))
            .map(|row| (row.id, (row.version, row.ra)))
            .collect();
        prop_assert_eq!(read(&dataset, &region).await, wanted);
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_region_returns_the_newest_versions_within_it(world in worlds()) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(check(world))?;
    }
}

#[tokio::test]
async fn an_older_definition_is_read_and_given_a_bound() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec(16, 0.0, None)).await;
    // Moves across a pixel edge at ra 45.
    for (number, ra) in [45.0 - ARCSEC, 45.0 + ARCSEC].into_iter().enumerate() {
        let row = Row { id: 1, t: 0, ra, dec: 0.001, version: number as i64 };
        write(&dataset, &batch(&[row]), WriteOptions::default()).await.unwrap();
    }
    let left = Region::circle(45.0 - ARCSEC, 0.001, 0.5 * ARCSEC).unwrap();
    assert_eq!(read(&dataset, &left).await.len(), 1, "records that move need a bound");
    dataset.set_moves(2.5 * ARCSEC).await.unwrap();
    for dataset in [dataset, crate::common::open(&store, "records").await] {
        assert_eq!(read(&dataset, &left).await.len(), 0);
        let history =
            ReadRequest { cells: CellSelection::Region(left.clone()), history: true, ..ReadRequest::default() };
        let rows: Vec<RecordBatch> = dataset.read(history).await.unwrap().try_collect().await.unwrap();
        assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 1);
        assert_eq!(dataset.spec().moves_deg, 2.5 * ARCSEC);
    }
}

#[tokio::test]
async fn an_invalid_bound_is_refused() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let archive = chronotile_archive::Archive::on("test:", store.clone());
    for moves_deg in [-1.0, 10.1, f64::NAN, f64::INFINITY] {
        let error = archive.create(spec(10, moves_deg, None), false).await.unwrap_err();
        assert!(matches!(error, ArchiveError::Spec(_)), "{error}");
    }
    let still = DatasetSpec { merge: MergeRule::Append, ..spec(10, MOVES, None) };
    let error = archive.create(still, false).await.unwrap_err().to_string();
    assert!(error.contains("merge latest"), "{error}");
    let dataset = create(&store, crate::common::spec()).await;
    assert!(dataset.set_moves(MOVES).await.is_err());
    assert_eq!(dataset.spec().moves_deg, 0.0);
}
