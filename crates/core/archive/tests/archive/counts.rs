//! Counts by value and by window.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{ArrayRef, Date32Array, Float64Array, Int64Array, RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use chronotile_archive::memory::{Memory, MemoryError};
use chronotile_archive::{ArchiveError, Dataset, IndexBuildOptions, ReadRequest};
use chronotile_memory::MemoryStore;
use chronotile_store::Store;
use chronotile_types::{CellRule, DatasetSpec, TimeFormat, TimeScale, TimeSpec};

use crate::common::*;

async fn count_by(dataset: &Dataset, by: &[&str], by_window: bool) -> RecordBatch {
    let by: Vec<String> = by.iter().map(|name| (*name).to_owned()).collect();
    dataset.count_by(ReadRequest::default(), &by, by_window, None).await.unwrap().0
}

fn counts(rows: &RecordBatch) -> Vec<u64> {
    rows.column_by_name("count").unwrap().as_primitive::<UInt64Type>().values().to_vec()
}

fn names(rows: &RecordBatch) -> Vec<String> {
    rows.schema().fields().iter().map(|field| field.name().clone()).collect()
}

/// The first moment of a window is given in the type of the time column.
#[tokio::test]
async fn counts_by_window_name_each_window_by_its_first_moment_in_every_format() {
    let whole =
        |data_type: DataType, ticks: [i64; 3]| arrow_cast::cast(&Int64Array::from(ticks.to_vec()), &data_type).unwrap();
    let float = |days: [f64; 3]| Arc::new(Float64Array::from(days.to_vec())) as ArrayRef;
    let seconds = DataType::Timestamp(TimeUnit::Second, Some("UTC".into()));
    // Two rows lie in one window and one in another; the times, then the starts of the two windows.
    let cases: [(TimeFormat, &str, ArrayRef, ArrayRef); 5] = [
        (TimeFormat::Mjd, "6h", float([60_000.3, 60_000.49, 60_000.5]), float([60_000.25, 60_000.5, 0.0])),
        (TimeFormat::Jd, "6h", float([2_460_000.8, 2_460_000.9, 2_460_001.1]), float([2_460_000.75, 2_460_001.0, 0.0])),
        (
            TimeFormat::Timestamp,
            "1h",
            whole(seconds.clone(), [-3_599, -1, 3_601]),
            whole(seconds.clone(), [-3_600, 3_600, 0]),
        ),
        (
            TimeFormat::Timestamp,
            "10d",
            Arc::new(Date32Array::from(vec![-3, -1, 10])),
            Arc::new(Date32Array::from(vec![-10, 10, 0])),
        ),
        (
            TimeFormat::Timestamp,
            "1h",
            whole(DataType::Timestamp(TimeUnit::Nanosecond, None), [1, HOUR * 1_000 - 1, HOUR * 1_000]),
            whole(DataType::Timestamp(TimeUnit::Nanosecond, None), [0, HOUR * 1_000, 0]),
        ),
    ];
    for (format, window, times, starts) in cases {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let fields = vec![Field::new("t", times.data_type().clone(), true), Field::new("id", DataType::Int64, true)];
        let spec = DatasetSpec {
            schema: Arc::new(Schema::new(fields)),
            cell: CellRule::Single,
            time: TimeSpec { column: "t".into(), format, scale: TimeScale::Utc },
            window: window.parse().unwrap(),
            ..spec()
        };
        let dataset = create(&store, spec).await;
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let batch = RecordBatch::try_from_iter([("t", times.clone()), ("id", ids)]).unwrap();
        write(&dataset, &batch, named("a")).await.unwrap();
        dataset.create_index("by_id", &["id".to_owned()]).await.unwrap();
        for built in [false, true] {
            if built {
                dataset.build_indexes(&IndexBuildOptions::default(), None).await.unwrap();
            }
            let counted = count_by(&dataset, &[], true).await;
            assert_eq!(names(&counted), ["window", "count"]);
            assert_eq!((counted.column(0), counts(&counted)), (&starts.slice(0, 2), vec![2, 1]), "{format:?}");
        }
        // By the time itself as well, which then comes once.
        let counted = count_by(&dataset, &["t"], true).await;
        assert_eq!(
            (names(&counted), counted.column(1)),
            (["window", "t", "count"].map(str::to_owned).to_vec(), &times)
        );
    }
}

