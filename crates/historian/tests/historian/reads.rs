//! Reads of points that are stored in memory.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, TimestampNanosecondArray};
use chronotile_archive::Archive;
use chronotile_historian::rules::Settings;
use chronotile_historian::{DataType, Historian, HistorianOptions, PointsOptions, Tag, TagKey};
use chronotile_memory::MemoryStore;

#[tokio::test]
async fn a_slope_goes_on_from_a_range_that_begins_at_the_last_point() {
    let archive = Archive::on("test:", Arc::new(MemoryStore::new()));
    let historian = Historian::open(archive, HistorianOptions::default()).await.unwrap();
    let tag = Tag {
        number: 0,
        name: "t".to_owned(),
        unit: String::new(),
        description: String::new(),
        group: "default".to_owned(),
        data_type: DataType::Float,
        settings: Settings { sloped_extrapolation: true, ..Settings::default() },
        exception_deviation: -1.0,
        compression_deviation: -1.0,
    };
    let number = historian.define(vec![tag]).await.unwrap()[0].number;
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
