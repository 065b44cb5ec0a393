//! Catalog records: each group is one partition, changed by lightweight transactions.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use bytes::Bytes;
use chronotile_cql::scylla::response::query_result::QueryRowsResult;
use chronotile_cql::scylla::statement::Consistency;
use chronotile_cql::scylla::statement::batch::{Batch, BatchType};
use chronotile_cql::scylla::value::CqlValue;
use chronotile_cql::{Applied, Call, CqlError, Session};
use chronotile_store::{CLOCK_KEY, Expect, Record, RecordPut, Result, StoreError, record_group};
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use crate::failure::{ENGINE, malformed, of_write, refused};
use crate::names::CATALOG;
use crate::requests::{applied, prepared, until};

/// Partitions that a listing reads concurrently.
const LIST_AT_ONCE: usize = 32;
/// Records per page of a listing: their values may have megabytes.
const LIST_PAGE: usize = 1_000;

/// The partition of a group's records. Records without a group share one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RecordPartition {
    dataset: String,
    bucket: i32,
}

impl RecordPartition {
    const UNGROUPED: Self = Self { dataset: String::new(), bucket: 0 };

    fn of(key: &str, buckets: u32) -> Self {
        match record_group(key) {
            Some((dataset, item)) => Self::in_bucket(dataset, (xxh3_64(item.as_bytes()) % u64::from(buckets)) as i32),
            None => Self::UNGROUPED,
        }
    }

    /// The leading slash keeps these partitions apart from that of the ungrouped records: a key that is not an archive's may have an
    /// empty dataset name, as they do.
    fn in_bucket(dataset: &str, bucket: i32) -> Self {
        Self { dataset: format!("/{dataset}"), bucket }
    }
}

/// The catalog of an archive.
#[derive(Debug)]
pub(crate) struct Catalog {
    buckets: u32,
    /// Cache of ungrouped records, each with its write time. They include dataset definitions, which have tens of kilobytes, seldom
    /// change and are checked before every read.
    known: std::sync::Mutex<HashMap<String, (i64, Bytes)>>,
    /// Concurrent transactions on one partition contend: those of this process run one after the other.
    mutexes: Box<[Mutex<()>]>,
}

/// The combined effect on one record of all its puts in one step.
struct Change {
    key: String,
    /// The expected current value: `Some(None)` for no record, `None` for no condition.
    expect: Option<Option<Bytes>>,
    /// The new value; `None` deletes the record.
    value: Option<Bytes>,
}

impl Change {
    /// Whether the current value meets the condition.
    fn expects(&self, found: &Option<Bytes>) -> bool {
        self.expect.as_ref().is_none_or(|expected| expected == found)
    }
}

impl Catalog {
    pub(crate) fn new(buckets: u32) -> Self {
        Self {
            buckets,
            known: Default::default(),
            mutexes: (0..buckets.min(1_024)).map(|_| Mutex::default()).collect(),
        }
    }

    /// Applies the changes of a step group by group, those with conditions first. `begun` says that an earlier step of the same
    /// commit has taken effect.
    pub(crate) async fn apply(&self, session: &Session, puts: &[RecordPut], begun: bool) -> Result<()> {
        let mut groups: Vec<(RecordPartition, Vec<&RecordPut>)> = Vec::new();
        for put in puts {
            let place = RecordPartition::of(&put.key, self.buckets);
            match groups.iter_mut().find(|(known, _)| *known == place) {
                Some((_, puts)) => puts.push(put),
                None => groups.push((place, vec![put])),
            }
        }
        // If a condition fails in the first group, nothing has been changed, and the error can say so.
        groups.sort_by_key(|(_, puts)| puts.iter().all(|put| put.expect == Expect::Any));
        let mut begun = begun;
        for (place, puts) in groups {
            let changes = fold(&puts)?;
            // Partitions that share a mutex only wait for each other.
            let place_of_mutex =
                xxh3_64(format!("{} {}", place.dataset, place.bucket).as_bytes()) as usize % self.mutexes.len();
            let _guard = self.mutexes[place_of_mutex].lock().await;
            decide(session, &place, changes, begun).await?;
            begun = true;
        }
        Ok(())
    }

