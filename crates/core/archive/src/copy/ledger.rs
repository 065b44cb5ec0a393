//! The batches of a dataset in one of the two archives: which are finished, and which are being changed.

use std::collections::BTreeMap;

use bytes::Bytes;
use chronotile_chunk::Origin;
use chronotile_store::{DatasetRef, Store};
use chronotile_types::BatchId;
use xxhash_rust::xxh3::xxh3_64;

use crate::catalog::{self, BatchRecord, Intent};
use crate::error::Result;

/// Records listed in one request. On a cluster, each page queries many partitions.
const PAGE: usize = 10_000;
/// Prefix of the attempts in intents that a copy puts.
const COPY_ATTEMPT: &str = "copy:";

/// The part of a batch record that a copy keeps in memory: an archive may have millions of them.
#[derive(Clone, Debug)]
pub(super) struct BatchSummary {
    pub written_us: i64,
    pub token: u32,
    pub removed: bool,
    /// Fingerprint of the record as it is on the source.
    pub fingerprint: u64,
    /// Fingerprint of the copy that brought the batch; `None` if it was written directly.
    pub copied: Option<u64>,
}

#[derive(Debug)]
pub(super) struct StartedBatch {
    pub intent: Intent,
    pub bytes: Bytes,
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Includes removed batches.
    pub finished: BTreeMap<BatchId, BatchSummary>,
    pub begun: BTreeMap<BatchId, StartedBatch>,
}

impl Ledger {
    /// Reads the catalog, intents before records: a change that began earlier is then seen by its intent or, if it
    /// has ended, by its record.
    pub(super) async fn read(store: &dyn Store, dataset: &DatasetRef) -> Result<Self> {
        let mut ledger = Self::default();
        for record in catalog::list(store, &catalog::items("intent", dataset)).await? {
            let intent: Intent = catalog::from_json(&record.key, &record.value)?;
            ledger.begun.insert(catalog::id_of(&record.key)?, StartedBatch { intent, bytes: record.value });
        }
        let mut after: Option<String> = None;
        loop {
            let page = store.records(&catalog::items("batch", dataset), after.as_deref(), PAGE).await?;
            for record in &page {
                let parsed = catalog::from_json(&record.key, &record.value)?;
                ledger.finished.insert(catalog::id_of(&record.key)?, known(parsed)?);
            }
            if page.len() < PAGE {
                return Ok(ledger);
            }
            after = page.into_iter().last().map(|record| record.key);
        }
    }

    /// Whether the batch is finished (or removed) and not being changed.
    pub(super) fn is_whole(&self, batch: BatchId) -> bool {
        let Some(known) = self.finished.get(&batch) else { return false };
        // An intent with the stamp of the record is left over from the write that ended.
        self.begun.get(&batch).is_none_or(|begun| begun.intent.written_us == known.written_us)
    }

    /// Whether the batch is finished, and not being changed, in both archives with the same record.
    pub(super) fn is_as_in(&self, batch: BatchId, other: &Self) -> bool {
        let fingerprint = |ledger: &Self| ledger.finished.get(&batch).map(|known| known.fingerprint);
        self.is_whole(batch) && other.is_whole(batch) && fingerprint(self) == fingerprint(other)
    }

    /// Whether rows of this origin belong to a finished batch.
    pub(super) fn has_rows_of(&self, origin: &Origin) -> bool {
        let batch = origin.batch;
        let live = |known: &BatchSummary| {
            !known.removed && (known.written_us, known.token) == (origin.written_us, origin.token)
        };
        self.is_whole(batch) && self.finished.get(&batch).is_some_and(live)
    }

    /// Keys of the batches that are being written, replaced or removed; ids for batches without a key.
    pub(super) fn unfinished_names(&self) -> Vec<String> {
        let ended = |batch: &BatchId| self.is_whole(*batch);
        let begun = self.begun.iter().filter(|(batch, _)| !ended(batch));
        let mut names: Vec<String> =
            begun.map(|(batch, begun)| begun.intent.key.clone().unwrap_or_else(|| batch.to_string())).collect();
        names.sort_unstable();
        names
    }

    /// Describes a batch that copy `copy` did not bring from `source`, such as one that was written directly; `None`
    /// if there is none.
    pub(super) fn foreign(&self, copy: &str, source: &Self) -> Option<String> {
        let begun = self.begun.iter().find(|(_, begun)| !is_copied(&begun.intent));
        if let Some((batch, begun)) = begun {
            let name = begun.intent.key.clone().unwrap_or_else(|| batch.to_string());
            return Some(format!("batch {name:?} is being written to it"));
        }
        let copy = fingerprint_of_copy(copy);
        let foreign = self.finished.iter().find(|(batch, known)| {
            known.copied != Some(copy) || !source.finished.contains_key(batch) && !source.begun.contains_key(batch)
        });
        foreign.map(|(batch, known)| match known.copied {
            None => format!("batch {batch} was written to it directly"),
            Some(_) => format!("its batch {batch} came from elsewhere"),
        })
    }
}

/// The part of a record that is kept.
pub(super) fn known(parsed: BatchRecord) -> Result<BatchSummary> {
    let copied = parsed.copied.as_deref().map(fingerprint_of_copy);
    let (written_us, token, removed) = (parsed.written_us, parsed.token, parsed.removed);
    Ok(BatchSummary { written_us, token, removed, fingerprint: fingerprint(parsed)?, copied })
}

