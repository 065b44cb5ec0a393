//! Tables of an archive file and the statements that change them; `docs/decisions/002-sqlite-layout.md` gives the reasons.

use bytes::Bytes;
use chronotile_store::{Chunk, ChunkKey, Commit, Expect, RecordPut, StoreError};
use chronotile_types::{DatasetName, SliceId};
use rusqlite::{Connection, OptionalExtension, params};

/// Identifies an archive in the file header (offset 68): "CHRT".
pub(crate) const APPLICATION_ID: u32 = 0x4348_5254;
/// Format of the tables below, in the file header (offset 60) as SQLite's user version.
pub(crate) const FORMAT: u32 = 1;
/// Bytes in a page.
pub(crate) const PAGE_BYTES: u32 = 16_384;

/// Largest head and body together, in bytes, that are kept inside the clustered table.
///
/// A key-ordered page of 16 KiB keeps a row of up to 4,086 bytes to itself before it chains the rest on overflow pages
/// (SQLite file format, section 1.6); key, counts and record header take less than 86 of them.
pub(crate) const INLINE_BYTES_MAX: usize = 4_000;

/// Statements that make an empty archive's tables.
pub(crate) const CREATE: &str = "
    CREATE TABLE catalog(key TEXT PRIMARY KEY COLLATE BINARY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE slices(dataset TEXT NOT NULL, slice INTEGER NOT NULL, PRIMARY KEY(dataset, slice)) WITHOUT ROWID;";

/// Why a change was not made.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A condition of the caller's did not hold, which says nothing about the engine's health.
    Condition(StoreError),
    /// SQLite failed.
    Engine(rusqlite::Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Engine(error)
    }
}

/// Suffix shared by the tables of a slice. No two slices share it: what follows its last underscore has none.
fn suffix(dataset: &DatasetName, slice: SliceId) -> String {
    let sign = if slice.0 < 0 { "m" } else { "" };
    format!("{dataset}_{sign}{}", slice.0.unsigned_abs())
}

/// Table of a slice's chunks, clustered by cell, window and id. `big` is the row of `bodies` that holds a large body.
pub(crate) fn chunks_table(dataset: &DatasetName, slice: SliceId) -> String {
    format!("\"chunks_{}\"", suffix(dataset, slice))
}

/// Table of a slice's large bodies.
pub(crate) fn bodies_table(dataset: &DatasetName, slice: SliceId) -> String {
    format!("\"bodies_{}\"", suffix(dataset, slice))
}

/// Whether a slice exists.
pub(crate) fn slice_exists(conn: &Connection, dataset: &DatasetName, slice: SliceId) -> rusqlite::Result<bool> {
    let mut statement = conn.prepare_cached("SELECT 1 FROM slices WHERE dataset = ?1 AND slice = ?2")?;
    statement.exists(params![dataset.as_str(), slice.0])
}

/// Makes a slice's tables unless they exist.
pub(crate) fn create_slice(conn: &Connection, dataset: &DatasetName, slice: SliceId) -> rusqlite::Result<()> {
    let insert = "INSERT OR IGNORE INTO slices(dataset, slice) VALUES (?1, ?2)";
    if conn.execute(insert, params![dataset.as_str(), slice.0])? == 0 {
        return Ok(());
    }
    let (chunks, bodies) = (chunks_table(dataset, slice), bodies_table(dataset, slice));
    conn.execute_batch(&format!(
        "CREATE TABLE {chunks}(cell INTEGER NOT NULL, window INTEGER NOT NULL, id BLOB NOT NULL, rows INTEGER NOT NULL,
            bytes INTEGER NOT NULL, head BLOB NOT NULL, body BLOB, big INTEGER,
            PRIMARY KEY(cell, window, id)) WITHOUT ROWID;
         CREATE TABLE {bodies}(big INTEGER PRIMARY KEY, body BLOB NOT NULL);"
    ))
}

/// Drops a slice's tables if they exist.
pub(crate) fn drop_slice(conn: &Connection, dataset: &DatasetName, slice: SliceId) -> rusqlite::Result<()> {
    let delete = "DELETE FROM slices WHERE dataset = ?1 AND slice = ?2";
    if conn.execute(delete, params![dataset.as_str(), slice.0])? == 0 {
        return Ok(());
    }
    let (chunks, bodies) = (chunks_table(dataset, slice), bodies_table(dataset, slice));
    conn.execute_batch(&format!("DROP TABLE {chunks}; DROP TABLE {bodies};"))
}

/// Makes the changes of a commit inside the open transaction.
pub(crate) fn apply(conn: &Connection, dataset: &DatasetName, commit: &Commit) -> Result<(), Failure> {
    commit.before.iter().try_for_each(|put| put_record(conn, put))?;
    let mut known = None;
    for chunk in &commit.put {
        let slice = chunk.key.slice;
        if known != Some(slice) && !slice_exists(conn, dataset, slice)? {
            return Err(Failure::Condition(StoreError::NoSlice { dataset: dataset.clone(), slice }));
        }
        known = Some(slice);
        put_chunk(conn, dataset, chunk)?;
    }
    for key in &commit.remove {
        let removed = slice_exists(conn, dataset, key.slice)? && remove_chunk(conn, dataset, key)?;
        if commit.require_removed && !removed {
            return Err(Failure::Condition(StoreError::ChunkConflict { dataset: dataset.clone(), key: *key }));
        }
    }
    commit.after.iter().try_for_each(|put| put_record(conn, put))
}

