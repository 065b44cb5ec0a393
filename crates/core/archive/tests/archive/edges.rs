//! Inputs and requests at the limits of what is valid.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, Date32Array, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray, UInt64Array,
};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use chronotile_archive::{
    Archive, ArchiveError, CellSelection, ConsolidateOptions, IndexBuildOptions, ReadRequest, RetireLimit, WriteOptions,
};
use chronotile_memory::MemoryStore;
use chronotile_store::{Commit, Decision, Expect, FaultyStore, Metered, Operation, RecordPut, Store};
use chronotile_types::{
    CellRule, DatasetName, DatasetSpec, Instant, Membership, MergeRule, SliceId, TimeFormat, TimeRange, TimeScale,
    TimeSpec,
};
use futures::TryStreamExt;

use crate::common::*;

#[tokio::test]
async fn nothing_written_reads_as_nothing_with_the_schema() {
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        for _ in 0..2 {
            let found = read_all(&dataset).await;
            assert_eq!((found.num_rows(), found.schema()), (0, spec().schema));
            let columns = Some(vec!["note".to_owned(), "t".to_owned()]);
            let found = read(&dataset, ReadRequest { columns, ..ReadRequest::default() }).await.unwrap();
            assert_eq!(found.schema().fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>(), ["note", "t"]);
            assert_eq!(dataset.count(ReadRequest::default()).await.unwrap(), 0);
            assert_eq!(dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap().tiles, 0);
            // The second round: after empty writes.
            assert_eq!(write(&dataset, &rows(&[]), WriteOptions::default()).await.unwrap().rows, 0);
            dataset.write(input([]), named("empty")).await.unwrap();
            dataset.write(input([rows(&[]), rows(&[])]), named("empty too")).await.unwrap();
        }
        assert!(!write(&dataset, &rows(&[]), named("empty")).await.unwrap().stored);
        assert!(dataset.batch("empty").await.unwrap().unwrap().finished);
        assert_sound(&dataset).await;
    }
}

#[tokio::test]
async fn a_column_that_is_given_twice_is_refused() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec()).await;
    let once = rows(&[(5, 1, 7)]);
    let fields =
        once.schema().fields().iter().chain(once.schema().fields().iter().take(1)).cloned().collect::<Vec<_>>();
    let columns = once.columns().iter().chain(once.columns().iter().take(1)).cloned().collect();
    let twice = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
    let refused = write(&dataset, &twice, named("a")).await.unwrap_err();
    assert!(
        matches!(&refused, ArchiveError::Input { column, .. } if column == once.schema().field(0).name()),
        "{refused}"
    );
    assert_eq!(dataset.count(ReadRequest::default()).await.unwrap(), 0);
}

#[tokio::test]
async fn unmerged_rows_come_as_often_as_chunks_hold_them() {
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        write(&dataset, &rows(&[(5, 1, 7), (6, 2, 8)]), named("a")).await.unwrap();
        write(&dataset, &rows(&[(5, 1, 7), (HOUR, 3, 7)]), named("b")).await.unwrap();
        for (time, expected) in [(TimeRange::default(), vec![1, 1, 2, 3]), (between(0, HOUR), vec![1, 1, 2])] {
            let request = ReadRequest { time, columns: Some(vec!["id".to_owned()]), ..ReadRequest::default() };
            assert_eq!(read(&dataset, request.clone()).await.unwrap().num_rows(), expected.len() - 1);
            let batches: Vec<RecordBatch> = dataset.read_unmerged(request).await.unwrap().try_collect().await.unwrap();
            let mut found: Vec<i64> = batches.iter().flat_map(ids).collect();
            found.sort_unstable();
            assert_eq!(found, expected);
        }
    }
}

#[tokio::test]
async fn rows_without_columns_are_still_counted() {
    let (store, _folder) = sqlite();
    let dataset = create(&store, spec()).await;
    write(&dataset, &spread_rows(0, 50, 3, ""), named("a")).await.unwrap();
    write(&dataset, &spread_rows(0, 75, 3, "again"), named("b")).await.unwrap();
    let none = ReadRequest { columns: Some(vec![]), ..ReadRequest::default() };
    assert_eq!(read(&dataset, none.clone()).await.unwrap().num_rows(), 75);
    let early = ReadRequest { time: between(0, HOUR), ..none };
    assert_eq!(read(&dataset, early.clone()).await.unwrap().num_rows() as u64, dataset.count(early).await.unwrap());
}

fn sky() -> DatasetSpec {
    let field = |name: &str, data_type| Field::new(name, data_type, true);
    DatasetSpec {
        schema: Arc::new(Schema::new(vec![
            field("mjd", DataType::Float64),
            field("id", DataType::Int64),
            field("ra", DataType::Float64),
            field("dec", DataType::Float64),
        ])),
        cell: CellRule::Sky { ra: "ra".into(), dec: "dec".into(), scheme: "healpix".into(), level: 6 },
        time: TimeSpec { column: "mjd".into(), format: TimeFormat::Mjd, scale: TimeScale::Tai },
        window: "30d".parse().unwrap(),
        ..spec()
    }
}

/// MJD, id, right ascension, declination.
type Position = (Option<f64>, Option<i64>, Option<f64>, Option<f64>);