#[tokio::test]
async fn counts_have_a_column_for_each_that_is_asked_for_and_one_row_for_each_value() {
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        let nothing = count_by(&dataset, &["note", "tag"], true).await;
        assert_eq!(
            (names(&nothing), nothing.num_rows()),
            (["window", "note", "tag", "count"].map(str::to_owned).to_vec(), 0)
        );
        write(&dataset, &noted(&[(1, 1, 0), (2, 2, 1), (3, 3, 1)], "a"), named("a")).await.unwrap();
        write(&dataset, &noted(&[(4, 4, 1), (HOUR, 5, 0)], "b"), named("b")).await.unwrap();
        dataset.create_index("by_both", &["note".to_owned(), "tag".to_owned()]).await.unwrap();
        for built in [false, true] {
            if built {
                dataset.build_indexes(&IndexBuildOptions::default(), None).await.unwrap();
                // A tile that the index does not know is counted beside those that it does.
                write(&dataset, &noted(&[(HOUR + 1, 6, 1)], "a"), named("c")).await.unwrap();
            }
            let more = u64::from(built);
            let tagged = count_by(&dataset, &["tag", "note"], false).await;
            let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "a", "b"]));
            assert_eq!((integers(&tagged, "tag"), tagged.column(1)), (vec![0, 0, 1, 1], &texts));
            assert_eq!(counts(&tagged), [1, 1, 2 + more, 1]);
            let all: ArrayRef = Arc::new(UInt64Array::from(vec![5 + more]));
            assert_eq!(count_by(&dataset, &[], false).await.columns(), [all]);
            let by_window = count_by(&dataset, &["note"], true).await;
            assert_eq!(counts(&by_window), if built { vec![3, 1, 1, 1] } else { vec![3, 1, 1] });
        }
    }
}

#[tokio::test]
async fn names_of_the_result_cannot_be_counted_by_and_groups_are_bounded() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let fields = ["t", "id", "window", "count"].map(|name| match name {
        "t" => Field::new("t", DataType::Timestamp(TimeUnit::Microsecond, None), true),
        name => Field::new(name, DataType::Int64, true),
    });
    let schema = Arc::new(Schema::new(fields.to_vec()));
    let dataset = create(&store, DatasetSpec { schema: schema.clone(), cell: CellRule::Single, ..spec() }).await;
    let column = |values: &[i64]| Arc::new(Int64Array::from(values.to_vec())) as ArrayRef;
    let times = arrow_cast::cast(&column(&[1, 2, 3]), schema.field(0).data_type()).unwrap();
    let columns = vec![times, column(&[1, 2, 3]), column(&[7, 8, 8]), column(&[0, 0, 0])];
    write(&dataset, &RecordBatch::try_new(schema, columns).unwrap(), named("a")).await.unwrap();
    let counted = async |name: &str, by_window: bool, groups_max: Option<usize>| {
        dataset.count_by(ReadRequest::default(), &[name.to_owned()], by_window, groups_max).await
    };
    for (name, by_window) in [("count", false), ("count", true), ("window", true)] {
        let error = counted(name, by_window, None).await.unwrap_err().to_string();
        assert!(error.contains(&format!("column {name:?} cannot be grouped by")), "{error}");
    }
    let (rows, used) = counted("window", false, None).await.unwrap();
    assert_eq!((integers(&rows, "window"), counts(&rows)), (vec![7, 8], vec![1, 2]));
    assert_eq!(used.reason.as_deref(), Some("the dataset has no index"));
    assert_eq!(counted("id", true, Some(3)).await.unwrap().0.num_rows(), 3);
    dataset.create_index("by_id", &["id".to_owned()]).await.unwrap();
    for built in [false, true] {
        if built {
            dataset.build_indexes(&IndexBuildOptions::default(), None).await.unwrap();
        }
        let error = counted("id", false, Some(2)).await.unwrap_err();
        assert!(matches!(error, ArchiveError::TooManyGroups { groups_max: 2, .. }), "{error}");
    }
}

#[tokio::test]
async fn groups_are_charged_while_they_are_held() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let writer = create(&store, spec()).await;
    write(&writer, &spread_rows(0, 20_000, 2, "n"), named("a")).await.unwrap();
    writer.create_index("by_id", &["id".to_owned()]).await.unwrap();
    writer.build_indexes(&IndexBuildOptions::default(), None).await.unwrap();
    for (budget, suffices) in [(64 << 20, true), (1 << 20, false)] {
        let (archive, memory) = (archive(&store), Memory::new(budget));
        archive.limit_memory(memory.clone());
        let dataset = archive.dataset("records").await.unwrap();
        let counted = dataset.count_by(ReadRequest::default(), &["id".to_owned()], false, None).await;
        match counted {
            Ok((rows, used)) => {
                assert_eq!((rows.num_rows(), used.tiles_read, suffices), (20_000, 0, true));
            }
            Err(error) => {
                assert!(matches!(error, ArchiveError::Memory(MemoryError::TooLarge { .. })), "{error:?}");
                assert!(!suffices);
            }
        }
        assert_eq!(memory.bytes(), 0, "all of it is given back");
    }
}