/// A hash that is equal for a record and its copies.
pub(super) fn fingerprint(record: BatchRecord) -> Result<u64> {
    // A copy gives the record a `copied` and an end of its own, and `previous` does not say which rows count.
    let bare = BatchRecord { copied: None, ended_us: 0, previous: None, ..record };
    Ok(xxh3_64(&catalog::to_json("batch", &bare)?))
}

fn fingerprint_of_copy(copy: &str) -> u64 {
    xxh3_64(copy.as_bytes())
}

pub(super) fn copy_attempt(attempt: &str) -> String {
    format!("{COPY_ATTEMPT}{attempt}")
}

fn is_copied(intent: &Intent) -> bool {
    intent.attempt.starts_with(COPY_ATTEMPT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: BatchId = BatchId(7);
    const STORED: i64 = 100;

    fn record(content: &str) -> BatchRecord {
        let json = serde_json::json!({
            "key": "a", "written_us": STORED, "token": 3, "ended_us": 110, "removed": false, "rows": 1, "tiles": 1,
            "chunks": 1, "bytes": 9, "content": content, "ticks": [0, 5], "parts": [0, 1], "copied": "copy",
        });
        serde_json::from_value(json).unwrap()
    }

    fn begun(written_us: i64, attempt: &str) -> StartedBatch {
        let intent = Intent { key: Some("a".into()), written_us, attempt: attempt.into() };
        StartedBatch { intent, bytes: Bytes::new() }
    }

    /// A ledger with one batch, given its record and intent.
    fn ledger(record: Option<BatchRecord>, intent: Option<StartedBatch>) -> Ledger {
        Ledger {
            finished: record.map(|record| (BATCH, known(record).unwrap())).into_iter().collect(),
            begun: intent.map(|begun| (BATCH, begun)).into_iter().collect(),
        }
    }

    fn written() -> Ledger {
        ledger(Some(record("1")), None)
    }

    fn being_replaced() -> Ledger {
        ledger(Some(record("1")), Some(begun(STORED + 1, "writer")))
    }

    #[test]
    fn a_batch_is_whole_once_its_record_is_there_and_nobody_changes_it() {
        assert!(written().is_whole(BATCH));
        assert!(ledger(Some(record("1")), Some(begun(STORED, "writer"))).is_whole(BATCH), "left over from its write");
        assert!(!being_replaced().is_whole(BATCH));
        assert!(!ledger(None, Some(begun(STORED, "writer"))).is_whole(BATCH));
        assert!(!written().is_whole(BatchId(8)));
    }

    #[test]
    fn a_batch_is_the_same_in_two_archives_where_it_is_whole_in_both_with_the_same_content() {
        assert!(written().is_as_in(BATCH, &written()));
        for other in [being_replaced(), ledger(Some(record("2")), None), Ledger::default()] {
            assert!(!written().is_as_in(BATCH, &other), "{other:?}");
            assert!(!other.is_as_in(BATCH, &written()), "{other:?}");
        }
    }

    #[test]
    fn rows_are_of_a_finished_batch_where_its_record_names_their_attempt() {
        let origin = Origin { batch: BATCH, written_us: STORED, token: 3 };
        assert!(written().has_rows_of(&origin));
        for other in [
            Origin { batch: BatchId(8), ..origin },
            Origin { written_us: STORED - 1, ..origin },
            Origin { token: 4, ..origin },
        ] {
            assert!(!written().has_rows_of(&other), "{other:?}");
        }
        let removed = BatchRecord { removed: true, ..record("1") };
        for ledger in [being_replaced(), ledger(Some(removed), None), Ledger::default()] {
            assert!(!ledger.has_rows_of(&origin), "{ledger:?}");
        }
    }

    #[test]
    fn what_a_copy_did_not_bring_from_its_source_is_foreign() {
        let reason = |target: &Ledger, source: &Ledger| target.foreign("copy", source);
        assert_eq!(reason(&written(), &written()), None);
        let source = ledger(None, Some(begun(STORED, "writer")));
        assert_eq!(reason(&written(), &source), None, "the source replaces it");
        let elsewhere = Some(format!("its batch {BATCH} came from elsewhere"));
        assert_eq!(reason(&written(), &Ledger::default()), elsewhere);
        assert_eq!(written().foreign("another copy", &written()), elsewhere);
        let direct = ledger(Some(BatchRecord { copied: None, ..record("1") }), None);
        assert_eq!(reason(&direct, &written()), Some(format!("batch {BATCH} was written to it directly")));
        let begun_by = |attempt: &str| ledger(Some(record("1")), Some(begun(STORED + 1, attempt)));
        assert_eq!(reason(&begun_by(&copy_attempt("x")), &written()), None);
        assert_eq!(reason(&begun_by("x"), &written()), Some("batch \"a\" is being written to it".into()));
    }

    #[test]
    fn a_record_and_its_copies_have_one_fingerprint_and_other_content_has_another() {
        let own = fingerprint(record("1")).unwrap();
        let previous = Some(record("0").as_previous());
        for copy in [
            BatchRecord { copied: None, ..record("1") },
            BatchRecord { ended_us: 999, ..record("1") },
            BatchRecord { previous, ..record("1") },
        ] {
            assert_eq!(fingerprint(copy).unwrap(), own);
        }
        assert_ne!(fingerprint(record("2")).unwrap(), own);
    }
}