fn positions(rows: &[Position]) -> RecordBatch {
    let float =
        |pick: fn(&Position) -> Option<f64>| -> ArrayRef { Arc::new(Float64Array::from_iter(rows.iter().map(pick))) };
    let ids: ArrayRef = Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.1)));
    RecordBatch::try_from_iter([
        ("mjd", float(|row| row.0)),
        ("id", ids),
        ("ra", float(|row| row.2)),
        ("dec", float(|row| row.3)),
    ])
    .unwrap()
}

#[tokio::test]
async fn a_sky_that_cannot_be_divided_so_is_refused_when_a_dataset_is_created() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mq3c = [("mq3c", 29, true), ("mq3c", 30, false)];
    for (scheme, level, sound) in
        [("healpix", 6, true), ("healpix", 200, false), ("circles", 6, false)].into_iter().chain(mq3c)
    {
        let (ra, dec) = ("ra".to_owned(), "dec".to_owned());
        let cell = CellRule::Sky { ra, dec, scheme: scheme.to_owned(), level };
        let name = DatasetName::new(format!("{scheme}_{level}")).unwrap();
        let created = archive(&store).create(DatasetSpec { name, cell, ..sky() }, false).await;
        assert_eq!(created.is_ok(), sound, "{scheme}, level {level}");
    }
}

#[tokio::test]
async fn a_row_that_cannot_be_placed_is_named_with_its_column() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, sky()).await;
    let good = (Some(60_000.0), Some(1), Some(10.0), Some(10.0));
    let bad = [
        ("mjd", (None, good.1, good.2, good.3)),
        ("mjd", (Some(f64::NAN), good.1, good.2, good.3)),
        ("mjd", (Some(f64::INFINITY), good.1, good.2, good.3)),
        ("mjd", (Some(1e300), good.1, good.2, good.3)),
        ("id", (good.0, None, good.2, good.3)),
        ("ra", (good.0, good.1, None, good.3)),
        ("ra", (good.0, good.1, Some(f64::NAN), good.3)),
        ("dec", (good.0, good.1, good.2, None)),
        ("dec", (good.0, good.1, good.2, Some(f64::NAN))),
        ("dec", (good.0, good.1, good.2, Some(90.001))),
    ];
    for (name, row) in bad {
        // The bad row is the third of the second input batch, the seventh in all.
        let batches = [positions(&[good; 4]), positions(&[good, good, row, good])];
        match dataset.write(input(batches), named("bad")).await {
            Err(error @ ArchiveError::Row { row: 6, .. }) => {
                let message = error.to_string();
                assert!(
                    message.starts_with(&format!("row 6 does not fit dataset records: column {name:?} ")),
                    "{message}"
                );
                assert_eq!(message.matches("row ").count(), 1, "{message}");
            }
            other => panic!("{row:?}: {other:?}"),
        }
    }
    assert_eq!(read_all(&dataset).await.num_rows(), 0);
    assert_eq!(dataset.batches().await.unwrap(), vec![]);
}

#[tokio::test]
async fn the_first_null_of_a_required_column_is_named_by_its_row_in_the_whole_input() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let nullable = sky();
    let required = nullable.schema.fields().iter().map(|field| Field::clone(field).with_nullable(false));
    let dataset =
        create(&store, DatasetSpec { schema: Arc::new(Schema::new(required.collect::<Vec<_>>())), ..nullable }).await;
    let good = (Some(60_000.0), Some(1), Some(10.0), Some(10.0));
    for (name, row) in [
        ("mjd", (None, good.1, good.2, good.3)),
        ("id", (good.0, None, good.2, good.3)),
        ("dec", (good.0, good.1, good.2, None)),
    ] {
        let batches = || [positions(&[good; 4]), positions(&[good, good, row, row])];
        for error in [
            dataset.write(input(batches()), named("bad")).await.map(|_| ()).unwrap_err(),
            dataset.content(input(batches())).map(|_| ()).unwrap_err(),
        ] {
            let message = error.to_string();
            let expected = format!(
                "row 6 does not fit dataset records: column {name:?} is null; every record needs a value: give one"
            );
            assert!(message.starts_with(&expected), "{message}");
        }
    }
    assert_eq!(read_all(&dataset).await.num_rows(), 0);
}

/// A dataset whose only interesting column is its time.
fn timed(data_type: DataType, format: TimeFormat, window: &str) -> DatasetSpec {
    let fields = vec![Field::new("t", data_type, true), Field::new("id", DataType::Int64, true)];
    DatasetSpec {
        schema: Arc::new(Schema::new(fields)),
        cell: CellRule::Single,
        time: TimeSpec { column: "t".into(), format, scale: TimeScale::Utc },
        window: window.parse().unwrap(),
        ..spec()
    }
}

