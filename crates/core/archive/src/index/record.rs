//! Catalog records of an index: a small record for each window, its postings, and leases of builders.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use chronotile_store::Store;
use chronotile_types::{DatasetName, Window};
use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::catalog;
use crate::error::{ArchiveError, Result};

/// Records looked up concurrently.
const AT_ONCE: usize = 32;
/// Up to this many windows are looked up one by one: a listing is cheap on one machine, but on a cluster it queries
/// every partition of the catalog.
const LOOKED_UP_MAX: i64 = 64;

/// The record of one window of an index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Built {
    pub built_us: i64,
    /// Hash of the window's tiles and their prints, including tiles that were left out.
    pub print: u64,
    pub tiles: u64,
    pub left_out: u64,
    pub rows: u64,
    pub values: u64,
    pub bytes: u64,
    /// Names (hashes) of the segments, ordered by cell.
    pub segments: Vec<String>,
}

/// A window as text in keys, in a form that sorts like the number.
fn window_text(window: Window) -> String {
    // With the sign bit flipped, windows before 1970 sort before the others.
    format!("{:08x}", (window.0 as u32) ^ 0x8000_0000)
}

fn window_of(text: &str) -> Option<Window> {
    u32::from_str_radix(text, 16).ok().map(|bits| Window((bits ^ 0x8000_0000) as i32))
}

pub(crate) fn built_key(dataset: &DatasetName, id: &str, window: Window) -> String {
    // The keys of a window have the same second and third part. So they are one group of records, and every engine puts
    // the record, the lease and the postings of a window in one step.
    format!("index/{dataset}/{id}.{}", window_text(window))
}

pub(crate) fn lease_key(dataset: &DatasetName, id: &str, window: Window) -> String {
    format!("lease/{dataset}/{id}.{}", window_text(window))
}

pub(crate) fn posting_prefix(dataset: &DatasetName, id: &str, window: Window) -> String {
    format!("posting/{dataset}/{id}.{}/", window_text(window))
}

/// Name of a segment: a hash of its content, so that a reader never mixes two builds.
pub(crate) fn segment_name(bytes: &[u8]) -> String {
    format!("{:016x}", xxh3_64(bytes))
}

fn parse_key(key: &str) -> Result<(&str, Window)> {
    let parts = key.rsplit('/').next().and_then(|item| item.split_once('.'));
    let parsed = parts.and_then(|(id, window)| Some((id, window_of(window)?)));
    parsed.ok_or_else(|| ArchiveError::Catalog {
        key: key.to_owned(),
        reason: "its key names no window".to_owned(),
        source: None,
    })
}

/// All windows that an index was built for.
pub(crate) async fn list(store: &dyn Store, dataset: &DatasetName, id: &str) -> Result<BTreeMap<Window, Built>> {
    let records = catalog::list(store, &format!("index/{dataset}/{id}.")).await?;
    let parse = |record: &chronotile_store::Record| {
        Ok((parse_key(&record.key)?.1, catalog::from_json(&record.key, &record.value)?))
    };
    records.iter().map(parse).collect()
}

/// The windows of an index with a lease: some builder is building them, or was interrupted.
pub(crate) async fn leased(store: &dyn Store, dataset: &DatasetName, id: &str) -> Result<BTreeSet<Window>> {
    let records = catalog::list(store, &format!("lease/{dataset}/{id}.")).await?;
    records.iter().map(|record| Ok(parse_key(&record.key)?.1)).collect()
}

/// Ids of the indexes with stored records, including dropped ones.
pub(crate) async fn ids(store: &dyn Store, dataset: &DatasetName) -> Result<Vec<String>> {
    let records = catalog::list(store, &format!("index/{dataset}/")).await?;
    records.iter().map(|record| Ok(parse_key(&record.key)?.0.to_owned())).collect()
}

/// The records of the built windows from `first` to `last`.
pub(crate) async fn built(
    store: &dyn Store,
    dataset: &DatasetName,
    id: &str,
    (first, last): (Window, Window),
) -> Result<BTreeMap<Window, Built>> {
    // The range may cover all windows, and then its length does not fit into 32 bits.
    if i64::from(last.0) - i64::from(first.0) >= LOOKED_UP_MAX {
        let mut all = list(store, dataset, id).await?;
        all.retain(|window, _| (first..=last).contains(window));
        return Ok(all);
    }
    let get = |window: i32| async move {
        let key = built_key(dataset, id, Window(window));
        let found = catalog::get::<Built>(store, &key).await?;
        Ok::<_, ArchiveError>(found.map(|(built, _)| (Window(window), built)))
    };
    let found = stream::iter(first.0..=last.0).map(get).buffer_unordered(AT_ONCE);
    found.try_filter_map(|found| std::future::ready(Ok(found))).try_collect().await
}

