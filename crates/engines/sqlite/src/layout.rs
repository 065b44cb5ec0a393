//! Tables of an archive file and the statements that change them; `docs/decisions/002-sqlite-layout.md` gives the reasons.

use bytes::Bytes;
use chronotile_store::{
    CLOCK_KEY, Chunk, ChunkKey, Commit, DropSlice, Expect, RecordPut, StoreError, TileStatistics, changes_key,
};
use chronotile_types::{Cell, ChunkId, DatasetName, SliceId, Tile, Window};
use rusqlite::{Connection, OptionalExtension, params};

/// Identifies an archive in the file header (offset 68): "CHRT".
pub(crate) const APPLICATION_ID: u32 = 0x4348_5254;
/// Format of the tables below, in the file header (offset 60) as SQLite's user version.
pub(crate) const FORMAT: u32 = 1;
/// Bytes in a page.
pub(crate) const PAGE_BYTES: u32 = 16_384;

/// Statements that make an empty archive's tables.
pub(crate) const CREATE: &str = "
    CREATE TABLE catalog(key TEXT PRIMARY KEY COLLATE BINARY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE slices(dataset TEXT NOT NULL, slice INTEGER NOT NULL, PRIMARY KEY(dataset, slice)) WITHOUT ROWID;";

const DELETE_RECORD: &str = "DELETE FROM catalog WHERE key = ?1";

/// Why a change failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A condition of the caller did not hold; the engine works.
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

/// Table of a slice's keys, clustered by cell, window and id: small entries, each naming a row of the chunk table.
pub(crate) fn keys_table(dataset: &DatasetName, slice: SliceId) -> String {
    format!("\"keys_{}\"", suffix(dataset, slice))
}

/// Table of a slice's heads and bodies, in the order of writing.
pub(crate) fn chunks_table(dataset: &DatasetName, slice: SliceId) -> String {
    format!("\"chunks_{}\"", suffix(dataset, slice))
}

/// Whether a slice exists.
pub(crate) fn slice_exists(conn: &Connection, dataset: &DatasetName, slice: SliceId) -> rusqlite::Result<bool> {
    let mut statement = conn.prepare_cached("SELECT 1 FROM slices WHERE dataset = ?1 AND slice = ?2")?;
    statement.exists(params![dataset.as_str(), slice.0])
}

/// Creates a slice's tables unless they exist.
pub(crate) fn create_slice(conn: &Connection, dataset: &DatasetName, slice: SliceId) -> rusqlite::Result<()> {
    let insert = "INSERT OR IGNORE INTO slices(dataset, slice) VALUES (?1, ?2)";
    if conn.execute(insert, params![dataset.as_str(), slice.0])? == 0 {
        return Ok(());
    }
    let (keys, chunks) = (keys_table(dataset, slice), chunks_table(dataset, slice));
    conn.execute_batch(&format!(
        "CREATE TABLE {keys}(cell INTEGER NOT NULL, window INTEGER NOT NULL, id BLOB NOT NULL, rows INTEGER NOT NULL,
            bytes INTEGER NOT NULL, chunk INTEGER NOT NULL, PRIMARY KEY(cell, window, id)) WITHOUT ROWID;
         CREATE TABLE {chunks}(chunk INTEGER PRIMARY KEY, head BLOB NOT NULL, body BLOB NOT NULL);"
    ))
}

/// Drops a slice's tables if they exist, under the conditions of `when`.
pub(crate) fn drop_slice(
    conn: &Connection,
    dataset: &DatasetName,
    slice: SliceId,
    when: &DropSlice,
) -> Result<(), Failure> {
    // The open transaction has the write lock: no commit can come between the comparison and the drop.
    if let Some(holding) = &when.holding
        && *holding != statistics(conn, dataset, slice)?
    {
        return Err(Failure::Condition(StoreError::SliceConflict { dataset: dataset.clone(), slice }));
    }
    when.before.iter().try_for_each(|put| put_record(conn, put))?;
    let delete = "DELETE FROM slices WHERE dataset = ?1 AND slice = ?2";
    if conn.execute(delete, params![dataset.as_str(), slice.0])? == 0 {
        return Ok(());
    }
    conn.prepare_cached(DELETE_RECORD)?.execute([changes_key(dataset, slice)])?;
    let (keys, chunks) = (keys_table(dataset, slice), chunks_table(dataset, slice));
    Ok(conn.execute_batch(&format!("DROP TABLE {keys}; DROP TABLE {chunks};"))?)
}