async fn borders_are_half_open(spec: DatasetSpec, times: ArrayRef, instants: Vec<Instant>) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec).await;
    let count = times.len() as i64;
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..count));
    let batch = RecordBatch::try_from_iter([("t", times), ("id", ids)]).unwrap();
    write(&dataset, &batch, named("a")).await.unwrap();
    for first in 0..count {
        for end in first..count {
            let time = TimeRange { start: Some(instants[first as usize]), end: Some(instants[end as usize]) };
            let request = ReadRequest { time, ..ReadRequest::default() };
            let found = integers(&read(&dataset, request.clone()).await.unwrap(), "id");
            assert_eq!(found, (first..end).collect::<Vec<_>>(), "{time:?}");
            assert_eq!(dataset.count(request).await.unwrap(), (end - first) as u64);
        }
    }
    let until = TimeRange { start: None, end: Some(instants[1]) };
    let found = read(&dataset, ReadRequest { time: until, ..ReadRequest::default() }).await.unwrap();
    assert_eq!(integers(&found, "id"), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn time_ranges_are_half_open_on_rows_and_windows_for_every_format() {
    // Rows on window borders and the smallest step to either side of one.
    let ticks = vec![-HOUR, -1, 0, 1, HOUR - 1, HOUR, 2 * HOUR];
    let native = ticks.iter().map(|t| Instant::NativeTicks(*t)).collect();
    let utc: Vec<_> = ticks.iter().map(|t| Instant::UtcNanoseconds(i128::from(*t) * 1_000)).collect();
    let micro = DataType::Timestamp(TimeUnit::Microsecond, None);
    let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from(ticks));
    borders_are_half_open(timed(micro.clone(), TimeFormat::Timestamp, "1h"), times.clone(), native).await;
    borders_are_half_open(timed(micro, TimeFormat::Timestamp, "1h"), times, utc).await;

    let days = vec![-3, -1, 0, 1, 2, 3];
    let utc = days.iter().map(|d| Instant::UtcNanoseconds(i128::from(*d) * 86_400_000_000_000)).collect();
    let times: ArrayRef = Arc::new(Date32Array::from(days));
    borders_are_half_open(timed(DataType::Date32, TimeFormat::Timestamp, "3d"), times, utc).await;

    for (format, epoch) in [(TimeFormat::Mjd, 60_000.0f64), (TimeFormat::Jd, 2_460_000.5)] {
        let days = [epoch - 1.0, epoch.next_down(), epoch, epoch.next_up(), epoch + 1.0 / 24.0, epoch + 1.0];
        let native = days.iter().map(|day| Instant::Native(*day)).collect();
        let times: ArrayRef = Arc::new(Float64Array::from(days.to_vec()));
        borders_are_half_open(timed(DataType::Float64, format, "1h"), times, native).await;
    }
}

#[tokio::test]
async fn rows_come_back_by_time_in_whatever_order_they_are_given() {
    let near = |step: u64| f64::from_bits(60_000_f64.to_bits() + step);
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let ticks = order.map(|place| place + 5);
        // Days so close together that they share a tick.
        let days = order.map(|place: i64| near(place as u64));
        let timestamps = timed(DataType::Timestamp(TimeUnit::Microsecond, None), TimeFormat::Timestamp, "1h");
        let by_time = DatasetSpec { id: vec!["t".into()], ..timestamps.clone() };
        let ticks: ArrayRef = Arc::new(TimestampMicrosecondArray::from(ticks.to_vec()));
        let days: ArrayRef = Arc::new(Float64Array::from(days.to_vec()));
        let day = TimeRange { start: Some(Instant::Native(near(1))), end: Some(Instant::Native(near(2))) };
        for (spec, times, middle) in [
            (timestamps, ticks.clone(), between(6, 7)),
            (by_time, ticks, between(6, 7)),
            (timed(DataType::Float64, TimeFormat::Mjd, "1d"), days, day),
        ] {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            let dataset = create(&store, spec).await;
            // Against the order in time.
            let ids: ArrayRef = Arc::new(Int64Array::from(order.map(|place| 2 - place).to_vec()));
            let batch = RecordBatch::try_from_iter([("t", times), ("id", ids)]).unwrap();
            write(&dataset, &batch, named("a")).await.unwrap();
            assert_eq!(integers(&read_all(&dataset).await, "id"), [2, 1, 0], "{order:?}");
            let found = read(&dataset, ReadRequest { time: middle, ..ReadRequest::default() }).await.unwrap();
            assert_eq!(integers(&found, "id"), [1], "{order:?}");
        }
    }
}

#[tokio::test]
async fn the_last_row_of_an_id_in_a_batch_is_stored_and_the_others_are_reported() {
    let by_time = DatasetSpec { id: vec!["t".into(), "id".into()], ..spec() };
    for (spec, given) in [(spec(), [(1, 1, 0), (3, 2, 0), (2, 1, 0)]), (by_time, [(2, 1, 0), (3, 2, 0), (2, 1, 0)])] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let dataset = create(&store, spec).await;
        let notes = ["first", "other", "last"];
        let pieces = given.iter().zip(notes).map(|(place, note)| noted(&[*place], note));
        let report = dataset.write(input(pieces), named("a")).await.unwrap();
        assert_eq!((report.rows, report.duplicates, report.tiles, report.chunks), (2, 1, 1, 1));
        let expected = [(1, "last".to_owned()), (2, "other".to_owned())];
        assert_eq!(id_notes(&read_all(&dataset).await), expected);
        let stored = chunks(store.as_ref(), &placed()).await;
        assert_eq!(stored.iter().map(|chunk| chunk.rows).collect::<Vec<_>>(), [2]);
        assert_eq!(report.bytes as usize, stored[0].head.len() + stored[0].body.len());
    }
}

