//! Tiles with more data than is decoded at once: they are read, counted, consolidated and indexed in pieces, with the
//! same results.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use chronotile_archive::memory::{Memory, MemoryError};
use chronotile_archive::{
    Archive, ArchiveError, CellSelection, Comparison, ConsolidateOptions, Dataset, IndexBuildOptions, Predicate,
    ReadRequest,
};
use chronotile_memory::MemoryStore;
use chronotile_store::{DatasetRef, Metered, Operation, Store};
use chronotile_types::{CellRule, DatasetName, DatasetSpec, MergeRule};
use futures::TryStreamExt;

use crate::common::*;

/// Maximum bytes of a piece of a read: twice the size that pieces aim at.
const PIECE_BYTES_MAX: usize = 32 << 20;

/// One tile of documents: `t`, `id`, `version`, `text`.
fn documents(merge: MergeRule) -> DatasetSpec {
    DatasetSpec {
        schema: Arc::new(Schema::new(vec![
            Field::new("t", DataType::Timestamp(TimeUnit::Microsecond, None), true),
            Field::new("id", DataType::Int64, true),
            Field::new("version", DataType::Int64, true),
            Field::new("text", DataType::Utf8, true),
        ])),
        cell: CellRule::Single,
        merge,
        ..spec()
    }
}

/// (time, id, version, text) of each row.
type Row = (i64, i64, i64, String);

fn batch_of(rows: &[Row]) -> RecordBatch {
    let column = |pick: fn(&Row) -> i64| rows.iter().map(pick).collect::<Vec<_>>();
    RecordBatch::try_from_iter([
        ("t", Arc::new(TimestampMicrosecondArray::from(column(|row| row.0))) as ArrayRef),
        ("id", Arc::new(Int64Array::from(column(|row| row.1)))),
        ("version", Arc::new(Int64Array::from(column(|row| row.2)))),
        ("text", Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.3.as_str())))),
    ])
    .unwrap()
}

fn rows_of(batch: &RecordBatch) -> Vec<Row> {
    let numbers = |place: usize| batch.column(place).as_primitive::<arrow_array::types::Int64Type>().values().to_vec();
    let times = batch.column(0).as_primitive::<arrow_array::types::TimestampMicrosecondType>().values();
    let texts = batch.column(3).as_string::<i32>();
    let (ids, versions) = (numbers(1), numbers(2));
    (0..batch.num_rows()).map(|row| (times[row], ids[row], versions[row], texts.value(row).to_owned())).collect()
}

/// Reads rows piece by piece and checks that no piece is too large.
async fn read_rows(dataset: &Dataset, request: ReadRequest) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut pieces = dataset.read(request).await.unwrap();
    while let Some(piece) = pieces.try_next().await.unwrap() {
        let text = piece.column_by_name("text").unwrap().as_string::<i32>();
        assert!(text.value_data().len() <= PIECE_BYTES_MAX, "a piece has {} bytes", text.value_data().len());
        rows.extend(rows_of(&piece));
    }
    rows
}

const BATCHES: i64 = 240;
const ROWS: i64 = 6;

/// Batches that overlap in time and ids; texts of about 60 KB, which compress well and distinguish versions.
fn batches() -> Vec<Vec<Row>> {
    let row = |batch: i64, number: i64| {
        let id = (batch * 61 + number * 7) % (BATCHES * ROWS * 2 / 3);
        let text = format!("{batch} {number} ").repeat(9_000);
        ((id * 977 + batch % 3) % HOUR, id, batch, text)
    };
    let distinct = |rows: Vec<Row>| {
        let mut seen = HashSet::new();
        rows.into_iter().filter(|row| seen.insert(row.1)).collect::<Vec<_>>()
    };
    (0..BATCHES).map(|batch| distinct((0..ROWS).map(|number| row(batch, number)).collect())).collect()
}

/// The expected rows of a read: for each id the row of the latest batch, by time and id.
fn expected(batches: &[Vec<Row>]) -> Vec<Row> {
    let mut newest: BTreeMap<i64, &Row> = BTreeMap::new();
    batches.iter().flatten().for_each(|row| _ = newest.insert(row.1, row));
    let mut rows: Vec<Row> = newest.into_values().cloned().collect();
    rows.sort();
    rows
}

async fn filled(store: &Arc<dyn Store>, merge: MergeRule) -> (Dataset, Vec<Vec<Row>>) {
    let batches = batches();
    (written(store, merge, &batches).await, batches)
}

