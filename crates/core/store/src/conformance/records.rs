//! Claims about records of the catalog: commits, conditions and listings.

use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::{CLOCK_KEY, ClockSource, Outcome, RECORD_KEY_BYTES_MAX, RECORD_VALUE_BYTES_MAX, Record, StoreError};

async fn commit(store: &Arc<dyn Store>, puts: Vec<RecordPut>) -> crate::Result<()> {
    store.commit(&dataset(), Commit { before: puts, ..Commit::default() }).await
}

async fn value(store: &Arc<dyn Store>, key: &str) -> Option<String> {
    store.record(key).await.unwrap().map(|value| String::from_utf8(value.to_vec()).unwrap())
}

fn assert_conflict(outcome: crate::Result<()>, key: &str) {
    let error = outcome.unwrap_err();
    assert!(matches!(&error, StoreError::RecordConflict { key: found } if found == key), "{error}");
    assert_eq!(error.outcome(), Outcome::LostRace);
}

pub(super) async fn a_record_is_put_read_and_deleted(store: Arc<dyn Store>) {
    assert_eq!(value(&store, "a").await, None);
    commit(&store, vec![record("a", Some("1"), Expect::Absent), record("b", Some("2"), Expect::Any)]).await.unwrap();
    assert_eq!(value(&store, "a").await.as_deref(), Some("1"));
    commit(&store, vec![record("a", Some("3"), is("1"))]).await.unwrap();
    assert_eq!(value(&store, "a").await.as_deref(), Some("3"));
    commit(&store, vec![record("a", None, is("3")), record("missing", None, Expect::Any)]).await.unwrap();
    assert_eq!(value(&store, "a").await, None);
    assert_eq!(value(&store, "b").await.as_deref(), Some("2"));
    let every_byte: Bytes = (0..=255).collect();
    let put = RecordPut { key: "bytes".to_owned(), value: Some(every_byte.clone()), expect: Expect::Absent };
    commit(&store, vec![put]).await.unwrap();
    assert_eq!(store.record("bytes").await.unwrap(), Some(every_byte));
}

pub(super) async fn conditions_hold_back_the_whole_commit(store: Arc<dyn Store>) {
    with_slices(&store, &[0]).await;
    commit(&store, vec![record("a", Some("1"), Expect::Any)]).await.unwrap();
    store.commit(&dataset(), put([chunk(key(0, 5, 5, 5))])).await.unwrap();
    let failing = [
        record("a", Some("2"), Expect::Absent),
        record("a", Some("2"), is("0")),
        record("a", Some("2"), is("")),
        record("a", None, is("11")),
        record("b", Some("2"), is("1")),
        record("b", None, is("")),
    ];
    for failing in failing {
        let failing_key = failing.key.clone();
        let whole = Commit {
            before: vec![record("c", Some("1"), Expect::Absent), failing, record("d", Some("1"), Expect::Any)],
            put: vec![chunk(key(0, 1, 1, 1))],
            remove: vec![key(0, 5, 5, 5)],
            after: vec![record("e", Some("1"), Expect::Any)],
            ..Commit::default()
        };
        assert_conflict(store.commit(&dataset(), whole).await, &failing_key);
        let left = store.records("", None, 10).await.unwrap();
        assert_eq!(left, [Record { key: "a".to_owned(), value: Bytes::from_static(b"1") }]);
        assert_eq!(keys_in(&store, &[0]).await, [key(0, 5, 5, 5)]);
    }
}

pub(super) async fn a_failing_condition_after_undoes_an_atomic_commit(store: Arc<dyn Store>) {
    with_slices(&store, &[0]).await;
    let whole = Commit {
        before: vec![record("a", Some("1"), Expect::Absent)],
        put: vec![chunk(key(0, 1, 1, 1))],
        after: vec![record("b", Some("1"), is("0"))],
        ..Commit::default()
    };
    assert_conflict(store.commit(&dataset(), whole).await, "b");
    if store.capabilities().atomic_commits {
        assert_eq!(value(&store, "a").await, None);
        assert_eq!(keys_in(&store, &[0]).await, []);
    } else {
        // Each step is durable before the next begins.
        assert_eq!(value(&store, "a").await.as_deref(), Some("1"));
        assert_eq!(keys_in(&store, &[0]).await, [key(0, 1, 1, 1)]);
    }
    assert_eq!(value(&store, "b").await, None);
}

pub(super) async fn conditions_see_earlier_puts_of_the_same_commit(store: Arc<dyn Store>) {
    let whole = |from: Expect, to: &str| Commit {
        before: vec![record("state", Some("begun"), from)],
        after: vec![record("state", Some(to), is("begun"))],
        ..Commit::default()
    };
    store.commit(&dataset(), whole(Expect::Absent, "done")).await.unwrap();
    assert_eq!(value(&store, "state").await.as_deref(), Some("done"));
    assert_conflict(store.commit(&dataset(), whole(Expect::Absent, "again")).await, "state");
    store.commit(&dataset(), whole(is("done"), "again")).await.unwrap();
    assert_eq!(value(&store, "state").await.as_deref(), Some("again"));
}

pub(super) async fn an_empty_value_is_not_an_absent_record(store: Arc<dyn Store>) {
    commit(&store, vec![record("a", Some(""), Expect::Absent)]).await.unwrap();
    assert_eq!(value(&store, "a").await.as_deref(), Some(""));
    assert_conflict(commit(&store, vec![record("a", Some("1"), Expect::Absent)]).await, "a");
    commit(&store, vec![record("a", Some("1"), is(""))]).await.unwrap();
    assert_eq!(value(&store, "a").await.as_deref(), Some("1"));
}