#[tokio::test]
async fn versions_of_a_record_in_one_batch_are_all_stored_and_the_highest_is_the_newest() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let merge = MergeRule::Latest { version: Some("x".into()) };
    let dataset = create(&store, DatasetSpec { merge, ..spec() }).await;
    let pieces = [2, 3, 1].map(|version| {
        let row = noted(&[(1, 1, 0)], &format!("v{version}"));
        let mut columns = row.columns().to_vec();
        columns[3] = Arc::new(Float64Array::from(vec![f64::from(version)]));
        RecordBatch::try_new(row.schema(), columns).unwrap()
    });
    let report = dataset.write(input(pieces), named("a")).await.unwrap();
    assert_eq!((report.rows, report.duplicates), (3, 0));
    assert_eq!(id_notes(&read_all(&dataset).await), [(1, "v3".to_owned())]);
    let history = read(&dataset, ReadRequest { history: true, ..ReadRequest::default() }).await.unwrap();
    assert_eq!(id_notes(&history), ["v1", "v2", "v3"].map(|version| (1, version.to_owned())));
}

#[tokio::test]
async fn the_ends_of_time_and_of_cells_are_kept() {
    for (store, _folder) in engines() {
        let dataset = create(&store, DatasetSpec { window: "100000d".parse().unwrap(), ..spec() }).await;
        let places = [(i64::MIN, 1, i64::MIN), (i64::MIN + 1, 2, -1), (0, 3, 0), (i64::MAX, 4, i64::MAX)];
        write(&dataset, &rows(&places), named("a")).await.unwrap();
        assert_eq!(ids(&read_all(&dataset).await), [1, 2, 3, 4]);
        let cells = ReadRequest { cells: CellSelection::Cells(vec![i64::MAX, i64::MIN]), ..ReadRequest::default() };
        assert_eq!(ids(&read(&dataset, cells).await.unwrap()), [1, 4]);
        let keys = CellSelection::Keys(vec![Arc::new(Int64Array::from(vec![i64::MAX, -1]))]);
        assert_eq!(ids(&read(&dataset, ReadRequest { cells: keys, ..ReadRequest::default() }).await.unwrap()), [2, 4]);
        let range = |start, end| ReadRequest { time: between(start, end), ..ReadRequest::default() };
        assert_eq!(read(&dataset, range(i64::MIN, i64::MIN)).await.unwrap().num_rows(), 0);
        assert_eq!(ids(&read(&dataset, range(i64::MIN, i64::MIN + 1)).await.unwrap()), [1]);
        assert_eq!(ids(&read(&dataset, range(i64::MIN, i64::MAX)).await.unwrap()), [1, 2, 3]);
        let inverted = read(&dataset, range(1, 0)).await.unwrap_err();
        assert!(matches!(inverted, ArchiveError::Time(_)), "{inverted}");
        assert_sound(&dataset).await;
    }
    // Where windows are short the same times have none, which is said of the row.
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec()).await;
    let error = write(&dataset, &rows(&[(0, 0, 0), (i64::MAX, 1, 0)]), named("a")).await.unwrap_err();
    assert!(matches!(&error, ArchiveError::Row { row: 1, column, .. } if column == "t"), "{error}");
}

