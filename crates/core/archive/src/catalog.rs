//! Catalog records: their keys, their values, and how they change.
//!
//! `docs/format.md` describes each record; nothing else in this crate builds a key or parses a value.

pub(crate) mod checksum;
pub(crate) mod clock;
pub(crate) mod fence;
pub(crate) mod superseded;

use std::collections::{BTreeSet, HashSet};

use bytes::Bytes;
use chronotile_chunk::Origin;
use chronotile_store::{ChunkKey, DatasetRef, Expect, Record, RecordPut, Store};
use chronotile_types::{BatchId, Cell, ChunkId, DatasetName, Membership, SliceId, Tile, Window};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::catalog::clock::Clock;
use crate::error::{ArchiveError, Result};

/// Chunk references in one part record: 36 bytes each, well below the limit of a catalog value.
pub(crate) const REFS_PER_PART_MAX: usize = 100_000;
const PAGE: usize = 1_000;

/// Age in microseconds at which an attempt counts as dead. If it continues after all, its next step fails.
pub(crate) const EXPIRES_US: i64 = 24 * 3_600_000_000;

/// Prefix of the keys of definitions.
pub(crate) const DATASETS: &str = "dataset/";

pub(crate) fn dataset_key(name: &str) -> String {
    format!("{DATASETS}{name}")
}

pub(crate) fn batch_key(dataset: &DatasetRef, batch: BatchId) -> String {
    format!("batch/{}/{batch}", dataset.name)
}

pub(crate) fn intent_key(dataset: &DatasetRef, batch: BatchId) -> String {
    format!("intent/{}/{batch}", dataset.name)
}

fn part_key(dataset: &DatasetRef, batch: BatchId, part: u32) -> String {
    format!("part/{}/{batch}/{part:08}", dataset.name)
}

pub(crate) fn retired_key(dataset: &DatasetRef, slice: SliceId) -> String {
    format!("retired/{}/{}", dataset.name, slice.0)
}

pub(crate) fn copy_key(dataset: &DatasetRef) -> String {
    format!("copy/{}", dataset.name)
}

/// Key of the record of the dataset or group that was last dropped under a name.
pub(crate) fn dropped_key(name: &str) -> String {
    format!("dropped/{name}")
}

pub(crate) fn group_key(name: &str) -> String {
    format!("group/{name}")
}

/// Prefix of the keys of a kind of records with one record per item.
pub(crate) fn items(kind: &str, dataset: &DatasetRef) -> String {
    format!("{kind}/{}/", dataset.name)
}

/// The datasets of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupRecord {
    /// By number.
    pub datasets: Vec<DatasetName>,
    /// Differs after each change of the definition of a dataset of the group.
    #[serde(default)]
    pub token: String,
}

impl GroupRecord {
    /// The record with a new token, for a change of a definition.
    pub(crate) fn changed(self, clock: &Clock) -> Self {
        Self { token: clock.token(), ..self }
    }
}

/// Marks a dropped dataset or group: until its writers notice the drop, they may leave rows under the name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DroppedRecord {
    pub dropped_us: i64,
    /// The dropped datasets.
    pub datasets: Vec<DatasetName>,
}

/// Marks a dropped slice: chunks written to it before the drop are missing on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Retired {
    pub retired_us: i64,
}

/// The claim of an attempt on a batch, from its start until nothing of earlier attempts is left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Intent {
    /// The key its writer gave.
    pub key: Option<String>,
    /// Write stamp of the rows. The batch record identifies the attempt by it and by a token.
    pub written_us: i64,
    /// Unique to each attempt: a later one takes the batch over from an earlier one, which can then put nothing more.
    pub attempt: String,
}

impl Intent {
    /// The origin of the rows of this attempt.
    pub(crate) fn origin(&self, batch: BatchId) -> Origin {
        Origin { batch, written_us: self.written_us, token: xxh3_64(self.attempt.as_bytes()) as u32 }
    }
}