/// The bytes of all segments of some windows; a window whose segments are not all there as named is left out.
pub(crate) async fn segments(
    store: &dyn Store,
    dataset: &DatasetName,
    id: &str,
    built: &BTreeMap<Window, Built>,
) -> Result<BTreeMap<Window, Vec<Bytes>>> {
    let get = |(window, built): (Window, Built)| async move {
        let prefix = posting_prefix(dataset, id, window);
        let mut segments = Vec::with_capacity(built.segments.len());
        for name in &built.segments {
            match store.record(&format!("{prefix}{name}")).await? {
                Some(bytes) if segment_name(&bytes) == *name => segments.push(bytes),
                _ => return Ok(None),
            }
        }
        Ok::<_, ArchiveError>(Some((window, segments)))
    };
    let windows: Vec<_> = built.iter().map(|(window, built)| (*window, built.clone())).collect();
    let found = stream::iter(windows).map(get).buffer_unordered(AT_ONCE);
    found.try_filter_map(|found| std::future::ready(Ok(found))).try_collect().await
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
mod tests {
    use super::*;

    #[test]
    fn windows_in_keys_keep_their_order() {
        let windows = [i32::MIN, -7, -1, 0, 1, 20_000, i32::MAX].map(Window);
        let texts = windows.map(window_text);
        assert!(texts.is_sorted());
        assert_eq!(texts.each_ref().map(|text| window_of(text).unwrap()), windows);
    }

    #[test]
    fn a_key_names_an_index_and_a_window() {
        let dataset = DatasetName::new("records").unwrap();
        for key in [built_key(&dataset, "00ff", Window(-7)), lease_key(&dataset, "00ff", Window(-7))] {
            assert_eq!(parse_key(&key).unwrap(), ("00ff", Window(-7)), "{key}");
        }
        for key in ["index/records/00ff", "index/records/00ff.", "index/records/00ff.window", "index/records.5/00ff"] {
            assert!(matches!(parse_key(key), Err(ArchiveError::Catalog { .. })), "{key}");
        }
    }

    #[tokio::test]
    async fn what_is_built_is_given_for_the_windows_asked_for_with_segments_as_their_names_say() {
        use chronotile_store::{Commit, DatasetRef, Expect};
        let store = chronotile_memory::MemoryStore::new();
        let dataset = DatasetName::new("records").unwrap();
        let home = DatasetRef::from(&crate::testing::spec());
        let window_built = |window: i32, segments: &[&[u8]]| Built {
            built_us: window.into(),
            print: 0,
            tiles: 0,
            left_out: 0,
            rows: 0,
            values: 0,
            bytes: 0,
            segments: segments.iter().map(|bytes| segment_name(bytes)).collect(),
        };
        let all = [(-3, &[&b"a"[..], b"b"][..]), (0, &[b"c"]), (1, &[b"lost"]), (2, &[b"changed"]), (200, &[])];
        let mut puts = vec![];
        for (window, segments) in all {
            let (key, built) = (built_key(&dataset, "00ff", Window(window)), window_built(window, segments));
            puts.push(catalog::put(key.clone(), catalog::to_json(&key, &built).unwrap(), Expect::Any));
            for bytes in segments.iter().filter(|bytes| **bytes != b"lost") {
                let key = format!("{}{}", posting_prefix(&dataset, "00ff", Window(window)), segment_name(bytes));
                let stored = if *bytes == b"changed" { &b"other bytes"[..] } else { bytes };
                puts.push(catalog::put(key, Bytes::copy_from_slice(stored), Expect::Any));
            }
        }
        store.commit(&home, Commit { before: puts, ..Commit::default() }).await.unwrap();
        // Few windows are looked up, and many listed.
        for (range, wanted) in [
            ((0, 0), vec![0]),
            ((-3, 1), vec![-3, 0, 1]),
            ((-2, 199), vec![0, 1, 2]),
            ((-3, 200), vec![-3, 0, 1, 2, 200]),
            ((-60, 3), vec![-3, 0, 1, 2]),
            ((i32::MIN, i32::MAX), vec![-3, 0, 1, 2, 200]),
        ] {
            let found = built(&store, &dataset, "00ff", (Window(range.0), Window(range.1))).await.unwrap();
            assert_eq!(found.keys().map(|window| window.0).collect::<Vec<_>>(), wanted, "{range:?}");
            assert!(found.iter().all(|(window, built)| built.built_us == i64::from(window.0)));
        }
        let built = list(&store, &dataset, "00ff").await.unwrap();
        let found = segments(&store, &dataset, "00ff", &built).await.unwrap();
        let found: Vec<_> = found.into_iter().map(|(window, segments)| (window.0, segments)).collect();
        let bytes =
            |segments: &[&'static [u8]]| segments.iter().map(|bytes| Bytes::from_static(bytes)).collect::<Vec<_>>();
        assert_eq!(found, [(-3, bytes(&[b"a", b"b"])), (0, bytes(&[b"c"])), (200, vec![])]);
    }
}