fn put_record(conn: &Connection, put: &RecordPut) -> Result<(), Failure> {
    let holds = match &put.expect {
        Expect::Any => true,
        Expect::Absent => read_record(conn, &put.key)?.is_none(),
        Expect::Is(value) => read_record(conn, &put.key)?.as_ref() == Some(value),
    };
    if !holds {
        return Err(Failure::Condition(StoreError::RecordConflict { key: put.key.clone() }));
    }
    match &put.value {
        Some(value) => {
            let sql = "INSERT INTO catalog(key, value) VALUES (?1, ?2)
                ON CONFLICT(key) DO UPDATE SET value = excluded.value";
            conn.prepare_cached(sql)?.execute(params![put.key, &value[..]])?
        }
        None => conn.prepare_cached("DELETE FROM catalog WHERE key = ?1")?.execute([&put.key])?,
    };
    Ok(())
}

/// The value of a catalog record.
pub(crate) fn read_record(conn: &Connection, key: &str) -> rusqlite::Result<Option<Bytes>> {
    let mut statement = conn.prepare_cached("SELECT value FROM catalog WHERE key = ?1")?;
    let value = |row: &rusqlite::Row<'_>| Ok(Bytes::copy_from_slice(row.get_ref(0)?.as_blob()?));
    statement.query_row([key], value).optional()
}

fn put_chunk(conn: &Connection, dataset: &DatasetName, chunk: &Chunk) -> rusqlite::Result<()> {
    let key = &chunk.key;
    let bytes = chunk.head.len() + chunk.body.len();
    if bytes <= INLINE_BYTES_MAX {
        if insert_row(conn, dataset, chunk, Some(&chunk.body), None)? {
            return Ok(());
        }
        remove_chunk(conn, dataset, key)?;
        insert_row(conn, dataset, chunk, Some(&chunk.body), None)?;
        return Ok(());
    }
    remove_chunk(conn, dataset, key)?;
    let sql = format!("INSERT INTO {}(body) VALUES (?1)", bodies_table(dataset, key.slice));
    let big = conn.prepare_cached(&sql)?.insert([&chunk.body[..]])?;
    insert_row(conn, dataset, chunk, None, Some(big))?;
    Ok(())
}

/// Whether the row was inserted; one with its key already there is left as it is.
fn insert_row(
    conn: &Connection,
    dataset: &DatasetName,
    chunk: &Chunk,
    body: Option<&Bytes>,
    big: Option<i64>,
) -> rusqlite::Result<bool> {
    let key = &chunk.key;
    let sql = format!(
        "INSERT INTO {}(cell, window, id, rows, bytes, head, body, big) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
            ON CONFLICT DO NOTHING",
        chunks_table(dataset, key.slice)
    );
    let bytes = (chunk.head.len() + chunk.body.len()) as i64;
    let inserted = conn.prepare_cached(&sql)?.execute(params![
        key.tile.cell.0,
        key.tile.window.0,
        key.id.to_bytes(),
        chunk.rows,
        bytes,
        &chunk.head[..],
        body.map(|body| &body[..]),
        big
    ])?;
    Ok(inserted > 0)
}

/// Whether there was such a chunk.
fn remove_chunk(conn: &Connection, dataset: &DatasetName, key: &ChunkKey) -> rusqlite::Result<bool> {
    let sql = format!(
        "DELETE FROM {} WHERE cell = ?1 AND window = ?2 AND id = ?3 RETURNING big",
        chunks_table(dataset, key.slice)
    );
    let id = key.id.to_bytes();
    let big = conn
        .prepare_cached(&sql)?
        .query_row(params![key.tile.cell.0, key.tile.window.0, id], |row| row.get::<_, Option<i64>>(0))
        .optional()?;
    let Some(big) = big else { return Ok(false) };
    if let Some(big) = big {
        let sql = format!("DELETE FROM {} WHERE big = ?1", bodies_table(dataset, key.slice));
        conn.prepare_cached(&sql)?.execute([big])?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_different_slices_never_share_a_name() {
        let name = |text: &str| DatasetName::new(text).unwrap();
        let mut seen = std::collections::HashSet::new();
        for dataset in ["a", "a_1", "a_m1", "a_1_1", "a_m1_1"] {
            for slice in [0, 1, -1, 11, -11, i32::MIN, i32::MAX] {
                assert!(seen.insert(chunks_table(&name(dataset), SliceId(slice))), "{dataset} {slice}");
            }
        }
        assert!(seen.contains("\"chunks_a_m2147483648\""));
    }
}