    /// One record.
    pub(crate) async fn record(&self, session: &Session, key: &str, call: &Call) -> Result<Option<Bytes>> {
        if key == CLOCK_KEY {
            return node_time(session, call).await.map(Some).map_err(refused);
        }
        let place = RecordPartition::of(key, self.buckets);
        if place != RecordPartition::UNGROUPED {
            return read(session, &place, key, call).await.map_err(refused);
        }
        // Each call locks for one expression, so that the mutex is never held across an await.
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let last = known().get(key).cloned();
        // The write time takes a few bytes, the value tens of kilobytes: the value is fetched only after a change.
        if let Some((written, value)) = last
            && written_at(session, key, call).await.map_err(refused)? == Some(written)
        {
            return Ok(Some(value));
        }
        let found = read_with_time(session, key, call).await.map_err(refused)?;
        match &found {
            Some(found) => known().insert(key.to_owned(), found.clone()),
            None => known().remove(key),
        };
        Ok(found.map(|(_, value)| value))
    }

    /// Records by prefix; see [`chronotile_store::Store::records`].
    pub(crate) async fn records(
        &self,
        session: &Session,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        call: &Call,
    ) -> Result<Vec<Record>> {
        if limit == 0 {
            return Ok(vec![]);
        }
        // Only a slash after the item shows that the item is complete. A shorter prefix may match records in every
        // bucket.
        let mut parts = prefix.splitn(4, '/');
        let (dataset, item, rest) = (parts.nth(1), parts.next(), parts.next());
        let places: Vec<RecordPartition> = match (dataset, item, rest) {
            (Some(_), Some(_), Some(_)) => vec![RecordPartition::of(prefix, self.buckets)],
            (Some(dataset), Some(_), None) => {
                (0..self.buckets as i32).map(|bucket| RecordPartition::in_bucket(dataset, bucket)).collect()
            }
            _ => vec![RecordPartition::UNGROUPED],
        };
        let alone = places.len() == 1;
        let lists = stream::iter(places).map(|place| list(session, place, prefix, after, limit, call));
        let lists: Vec<Vec<Record>> = lists.buffer_unordered(LIST_AT_ONCE).try_collect().await.map_err(refused)?;
        let mut records: Vec<Record> = lists.into_iter().flatten().collect();
        if !alone {
            records.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        }
        records.truncate(limit);
        Ok(records)
    }
}

/// Merges the puts of each record into one change. A later put's condition is checked against the value of the earlier put.
fn fold(puts: &[&RecordPut]) -> Result<Vec<Change>> {
    let mut changes: Vec<Change> = Vec::with_capacity(puts.len());
    for put in puts {
        let expect = match &put.expect {
            Expect::Any => None,
            Expect::Absent => Some(None),
            Expect::Is(value) => Some(Some(value.clone())),
        };
        match changes.iter_mut().find(|change| change.key == put.key) {
            None => changes.push(Change { key: put.key.clone(), expect, value: put.value.clone() }),
            Some(earlier) => {
                if expect.is_some_and(|expected| expected != earlier.value) {
                    return Err(StoreError::RecordConflict { key: put.key.clone() });
                }
                earlier.value = put.value.clone();
            }
        }
    }
    Ok(changes)
}