/// The record of a stored or removed batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BatchRecord {
    pub key: Option<String>,
    pub written_us: i64,
    /// Distinguishes attempts with the same write stamp.
    #[serde(default)]
    pub token: u32,
    /// When the record was put: by then all rows were durable.
    pub ended_us: i64,
    /// Whether the batch was removed.
    pub removed: bool,
    pub rows: u64,
    pub tiles: u64,
    pub chunks: u64,
    pub bytes: u64,
    /// Content hash, 32 hexadecimal digits, independent of the order of rows.
    pub content: String,
    /// First and last tick; `None` without rows.
    pub ticks: Option<(i64, i64)>,
    /// Range of the numbers of its lists of chunks, the end excluded. Other lists belong to attempts that do not count.
    pub parts: (u32, u32),
    /// The state of the batch before this record; `None` for a new batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Previous>,
    /// The copy that brought it from another archive; `None` where it was written here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied: Option<String>,
    /// Rows with the ids, version and tile of a row that an earlier step of the write put: each such pair becomes one
    /// row where it is consolidated. `None` where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated: Option<u64>,
    /// Its part in each dataset of a group to which it was written, by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datasets: Vec<BatchPart>,
}

/// The part of a batch in one dataset of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BatchPart {
    /// Number of the dataset.
    pub dataset: u8,
    pub rows: u64,
    pub tiles: u64,
    pub chunks: u64,
    pub bytes: u64,
    pub ticks: Option<(i64, i64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated: Option<u64>,
}

/// The state of a batch before its current record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Previous {
    pub written_us: i64,
    #[serde(default)]
    pub token: u32,
    pub ended_us: i64,
    pub removed: bool,
}

impl Previous {
    /// The attempt whose rows counted.
    pub(crate) fn counting(&self, batch: BatchId) -> Option<Origin> {
        (!self.removed).then_some(Origin { batch, written_us: self.written_us, token: self.token })
    }
}

impl BatchRecord {
    /// This record as the previous state of its successor.
    pub(crate) fn as_previous(&self) -> Previous {
        let Self { written_us, token, ended_us, removed, .. } = *self;
        Previous { written_us, token, ended_us, removed }
    }

    /// The attempt whose rows count.
    pub(crate) fn counting(&self, batch: BatchId) -> Option<Origin> {
        (!self.removed).then_some(Origin { batch, written_us: self.written_us, token: self.token })
    }

    /// The record restricted to one dataset; `None` for a dataset of the group to which the batch was not written.
    pub(crate) fn of_dataset(&self, group: Option<&Membership>) -> Option<Self> {
        let Some(group) = group.filter(|_| !self.removed) else { return Some(self.clone()) };
        let part = self.datasets.iter().find(|part| part.dataset == group.number)?;
        let BatchPart { rows, tiles, chunks, bytes, ticks, repeated, .. } = *part;
        Some(Self { rows, tiles, chunks, bytes, ticks, repeated, ..self.clone() })
    }

    /// Splits lists of chunks into those of the attempt that counts and the others.
    pub(crate) fn own_parts(&self, parts: Vec<ChunkList>) -> (Vec<ChunkList>, Vec<ChunkList>) {
        let (from, to) = self.parts;
        parts.into_iter().partition(|part| !self.removed && (from..to).contains(&part.number))
    }
}

/// Marks a dataset as a copy of one in another archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyRecord {
    /// The archive it comes from, without user, password and settings.
    pub source: String,
    /// Permanent id of the copy.
    pub copy: String,
    /// Id of the current or last run.
    pub attempt: String,
    /// When the copy first began.
    pub begun_us: i64,
    /// When it last held all that was finished on the source.
    pub caught_up_us: Option<i64>,
}

/// The chunks that one step of a write puts, recorded before they are put.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChunkList {
    pub number: u32,
    pub refs: Vec<ChunkRef>,
}

/// The key of a chunk and the number of rows with which it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkRef {
    pub key: ChunkKey,
    pub rows: u32,
}

const REF_BYTES: usize = 4 + 8 + 4 + 16 + 4;

