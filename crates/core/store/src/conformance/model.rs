//! Compares a store with a map, over random sequences of operations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use chronotile_types::{Cell, DatasetName, SliceId, Window};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::{Cells, Chunk, ChunkKey, Commit, DatasetRef, Expect, RecordPut, Scan, Store, collect, key, named};
use crate::{DropSlice, Outcome, Record, TileStatistics, Windows};

/// Runs random sequences of operations against a store and a plain map, which must agree on every answer.
///
/// `fresh` makes an empty store; it runs inside a Tokio runtime of this function's, so the caller must not be in one.
/// `seed` fixes the sequences. A failing one is reduced and printed.
pub fn model<F: Future<Output = Arc<dyn Store>>>(cases: u32, seed: u64, fresh: impl Fn() -> F) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime can be started");
    let outcome = runner.run(&vec(step(), 1..40), |steps| {
        runtime.block_on(async {
            let store = fresh().await;
            let mut model = Model::default();
            for step in &steps {
                model.check(&store, step).await;
            }
        });
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("seed {seed}: {failure}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Commit(DatasetName, Commit),
    CreateSlice(DatasetName, SliceId),
    DropSlice(DatasetName, SliceId),
    Scan(DatasetName, Scan),
    Fetch(DatasetName, Vec<ChunkKey>),
    Records(String, Option<String>, usize),
    Statistics(DatasetName, SliceId),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (dataset(), commit()).prop_map(|(dataset, commit)| Step::Commit(dataset, commit)),
        3 => (dataset(), slice()).prop_map(|(dataset, slice)| Step::CreateSlice(dataset, slice)),
        1 => (dataset(), slice()).prop_map(|(dataset, slice)| Step::DropSlice(dataset, slice)),
        4 => (dataset(), scan()).prop_map(|(dataset, scan)| Step::Scan(dataset, scan)),
        1 => (dataset(), vec(chunk_key(), 0..6)).prop_map(|(dataset, keys)| Step::Fetch(dataset, keys)),
        2 => (record_key(), proptest::option::of(record_key()), 0..5_usize)
            .prop_map(|(prefix, after, limit)| Step::Records(prefix, after, limit)),
        1 => (dataset(), slice()).prop_map(|(dataset, slice)| Step::Statistics(dataset, slice)),
    ]
}

fn placed(dataset: &DatasetName) -> DatasetRef {
    DatasetRef::of_chunks(dataset.clone())
}

fn dataset() -> impl Strategy<Value = DatasetName> {
    prop_oneof![5 => Just(named("a").name), 1 => Just(named("a_1").name)]
}

fn slice() -> impl Strategy<Value = SliceId> {
    (-1..=1).prop_map(SliceId)
}

fn cell() -> impl Strategy<Value = i64> {
    prop_oneof![4 => -2..=2_i64, 1 => Just(i64::MIN), 1 => Just(i64::MAX)]
}

fn chunk_key() -> impl Strategy<Value = ChunkKey> {
    (slice(), cell(), -2..=2, prop_oneof![Just(0), Just(1), Just(u128::MAX)])
        .prop_map(|(slice, cell, window, id)| key(slice.0, cell, window, id))
}

fn bytes() -> impl Strategy<Value = Bytes> {
    let size = prop_oneof![10 => 0..40_usize, 2 => 3_900..4_100_usize, 1 => 10_000..40_000_usize];
    (size, any::<u8>()).prop_map(|(size, byte)| Bytes::from(vec![byte; size]))
}

fn chunk() -> impl Strategy<Value = Chunk> {
    (chunk_key(), any::<u32>(), bytes(), bytes()).prop_map(|(key, rows, head, body)| Chunk { key, rows, head, body })
}

fn record_key() -> impl Strategy<Value = String> {
    proptest::sample::select(&["", "a", "a%", "a/b", "a_b", "b", "é"][..]).prop_map(str::to_owned)
}

fn record_put() -> impl Strategy<Value = RecordPut> {
    let value = || proptest::sample::select(&["", "1", "2"][..]).prop_map(|value| Bytes::from_static(value.as_bytes()));
    let expect = prop_oneof![4 => Just(Expect::Any), 1 => Just(Expect::Absent), 1 => value().prop_map(Expect::Is)];
    (record_key(), proptest::option::of(value()), expect).prop_map(|(key, value, expect)| RecordPut {
        key,
        value,
        expect,
    })
}

fn commit() -> impl Strategy<Value = Commit> {
    let puts = vec(chunk(), 0..6);
    let remove = btree_set(chunk_key(), 0..3);
    let records = || vec(record_put(), 0..3);
    (records(), puts, remove, any::<bool>(), records()).prop_map(|(before, put, remove, require_removed, after)| {
        // The contract gives no order among the chunks of one commit, so none occurs twice.
        let mut seen = BTreeSet::new();
        let put = put.into_iter().filter(|chunk| seen.insert(chunk.key)).collect();
        Commit { before, put, remove: remove.into_iter().collect(), require_removed, after, ..Commit::default() }
    })
}

fn scan() -> impl Strategy<Value = Scan> {
    let ranges = btree_set(cell(), 0..6).prop_map(|ends| {
        let ends: Vec<_> = ends.into_iter().collect();
        Cells::Ranges(ends.chunks(2).map(|pair| (Cell(pair[0]), Cell(pair[pair.len() - 1]))).collect())
    });
    let cells = prop_oneof![1 => Just(Cells::All), 3 => ranges];
    let slices = Just([-1, 0, 1, 9].map(SliceId).to_vec()).prop_shuffle();
    let windows = prop_oneof![
        3 => (-3..=2, -1..=3).prop_map(|(first, last)| Windows::from((Window(first), Window(last)))),
        1 => btree_set(-3..=3, 0..5).prop_map(|some| Windows::of(some.into_iter().map(|at| (Window(at), Window(at))))),
    ];
    let scan = (slices, cells, windows, any::<(bool, bool)>());
    scan.prop_map(|(slices, cells, windows, (bodies, older))| Scan { slices, cells, windows, bodies, older })
}

type Slices = BTreeMap<(DatasetName, SliceId), BTreeMap<ChunkKey, Chunk>>;

#[derive(Clone, Default)]
struct Model {
    slices: Slices,
    records: BTreeMap<String, Bytes>,
}

impl Model {
    async fn check(&mut self, store: &Arc<dyn Store>, step: &Step) {
        match step {
            Step::Commit(dataset, commit) => self.check_commit(store, dataset, commit).await,
            Step::CreateSlice(dataset, slice) => {
                store.create_slice(&placed(dataset), *slice).await.expect("a slice is created");
                self.slices.entry((dataset.clone(), *slice)).or_default();
            }
            Step::DropSlice(dataset, slice) => {
                store.drop_slice(&placed(dataset), *slice, DropSlice::default()).await.expect("a slice is dropped");
                self.slices.remove(&(dataset.clone(), *slice));
                let left: Vec<_> = self.slices.keys().filter(|(name, _)| name == dataset).map(|(_, id)| *id).collect();
                assert_eq!(store.slices(&placed(dataset)).await.expect("slices are listed"), left);
            }
            Step::Scan(dataset, scan) => {
                assert_eq!(collect(store, &placed(dataset), scan.clone()).await, self.scan(dataset, scan));
            }
            Step::Fetch(dataset, keys) => {
                let find = |key: &ChunkKey| self.slices.get(&(dataset.clone(), key.slice))?.get(key).cloned();
                let expected: Vec<_> = keys.iter().filter_map(find).collect();
                assert_eq!(store.fetch(&placed(dataset), keys.clone()).await.expect("chunks are fetched"), expected);
            }
            Step::Records(prefix, after, limit) => {
                let found = store.records(prefix, after.as_deref(), *limit).await.expect("records are listed");
                assert_eq!(found, self.records_after(prefix, after.as_deref(), *limit));
            }
            Step::Statistics(dataset, slice) => {
                let found = store.statistics(&placed(dataset), *slice).await.expect("statistics are counted");
                assert_eq!(found, self.statistics(dataset, *slice));
            }
        }
    }

    async fn check_commit(&mut self, store: &Arc<dyn Store>, dataset: &DatasetName, commit: &Commit) {
        let mut until_after = self.clone();
        let before_holds = until_after.apply_until_after(dataset, commit).is_some();
        let mut next = until_after.clone();
        let lands = before_holds && commit.after.iter().try_for_each(|put| next.put_record(put)).is_some();
        let outcome = store.commit(&placed(dataset), commit.clone()).await;
        match outcome {
            Ok(()) => assert!(lands, "a commit was applied against a condition"),
            Err(error) => {
                assert!(!lands, "a commit failed whose conditions hold: {error}");
                assert_eq!(error.outcome(), Outcome::LostRace, "{error}");
                // Without atomic commits the steps before a failing `after` stay.
                if before_holds && !store.capabilities().atomic_commits {
                    *self = until_after;
                }
                return;
            }
        }
        *self = next;
        for put in commit.before.iter().chain(&commit.after) {
            let found = store.record(&put.key).await.expect("a record is read");
            assert_eq!(found.as_ref(), self.records.get(&put.key));
        }
    }

    /// Makes all changes but the last step's; `None` where one fails, and then this must be thrown away.
    fn apply_until_after(&mut self, dataset: &DatasetName, commit: &Commit) -> Option<()> {
        commit.before.iter().try_for_each(|put| self.put_record(put))?;
        for chunk in &commit.put {
            self.slices.get_mut(&(dataset.clone(), chunk.key.slice))?.insert(chunk.key, chunk.clone());
        }
        for key in &commit.remove {
            let slice = self.slices.get_mut(&(dataset.clone(), key.slice));
            let removed = slice.and_then(|slice| slice.remove(key)).is_some();
            if commit.require_removed && !removed {
                return None;
            }
        }
        Some(())
    }

    fn put_record(&mut self, put: &RecordPut) -> Option<()> {
        let current = self.records.get(&put.key);
        let holds = match &put.expect {
            Expect::Any => true,
            Expect::Absent => current.is_none(),
            Expect::Is(value) => current == Some(value),
        };
        match &put.value {
            _ if !holds => return None,
            Some(value) => self.records.insert(put.key.clone(), value.clone()),
            None => self.records.remove(&put.key),
        };
        Some(())
    }

    fn scan(&self, dataset: &DatasetName, scan: &Scan) -> Vec<Chunk> {
        let chunks = scan.slices.iter().filter_map(|slice| self.slices.get(&(dataset.clone(), *slice)));
        let wanted = |chunk: &&Chunk| {
            let tile = chunk.key.tile;
            let in_cells = match &scan.cells {
                Cells::All => true,
                Cells::Ranges(ranges) => ranges.iter().any(|(first, last)| (*first..=*last).contains(&tile.cell)),
            };
            let of_age = scan.older || chunk.key.id.0 < 1 << 127;
            in_cells && scan.windows.contains(tile.window) && of_age
        };
        let returned = |chunk: &Chunk| match scan.bodies {
            true => chunk.clone(),
            false => Chunk { body: Bytes::new(), ..chunk.clone() },
        };
        chunks.flat_map(BTreeMap::values).filter(wanted).map(returned).collect()
    }

    fn records_after(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<Record> {
        let wanted = |key: &str| key.starts_with(prefix) && after.is_none_or(|after| key > after);
        let records = self.records.iter().filter(|(key, _)| wanted(key)).take(limit);
        records.map(|(key, value)| Record { key: key.clone(), value: value.clone() }).collect()
    }

    fn statistics(&self, dataset: &DatasetName, slice: SliceId) -> Vec<TileStatistics> {
        let mut tiles = BTreeMap::new();
        for chunk in self.slices.get(&(dataset.clone(), slice)).into_iter().flat_map(BTreeMap::values) {
            let tile = chunk.key.tile;
            let sum = tiles.entry(tile).or_insert(TileStatistics::none(tile));
            sum.add(chunk.key.id, chunk.rows, (chunk.head.len() + chunk.body.len()) as u64);
        }
        tiles.into_values().collect()
    }
}
