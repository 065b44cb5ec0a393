//! Reads of points that are stored in memory.

use std::sync::{Arc, Mutex};

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray};
use chronotile_archive::{Archive, WriteOptions};
use chronotile_historian::rules::Settings;
use chronotile_historian::{DataType, Historian, HistorianOptions, PointFilter, PointsOptions, Tag, TagKey};
use chronotile_memory::MemoryStore;

fn tag() -> Tag {
    Tag {
        number: 0,
        name: "t".to_owned(),
        unit: String::new(),
        description: String::new(),
        group: "default".to_owned(),
        data_type: DataType::Float,
        settings: Settings { sloped_extrapolation: true, ..Settings::default() },
        exception_deviation: -1.0,
        compression_deviation: -1.0,
    }
}

#[tokio::test]
async fn a_slope_goes_on_from_a_range_that_begins_at_the_last_point() {
    let archive = Archive::on("test:", Arc::new(MemoryStore::new()));
    let historian = Historian::open(archive, HistorianOptions::default()).await.unwrap();
    let number = historian.define(vec![tag()]).await.unwrap()[0].number;
    let columns: [(&str, ArrayRef); 3] = [
        ("tag", Arc::new(Int64Array::from(vec![number; 2]))),
        ("time", Arc::new(TimestampNanosecondArray::from(vec![0, 10]).with_timezone("UTC"))),
        ("value", Arc::new(Float64Array::from(vec![0.0, 10.0]))),
    ];
    let points = RecordBatch::try_from_iter(columns).unwrap();
    historian.write(vec![points], &PointsOptions::default()).await.unwrap();
    let found = historian.at(&[TagKey::Number(number)], &[10, 20], None).await.unwrap();
    let values: Vec<f64> =
        found.iter().flat_map(|batch| batch["value"].as_primitive::<Float64Type>().values().to_vec()).collect();
    assert_eq!(values, [10.0, 20.0]);
}

#[tokio::test]
async fn names_without_a_tag_leave_no_gap_in_a_page() {
    let store = Arc::new(MemoryStore::new());
    let open =
        async || Historian::open(Archive::on("test:", store.clone()), HistorianOptions::default()).await.unwrap();
    let historian = open().await;
    let tags = ["a.3", "a.4", "a.5"].map(|name| Tag { name: name.to_owned(), number: -1, ..tag() });
    historian.define(tags.to_vec()).await.unwrap();
    // A crash between listing and definition leaves such names.
    let listed: [(&str, ArrayRef); 2] = [
        ("name", Arc::new(StringArray::from(vec!["a.1", "a.2"]))),
        ("time", Arc::new(TimestampNanosecondArray::from(vec![0, 0]).with_timezone("UTC"))),
    ];
    let names = historian.archive().dataset("historian_names").await.unwrap();
    names.write([Ok(RecordBatch::try_from_iter(listed).unwrap())], WriteOptions::default()).await.unwrap();
    for (limit, expected) in
        [(1, &["a.3"][..]), (2, &["a.3", "a.4"]), (3, &["a.3", "a.4", "a.5"]), (9, &["a.3", "a.4", "a.5"]), (0, &[])]
    {
        // A new historian has no definitions in its cache, so it reads the list.
        let found = open().await.find("a.*", limit).await.unwrap();
        assert_eq!(found.iter().map(|tag| tag.name.as_str()).collect::<Vec<_>>(), expected, "{limit}");
    }
}

#[tokio::test]
async fn a_filter_keeps_its_points_if_a_call_fails() {
    let archive = Archive::on("test:", Arc::new(MemoryStore::new()));
    let historian = Historian::open(archive, HistorianOptions::default()).await.unwrap();
    historian.define(vec![Tag { compression_deviation: 0.1, ..tag() }]).await.unwrap();
    let points = |points: &[(i64, f64)]| {
        let (times, values): (Vec<i64>, Vec<f64>) = points.iter().copied().unzip();
        let columns: [(&str, ArrayRef); 3] = [
            ("tag", Arc::new(StringArray::from(vec!["t"; times.len()]))),
            ("time", Arc::new(TimestampNanosecondArray::from(times).with_timezone("UTC"))),
            ("value", Arc::new(Float64Array::from(values))),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    };
    let values = |batch: &RecordBatch| batch["value"].as_primitive::<Float64Type>().values().to_vec();
    let filter = Mutex::new(PointFilter::default());
    let passed = historian.filter(&filter, vec![points(&[(0, 0.0), (10, 10.0)])]).await.unwrap();
    assert_eq!(values(&passed[0]), [0.0]);
    // The first batch ends the line, so it would release the point that is held back.
    let (off, unknown) = (points(&[(20, -50.0)]), points(&[(30, 0.0)]).project(&[0, 1]).unwrap());
    assert!(historian.filter(&filter, vec![off.clone(), unknown]).await.is_err());
    let passed = historian.filter(&filter, vec![off]).await.unwrap();
    assert_eq!(values(&passed[0]), [10.0]);
    assert_eq!(values(&filter.lock().unwrap().finish().unwrap()), [-50.0]);
}