/// Applies the changes of one group by a lightweight transaction, and determines the outcome of an attempt whose answer was lost.
async fn decide(session: &Session, place: &RecordPartition, mut changes: Vec<Change>, begun: bool) -> Result<()> {
    let unconditional = changes.iter().all(|change| change.expect.is_none());
    let deadline = Instant::now() + session.settings().timeout;
    let mut pause = Duration::from_millis(10);
    // The error of an attempt whose answer was lost. It may still take effect if its node was only stalled.
    let mut lost: Option<CqlError> = None;
    // Each round sends the transaction and, unless it was applied, reads the records to find out why.
    loop {
        if unconditional {
            // Plain writes and transactions must not be mixed in one row: a condition that holds makes this a transaction.
            let now = read(session, place, &changes[0].key, &serial(session, deadline)).await;
            changes[0].expect = Some(now.map_err(|error| reported(error, &lost, begun))?);
        }
        match transact(session, place, &changes, deadline).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) if error.applied() == Applied::Maybe => lost = Some(error),
            Err(error) => return Err(reported(error, &lost, begun)),
        }
        let seen = look(session, place, &changes, deadline).await.map_err(|error| reported(error, &lost, begun))?;
        match (&lost, seen.differs) {
            // Without a lost attempt, equal values were written by another client: that is no success of ours.
            (Some(_), _) if seen.done => return Ok(()),
            // The lost attempt may have taken effect, and another client may have changed the record since.
            (Some(error), Some(_)) => {
                return Err(StoreError::Overtaken { engine: ENGINE, reason: error.to_string() });
            }
            (None, Some(key)) if !unconditional => return Err(StoreError::RecordConflict { key }),
            // The records meet the conditions again, the caller set none, or the lost attempt has not taken effect: try
            // again.
            _ => {}
        }
        if Instant::now() + pause > deadline {
            let reason = "other processes kept changing the same catalog records".to_owned();
            return Err(reported(CqlError::Overloaded { reason }, &lost, begun));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// The caller's error. After an attempt whose answer was lost the outcome is unknown, and that attempt's error is the reason.
fn reported(error: CqlError, lost: &Option<CqlError>, begun: bool) -> StoreError {
    match lost {
        Some(lost) => of_write(lost.clone(), true),
        None => of_write(error, begun),
    }
}

/// The state of a group relative to the requested changes.
struct ObservedGroup {
    /// Whether all records have their new values.
    done: bool,
    /// A record that does not meet its condition.
    differs: Option<String>,
}

async fn look(
    session: &Session,
    place: &RecordPartition,
    changes: &[Change],
    deadline: Instant,
) -> std::result::Result<ObservedGroup, CqlError> {
    let mut seen = ObservedGroup { done: true, differs: None };
    for change in changes {
        let found = read(session, place, &change.key, &serial(session, deadline)).await?;
        seen.done &= found == change.value;
        if !change.expects(&found) {
            seen.differs.get_or_insert_with(|| change.key.clone());
        }
    }
    Ok(seen)
}

fn serial(session: &Session, deadline: Instant) -> Call {
    Call { consistency: session.serial_read(), ..until(session, deadline) }
}

/// Whether the transaction took effect.
async fn transact(
    session: &Session,
    place: &RecordPartition,
    changes: &[Change],
    deadline: Instant,
) -> std::result::Result<bool, CqlError> {
    let keyspace = &session.settings().keyspace;
    let update =
        format!("UPDATE {keyspace}.{CATALOG} SET value = ? WHERE dataset = ? AND bucket = ? AND record_key = ?");
    let plain = prepared(session, &update, true).await?;
    let conditional = prepared(session, &format!("{update} IF value = ?"), false).await?;
    // A null stands for no record, both as the new value and in the condition.
    let blob = |value: &Option<Bytes>| value.as_ref().map(|value| CqlValue::Blob(value.to_vec()));
    let mut batch = Batch::new(BatchType::Unlogged);
    let mut values = Vec::with_capacity(changes.len());
    for change in changes {
        let mut row = vec![
            blob(&change.value),
            Some(CqlValue::Text(place.dataset.clone())),
            Some(CqlValue::Int(place.bucket)),
            Some(CqlValue::Text(change.key.clone())),
        ];
        match &change.expect {
            Some(expected) => {
                row.push(blob(expected));
                batch.append_statement(conditional.clone());
            }
            None => batch.append_statement(plain.clone()),
        }
        values.push(row);
    }
    applied(session.transact(&batch, &values[..], &until(session, deadline)).await?)
}

async fn read(
    session: &Session,
    place: &RecordPartition,
    key: &str,
    call: &Call,
) -> std::result::Result<Option<Bytes>, CqlError> {
    let keyspace = &session.settings().keyspace;
    let cql = format!("SELECT value FROM {keyspace}.{CATALOG} WHERE dataset = ? AND bucket = ? AND record_key = ?");
    let statement = prepared(session, &cql, true).await?;
    let found = session.execute(&statement, (&place.dataset, place.bucket, key), call).await?;
    let rows = found.into_rows_result().map_err(malformed)?;
    Ok(rows.maybe_first_row::<(Option<Bytes>,)>().map_err(malformed)?.and_then(|(value,)| value))
}

/// An ungrouped record with its write time, which differs after every change since transactions assign unique times.
async fn read_with_time(
    session: &Session,
    key: &str,
    call: &Call,
) -> std::result::Result<Option<(i64, Bytes)>, CqlError> {
    let found = ungrouped_record(session, "WRITETIME(value), value", key, call).await?;
    let row = found.maybe_first_row::<(Option<i64>, Option<Bytes>)>().map_err(malformed)?;
    Ok(row.and_then(|(written, value)| Some((written?, value?))))
}

/// The coordinator's time in microseconds, as text. Nodes report milliseconds; the middle of the millisecond is returned.
async fn node_time(session: &Session, call: &Call) -> std::result::Result<Bytes, CqlError> {
    let cql = "SELECT toUnixTimestamp(now()) FROM system.local WHERE key = 'local'";
    let statement = session.prepare(cql, true).await?;
    let alone = Call { consistency: Consistency::One, ..*call };
    let found = session.execute(&statement, (), &alone).await?.into_rows_result().map_err(malformed)?;
    let (time_ms,) = found.first_row::<(i64,)>().map_err(malformed)?;
    Ok((time_ms * 1_000 + 500).to_string().into())
}

async fn written_at(session: &Session, key: &str, call: &Call) -> std::result::Result<Option<i64>, CqlError> {
    let found = ungrouped_record(session, "WRITETIME(value)", key, call).await?;
    Ok(found.maybe_first_row::<(Option<i64>,)>().map_err(malformed)?.and_then(|(written,)| written))
}

async fn ungrouped_record(
    session: &Session,
    what: &str,
    key: &str,
    call: &Call,
) -> std::result::Result<QueryRowsResult, CqlError> {
    let keyspace = &session.settings().keyspace;
    let cql = format!("SELECT {what} FROM {keyspace}.{CATALOG} WHERE dataset = ? AND bucket = ? AND record_key = ?");
    let statement = prepared(session, &cql, true).await?;
    let RecordPartition { dataset, bucket } = &RecordPartition::UNGROUPED;
    let found = session.execute(&statement, (dataset, bucket, key), call).await?;
    found.into_rows_result().map_err(malformed)
}

/// The records of one partition whose keys begin with `prefix` and come after `after`.
async fn list(
    session: &Session,
    place: RecordPartition,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
    call: &Call,
) -> std::result::Result<Vec<Record>, CqlError> {
    let keyspace = &session.settings().keyspace;
    let from_after = after.filter(|after| *after >= prefix);
    let lower = if from_after.is_some() { ">" } else { ">=" };
    let cql = |upper: &str| {
        format!(
            "SELECT record_key, value FROM {keyspace}.{CATALOG} WHERE dataset = ? AND bucket = ? \
             AND record_key {lower} ?{upper} LIMIT ?"
        )
    };
    let (from, limit) = (from_after.unwrap_or(prefix), limit.min(i32::MAX as usize) as i32);
    let end = end_of_prefix(prefix);
    // An `after` beyond the prefix leaves no records.
    if end.as_deref().is_some_and(|end| from >= end) {
        return Ok(vec![]);
    }
    let upper = if end.is_some() { " AND record_key < ?" } else { "" };
    let mut statement = prepared(session, &cql(upper), true).await?;
    statement.set_page_size(LIST_PAGE as i32);
    let mut records = Vec::new();
    let mut state = chronotile_cql::scylla::response::PagingState::start();
    loop {
        let (page, next) = match &end {
            Some(end) => {
                let values = (&place.dataset, place.bucket, from, end, limit);
                session.page(&statement, values, state, call).await?
            }
            None => {
                let values = (&place.dataset, place.bucket, from, limit);
                session.page(&statement, values, state, call).await?
            }
        };
        let rows = page.into_rows_result().map_err(malformed)?;
        for row in rows.rows::<(String, Option<Bytes>)>().map_err(malformed)? {
            let (key, value) = row.map_err(malformed)?;
            if let Some(value) = value {
                records.push(Record { key, value });
            }
        }
        match next.into_paging_control_flow() {
            std::ops::ControlFlow::Break(()) => return Ok(records),
            std::ops::ControlFlow::Continue(next) => state = next,
        }
    }
}

/// The least text above every text with this prefix, in the order of UTF-8 bytes; `None` where there is none.
fn end_of_prefix(prefix: &str) -> Option<String> {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        // Surrogates are not characters.
        let next = if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(last as u32 + 1) };
        if let Some(next) = next {
            end.push(next);
            return Some(end);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_above_all_that_begin_with_it() {
        for (prefix, end) in
            [("a", Some("b")), ("a/", Some("a0")), ("", None), ("\u{10ffff}", None), ("b\u{10ffff}", Some("c"))]
        {
            assert_eq!(end_of_prefix(prefix).as_deref(), end, "{prefix:?}");
        }
        assert_eq!(end_of_prefix("\u{d7ff}").as_deref(), Some("\u{e000}"));
    }

    #[test]
    fn records_of_one_batch_share_a_place_and_loose_ones_have_their_own() {
        let batch = ["intent/a/17", "part/a/17/00000001", "batch/a/17"].map(|key| RecordPartition::of(key, 256));
        assert!(batch.iter().all(|place| *place == batch[0]));
        assert_eq!(RecordPartition::of("dataset/a", 256), RecordPartition::UNGROUPED);
        assert_ne!(RecordPartition::of("x//y", 256).dataset, RecordPartition::UNGROUPED.dataset);
    }
}