impl ChunkList {
    /// Per chunk: slice (i32), cell (i64), window (i32), id (16 bytes), rows (u32), all big-endian; then the checksum.
    fn to_bytes(&self, key: &str) -> Bytes {
        let mut bytes = Vec::with_capacity(self.refs.len() * REF_BYTES + 8);
        for chunk in &self.refs {
            bytes.extend_from_slice(&chunk.key.slice.0.to_be_bytes());
            bytes.extend_from_slice(&chunk.key.tile.cell.0.to_be_bytes());
            bytes.extend_from_slice(&chunk.key.tile.window.0.to_be_bytes());
            bytes.extend_from_slice(&chunk.key.id.to_bytes());
            bytes.extend_from_slice(&chunk.rows.to_be_bytes());
        }
        bytes.extend_from_slice(&checksum::of(key, &bytes).to_be_bytes());
        bytes.into()
    }

    fn parse(record: &Record) -> Result<Self> {
        let damaged = |reason: &str| damaged(&record.key, reason.to_owned());
        let number = record.key.rsplit('/').next().and_then(|n| n.parse().ok());
        let number = number.ok_or_else(|| damaged("its key does not end with a number"))?;
        // The checksum takes the last 8 bytes.
        if record.value.len() % REF_BYTES != 8 {
            return Err(damaged("its length is not a whole number of chunk references"));
        }
        let bytes = checksum::open_bytes(&record.key, &record.value).map_err(damaged)?;
        let refs = bytes.chunks_exact(REF_BYTES).map(parse_ref).collect::<Option<_>>();
        Ok(Self { number, refs: refs.ok_or_else(|| damaged("a chunk reference is malformed"))? })
    }

    pub(crate) fn put(&self, dataset: &DatasetRef, batch: BatchId) -> RecordPut {
        let key = part_key(dataset, batch, self.number);
        let bytes = self.to_bytes(&key);
        put(key, bytes, Expect::Any)
    }
}

fn parse_ref(bytes: &[u8]) -> Option<ChunkRef> {
    let slice = SliceId(i32::from_be_bytes(bytes[..4].try_into().ok()?));
    let cell = Cell(i64::from_be_bytes(bytes[4..12].try_into().ok()?));
    let window = Window(i32::from_be_bytes(bytes[12..16].try_into().ok()?));
    let id = ChunkId::from_bytes(&bytes[16..32])?;
    let rows = u32::from_be_bytes(bytes[32..].try_into().ok()?);
    Some(ChunkRef { key: ChunkKey { slice, tile: Tile { cell, window }, id }, rows })
}

pub(crate) fn put(key: String, value: Bytes, expect: Expect) -> RecordPut {
    RecordPut { key, value: Some(value), expect }
}

pub(crate) fn delete(key: String) -> RecordPut {
    RecordPut { key, value: None, expect: Expect::Any }
}

/// The condition that a record has this value; changes nothing.
pub(crate) fn unchanged(key: String, value: Bytes) -> RecordPut {
    put(key, value.clone(), Expect::Is(value))
}

/// The condition that a record does not exist; changes nothing.
pub(crate) fn no_record(key: String) -> RecordPut {
    RecordPut { key, value: None, expect: Expect::Absent }
}

/// Deletes a record on condition that it still has this value.
pub(crate) fn delete_known(key: String, value: Bytes) -> RecordPut {
    RecordPut { key, value: None, expect: Expect::Is(value) }
}

pub(crate) fn delete_part(dataset: &DatasetRef, batch: BatchId, part: u32) -> RecordPut {
    delete(part_key(dataset, batch, part))
}

/// The value as JSON, a list or an object that is not empty, with its checksum as the last member.
pub(crate) fn to_json<T: Serialize>(key: &str, value: &T) -> Result<Bytes> {
    let text = serde_json::to_vec(value);
    text.map(|text| checksum::seal(key, text).into()).map_err(|e| malformed(key, e))
}

/// Verifies the checksum of a record and parses its value.
pub(crate) fn from_json<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T> {
    let text = checksum::open(key, value).map_err(|reason| damaged(key, reason.to_owned()))?;
    serde_json::from_slice(&text).map_err(|e| malformed(key, e))
}

fn damaged(key: &str, reason: String) -> ArchiveError {
    ArchiveError::Catalog { key: key.to_owned(), reason, source: None }
}

fn malformed(key: &str, error: serde_json::Error) -> ArchiveError {
    ArchiveError::Catalog { key: key.to_owned(), reason: error.to_string(), source: Some(error) }
}

