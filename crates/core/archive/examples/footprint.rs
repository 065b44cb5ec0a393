//! Times writing survey-shaped batches and reading a footprint, before and after consolidation.
//!
//! `cargo run --release -p chronotile-archive --example footprint [PATH]`: 150 visits over twelve months, each with 4 or 5
//! rows of 100 columns in each of 48 tiles; then the footprint of 12 tiles is read whole, 30 times.
#![allow(clippy::disallowed_methods)] // true time is what it measures

use std::sync::Arc;
use std::time::Instant;

use arrow_array::{
    ArrayRef, BooleanArray, Float32Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use arrow_schema::Schema;
use chronotile_archive::{Archive, CellSelection, ConsolidateOptions, Dataset, OpenOptions, ReadRequest, WriteOptions};
use chronotile_types::{CellRule, DatasetName, DatasetSpec, TimeFormat, TimeScale, TimeSpec};
use futures::TryStreamExt;

const TILES: i64 = 48;
const VISITS: i64 = 150;
const READ_TILES: i64 = 12;

struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 11) as f64) / (1u64 << 53) as f64
    }
}

fn visit(random: &mut Random, visit: i64) -> RecordBatch {
    let mut cells = Vec::new();
    for cell in 0..TILES {
        let rows = if random.next() < 0.5 { 4 } else { 5 };
        cells.extend(std::iter::repeat_n(cell, rows));
    }
    let n = cells.len();
    let mjd = 60_000.0 + visit as f64 * (360.0 / VISITS as f64);
    let mut columns: Vec<(String, ArrayRef)> = vec![
        ("cell".into(), Arc::new(Int64Array::from(cells))),
        ("mjd".into(), Arc::new(Float64Array::from(vec![mjd; n]))),
        ("id".into(), Arc::new(Int64Array::from_iter_values((0..n as i64).map(|i| visit * 1_000_000 + i)))),
        ("visit".into(), Arc::new(Int64Array::from(vec![visit; n]))),
        ("detector".into(), Arc::new(Int32Array::from(vec![(visit % 189) as i32; n]))),
        ("band".into(), Arc::new(StringArray::from(vec!["r"; n]))),
    ];
    for i in 0..14 {
        columns
            .push((format!("d{i}"), Arc::new(Float64Array::from_iter_values((0..n).map(|_| random.next() * 360.0)))));
    }
    for i in 0..65 {
        let value = |random: &mut Random| (i % 7 != 0 || random.next() < 0.8).then(|| (random.next() * 1000.0) as f32);
        let values: Vec<Option<f32>> = (0..n).map(|_| value(random)).collect();
        columns.push((format!("f{i}"), Arc::new(Float32Array::from(values))));
    }
    for i in 0..15 {
        let values: Vec<bool> = (0..n).map(|_| random.next() < 0.02).collect();
        columns.push((format!("b{i}"), Arc::new(BooleanArray::from(values))));
    }
    RecordBatch::try_from_iter(columns).expect("columns of equal length")
}

fn spec(schema: Arc<Schema>) -> DatasetSpec {
    let time = TimeSpec { column: "mjd".into(), format: TimeFormat::Mjd, scale: TimeScale::Tai };
    let name = DatasetName::new("sources").expect("a legal name");
    DatasetSpec {
        cell: CellRule::Value { column: "cell".into() },
        id: vec!["id".into()],
        ..DatasetSpec::new(name, schema, time, "30d".parse().expect("a duration"))
    }
}

async fn time_reads(dataset: &Dataset, label: &str) {
    let mut times = Vec::new();
    let mut rows = 0;
    for _ in 0..30 {
        let request = ReadRequest { cells: CellSelection::Cells((0..READ_TILES).collect()), ..Default::default() };
        let begun = Instant::now();
        let batches: Vec<RecordBatch> =
            dataset.read(request).await.expect("a read").try_collect().await.expect("undamaged chunks");
        times.push(begun.elapsed().as_secs_f64() * 1e3);
        rows = batches.iter().map(RecordBatch::num_rows).sum();
    }
    times.sort_by(f64::total_cmp);
    println!("{label}: {rows} rows, ms min {:.2} median {:.2} max {:.2}", times[0], times[15], times[29]);
}

#[tokio::main]
async fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = std::env::args().nth(1).unwrap_or_else(|| folder.path().join("footprint.db").display().to_string());
    let archive = Archive::open(&format!("sqlite:{path}"), &OpenOptions::default()).await.expect("an archive");
    let mut random = Random(1);
    let visits: Vec<RecordBatch> = (0..VISITS).map(|number| visit(&mut random, number)).collect();
    let dataset = archive.create(spec(visits[0].schema()), false).await.expect("a dataset");
    let begun = Instant::now();
    for (number, rows) in visits.into_iter().enumerate() {
        let options = WriteOptions { batch: Some(format!("visit-{number}")), ..Default::default() };
        dataset.write([Ok(rows)], options).await.expect("a write");
    }
    println!("write: {:.2} ms a visit", begun.elapsed().as_secs_f64() * 1e3 / VISITS as f64);
    time_reads(&dataset, "before").await;
    let begun = Instant::now();
    let report = dataset.consolidate(ConsolidateOptions::default(), None).await.expect("a consolidation");
    println!("consolidate: {:.0} ms, {report:?}", begun.elapsed().as_secs_f64() * 1e3);
    time_reads(&dataset, "after").await;
}
