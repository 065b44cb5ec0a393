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

/// Chunk references in one part record: 32 bytes each, well below the limit of a catalog value.
pub(crate) const REFS_PER_PART_MAX: usize = 100_000;
const PAGE: usize = 1_000;

/// An attempt that began so long ago, in microseconds, is taken to be dead. One that goes on all the same fails at its next step.
pub(crate) const EXPIRES_US: i64 = 24 * 3_600_000_000;

/// What the keys of definitions begin with.
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

/// The key of what is known of the dataset, or the group, that was last dropped under a name.
pub(crate) fn dropped_key(name: &str) -> String {
    format!("dropped/{name}")
}

pub(crate) fn group_key(name: &str) -> String {
    format!("group/{name}")
}

/// What the keys of one kind of records begin with that are kept by the item.
pub(crate) fn items(kind: &str, dataset: &DatasetRef) -> String {
    format!("{kind}/{}/", dataset.name)
}

/// The datasets of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupRecord {
    /// By number.
    pub datasets: Vec<DatasetName>,
    /// Another one after each change of the definition of one of them.
    #[serde(default)]
    pub token: String,
}

impl GroupRecord {
    /// The same after a change.
    pub(crate) fn changed(self, clock: &Clock) -> Self {
        Self { token: clock.token(), ..self }
    }
}

/// That a dataset, or a group of them, was dropped: until its writers notice, they may leave rows under the name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DroppedRecord {
    pub dropped_us: i64,
    /// The datasets that went.
    pub datasets: Vec<DatasetName>,
}

/// That a slice was dropped: chunks written to it before are gone on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Retired {
    pub retired_us: i64,
}

/// The hold of an attempt at a batch, from its beginning until nothing of earlier attempts is left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Intent {
    /// The key its writer gave.
    pub key: Option<String>,
    /// Write stamp of the rows, another one for each attempt: the record of the batch names the attempt by it.
    pub written_us: i64,
    /// Differs with every try: a later one takes the batch over from an earlier one, which then can put nothing more.
    pub attempt: String,
}

impl Intent {
    /// The attempt at a batch that holds it.
    pub(crate) fn origin(&self, batch: BatchId) -> Origin {
        Origin { batch, written_us: self.written_us, token: xxh3_64(self.attempt.as_bytes()) as u32 }
    }
}

/// What is known of a batch whose writing has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BatchRecord {
    pub key: Option<String>,
    pub written_us: i64,
    /// Tells the attempt from others of the same moment.
    #[serde(default)]
    pub token: u32,
    /// When the record was put: by then all rows were durable.
    pub ended_us: i64,
    /// Whether the batch was taken out again.
    pub removed: bool,
    pub rows: u64,
    pub tiles: u64,
    pub chunks: u64,
    pub bytes: u64,
    /// 32 hexadecimal digits; the same rows in any order give the same.
    pub content: String,
    /// First and last tick; `None` without rows.
    pub ticks: Option<(i64, i64)>,
    /// Numbers of its lists of chunks, the end excluded. Lists with other numbers are of attempts that do not count.
    pub parts: (u32, u32),
    /// What counted before; `None` for a new batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Previous>,
    /// The copy that brought it from another archive; `None` where it was written here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied: Option<String>,
    /// Rows with the ids, version and tile of a row that an earlier step of the write put: each such pair becomes one row where it is
    /// consolidated. `None` where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated: Option<u64>,
    /// What it has in each dataset of a group that it was written to, by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datasets: Vec<BatchPart>,
}

/// What a batch has in one dataset of a group.
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

/// What a batch was before its record was put.
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
    /// This as what was before.
    pub(crate) fn as_previous(&self) -> Previous {
        let Self { written_us, token, ended_us, removed, .. } = *self;
        Previous { written_us, token, ended_us, removed }
    }

    /// The attempt whose rows count.
    pub(crate) fn counting(&self, batch: BatchId) -> Option<Origin> {
        (!self.removed).then_some(Origin { batch, written_us: self.written_us, token: self.token })
    }

    /// What it says of one dataset; `None` for one of a group that it was not written to.
    pub(crate) fn of_dataset(&self, group: Option<&Membership>) -> Option<Self> {
        let Some(group) = group.filter(|_| !self.removed) else { return Some(self.clone()) };
        let part = self.datasets.iter().find(|part| part.dataset == group.number)?;
        let BatchPart { rows, tiles, chunks, bytes, ticks, repeated, .. } = *part;
        Some(Self { rows, tiles, chunks, bytes, ticks, repeated, ..self.clone() })
    }

    /// Those of the lists that are of the attempt that counts, and the others.
    pub(crate) fn own_parts(&self, parts: Vec<ChunkList>) -> (Vec<ChunkList>, Vec<ChunkList>) {
        let (from, to) = self.parts;
        parts.into_iter().partition(|part| !self.removed && (from..to).contains(&part.number))
    }
}

/// That a dataset is a copy of one in another archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyRecord {
    /// The archive it comes from, without user, password and settings.
    pub source: String,
    /// Names the copy for good.
    pub copy: String,
    /// Names the run that is at it, or was last.
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

/// Names a chunk and how many rows it was written with.
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

/// Changes nothing, under the condition that there is no such record.
pub(crate) fn no_record(key: String) -> RecordPut {
    RecordPut { key, value: None, expect: Expect::Absent }
}

/// Deletes a record that nobody has changed.
pub(crate) fn delete_known(key: String, value: Bytes) -> RecordPut {
    RecordPut { key, value: None, expect: Expect::Is(value) }
}

pub(crate) fn delete_part(dataset: &DatasetRef, batch: BatchId, part: u32) -> RecordPut {
    delete(part_key(dataset, batch, part))
}

/// The value as JSON, a list or an object that is not empty, with its checksum as the last member.
pub(crate) fn to_json<T: Serialize>(key: &str, value: &T) -> Result<Bytes> {
    let text = serde_json::to_vec(value);
    text.map(|text| checksum::seal(key, text).into()).map_err(|e| damaged(key, e.to_string()))
}

/// The value of a record whose checksum holds.
pub(crate) fn from_json<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T> {
    let text = checksum::open(key, value).map_err(|reason| damaged(key, reason.to_owned()))?;
    serde_json::from_slice(&text).map_err(|e| damaged(key, e.to_string()))
}

fn damaged(key: &str, reason: String) -> ArchiveError {
    ArchiveError::Catalog { key: key.to_owned(), reason }
}

/// Reads one record; with its bytes, which a conditional put has to name.
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

/// The batches whose writing has begun and not ended.
pub(crate) async fn unfinished(store: &dyn Store, dataset: &DatasetRef) -> Result<Vec<(BatchId, Intent)>> {
    let mut begun = Vec::new();
    for record in list(store, &items("intent", dataset)).await? {
        let batch = id_of(&record.key)?;
        let intent: Intent = from_json(&record.key, &record.value)?;
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

/// The names that writers gave to batches that are stored or begun, in order. Takes in a page of records at a time, so that very many
/// batches take no memory but for their names.
pub(crate) async fn batch_names(store: &dyn Store, dataset: &DatasetRef) -> Result<Vec<String>> {
    let (mut names, mut removed) = (BTreeSet::new(), HashSet::new());
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

/// What the record of a batch and that of one that was begun have in common.
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