async fn written(store: &Arc<dyn Store>, merge: MergeRule, batches: &[Vec<Row>]) -> Dataset {
    let dataset = create(store, documents(merge)).await;
    for (number, rows) in batches.iter().enumerate() {
        write(&dataset, &batch_of(rows), named(&format!("batch {number}"))).await.unwrap();
    }
    dataset
}

fn reported(rows: &[Row]) -> Vec<(i64, i64, i64, usize)> {
    rows.iter().map(|row| (row.0, row.1, row.2, row.3.len())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tile_larger_than_a_piece_reads_as_its_rows_say_before_and_after_consolidation() {
    for (store, _folder) in engines() {
        let latest = MergeRule::Latest { version: Some("version".into()) };
        for merge in [MergeRule::Append, latest] {
            let store: Arc<dyn Store> = match _folder {
                None => Arc::new(MemoryStore::new()),
                Some(_) if merge != MergeRule::Append => continue,
                Some(_) => store.clone(),
            };
            let (dataset, batches) = filled(&store, merge.clone()).await;
            let wanted = expected(&batches);
            for round in 0..2 {
                let context = format!("{merge:?}, round {round}");
                let found = read_rows(&dataset, ReadRequest::default()).await;
                assert_eq!(reported(&found), reported(&wanted), "{context}");
                assert!(found == wanted, "{context}: texts differ");
                assert_eq!(dataset.count(ReadRequest::default()).await.unwrap(), wanted.len() as u64, "{context}");
                // A condition on the text is tested after rows are merged.
                let values: ArrayRef = Arc::new(StringArray::from(vec!["7 1"]));
                let starts = Predicate { column: "text".into(), comparison: Comparison::Prefix, values };
                let request = ReadRequest { predicates: vec![starts], ..ReadRequest::default() };
                let some: Vec<Row> = wanted.iter().filter(|row| row.3.starts_with("7 1")).cloned().collect();
                assert_eq!(reported(&read_rows(&dataset, request).await), reported(&some), "{context}");
                let early = ReadRequest { time: between(0, HOUR / 9_000), ..ReadRequest::default() };
                let some: Vec<Row> = wanted.iter().filter(|row| row.0 < HOUR / 9_000).cloned().collect();
                assert_eq!(reported(&read_rows(&dataset, early).await), reported(&some), "{context}");
                let mut newest = dataset.latest(ReadRequest::default(), Some(vec!["id".into()])).await.unwrap();
                let mut rows = 0;
                while let Some(piece) = newest.try_next().await.unwrap() {
                    rows += piece.num_rows();
                }
                assert_eq!(rows, wanted.len(), "{context}");
                if round == 0 {
                    let report = dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
                    assert_eq!((report.tiles, &report.failed[..]), (1, &[][..]), "{context}");
                }
            }
            // The older versions that it parted a set of chunks at a time are put together by the next.
            if merge != MergeRule::Append {
                let again = dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
                assert_eq!((again.tiles, &again.failed[..]), (1, &[][..]));
                assert_eq!(reported(&read_rows(&dataset, ReadRequest::default()).await), reported(&wanted));
            }
            // What was rewritten comes out as it is.
            let again = dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
            assert_eq!((again.tiles, &again.failed[..]), (0, &[][..]));
            assert_sound(&dataset).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_version_of_a_large_tile_is_read_and_a_batch_is_taken_out_of_it() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    // The earlier a batch, the newer its versions.
    let turned = |(t, id, version, text): &Row| (*t, *id, BATCHES - version, text.clone());
    let mut batches: Vec<Vec<Row>> = batches().iter().map(|rows| rows.iter().map(turned).collect()).collect();
    // One of them has two versions of a record.
    let (t, id, _, text) = batches[7][0].clone();
    batches[7].insert(0, (t, id, -1, text.clone()));
    // A later one has a version of it that is older still.
    batches[9].insert(0, (t, id, -2, text));
    let dataset = written(&store, MergeRule::Latest { version: Some("version".into()) }, &batches).await;
    let history = ReadRequest { history: true, ..ReadRequest::default() };
    let mut all: Vec<Row> = batches.iter().flatten().cloned().collect();
    all.sort();
    assert_eq!(reported(&read_rows(&dataset, history.clone()).await), reported(&all));
    dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
    let mut found = reported(&read_rows(&dataset, history).await);
    found.sort_unstable();
    assert_eq!(found, reported(&all));
    dataset.remove_batch("batch 0").await.unwrap();
    batches.reverse();
    batches.pop();
    assert_eq!(reported(&read_rows(&dataset, ReadRequest::default()).await), reported(&expected(&batches)));
    assert_sound(&dataset).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_that_follow_one_another_are_read_in_pieces() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, documents(MergeRule::Append)).await;
    let text = "abcdefgh".repeat(1 << 17);
    let mut wanted = Vec::new();
    for batch in 0..5 {
        let rows: Vec<Row> = (0..10).map(|row| (batch * 10 + row, batch * 10 + row, 0, text.clone())).collect();
        write(&dataset, &batch_of(&rows), named(&format!("batch {batch}"))).await.unwrap();
        wanted.extend(rows);
    }
    assert_eq!(reported(&read_rows(&dataset, ReadRequest::default()).await), reported(&wanted));
}

/// Chunks that share only their border time are ordered by ids there.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_one_time_in_chunks_that_meet_there_are_read_by_their_ids() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let row = |t: i64, id: i64| (t, id, 0, format!("{id} ").repeat(25_000));
    let early: Vec<Row> = (0..150).map(|t| row(t, t)).chain([row(150, 900), row(150, 902)]).collect();
    let late: Vec<Row> = [row(150, 901), row(150, 903)].into_iter().chain((151..300).map(|t| row(t, t))).collect();
    let mut wanted = [early.clone(), late.clone()].concat();
    wanted.sort();
    let dataset = written(&store, MergeRule::Append, &[late, early]).await;
    assert_eq!(reported(&read_rows(&dataset, ReadRequest::default()).await), reported(&wanted));
}

#[tokio::test(flavor = "multi_thread")]
async fn great_values_among_small_ones_are_stored_consolidated_and_read() {
    for (store, _folder) in engines() {
        let dataset = create(&store, documents(MergeRule::Append)).await;
        let great = "0123456789abcdef".repeat(40 << 16);
        let mut wanted = Vec::new();
        for batch in 0..3 {
            let text = |row: i64| if row == 50 { great.clone() } else { format!("small {row}") };
            let rows: Vec<Row> = (0..100).map(|row| (batch + row * 3, batch * 100 + row, 0, text(row))).collect();
            write(&dataset, &batch_of(&rows), named(&format!("batch {batch}"))).await.unwrap();
            wanted.extend(rows);
        }
        wanted.sort();
        // Two such values in one batch are stored as well as one in each.
        let both: Vec<Row> = (0..60)
            .map(|row| (1_000 + row, 1_000 + row, 0, if row > 57 { great.clone() } else { String::new() }))
            .collect();
        write(&dataset, &batch_of(&both), named("both")).await.unwrap();
        wanted.extend(both);
        let read = async || {
            let mut rows = Vec::new();
            let mut pieces = dataset.read(ReadRequest::default()).await.unwrap();
            while let Some(piece) = pieces.try_next().await.unwrap() {
                rows.extend(rows_of(&piece));
            }
            rows
        };
        assert_eq!(reported(&read().await), reported(&wanted));
        let report = dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
        assert_eq!((report.tiles, &report.failed[..]), (1, &[][..]));
        assert_eq!(reported(&read().await), reported(&wanted));
        // Large values stay alone, small ones are merged.
        let sizes = async || chunks(store.as_ref(), &placed()).await.iter().map(|chunk| chunk.rows).collect::<Vec<_>>();
        assert_eq!(sizes().await.iter().filter(|rows| **rows == 1).count(), 5);
        let again = dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
        assert_eq!((again.tiles, &again.failed[..]), (0, &[][..]));
        assert_sound(&dataset).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_tile_is_indexed_in_pieces() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (dataset, batches) = filled(&store, MergeRule::Append).await;
    dataset.create_index("by_version", &["version".to_owned()]).await.unwrap();
    let report = dataset.build_indexes(&IndexBuildOptions::default(), None).await.unwrap();
    assert_eq!((report.tiles_read, report.tiles_left_out), (1, 0));
    assert_eq!(report.rows, expected(&batches).len() as u64);
    let (counts, used) = dataset.count_by(ReadRequest::default(), &["version".to_owned()], false, None).await.unwrap();
    assert_eq!(used.index.as_deref(), Some("by_version"));
    let mut wanted: BTreeMap<i64, u64> = BTreeMap::new();
    expected(&batches).iter().for_each(|row| *wanted.entry(row.2).or_default() += 1);
    let versions = counts.column(0).as_primitive::<arrow_array::types::Int64Type>().values().iter().copied();
    let rows = counts.column(1).as_primitive::<arrow_array::types::UInt64Type>().values().iter().copied();
    assert_eq!(versions.zip(rows).collect::<BTreeMap<_, _>>(), wanted);
    let more = dataset.count_by(ReadRequest::default(), &["version".to_owned()], false, Some(wanted.len() - 1)).await;
    assert!(matches!(more, Err(ArchiveError::TooManyGroups { .. })), "{more:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_is_charged_for_what_it_holds_and_ends_where_there_is_no_room() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for merge in [MergeRule::Append, MergeRule::Latest { version: Some("version".into()) }] {
        let store = if merge == MergeRule::Append { store.clone() } else { Arc::new(MemoryStore::new()) };
        filled(&store, merge).await;
        for (budget, suffices) in [(256 << 20, true), (16 << 20, false)] {
            let (archive, memory) = (Archive::on("test:", store.clone()), Memory::new(budget));
            archive.limit_memory(memory.clone());
            let dataset = archive.dataset(documents(MergeRule::Append).name.as_str()).await.unwrap();
            let (mut most, mut outcome) = (0, Ok(()));
            let mut rows = dataset.read(ReadRequest::default()).await;
            while let (Ok(()), Ok(pieces)) = (&outcome, &mut rows) {
                match pieces.try_next().await {
                    Ok(Some(piece)) => most = most.max(memory.bytes().min(piece.get_array_memory_size())),
                    Ok(None) => break,
                    Err(error) => outcome = Err(error),
                }
            }
            let outcome = rows.map(drop).and(outcome);
            assert_eq!(outcome.is_ok(), suffices, "{outcome:?}");
            if let Err(error) = outcome {
                assert!(matches!(error, ArchiveError::Memory(MemoryError::TooLarge { .. })), "{error:?}");
            } else {
                assert!(most > 4 << 20, "a piece of rows is charged: {most}");
            }
            assert_eq!(memory.bytes(), 0, "all of it is given back");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_of_every_id_is_charged_before_it_is_held() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (_, batches) = filled(&store, MergeRule::Append).await;
    let versions: BTreeSet<i64> = expected(&batches).iter().map(|row| row.2).collect();
    for (budget, suffices) in [(512 << 20, true), (16 << 20, false)] {
        let (archive, memory) = (Archive::on("test:", store.clone()), Memory::new(budget));
        archive.limit_memory(Memory::new(1));
        archive.limit_memory(memory.clone());
        let dataset = archive.dataset(documents(MergeRule::Append).name.as_str()).await.unwrap();
        let newest = dataset.latest(ReadRequest::default(), Some(vec!["version".to_owned()])).await;
        let found = match newest {
            Ok(rows) => {
                assert!(memory.bytes() > 0, "the rows are held until they are taken");
                rows.try_fold(0, |sum, rows| async move { Ok(sum + rows.num_rows()) }).await
            }
            Err(error) => Err(error),
        };
        match found {
            Ok(rows) => assert_eq!((rows, suffices), (versions.len(), true)),
            Err(error) => {
                assert!(matches!(error, ArchiveError::Memory(MemoryError::TooLarge { .. })), "{error:?}");
                assert!(!suffices);
            }
        }
        assert_eq!(memory.bytes(), 0, "all of it is given back");
    }
}

/// Consolidation holds in memory only what it rewrites, not its neighbours: neither tiles between those that it
/// rewrites, nor the newest versions in a tile whose older versions it rewrites.
#[tokio::test(flavor = "multi_thread")]
async fn consolidation_reads_no_chunks_that_stay() {
    let (sqlite, _folder) = sqlite();
    for below in [Arc::new(MemoryStore::new()) as Arc<dyn Store>, sqlite] {
        let metered = Arc::new(Metered::new(below));
        let store: Arc<dyn Store> = metered.clone();
        let latest = MergeRule::Latest { version: Some("version".into()) };
        let dataset = create(&store, DatasetSpec { windows_per_slice: 24, ..documents(latest) }).await;
        let read = || {
            let of = |operation| metered.snapshot().iter().find(|each| each.operation == operation).unwrap().bytes;
            of(Operation::Scan) + of(Operation::Fetch)
        };
        let rows = |window: i64, ids: std::ops::Range<i64>, version: i64| {
            let row = |id: i64| (window * HOUR + id, id, version, noise((id + version * 77_777) as u64, 600));
            batch_of(&ids.map(row).collect::<Vec<_>>())
        };
        // Large tiles that one write leaves as they are to be, between small ones that two writes make.
        for window in 1..5 {
            write(&dataset, &rows(window, window * 10_000..window * 10_000 + 3_000, 1), named(&window.to_string()))
                .await
                .unwrap();
        }
        for (window, id) in [(0, 0), (0, 20), (5, 40), (5, 60)] {
            write(&dataset, &rows(window, id..id + 20, 1), named(&format!("{window}-{id}"))).await.unwrap();
        }
        let before = read();
        let report = dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
        assert_eq!((report.tiles, &report.failed[..]), (2, &[][..]));
        let took = read() - before;
        assert!(took < 400_000, "{took} bytes were read for 80 rows of 600");

        // Few older versions in a large tile.
        let parting = || ConsolidateOptions { older_min: Some(1), ..ConsolidateOptions::default() };
        // A tile is rewritten once its chunks are small in the mean.
        for version in 2..4 {
            for part in 0..16 {
                let first = 10_000 + part * 3;
                let batch = format!("version {version}, part {part}");
                write(&dataset, &rows(1, first..first + 3, version), named(&batch)).await.unwrap();
            }
            dataset.consolidate(parting(), None).await.unwrap();
        }
        let older = dataset.info().await.unwrap();
        let before = read();
        let report = dataset.consolidate(parting(), None).await.unwrap();
        assert_eq!((report.tiles, report.chunks_before, report.chunks_after), (1, 2, 1), "{older:?}");
        let took = read() - before;
        assert!(took < 400_000, "{took} bytes were read for 96 rows of 600");
        assert_sound(&dataset).await;
    }
}

/// A chunk of a few rows costs nearly as much as a full one, and engines replicate and repair small values better.
#[tokio::test]
async fn rows_of_a_tile_become_even_chunks_of_a_good_size() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let sizes = async |dataset: &Dataset| {
        let found = chunks(store.as_ref(), &DatasetRef::from(&*dataset.spec())).await;
        let mut sizes: Vec<(u32, usize)> =
            found.iter().map(|chunk| (chunk.rows, chunk.head.len() + chunk.body.len())).collect();
        sizes.sort_unstable();
        sizes
    };
    // Of rows of 36 bytes, 1 MiB holds 29,127.
    let dataset = create(&store, spec()).await;
    write(&dataset, &rows(&(0..30_000).map(|i| (i, i, 0)).collect::<Vec<_>>()), named("a")).await.unwrap();
    assert_eq!(sizes(&dataset).await.iter().map(|size| size.0).collect::<Vec<_>>(), [15_000; 2]);

    // What takes more than 480 KiB once it is encoded is halved until it does not.
    let spec = DatasetSpec { name: DatasetName::new("documents").unwrap(), ..documents(MergeRule::Append) };
    let dataset = create(&store, spec).await;
    let rows: Vec<Row> = (0..3_000).map(|i| (i, i, 0, noise(i as u64, 600))).collect();
    write(&dataset, &batch_of(&rows), named("a")).await.unwrap();
    let found = sizes(&dataset).await;
    assert!(found.iter().all(|(rows, bytes)| *rows == 750 && *bytes <= 480 << 10), "{found:?}");
    assert_eq!(read_rows(&dataset, ReadRequest::default()).await, rows);
}

/// If a read asks for few rows, these are kept until all versions are compared; otherwise their chunks are.
#[tokio::test(flavor = "multi_thread")]
async fn the_newest_states_of_some_ids_are_found_in_a_read_that_is_not_decoded_at_once() {
    const IDS: i64 = 240;
    const TAGS: i64 = 12;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, DatasetSpec { merge: MergeRule::Latest { version: None }, ..spec() }).await;
    // Some twelve mebibytes; then every fifth record moves to another tile, and every seventh to another time of its own.
    let state =
        |t: i64, id: i64, tag: i64, note: &str| noted(&[(t, id, tag)], &format!("{note} {}", noise(id as u64, 50_000)));
    let old: Vec<_> = (0..IDS).map(|id| state(id, id, id % TAGS, "old")).collect();
    dataset.write(input(old), named("old")).await.unwrap();
    let moved = |id: &i64| id % 5 == 0 || id % 7 == 0;
    let tag_of = |id: i64| if id % 5 == 0 { (id + 7) % TAGS } else { id % TAGS };
    let new: Vec<_> = (0..IDS).filter(moved).map(|id| state(1_000 + id, id, tag_of(id), "new")).collect();
    dataset.write(input(new), named("new")).await.unwrap();
    let check = async |request: ReadRequest, wanted: Vec<(i64, i64, &str)>, what: &str| {
        let found = read(&dataset, request.clone()).await.unwrap();
        let notes = found.column_by_name("note").unwrap().as_string::<i32>();
        let notes = notes.iter().map(|note| note.unwrap()[..3].to_owned());
        let mut found: Vec<_> = integers(&found, "id").into_iter().zip(integers(&found, "tag")).zip(notes).collect();
        found.sort();
        let wanted: Vec<_> = wanted.into_iter().map(|(id, tag, note)| ((id, tag), note.to_owned())).collect();
        assert!(found == wanted, "{what}: {found:?}");
        assert_eq!(dataset.count(request).await.unwrap(), wanted.len() as u64, "{what}");
    };
    let newest = |id: i64| if moved(&id) { (id, tag_of(id), "new") } else { (id, id % TAGS, "old") };
    for ids in [vec![3], vec![0], vec![1, 2, 3, 5, 14, 35, 239], (0..IDS).step_by(2).collect(), vec![IDS]] {
        let wanted = ids.iter().filter(|id| **id < IDS).map(|id| newest(*id)).collect();
        let request =
            ReadRequest { ids: Some(vec![Arc::new(Int64Array::from(ids.clone()))]), ..ReadRequest::default() };
        check(request.clone(), wanted, &format!("{ids:?}")).await;
        // When only some had moved.
        let then = |id: i64| if id < 100 { newest(id) } else { (id, id % TAGS, "old") };
        let wanted = ids.iter().filter(|id| **id < IDS).map(|id| then(*id)).collect();
        check(ReadRequest { time: between(0, 1_100), ..request }, wanted, &format!("{ids:?}, then")).await;
    }
    // Those whose newest state has this tag, and none that had it before; and some of each tile.
    let having = |column: &str, comparison, values: ArrayRef| {
        let predicates = vec![Predicate { column: column.into(), comparison, values }];
        ReadRequest { predicates, ..ReadRequest::default() }
    };
    let wanted = (0..IDS).map(newest).filter(|(_, tag, _)| *tag == 3).collect();
    check(having("tag", Comparison::Equal, Arc::new(Int64Array::from(vec![3]))), wanted, "of a tag").await;
    for some in [vec![0, 14, 35, 101, 239], (0..IDS).step_by(10).collect()] {
        let values: ArrayRef = Arc::new(Float64Array::from_iter_values(some.iter().map(|id| *id as f64 / 7.0)));
        check(having("x", Comparison::In, values), some.iter().map(|id| newest(*id)).collect(), "of some values").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_rows_of_keys_come_once_each_in_pieces_of_bounded_size() {
    const TAGS: i64 = 40;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec()).await;
    let row = |tag: i64, t: i64| noted(&[(t, tag * 10 + t, tag)], &noise(tag as u64, 1 << 19));
    dataset.write(input((0..TAGS).map(|tag| row(tag, 3))), named("old")).await.unwrap();
    dataset.write(input((0..TAGS).step_by(8).map(|tag| row(tag, 7))), named("new")).await.unwrap();
    let keys = CellSelection::Keys(vec![Arc::new(Int64Array::from_iter_values(0..TAGS))]);
    let newest = dataset.latest(ReadRequest { cells: keys, ..ReadRequest::default() }, None).await.unwrap();
    let pieces: Vec<RecordBatch> = newest.try_collect().await.unwrap();
    assert!(pieces.len() > 1, "one piece, so nothing is tested");
    assert!(pieces.iter().all(|piece| piece.get_array_memory_size() < PIECE_BYTES_MAX));
    let mut found: Vec<i64> = pieces.iter().flat_map(|piece| integers(piece, "id")).collect();
    found.sort_unstable();
    assert_eq!(found, (0..TAGS).map(|tag| tag * 10 + if tag % 8 == 0 { 7 } else { 3 }).collect::<Vec<_>>());
}