#[tokio::test]
async fn text_ids_with_a_long_common_beginning_are_told_apart() {
    for (store, _folder) in engines() {
        let dataset = create(&store, DatasetSpec { id: vec!["note".into()], ..spec() }).await;
        let note = |id: i64| format!("a-common-beginning-of-more-than-sixteen-bytes/{id}");
        for batch in 0..4 {
            let rows: Vec<_> = (0..10).map(|i| noted(&[(i * 7, batch * 5 + i, 0)], &note(batch * 5 + i))).collect();
            dataset.write(input(rows), named(&batch.to_string())).await.unwrap();
        }
        for _ in 0..2 {
            assert_eq!(ids(&read_all(&dataset).await), (0..25).collect::<Vec<_>>());
            for id in [0, 7, 24] {
                let wanted: ArrayRef = Arc::new(StringArray::from(vec![note(id)]));
                let request = ReadRequest { ids: Some(vec![wanted]), ..ReadRequest::default() };
                assert_eq!(ids(&read(&dataset, request).await.unwrap()), [id]);
            }
            dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_several_megabytes_come_back() {
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        let big = |id: i64| noted(&[(id, id, 0)], &char::from(b'a' + id as u8).to_string().repeat(3 << 20));
        dataset.write(input((0..4).map(big)), tight(named("big"))).await.unwrap();
        write(&dataset, &rows(&[(9, 9, 0)]), named("small")).await.unwrap();
        let expected = read_all(&dataset).await;
        assert_eq!(integers(&expected, "id"), [0, 1, 2, 3, 9]);
        dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
        assert_eq!(read_all(&dataset).await, expected);
        assert_sound(&dataset).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_rows_in_many_tiles_pass_through_the_smallest_buffer() {
    const PARTS: i64 = 20;
    const ROWS: i64 = 10_000;
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        let part = |part: i64| spread_rows(part * ROWS, ROWS, 24, "some text that takes room");
        let batches = || (0..PARTS).map(|p| Ok(part(p)));
        let report = dataset.write(batches(), tight(named("a"))).await.unwrap();
        assert_eq!((report.rows, report.tiles, report.stored), ((PARTS * ROWS) as u64, 72, true));
        let parts = store.records("part/", None, 100).await.unwrap();
        assert!(parts.len() >= 10, "only {} steps: the buffer was not kept small", parts.len());
        assert_eq!(ids(&read_all(&dataset).await), (0..PARTS * ROWS).collect::<Vec<_>>());
        assert!(!dataset.write(batches(), tight(named("a"))).await.unwrap().stored);
        // The same rows in other batches and another order are the same content.
        let turned = (0..PARTS).rev().map(part).flat_map(|rows| [rows.slice(5_000, 5_000), rows.slice(0, 5_000)]);
        assert!(!dataset.write(input(turned), named("a")).await.unwrap().stored);
        assert_eq!(dataset.count(ReadRequest::default()).await.unwrap(), (PARTS * ROWS) as u64);
    }
}

#[tokio::test]
async fn retiring_takes_whole_slices_before_the_limit_and_a_dry_run_takes_none() {
    for (store, _folder) in engines() {
        // Slices of two hours: [0, 2), [2, 4), [4, 6).
        let dataset = create(&store, spec()).await;
        write(&dataset, &spread_rows(0, 60, 6, ""), named("a")).await.unwrap();
        let limit = |t| RetireLimit::Before(Instant::NativeTicks(t));
        for (t, slices) in [(0, 0), (2 * HOUR - 1, 0), (2 * HOUR, 1), (3 * HOUR, 1), (4 * HOUR - 1, 1), (4 * HOUR, 2)] {
            let would = dataset.retire(limit(t), true).await.unwrap();
            let expected: Vec<_> = (0..slices).map(SliceId).collect();
            assert_eq!(would.iter().map(|slice| slice.slice).collect::<Vec<_>>(), expected, "limit {t}");
            assert_eq!(dataset.count(ReadRequest::default()).await.unwrap(), 60, "a dry run changed something");
        }
        let gone = dataset.retire(limit(3 * HOUR), false).await.unwrap();
        let rest = dataset.count(ReadRequest::default()).await.unwrap();
        assert_eq!(gone.iter().map(|slice| slice.rows).sum::<u64>() + rest, 60);
        let early = ReadRequest { time: between(0, 2 * HOUR), ..ReadRequest::default() };
        assert_eq!(dataset.count(early.clone()).await.unwrap(), 0);
        // Late rows create the slice again, and the retired rows are not reported as missing.
        write(&dataset, &rows(&[(5, 1_000, 0)]), named("late")).await.unwrap();
        assert_eq!(dataset.count(early).await.unwrap(), 1);
        assert_sound(&dataset).await;
    }
}

#[tokio::test]
async fn a_float_limit_inside_the_last_tick_of_a_slice_does_not_retire_it() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, timed(DataType::Float64, TimeFormat::Mjd, "1d")).await;
    // Slices of two days from the epoch, MJD 40587.
    let times: ArrayRef = Arc::new(Float64Array::from(vec![40_588.5]));
    let batch = RecordBatch::try_from_iter([("t", times), ("id", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]);
    write(&dataset, &batch.unwrap(), named("a")).await.unwrap();
    let end = 40_589.0f64;
    for (limit, slices) in [(end.next_down(), 0), (end, 1), (f64::NEG_INFINITY, 0)] {
        let retired = dataset.retire(RetireLimit::Before(Instant::Native(limit)), true).await.unwrap();
        assert_eq!(retired.len(), slices, "limit {limit}");
    }
}

#[tokio::test]
async fn future_times_do_not_make_present_rows_expire() {
    let (store, _folder) = sqlite();
    let dataset = create(&store, DatasetSpec { retention: "1d".parse().ok(), ..spec() }).await;
    let now = machine_us();
    let century = 100 * 365 * 24 * HOUR;
    write(&dataset, &rows(&[(now, 1, 0), (now + century, 2, 0), (now - century, 3, 0)]), named("a")).await.unwrap();
    assert_eq!(dataset.retire(RetireLimit::Retention, false).await.unwrap().len(), 1);
    assert_eq!(ids(&read_all(&dataset).await), [1, 2]);
    dataset.set_retention(None).await.unwrap();
    assert!(matches!(dataset.retire(RetireLimit::Retention, false).await, Err(ArchiveError::Request { .. })));
    assert_eq!(dataset.retire(RetireLimit::OlderThan("1h".parse().unwrap()), false).await.unwrap(), vec![]);
}

/// On a cluster, each look at the catalog costs a round trip.
#[tokio::test]
async fn a_new_batch_is_one_commit_and_one_that_is_stored_is_looked_up() {
    for (store, _folder) in engines() {
        create(&store, spec()).await;
        let metered = Arc::new(Metered::new(store));
        let watched: Arc<dyn Store> = metered.clone();
        let dataset = open(&watched, "records").await;
        let calls = |operation| metered.snapshot().into_iter().find(|m| m.operation == operation).unwrap().calls;
        let before = (calls(Operation::Record), calls(Operation::Commit));
        let pieces = [rows(&[(1, 1, 1)]), rows(&[]), rows(&[(2, 2, 1)])];
        assert!(dataset.write(input(pieces), named("new")).await.unwrap().stored);
        // Two records are read: the latest stamp of the engine and the definition.
        assert_eq!((calls(Operation::Record), calls(Operation::Commit)), (before.0 + 2, before.1 + 1));
        assert!(!write(&dataset, &rows(&[(2, 2, 1), (1, 1, 1)]), named("new")).await.unwrap().stored);
        assert!(calls(Operation::Record) > before.0 + 4);
        let other = write(&dataset, &rows(&[(1, 1, 2)]), named("new")).await.unwrap_err();
        assert!(matches!(other, ArchiveError::BatchDiffers { .. }), "{other}");
        assert_sound(&dataset).await;
    }
}

/// An engine without atomic commits gives the time of one of its machines, here a time long ago.
#[tokio::test]
async fn the_time_of_a_cluster_is_asked_once_and_is_that_of_the_batches() {
    const TIME_US: i64 = 1_700_000_000_000_000;
    let below: Arc<dyn Store> = Arc::new(MemoryStore::new());
    below.commit(&placed(), Commit { stamp_us: TIME_US, ..Commit::default() }).await.unwrap();
    let metered = Arc::new(Metered::new(Arc::new(LimitedStore::stepwise(below))));
    let store: Arc<dyn Store> = metered.clone();
    let dataset = create(&store, spec()).await;
    let asked = || metered.snapshot().into_iter().find(|m| m.operation == Operation::Record).unwrap().calls;
    let before = asked();
    for batch in 0..5 {
        write(&dataset, &rows(&[(1, batch, 1)]), named(&batch.to_string())).await.unwrap();
        // And once the list of slices being dropped.
        assert_eq!(asked(), before + 2, "batch {batch}");
    }
    let batches = dataset.batches().await.unwrap();
    assert_eq!(batches.len(), 5);
    let near = |batch: &chronotile_archive::BatchInfo| (TIME_US - 1..TIME_US + 60_000_000).contains(&batch.written_us);
    assert!(batches.iter().all(near), "{batches:?}");
}

/// The answer is taken as the time halfway between request and answer; from there the writer's own clock counts on.
#[tokio::test(start_paused = true)]
async fn a_writer_whose_clock_is_wrong_stamps_by_the_time_of_the_cluster() {
    const TIME_US: i64 = 1_700_000_000_000_000;
    let below: Arc<dyn Store> = Arc::new(MemoryStore::new());
    below.commit(&placed(), Commit { stamp_us: TIME_US, ..Commit::default() }).await.unwrap();
    let store: Arc<dyn Store> = Arc::new(FaultyStore::new(Arc::new(LimitedStore::stepwise(below)), |call| {
        Decision::Delay(std::time::Duration::from_secs(match call.operation {
            Operation::Record => 8,
            Operation::Commit => 5,
            _ => 0,
        }))
    }));
    let began = tokio::time::Instant::now();
    let archive = Archive::on("test:", store.clone()).with_machine_time(move || began.elapsed().as_micros() as i64);
    let dataset = archive.create(spec(), false).await.unwrap();
    write(&dataset, &rows(&[(1, 1, 1)]), named("a")).await.unwrap();
    let batch = chronotile_types::BatchId::of_key("a");
    let record = store.record(&format!("batch/records/{batch}")).await.unwrap().unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let (written_us, ended_us) = (record["written_us"].as_i64().unwrap(), record["ended_us"].as_i64().unwrap());
    assert_eq!(written_us - TIME_US, 4_000_000);
    // The end follows after the chunks are put and the record of slices being dropped is read.
    let took_s = (ended_us - written_us) / 1_000_000;
    assert!((5..=30).contains(&took_s), "{took_s}");
}

/// A reader looks up once for each batch in its chunks which attempt counts.
#[tokio::test]
async fn batches_are_looked_up_once_and_only_where_rows_of_them_are() {
    for (store, _folder) in engines() {
        let writer = create(&store, spec()).await;
        for batch in 0..20_i64 {
            write(&writer, &spread_rows(10 * batch, 10, 2, "n"), named(&batch.to_string())).await.unwrap();
        }
        let far = rows(&[(1_000 * HOUR, 5_000, 1)]);
        write(&writer, &far, named("far")).await.unwrap();
        let metered = Arc::new(Metered::new(store));
        let watched: Arc<dyn Store> = metered.clone();
        let dataset = open(&watched, "records").await;
        let calls = |operation| metered.snapshot().into_iter().find(|m| m.operation == operation).unwrap().calls;
        let near = ReadRequest { time: between(0, 100 * HOUR), ..ReadRequest::default() };
        let mut spent = vec![];
        for _ in 0..3 {
            let before = calls(Operation::Record);
            assert_eq!(read(&dataset, near.clone()).await.unwrap().num_rows(), 200);
            spent.push(calls(Operation::Record) - before);
        }
        assert_eq!(
            spent,
            [4 + 20, 2, 2],
            "the definition and the list of superseded batches, twice as batches ended just now; of each its record"
        );
        assert_eq!(calls(Operation::Records), 0);
        write(&writer, &spread_rows(0, 10, 2, "new"), replacing("0")).await.unwrap();
        let before = calls(Operation::Record);
        assert_eq!(read(&dataset, near).await.unwrap().num_rows(), 200);
        // The list has a page now, and the batch ended recently.
        assert_eq!(calls(Operation::Record) - before, 2 + 4);
        assert_sound(&dataset).await;
    }
}

/// Many batches are listed instead of being looked up one by one.
#[tokio::test]
async fn many_batches_are_listed_and_those_that_are_not_finished_left_out() {
    let (store, _folder) = sqlite();
    let writer = create(&store, spec()).await;
    for batch in 0..510_i64 {
        write(&writer, &rows(&[(batch, batch, 1)]), named(&batch.to_string())).await.unwrap();
    }
    let name = spec().name;
    let (batch, key) = (chronotile_types::BatchId::of_key("17"), "17");
    let put = RecordPut { key: format!("batch/{name}/{batch}"), value: None, expect: Expect::Any };
    store.commit(&placed(), Commit { before: vec![put], ..Commit::default() }).await.unwrap();
    let metered = Arc::new(Metered::new(store));
    let watched: Arc<dyn Store> = metered.clone();
    let dataset = open(&watched, "records").await;
    let calls = |operation| metered.snapshot().into_iter().find(|m| m.operation == operation).unwrap().calls;
    for listed in [true, false] {
        let before = calls(Operation::Records);
        let found = ids(&read_all(&dataset).await);
        assert_eq!(found, (0..510).filter(|id| *id != 17).collect::<Vec<_>>());
        assert_eq!(calls(Operation::Records) > before, listed);
    }
    writer.remove_batch(key).await.unwrap();
    assert_eq!(dataset.count(ReadRequest::default()).await.unwrap(), 509);
}

#[tokio::test]
async fn nothing_is_left_of_a_dropped_dataset() {
    for (store, _folder) in engines() {
        let archive = Archive::on("test:", store.clone());
        let other = DatasetSpec { name: DatasetName::new("records_2").unwrap(), ..spec() };
        let other = archive.create(other, false).await.unwrap();
        write(&other, &rows(&[(5, 1, 7)]), named("a")).await.unwrap();
        let mut kept = records_of(&store, "records_2").await;
        let dataset = create(&store, spec()).await;
        write(&dataset, &spread_rows(0, 100, 9, ""), named("a")).await.unwrap();
        write(&dataset, &rows(&[(5, 1_000, 7)]), named("b")).await.unwrap();
        dataset.create_index("by_tag", &["tag".to_owned()]).await.unwrap();
        dataset.build_indexes(&IndexBuildOptions::default(), None).await.unwrap();
        dataset.remove_batch("b").await.unwrap();
        let limit = RetireLimit::Before(Instant::NativeTicks(2 * HOUR));
        assert_eq!(dataset.retire(limit, false).await.unwrap().len(), 1);
        assert!(records_of(&store, "records").await.len() > 3);
        archive.drop_dataset("records").await.unwrap();
        assert_eq!(records_of(&store, "records").await, ["dropped/records"]);
        assert!(store.slices(&placed()).await.unwrap().is_empty());
        assert!(matches!(archive.dataset("records").await, Err(ArchiveError::DatasetNotFound { .. })));
        assert!(matches!(archive.drop_dataset("records").await, Err(ArchiveError::DatasetNotFound { .. })));
        assert!(matches!(dataset.count(ReadRequest::default()).await, Err(ArchiveError::DatasetNotFound { .. })));
        // Another dataset, whose name begins the same, is as it was; and the name is free.
        kept.sort();
        assert_eq!(records_of(&store, "records_2").await, kept);
        assert_eq!(other.count(ReadRequest::default()).await.unwrap(), 1);
        let again = create(&store, spec()).await;
        assert!(write(&again, &spread_rows(0, 100, 9, ""), named("a")).await.unwrap().stored);
        assert_eq!(again.count(ReadRequest::default()).await.unwrap(), 100);
    }
}

#[tokio::test]
async fn a_handle_from_before_a_dataset_was_made_again_knows_nothing_of_the_former() {
    for (store, _folder) in engines() {
        let held = create(&store, spec()).await;
        write(&held, &spread_rows(0, 100, 9, ""), named("a")).await.unwrap();
        let revision = held.spec_and_revision().1;
        held.refresh().await.unwrap();
        assert_eq!(held.spec_and_revision().1, revision, "nothing had changed");
        Archive::on("test:", store.clone()).drop_dataset("records").await.unwrap();
        assert!(matches!(held.refresh().await, Err(ArchiveError::DatasetNotFound { .. })));
        // Other windows in other slices: as the former definition has them, a read would look into the wrong ones.
        let again =
            create(&store, DatasetSpec { window: "100h".parse().unwrap(), windows_per_slice: 1, ..spec() }).await;
        write(&again, &spread_rows(0, 300, 90, ""), named("a")).await.unwrap();
        let time = between(60 * HOUR, 80 * HOUR);
        let expected = again.count(ReadRequest { time, ..ReadRequest::default() }).await.unwrap();
        assert!(expected > 0);
        assert_eq!(held.count(ReadRequest { time, ..ReadRequest::default() }).await.unwrap(), expected);
        assert_eq!(held.spec(), again.spec());
        assert_ne!(held.spec_and_revision().1, revision);
        assert!(write(&held, &rows(&[(95 * HOUR, 1_000, 7)]), named("b")).await.unwrap().stored);
        assert_eq!(again.count(ReadRequest::default()).await.unwrap(), 301);
        assert_sound(&again).await;
    }
}

#[tokio::test]
async fn a_handle_that_only_writes_notices_that_its_dataset_was_dropped_and_made_again() {
    for (store, _folder) in engines() {
        let held = create(&store, spec()).await;
        write(&held, &spread_rows(0, 100, 9, ""), named("a")).await.unwrap();
        Archive::on("test:", store.clone()).drop_dataset("records").await.unwrap();
        let late = rows(&[(5 * HOUR, 1_000, 7)]);
        let refused = write(&held, &late, named("b")).await;
        assert!(matches!(refused, Err(ArchiveError::DatasetNotFound { .. })), "{refused:?}");
        assert!(store.slices(&placed()).await.unwrap().is_empty());
        assert_eq!(records_of(&store, "records").await, ["dropped/records"]);
        // The slice of the row is there by the former windows too, where no read would look for it.
        let again =
            create(&store, DatasetSpec { window: "100h".parse().unwrap(), windows_per_slice: 1, ..spec() }).await;
        write(&again, &spread_rows(0, 300, 90, ""), named("a")).await.unwrap();
        assert!(write(&held, &late, named("b")).await.unwrap().stored);
        let time = between(5 * HOUR, 5 * HOUR + 1);
        assert!(again.count(ReadRequest { time, ..ReadRequest::default() }).await.unwrap() >= 1);
        assert_eq!(again.count(ReadRequest::default()).await.unwrap(), 301);
        assert_sound(&again).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_on_nodes_looks_at_the_definition_every_ten_seconds() {
    let metered = Arc::new(Metered::new(Arc::new(LimitedStore::stepwise(Arc::new(MemoryStore::new())))));
    let store: Arc<dyn Store> = metered.clone();
    let held = create(&store, spec()).await;
    let asked = || metered.snapshot().into_iter().find(|m| m.operation == Operation::Record).unwrap().calls;
    write(&held, &rows(&[(1, 1, 1)]), WriteOptions::default()).await.unwrap();
    let before = asked();
    write(&held, &rows(&[(1, 2, 1)]), WriteOptions::default()).await.unwrap();
    assert_eq!(asked(), before, "the last look counts still");
    Archive::on("test:", store.clone()).drop_dataset("records").await.unwrap();
    tokio::time::advance(std::time::Duration::from_secs(10)).await;
    let refused = write(&held, &rows(&[(1, 3, 1)]), WriteOptions::default()).await;
    assert!(matches!(refused, Err(ArchiveError::DatasetNotFound { .. })), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn what_writers_leave_of_a_dropped_dataset_is_not_in_one_that_is_made_again() {
    for grouped in [false, true] {
        let store: Arc<dyn Store> = Arc::new(LimitedStore::stepwise(Arc::new(MemoryStore::new())));
        let member = grouped.then(|| Membership::of(DatasetName::new("survey").unwrap()));
        let spec = || DatasetSpec { group: member.clone(), ..spec() };
        let held = create(&store, spec()).await;
        write(&held, &rows(&[(1, 1, 1)]), named("a")).await.unwrap();
        let archive = Archive::on("test:", store.clone());
        if grouped { archive.drop_group("survey").await } else { archive.drop_dataset("records").await }.unwrap();
        let key = format!("dropped/{}", if grouped { "survey" } else { "records" });
        let note = store.record(&key).await.unwrap();
        assert!(note.is_some());
        // The last look at the definition counts still, and the batch counts as stored.
        assert!(write(&held, &rows(&[(1, 2, 1)]), named("a")).await.unwrap().stored);
        let began = tokio::time::Instant::now();
        let (again, other) = futures::join!(archive.create(spec(), true), archive.create(spec(), true));
        assert!(began.elapsed() > std::time::Duration::from_secs(10), "it waits for writers");
        for again in [again.unwrap(), other.unwrap()] {
            assert_eq!(again.count(ReadRequest::default()).await.unwrap(), 0);
            assert_sound(&again).await;
        }
        // Nothing is taken away of what has a definition, even if the note of the drop were still there.
        let fresh = open(&store, "records").await;
        write(&fresh, &rows(&[(1, 3, 1)]), named("a")).await.unwrap();
        let put = RecordPut { key, value: note, expect: Expect::Any };
        store.commit(&placed(), Commit { after: vec![put], ..Commit::default() }).await.unwrap();
        assert!(archive.create(spec(), true).await.is_ok());
        assert_eq!(fresh.count(ReadRequest::default()).await.unwrap(), 1);
    }
}

/// Keys of the catalog records of a dataset, of every kind: these engines list them all.
async fn records_of(store: &Arc<dyn Store>, dataset: &str) -> Vec<String> {
    let records = store.records("", None, 100_000).await.unwrap();
    let belongs = |key: &String| key.split('/').nth(1) == Some(dataset);
    records.into_iter().map(|record| record.key).filter(belongs).collect()
}

#[tokio::test]
async fn a_cell_number_beyond_that_of_signed_integers_is_refused_with_its_row() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut fields = spec().schema.fields().to_vec();
    fields[2] = Arc::new(Field::new("tag", DataType::UInt64, true));
    let schema = Arc::new(Schema::new(fields));
    let dataset = create(&store, DatasetSpec { schema: schema.clone(), ..spec() }).await;
    let tagged = |tags: Vec<u64>| {
        let places: Vec<_> = (0..tags.len() as i64).map(|row| (row, row, 0)).collect();
        let mut columns = rows(&places).columns().to_vec();
        columns[2] = Arc::new(UInt64Array::from(tags));
        RecordBatch::try_new(schema.clone(), columns).unwrap()
    };
    let most = i64::MAX as u64;
    for (tags, row) in [(vec![0, most + 1, 7], 1), (vec![u64::MAX], 0)] {
        let refused = write(&dataset, &tagged(tags), named("a")).await.unwrap_err();
        assert!(matches!(&refused, ArchiveError::Row { row: found, column, .. } if *found == row && column == "tag"));
        assert!(refused.to_string().contains("exceeds the largest cell number"), "{refused}");
    }
    assert_eq!(read_all(&dataset).await.num_rows(), 0);
    assert_eq!(write(&dataset, &tagged(vec![0, most]), named("a")).await.unwrap().rows, 2);
}
