//! Damaged, moved and missing chunks are found, named, and never skipped silently.

use std::sync::Arc;

use bytes::Bytes;
use chronotile_archive::{ArchiveError, CellSelection, ConsolidateOptions, Dataset, ReadRequest};
use chronotile_memory::MemoryStore;
use chronotile_store::{Chunk, Commit, Decision, FaultyStore, Store, StoreError};
use chronotile_types::{Cell, ChunkId, DamageKind};

use crate::common::*;

async fn filled(store: &Arc<dyn Store>) -> Dataset {
    let dataset = create(store, spec()).await;
    write(&dataset, &spread_rows(0, 12, 1, "a"), named("a")).await.unwrap();
    write(&dataset, &spread_rows(12, 12, 1, "b"), named("b")).await.unwrap();
    dataset
}

fn cell(tag: i64) -> ReadRequest {
    ReadRequest { cells: CellSelection::Cells(vec![tag]), ..ReadRequest::default() }
}

/// Asserts that verify and a read of its cell name the chunk, and that other cells are read as before.
async fn assert_found(dataset: &Dataset, bad: &Chunk, context: &str) {
    let report = dataset.verify(None).await.unwrap();
    let named: Vec<_> = report.damage.iter().map(|d| (d.tile, d.chunk, d.damage.is_some())).collect();
    assert_eq!(named, [(bad.key.tile, bad.key.id, true)], "verify: {context}");
    match read(dataset, cell(bad.key.tile.cell.0)).await {
        Err(ArchiveError::Damaged { dataset: name, tile, chunk, .. }) => {
            assert_eq!((name, tile, chunk), (spec().name, bad.key.tile, bad.key.id), "{context}");
        }
        other => panic!("a read said {other:?}: {context}"),
    }
    let elsewhere = (bad.key.tile.cell.0 + 1) % 3;
    assert_eq!(read(dataset, cell(elsewhere)).await.unwrap().num_rows(), 8, "{context}");
}

fn flipped(bytes: &Bytes, place: usize, bit: u32) -> Bytes {
    let mut bytes = bytes.to_vec();
    bytes[place] ^= 1 << bit;
    bytes.into()
}

/// Flips every byte of one chunk in turn.
async fn flip_each_byte(store: &Arc<dyn Store>, dataset: &Dataset, chunk: &Chunk) {
    let head = |place| Chunk { head: flipped(&chunk.head, place, place as u32 % 8), ..chunk.clone() };
    let body = |place| Chunk { body: flipped(&chunk.body, place, place as u32 % 8), ..chunk.clone() };
    let heads = (0..chunk.head.len()).map(|place| (head(place), format!("head byte {place}")));
    let bodies = (0..chunk.body.len()).map(|place| (body(place), format!("body byte {place}")));
    for (bad, context) in heads.chain(bodies) {
        put_chunks(store.as_ref(), &placed(), vec![bad.clone()]).await;
        assert_found(dataset, &bad, &context).await;
    }
    put_chunks(store.as_ref(), &placed(), vec![chunk.clone()]).await;
    assert_sound(dataset).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_flipped_byte_of_a_written_chunk_is_found() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = filled(&store).await;
    let chunk = chunks(store.as_ref(), &placed()).await.swap_remove(0);
    flip_each_byte(&store, &dataset, &chunk).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_flipped_byte_of_a_consolidated_chunk_is_found() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = filled(&store).await;
    dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
    let chunk = chunks(store.as_ref(), &placed()).await.swap_remove(0);
    assert_eq!(chunk.rows, 8);
    flip_each_byte(&store, &dataset, &chunk).await;
}

/// A value in the file, found by its content, so that the test does not depend on the layout of tables.
struct Blob {
    table: String,
    column: String,
    row: i64,
    bytes: Vec<u8>,
    /// Offset of the searched bytes in the value.
    start: usize,
}