/// Reads one record, with its bytes for the condition of a put.
pub(crate) async fn get<T: DeserializeOwned>(store: &dyn Store, key: &str) -> Result<Option<(T, Bytes)>> {
    match store.record(key).await? {
        Some(bytes) => Ok(Some((from_json(key, &bytes)?, bytes))),
        None => Ok(None),
    }
}

/// All records whose keys begin with `prefix`, in key order.
pub(crate) async fn list(store: &dyn Store, prefix: &str) -> Result<Vec<Record>> {
    let mut all: Vec<Record> = Vec::new();
    loop {
        let after = all.last().map(|record| record.key.clone());
        let page = store.records(prefix, after.as_deref(), PAGE).await?;
        let last = page.len() < PAGE;
        all.extend(page);
        if last {
            return Ok(all);
        }
    }
}

/// The part records of a batch, those of unfinished attempts included, by number.
pub(crate) async fn parts(store: &dyn Store, dataset: &DatasetRef, batch: BatchId) -> Result<Vec<ChunkList>> {
    let records = list(store, &format!("part/{}/{batch}/", dataset.name)).await?;
    records.iter().map(ChunkList::parse).collect()
}

/// The batches whose writing has begun but not ended.
pub(crate) async fn unfinished(store: &dyn Store, dataset: &DatasetRef) -> Result<Vec<(BatchId, Intent)>> {
    let mut begun = Vec::new();
    for record in list(store, &items("intent", dataset)).await? {
        let batch = id_of(&record.key)?;
        let intent: Intent = from_json(&record.key, &record.value)?;
        // The record is read after the intent, so that it shows a write that ends between the two reads.
        let stored = get::<BatchRecord>(store, &batch_key(dataset, batch)).await?;
        // A record of the same stamp ended the write; only the deletion of the intent is missing.
        if stored.is_none_or(|(record, _)| record.written_us != intent.written_us) {
            begun.push((batch, intent));
        }
    }
    Ok(begun)
}

/// The batches whose writing has ended, removed ones included.
pub(crate) async fn finished(store: &dyn Store, dataset: &DatasetRef) -> Result<Vec<(BatchId, BatchRecord)>> {
    let records = list(store, &items("batch", dataset)).await?;
    records.iter().map(|record| Ok((id_of(&record.key)?, from_json(&record.key, &record.value)?))).collect()
}

/// The names that writers gave to batches that are stored or begun, in order. Reads a page of records at a time, so
/// that memory holds little more than the names.
pub(crate) async fn batch_names(store: &dyn Store, dataset: &DatasetRef) -> Result<Vec<String>> {
    let (mut names, mut removed) = (BTreeSet::new(), HashSet::new());
    // Batch records come first, because they tell which intents are those of removed batches.
    for prefix in [items("batch", dataset), items("intent", dataset)] {
        let mut after: Option<String> = None;
        loop {
            let page = store.records(&prefix, after.as_deref(), PAGE).await?;
            for record in &page {
                let named: NamedBatch = from_json(&record.key, &record.value)?;
                let attempt = (id_of(&record.key)?, named.written_us);
                // What is left of a removed batch has an intent with the stamp of its record.
                if named.removed {
                    removed.insert(attempt);
                }
                names.extend(named.key.filter(|_| !removed.contains(&attempt)));
            }
            after = page.last().map(|record| record.key.clone());
            if page.len() < PAGE {
                break;
            }
        }
    }
    Ok(names.into_iter().collect())
}

/// The fields that batch records and intents have in common.
#[derive(Deserialize)]
struct NamedBatch {
    key: Option<String>,
    written_us: i64,
    #[serde(default)]
    removed: bool,
}