/// Keys that a careless prefix or pattern match takes for one another, in byte order.
const ODD_KEYS: [&str; 22] = [
    "",
    "\0",
    "\0a",
    " ",
    "%",
    "%%",
    "*",
    "A",
    "A/",
    "B",
    "[a]",
    "_",
    "a",
    "a\0b",
    "a%",
    "a/",
    "a/b",
    "a_",
    "aa",
    "\u{7f}",
    "é",
    "日本/\u{10ffff}",
];

pub(super) async fn records_come_by_prefix_in_byte_order(store: Arc<dyn Store>) {
    assert!(ODD_KEYS.is_sorted(), "the list is in byte order");
    let puts = ODD_KEYS.iter().rev().map(|key| record(key, Some(&format!("value of {key}")), Expect::Absent));
    commit(&store, puts.collect()).await.unwrap();
    let afters =
        ODD_KEYS.iter().copied().map(Some).chain([None, Some("a/a"), Some("zz"), Some("日"), Some("\u{10ffff}")]);
    let afters: Vec<_> = afters.collect();
    for prefix in ODD_KEYS.iter().chain(&["x", "日", "日本", "\u{10ffff}", "a/bc"]) {
        for &after in &afters {
            let expected: Vec<_> = ODD_KEYS
                .iter()
                .filter(|key| key.starts_with(prefix) && after.is_none_or(|after| **key > after))
                .map(|key| Record { key: (*key).to_owned(), value: Bytes::from(format!("value of {key}")) })
                .collect();
            for limit in [0, 1, 3, 100] {
                let found = store.records(prefix, after, limit).await.unwrap();
                assert_eq!(found, expected[..limit.min(expected.len())], "{prefix:?} after {after:?}, {limit}");
            }
        }
    }
    for key in ODD_KEYS {
        assert_eq!(value(&store, key).await.unwrap(), format!("value of {key}"));
    }
}

pub(super) async fn records_are_paged_without_gap_or_repetition(store: Arc<dyn Store>) {
    let key = |number: usize| format!("batch/{number:04}");
    let puts = (0..250).map(|number| record(&key(number), Some("x"), Expect::Absent));
    let others = [record("batch", Some("x"), Expect::Any), record("batch0", Some("x"), Expect::Any)];
    commit(&store, puts.chain(others).collect()).await.unwrap();
    let mut found: Vec<String> = vec![];
    loop {
        let page = store.records("batch/", found.last().map(String::as_str), 33).await.unwrap();
        assert!(page.len() <= 33);
        if page.is_empty() {
            break;
        }
        found.extend(page.into_iter().map(|record| record.key));
    }
    assert!(found.into_iter().eq((0..250).map(key)));
}

pub(super) async fn records_over_the_limits_are_refused(store: Arc<dyn Store>) {
    let sized = |key: usize, value: usize| RecordPut {
        key: "k".repeat(key),
        value: Some(Bytes::from(vec![1; value])),
        expect: Expect::Any,
    };
    let large = [sized(RECORD_KEY_BYTES_MAX + 1, 1), sized(1, RECORD_VALUE_BYTES_MAX + 1)];
    for large in large {
        for (before, after) in [(vec![large.clone()], vec![]), (vec![], vec![large])] {
            let before = [vec![record("mark", Some("1"), Expect::Any)], before].concat();
            let error = store.commit(&dataset(), Commit { before, after, ..Commit::default() }).await.unwrap_err();
            assert!(matches!(error, StoreError::TooLarge { .. }), "{error}");
            assert_eq!(error.outcome(), Outcome::Refused);
            assert_eq!(store.records("", None, 10).await.unwrap(), []);
        }
    }
    let largest = sized(RECORD_KEY_BYTES_MAX, RECORD_VALUE_BYTES_MAX);
    commit(&store, vec![largest.clone()]).await.unwrap();
    assert_eq!(store.record(&largest.key).await.unwrap(), largest.value);
}

pub(super) async fn the_clock_is_the_latest_stamp_or_the_time_of_a_machine(store: Arc<dyn Store>) {
    let clock = || async { value(&store, CLOCK_KEY).await.map(|text| text.parse::<i64>().unwrap()) };
    let stamped =
        |stamp_us| Commit { before: vec![record("a", Some("1"), Expect::Any)], stamp_us, ..Commit::default() };
    if store.capabilities().clock == ClockSource::MachineTime {
        let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as i64;
        store.commit(&dataset(), stamped(now() + 3_600_000_000)).await.unwrap();
        let apart_us = (clock().await.unwrap() - now()).abs();
        assert!(apart_us < 60_000_000, "{apart_us} us from the clock of this machine");
        return;
    }
    assert_eq!(clock().await, None);
    for (stamp_us, reported_us) in [(0, None), (5, Some(5)), (1_000, Some(1_000)), (30, Some(1_000)), (0, Some(1_000))]
    {
        store.commit(&dataset(), stamped(stamp_us)).await.unwrap();
        assert_eq!(clock().await, reported_us, "after a commit of stamp {stamp_us}");
    }
    let last = i64::MAX / 4;
    store.commit(&dataset(), stamped(last)).await.unwrap();
    assert_eq!(clock().await, Some(last));
}