/// What each tile of a slice holds, by cell, then window.
pub(crate) fn statistics(
    conn: &Connection,
    dataset: &DatasetName,
    slice: SliceId,
) -> rusqlite::Result<Vec<TileStatistics>> {
    let mut tiles: Vec<TileStatistics> = vec![];
    if !slice_exists(conn, dataset, slice)? {
        return Ok(tiles);
    }
    // The order of the primary key: no sort is needed.
    let sql =
        format!("SELECT cell, window, id, rows, bytes FROM {} ORDER BY cell, window, id", keys_table(dataset, slice));
    let mut statement = conn.prepare_cached(&sql)?;
    let mut found = statement.query([])?;
    while let Some(row) = found.next()? {
        let tile = Tile { cell: Cell(row.get(0)?), window: Window(row.get(1)?) };
        if tiles.last().is_none_or(|last| last.tile != tile) {
            tiles.push(TileStatistics::none(tile));
        }
        let id = ChunkId::from_bytes(row.get_ref(2)?.as_blob()?);
        if let (Some(last), Some(id)) = (tiles.last_mut(), id) {
            last.add(id, row.get(3)?, u64::from(row.get::<_, u32>(4)?));
        }
    }
    Ok(tiles)
}

/// Applies a commit inside the open transaction.
pub(crate) fn apply(conn: &Connection, dataset: &DatasetName, commit: &Commit) -> Result<(), Failure> {
    commit.before.iter().try_for_each(|put| put_record(conn, put))?;
    let mut changed: Vec<SliceId> = Vec::new();
    let mut known = None;
    for chunk in &commit.put {
        let slice = chunk.key.slice;
        if known != Some(slice) && !slice_exists(conn, dataset, slice)? {
            return Err(Failure::Condition(StoreError::NoSlice { dataset: dataset.clone(), slice }));
        }
        known = Some(slice);
        changed.extend(put_chunk(conn, dataset, chunk)?.then_some(slice));
    }
    for key in &commit.remove {
        let removed = slice_exists(conn, dataset, key.slice)? && remove_chunk(conn, dataset, key)?;
        if commit.require_removed && !removed {
            return Err(Failure::Condition(StoreError::ChunkConflict { dataset: dataset.clone(), key: *key }));
        }
        changed.extend(removed.then_some(key.slice));
    }
    changed.sort_unstable();
    changed.dedup();
    changed.into_iter().try_for_each(|slice| note_change(conn, dataset, slice))?;
    commit.after.iter().try_for_each(|put| put_record(conn, put))?;
    Ok(keep_clock(conn, commit.stamp_us)?)
}

/// Sets a new value of a slice's record of changes. Values are random so that none recurs, even if a slice is dropped and created
/// again, or a file is replaced by an older copy.
fn note_change(conn: &Connection, dataset: &DatasetName, slice: SliceId) -> rusqlite::Result<()> {
    let sql = "INSERT INTO catalog(key, value) VALUES (?1, randomblob(16)) ON CONFLICT(key) DO UPDATE
        SET value = excluded.value";
    conn.prepare_cached(sql)?.execute([changes_key(dataset, slice)])?;
    Ok(())
}

