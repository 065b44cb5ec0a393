//! Helpers shared by the tests of the SQLite engine.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use chronotile_sqlite::{Options, SqliteStore};
use chronotile_store::{Cells, Chunk, ChunkKey, Commit, DatasetRef, Expect, RecordPut, Result, Scan, Store, Windows};
use chronotile_types::{Cell, ChunkId, DatasetName, SliceId, Tile, Window};
use futures::stream::StreamExt;

pub fn dataset() -> DatasetRef {
    DatasetRef::of_chunks(DatasetName::new("detections").unwrap())
}

pub fn open(path: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(path, Options::default()).unwrap())
}

pub fn key(cell: i64, id: u128) -> ChunkKey {
    ChunkKey { slice: SliceId(0), tile: Tile { cell: Cell(cell), window: Window(0) }, id: ChunkId(id) }
}

/// A chunk whose body is as long as asked and told by its key.
pub fn chunk(key: ChunkKey, bytes: usize) -> Chunk {
    let body = (0..bytes).map(|at| (at as u128 * 31 + key.id.0 + key.tile.cell.0 as u128) as u8).collect();
    Chunk { key, rows: 4, head: Bytes::from_static(b"head"), body }
}

pub fn put(chunks: impl IntoIterator<Item = Chunk>) -> Commit {
    Commit { put: chunks.into_iter().collect(), ..Commit::default() }
}

pub fn everything() -> Scan {
    Scan { slices: vec![SliceId(0)], cells: Cells::All, windows: Windows::ALL, bodies: true, older: true }
}

pub async fn chunks(store: &Arc<dyn Store>) -> Result<Vec<Chunk>> {
    let mut groups = store.scan(&dataset(), everything()).await?;
    let mut chunks = vec![];
    while let Some(group) = groups.next().await {
        chunks.extend(group?);
    }
    Ok(chunks)
}

/// Adds one to a record by compare and set.
pub async fn increment(store: &Arc<dyn Store>, name: &str) {
    loop {
        let current = store.record(name).await.unwrap();
        let count: u64 = current.as_ref().map_or(0, |value| std::str::from_utf8(value).unwrap().parse().unwrap());
        let put = RecordPut {
            key: name.to_owned(),
            value: Some(Bytes::from((count + 1).to_string())),
            expect: current.map_or(Expect::Absent, Expect::Is),
        };
        match store.commit(&dataset(), Commit { before: vec![put], ..Commit::default() }).await {
            Ok(()) => return,
            Err(chronotile_store::StoreError::RecordConflict { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// What SQLite itself says of the file.
pub fn integrity(path: &Path) -> String {
    let conn = rusqlite::Connection::open(path).unwrap();
    conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap()
}

/// Names of all files in a folder.
pub fn files_in(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}