pub(crate) fn id_of(key: &str) -> Result<BatchId> {
    let id = key.rsplit('/').next().and_then(BatchId::from_hex);
    id.ok_or_else(|| damaged(key, "its key does not end with a batch id".to_owned()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
mod tests {
    use chronotile_memory::MemoryStore;
    use chronotile_store::Commit;
    use chronotile_types::TimeFormat;

    use super::*;
    use crate::time_axis::tests::spec;

    fn dataset() -> DatasetRef {
        DatasetRef::from(&spec(TimeFormat::Timestamp))
    }

    #[test]
    fn a_malformed_record_names_its_source() {
        let sealed = checksum::seal("dataset/records", b"[1]".to_vec());
        let error = from_json::<Vec<String>>("dataset/records", &sealed).unwrap_err();
        assert!(std::error::Error::source(&error).is_some(), "{error}");
    }

    #[test]
    fn keys_are_those_of_the_format() {
        let (dataset, batch) = (dataset(), BatchId(0xabc));
        let id = "00000000000000000000000000000abc";
        for (key, expected) in [
            (dataset_key("records"), "dataset/records".to_owned()),
            (group_key("survey"), "group/survey".to_owned()),
            (dropped_key("records"), "dropped/records".to_owned()),
            (batch_key(&dataset, batch), format!("batch/records/{id}")),
            (intent_key(&dataset, batch), format!("intent/records/{id}")),
            (part_key(&dataset, batch, 12), format!("part/records/{id}/00000012")),
            (retired_key(&dataset, SliceId(-3)), "retired/records/-3".to_owned()),
            (copy_key(&dataset), "copy/records".to_owned()),
            (items("batch", &dataset), "batch/records/".to_owned()),
            (superseded::head_key(&dataset), "superseded/records".to_owned()),
            (superseded::page_key(&dataset, 12), "superseded/records/000012".to_owned()),
        ] {
            assert_eq!(key, expected);
        }
        assert_eq!(id_of(&batch_key(&dataset, batch)).unwrap(), batch);
    }

    #[tokio::test]
    async fn records_are_listed_whole_however_many_pages_they_take() {
        let dataset = dataset();
        let mut written = 0;
        let store = MemoryStore::new();
        for count in [PAGE - 1, PAGE, PAGE + 1, 2 * PAGE] {
            let record = |number: usize| {
                let key = batch_key(&dataset, BatchId(number as u128));
                let removed = number.is_multiple_of(10);
                let value =
                    serde_json::json!({"key": format!("{number:05}"), "written_us": number, "removed": removed});
                put(key.clone(), to_json(&key, &value).unwrap(), Expect::Absent)
            };
            let before = (written..count).map(record).collect();
            store.commit(&dataset, Commit { before, ..Commit::default() }).await.unwrap();
            written = count;
            let keys: Vec<String> = (0..count).map(|number| batch_key(&dataset, BatchId(number as u128))).collect();
            let found = list(&store, &items("batch", &dataset)).await.unwrap();
            assert_eq!(found.into_iter().map(|record| record.key).collect::<Vec<_>>(), keys);
            let names: Vec<String> = (0..count).filter(|n| !n.is_multiple_of(10)).map(|n| format!("{n:05}")).collect();
            assert_eq!(batch_names(&store, &dataset).await.unwrap(), names);
        }
    }

    #[test]
    fn a_batch_of_a_group_has_in_each_dataset_what_was_written_to_it() {
        let part = |dataset: u8| {
            let n = u64::from(dataset) * 10;
            let (ticks, repeated) = (Some((n as i64, n as i64 + 5)), Some(n + 6));
            BatchPart { dataset, rows: n + 1, tiles: n + 2, chunks: n + 3, bytes: n + 4, ticks, repeated }
        };
        let record = BatchRecord {
            key: Some("night 1".into()),
            written_us: 1,
            token: 2,
            ended_us: 3,
            removed: false,
            rows: 52,
            tiles: 54,
            chunks: 56,
            bytes: 58,
            content: "0".repeat(32),
            ticks: None,
            parts: (0, 1),
            previous: None,
            copied: None,
            repeated: None,
            datasets: vec![part(1), part(4)],
        };
        let member = |number: u8| Membership { number, ..Membership::of(DatasetName::new("survey").unwrap()) };
        assert_eq!(record.of_dataset(None), Some(record.clone()));
        assert_eq!(record.of_dataset(Some(&member(2))), None);
        for number in [1, 4] {
            let BatchPart { rows, tiles, chunks, bytes, ticks, repeated, .. } = part(number);
            let expected = BatchRecord { rows, tiles, chunks, bytes, ticks, repeated, ..record.clone() };
            assert_eq!(record.of_dataset(Some(&member(number))), Some(expected));
        }
        let removed = BatchRecord { removed: true, ..record };
        assert_eq!(removed.of_dataset(Some(&member(2))), Some(removed.clone()));
    }
}