/// Advances the clock record, never back.
fn keep_clock(conn: &Connection, stamp_us: i64) -> rusqlite::Result<()> {
    // A commit without chunks has the stamp 0.
    if stamp_us <= 0 {
        return Ok(());
    }
    // The record is decimal text and is compared as a number: in byte order, `9` comes after `10`.
    let sql = "INSERT INTO catalog(key, value) VALUES (?1, CAST(?2 AS BLOB)) ON CONFLICT(key) DO UPDATE
        SET value = excluded.value WHERE CAST(CAST(value AS TEXT) AS INTEGER) < ?2";
    conn.prepare_cached(sql)?.execute(params![CLOCK_KEY, stamp_us])?;
    Ok(())
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
        // Only a condition: nothing to write.
        Some(value) if put.expect == Expect::Is(value.clone()) => 0,
        Some(value) => {
            let sql = "INSERT INTO catalog(key, value) VALUES (?1, ?2)
                ON CONFLICT(key) DO UPDATE SET value = excluded.value";
            conn.prepare_cached(sql)?.execute(params![put.key, &value[..]])?
        }
        None => conn.prepare_cached(DELETE_RECORD)?.execute([&put.key])?,
    };
    Ok(())
}

/// The value of a catalog record.
pub(crate) fn read_record(conn: &Connection, key: &str) -> rusqlite::Result<Option<Bytes>> {
    let mut statement = conn.prepare_cached("SELECT value FROM catalog WHERE key = ?1")?;
    let value = |row: &rusqlite::Row<'_>| Ok(Bytes::copy_from_slice(row.get_ref(0)?.as_blob()?));
    statement.query_row([key], value).optional()
}

/// Stores a chunk and returns whether anything changed. Repeating a write of the same chunk dirties no page.
fn put_chunk(conn: &Connection, dataset: &DatasetName, chunk: &Chunk) -> rusqlite::Result<bool> {
    let key = &chunk.key;
    let (keys, chunks) = (keys_table(dataset, key.slice), chunks_table(dataset, key.slice));
    let (cell, window, id) = (key.tile.cell.0, key.tile.window.0, key.id.to_bytes());
    let (head, body) = (&chunk.head[..], &chunk.body[..]);
    let bytes = (head.len() + body.len()) as i64;
    let find = format!("SELECT chunk FROM {keys} WHERE cell = ?1 AND window = ?2 AND id = ?3");
    let found =
        conn.prepare_cached(&find)?.query_row(params![cell, window, id], |row| row.get::<_, i64>(0)).optional()?;
    if let Some(row) = found {
        // In a damaged file the row may be missing.
        let put = format!(
            "INSERT INTO {chunks}(head, body, chunk) VALUES (?1, ?2, ?3) ON CONFLICT(chunk) DO UPDATE
             SET head = ?1, body = ?2 WHERE head IS NOT ?1 OR body IS NOT ?2"
        );
        let differs = conn.prepare_cached(&put)?.execute(params![head, body, row])? > 0;
        let update = format!("UPDATE {keys} SET rows = ?4, bytes = ?5 WHERE cell = ?1 AND window = ?2 AND id = ?3");
        conn.prepare_cached(&update)?.execute(params![cell, window, id, chunk.rows, bytes])?;
        return Ok(differs);
    }
    let insert = format!("INSERT INTO {chunks}(head, body) VALUES (?1, ?2)");
    let row = conn.prepare_cached(&insert)?.insert(params![head, body])?;
    let insert = format!("INSERT INTO {keys}(cell, window, id, rows, bytes, chunk) VALUES (?1, ?2, ?3, ?4, ?5, ?6)");
    conn.prepare_cached(&insert)?.execute(params![cell, window, id, chunk.rows, bytes, row])?;
    Ok(true)
}

/// Removes a chunk and returns whether it existed.
fn remove_chunk(conn: &Connection, dataset: &DatasetName, key: &ChunkKey) -> rusqlite::Result<bool> {
    let (keys, chunks) = (keys_table(dataset, key.slice), chunks_table(dataset, key.slice));
    let delete = format!("DELETE FROM {keys} WHERE cell = ?1 AND window = ?2 AND id = ?3 RETURNING chunk");
    let place = params![key.tile.cell.0, key.tile.window.0, key.id.to_bytes()];
    let found = conn.prepare_cached(&delete)?.query_row(place, |row| row.get::<_, i64>(0)).optional()?;
    let Some(row) = found else { return Ok(false) };
    conn.prepare_cached(&format!("DELETE FROM {chunks} WHERE chunk = ?1"))?.execute([row])?;
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