impl Blob {
    fn holding(file: &rusqlite::Connection, wanted: &[u8]) -> Self {
        let texts = |sql: &str| -> Vec<String> {
            let mut statement = file.prepare(sql).unwrap();
            statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        };
        for table in texts("SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE '%WITHOUT ROWID%'") {
            for column in texts(&format!("SELECT name FROM pragma_table_info('{table}')")) {
                let sql = format!(
                    "SELECT rowid, {column} FROM \"{table}\" WHERE typeof({column}) = 'blob' AND instr({column}, ?1)"
                );
                let found = file.query_row(&sql, [wanted], |row| Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?)));
                if let Ok((row, bytes)) = found {
                    let start = bytes.windows(wanted.len()).position(|window| window == wanted).unwrap();
                    return Self { table, column, row, bytes, start };
                }
            }
        }
        panic!("no value of the file holds these bytes");
    }

    fn set(&self, file: &rusqlite::Connection, bytes: &[u8]) {
        let sql = format!("UPDATE \"{}\" SET {} = ?1 WHERE rowid = ?2", self.table, self.column);
        assert_eq!(file.execute(&sql, (bytes, self.row)).unwrap(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn flipped_bytes_in_a_sqlite_file_are_found() {
    let (store, folder) = sqlite();
    let dataset = filled(&store).await;
    let file = rusqlite::Connection::open(folder.path().join("archive.db")).unwrap();
    let chunk = chunks(store.as_ref(), &placed()).await.swap_remove(0);
    for (part, bytes) in [("head", &chunk.head), ("body", &chunk.body)] {
        let blob = Blob::holding(&file, bytes);
        for place in 0..bytes.len() {
            blob.set(&file, &flipped(&Bytes::from(blob.bytes.clone()), blob.start + place, 3));
            assert_found(&dataset, &chunk, &format!("{part} byte {place}")).await;
            blob.set(&file, &blob.bytes);
        }
    }
    assert_sound(&dataset).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_chunk_is_found() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = filled(&store).await;
    let chunk = chunks(store.as_ref(), &placed()).await.swap_remove(0);
    let cuts = [
        Chunk { head: Bytes::new(), ..chunk.clone() },
        Chunk { head: chunk.head.slice(..chunk.head.len() - 1), ..chunk.clone() },
        Chunk { body: Bytes::new(), ..chunk.clone() },
        Chunk { body: chunk.body.slice(..chunk.body.len() - 1), ..chunk.clone() },
    ];
    for bad in cuts {
        put_chunks(store.as_ref(), &placed(), vec![bad.clone()]).await;
        assert_found(&dataset, &bad, "cut").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_under_another_tile_or_id_is_found() {
    for (store, _folder) in engines() {
        let dataset = filled(&store).await;
        let chunk = chunks(store.as_ref(), &placed()).await.swap_remove(0);
        let mut other_cell = chunk.clone();
        other_cell.key.tile.cell = Cell(77);
        let mut other_id = chunk.clone();
        other_id.key.id = ChunkId(chunk.key.id.0 ^ 1);
        for moved in [other_cell, other_id] {
            put_chunks(store.as_ref(), &placed(), vec![moved.clone()]).await;
            let report = dataset.verify(None).await.unwrap();
            assert_eq!(report.damage.len(), 1);
            assert_eq!((report.damage[0].tile, report.damage[0].chunk), (moved.key.tile, moved.key.id));
            assert_eq!(report.damage[0].damage.as_ref().unwrap().0, DamageKind::Checksum);
            let error = read(&dataset, ReadRequest::default()).await.unwrap_err();
            assert!(matches!(error, ArchiveError::Damaged { chunk, .. } if chunk == moved.key.id), "{error}");
            let remove = Commit { remove: vec![moved.key], ..Commit::default() };
            store.commit(&placed(), remove).await.unwrap();
        }
        assert_sound(&dataset).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_chunk_of_a_finished_batch_is_reported() {
    for (store, _folder) in engines() {
        let dataset = filled(&store).await;
        let all = chunks(store.as_ref(), &placed()).await;
        for chunk in &all {
            let remove = Commit { remove: vec![chunk.key], ..Commit::default() };
            store.commit(&placed(), remove).await.unwrap();
            let report = dataset.verify(None).await.unwrap();
            let found: Vec<_> = report.damage.iter().map(|d| (d.tile, d.chunk, d.rows, d.damage.clone())).collect();
            assert_eq!(found, [(chunk.key.tile, chunk.key.id, u64::from(chunk.rows), None)]);
            put_chunks(store.as_ref(), &placed(), vec![chunk.clone()]).await;
        }
        assert_sound(&dataset).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_missing_chunk_of_a_batch_that_left_several_in_its_tile_is_reported() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec()).await;
    let note = "x".repeat(400_000);
    let rows = noted(&(0..8).map(|i| (i, i, 0)).collect::<Vec<_>>(), &note);
    write(&dataset, &rows, named("a")).await.unwrap();
    let all = chunks(store.as_ref(), &placed()).await;
    assert!(all.len() > 1, "the tile has only one chunk, so nothing is tested");
    store.commit(&placed(), Commit { remove: vec![all[0].key], ..Commit::default() }).await.unwrap();
    let report = dataset.verify(None).await.unwrap();
    assert_eq!(report.damage.iter().map(|d| d.chunk).collect::<Vec<_>>(), [all[0].key.id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn consolidation_names_a_damaged_tile_and_rewrites_the_others() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = filled(&store).await;
    let mut bad = chunks(store.as_ref(), &placed()).await.swap_remove(0);
    bad.body = flipped(&bad.body, 0, 0);
    put_chunks(store.as_ref(), &placed(), vec![bad.clone()]).await;
    let of_tile = async || {
        let mut all = chunks(store.as_ref(), &placed()).await;
        all.retain(|chunk| chunk.key.tile == bad.key.tile);
        all
    };
    let before = of_tile().await;
    let report = dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
    assert_eq!((report.tiles, report.failed.len()), (2, 1));
    assert_eq!(report.failed[0].tile, bad.key.tile);
    assert!(report.failed[0].reason.contains(&bad.key.id.to_string()), "{}", report.failed[0].reason);
    assert_eq!(of_tile().await, before);
    // A damaged head is reported too.
    let sound = bad.clone();
    bad.head = flipped(&bad.head, 3, 0);
    put_chunks(store.as_ref(), &placed(), vec![bad.clone()]).await;
    let report = dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
    assert_eq!((report.tiles, report.failed.len()), (0, 1));
    put_chunks(store.as_ref(), &placed(), vec![sound]).await;
    // Writing the batches again repairs it.
    for (key, first) in [("a", 0), ("b", 12)] {
        dataset.remove_batch(key).await.unwrap();
        write(&dataset, &spread_rows(first, 12, 1, key), named(key)).await.unwrap();
    }
    assert_sound(&dataset).await;
    assert_eq!(read_all(&dataset).await.num_rows(), 24);
}

/// A chunk that the engine lists but cannot read.
#[tokio::test]
async fn a_tile_that_the_engine_cannot_read_is_named_and_the_others_are_consolidated() {
    let (store, folder) = sqlite();
    let dataset = filled(&store).await;
    let file = rusqlite::Connection::open(folder.path().join("archive.db")).unwrap();
    assert_eq!(file.execute("DELETE FROM chunks_records_0 WHERE chunk = 1", []).unwrap(), 1);
    let report = dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
    assert_eq!((report.tiles, report.failed.len()), (2, 1), "{report:?}");
    assert!(report.failed[0].reason.contains("is damaged"), "{}", report.failed[0].reason);
    let damage = dataset.verify(None).await.unwrap().damage;
    assert_eq!(damage.iter().map(|damage| damage.tile).collect::<Vec<_>>(), [report.failed[0].tile]);
}

#[tokio::test]
async fn a_tile_that_the_engine_refuses_is_named_and_the_others_are_consolidated() {
    for in_steps in [false, true] {
        let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let dataset = filled(&memory).await;
        let refused = chunks(memory.as_ref(), &placed()).await.swap_remove(0).key.tile;
        let picky: Arc<dyn Store> = Arc::new(FaultyStore::new(memory.clone(), move |call| {
            let puts = call.commit.is_some_and(|commit| commit.put.iter().any(|chunk| chunk.key.tile == refused));
            let what = || "a chunk".to_owned();
            match puts {
                true => {
                    Decision::FailBefore(StoreError::TooLarge { what: what(), bytes: 2, bytes_max: 1, engine: "test" })
                }
                false => Decision::Pass,
            }
        }));
        let picky = if in_steps { Arc::new(LimitedStore::stepwise(picky)) } else { picky };
        let report = open(&picky, "records").await.consolidate(ConsolidateOptions::default(), None).await.unwrap();
        assert_eq!((report.tiles, report.failed.len()), (2, 1), "{report:?}");
        assert_eq!(report.failed[0].tile, refused);
        assert!(report.failed[0].reason.contains("write smaller records"), "{}", report.failed[0].reason);
        assert_sound(&dataset).await;
    }
}
