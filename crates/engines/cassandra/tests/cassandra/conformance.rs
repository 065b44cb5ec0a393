//! The distributed engine keeps the contract of [`Store`], on a real cluster, each cell a partition of its own or several in one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use chronotile_cassandra::CassandraStore;
use chronotile_cql::scylla::statement::Consistency;
use chronotile_cql::{Call, Session};
use chronotile_store::{
    CallOptions, Capabilities, Chunk, ChunkKey, Commit, DatasetRef, DropSlice, Placement, Record, Result, Scan, Store,
    StoreError, TileStatistics, Visibility, conformance,
};
use chronotile_types::{Cell, ChunkId, DatasetName, SliceId, Tile, Window};
use futures::stream::BoxStream;

use crate::common::{contact_points, drop_keyspace, keyspace, open, settings};

/// Datasets that the suite uses.
const DATASETS: [&str; 8] = ["detections", "a", "a_1", "b", "other", "x", "y", "detections_1"];

/// A store of datasets of which several cells share a partition.
#[derive(Debug)]
struct Grouped(CassandraStore);

/// Three cells in a partition, which none of the suite's ranges keep to.
fn grouped(dataset: &DatasetRef) -> DatasetRef {
    DatasetRef { placement: Placement::Chunks { partition_cells: 3 }, ..dataset.clone() }
}

#[async_trait]
impl Store for Grouped {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn with_options(&self, options: &CallOptions) -> Result<Arc<dyn Store>> {
        self.0.with_options(options)
    }

    fn with_visibility(&self, visibility: Visibility) -> Option<Arc<dyn Store>> {
        self.0.with_visibility(visibility)
    }

    async fn commit(&self, dataset: &DatasetRef, commit: Commit) -> Result<()> {
        self.0.commit(&grouped(dataset), commit).await
    }

    async fn scan(&self, dataset: &DatasetRef, scan: Scan) -> Result<BoxStream<'static, Result<Vec<Chunk>>>> {
        self.0.scan(&grouped(dataset), scan).await
    }

    async fn fetch(&self, dataset: &DatasetRef, keys: Vec<ChunkKey>) -> Result<Vec<Chunk>> {
        self.0.fetch(&grouped(dataset), keys).await
    }

    async fn record(&self, key: &str) -> Result<Option<Bytes>> {
        self.0.record(key).await
    }

    async fn records(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>> {
        self.0.records(prefix, after, limit).await
    }

    async fn create_slice(&self, dataset: &DatasetRef, slice: SliceId) -> Result<()> {
        self.0.create_slice(&grouped(dataset), slice).await
    }

    async fn drop_slice(&self, dataset: &DatasetRef, slice: SliceId, when: DropSlice) -> Result<()> {
        self.0.drop_slice(&grouped(dataset), slice, when).await
    }

    async fn slices(&self, dataset: &DatasetRef) -> Result<Vec<SliceId>> {
        self.0.slices(dataset).await
    }

    async fn statistics(&self, dataset: &DatasetRef, slice: SliceId) -> Result<Vec<TileStatistics>> {
        self.0.statistics(&grouped(dataset), slice).await
    }
}

/// Claims about what does not differ where cells share partitions: the catalog, which slices there are, sizes.
const ELSEWHERE: [&str; 9] = [
    "record",
    "condition",
    "increments",
    "of_many",
    "slice_may_be_created",
    "dropped",
    "slices_are",
    "missing_slice",
    "datasets_do_not_mix",
];

/// Makes an archive as empty as a new one; making a keyspace for each claim would take minutes.
async fn emptied(store: &CassandraStore) {
    for dataset in DATASETS {
        let dataset = DatasetRef::of_chunks(DatasetName::new(dataset).unwrap());
        for slice in store.slices(&dataset).await.unwrap() {
            store.drop_slice(&dataset, slice, DropSlice::default()).await.unwrap();
        }
    }
    store.forget_all_records().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_claim_of_the_contract_holds() {
    every_claim(|store| Arc::new(store), |_| true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_claim_holds_where_cells_share_a_partition() {
    let only = |name: &str| ELSEWHERE.iter().all(|part| !name.contains(part));
    every_claim(|store| Arc::new(Grouped(store)), only).await;
}

async fn every_claim(view: impl Fn(CassandraStore) -> Arc<dyn Store>, wanted: impl Fn(&str) -> bool) {
    let Some(hosts) = contact_points() else { return };
    let keyspace = keyspace();
    let store = open(&hosts, &keyspace, "").await;
    let only = std::env::var("CHRONOTILE_TEST_CLAIM").unwrap_or_default();
    for (name, claim) in conformance::CLAIMS.iter().filter(|(name, _)| name.contains(&only) && wanted(name)) {
        let begun = Instant::now();
        emptied(&store).await;
        claim(view(store.clone())).await;
        println!("claim {name}: {:.1} s", begun.elapsed().as_secs_f64());
    }
    drop_keyspace(&hosts, &keyspace).await;
}

/// A node that was away while a table was made says that there is none, and so it is here until the table is made again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tables_that_nodes_have_not_learnt_of_are_waited_for() {
    let Some(hosts) = contact_points() else { return };
    let keyspace = keyspace();
    let dataset = DatasetRef::of_chunks(DatasetName::new("a").unwrap());
    open(&hosts, &keyspace, "").await.create_slice(&dataset, SliceId(0)).await.unwrap();
    let session = Session::connect(settings(&hosts, &keyspace, "")).await.unwrap();
    session.change_schema(&format!("DROP TABLE {keyspace}.c_a_0")).await.unwrap();
    let key = ChunkKey { slice: SliceId(0), tile: Tile { cell: Cell(1), window: Window(1) }, id: ChunkId(1) };
    for require_removed in [false, true] {
        let hasty = open(&hosts, &keyspace, "timeout_s=1").await;
        let commit = Commit { remove: vec![key], require_removed, ..Commit::default() };
        let error = hasty.commit(&dataset, commit).await.unwrap_err();
        assert!(error.to_string().contains("has not received the change yet"), "{error}");
    }

    session.change_schema(&format!("DROP TABLE {keyspace}.catalog")).await.unwrap();
    let error = open(&hosts, &keyspace, "timeout_s=1").await.record("dataset/a").await.unwrap_err();
    assert!(error.to_string().contains("has not received the change yet"), "{error}");
    let patient = open(&hosts, &keyspace, "").await;
    let (found, made) = tokio::join!(patient.record("dataset/a"), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let columns = "dataset text, bucket int, record_key text, value blob";
        let key = "PRIMARY KEY ((dataset, bucket), record_key)";
        session.change_schema(&format!("CREATE TABLE {keyspace}.catalog ({columns}, {key})")).await
    });
    made.unwrap();
    assert_eq!(found.unwrap(), None);
    drop_keyspace(&hosts, &keyspace).await;
}

/// A chunk of which another client's deletion and late write have left a part is as absent to commits as it is to scans.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_partial_row_counts_as_removed() {
    let Some(hosts) = contact_points() else { return };
    let keyspace = keyspace();
    let store = open(&hosts, &keyspace, "").await;
    let dataset = DatasetRef::of_chunks(DatasetName::new("a").unwrap());
    store.create_slice(&dataset, SliceId(0)).await.unwrap();
    let key = ChunkKey { slice: SliceId(0), tile: Tile { cell: Cell(1), window: Window(1) }, id: ChunkId(1) };
    let chunk = Chunk { key, rows: 1, head: Bytes::from_static(b"head"), body: Bytes::from_static(b"body") };
    store.commit(&dataset, Commit { put: vec![chunk], ..Commit::default() }).await.unwrap();
    let session = Session::connect(settings(&hosts, &keyspace, "")).await.unwrap();
    let part =
        format!("row_count FROM {keyspace}.c_a_0 WHERE cell = 1 AND time_window = 1 AND chunk_id = 0x{:032x}", 1);
    let call = Call { consistency: Consistency::Quorum, timeout: Duration::from_secs(60), instead: None };
    session.run(&format!("DELETE {part}"), &call).await.unwrap();
    assert_eq!(store.fetch(&dataset, vec![key]).await.unwrap(), []);
    let commit = Commit { remove: vec![key], require_removed: true, ..Commit::default() };
    let error = store.commit(&dataset, commit).await.unwrap_err();
    assert!(matches!(error, StoreError::ChunkConflict { key: missing, .. } if missing == key), "{error}");
    drop_keyspace(&hosts, &keyspace).await;
}

#[test]
fn random_operations_agree_with_a_plain_map() {
    random_operations(|store| Arc::new(store));
}

#[test]
fn random_operations_agree_with_a_plain_map_where_cells_share_a_partition() {
    random_operations(|store| Arc::new(Grouped(store)));
}

fn random_operations(view: impl Fn(CassandraStore) -> Arc<dyn Store>) {
    let Some(hosts) = contact_points() else { return };
    let keyspace = keyspace();
    // A session lives in the runtime it was made in, and the suite makes its own.
    let opened: tokio::sync::OnceCell<CassandraStore> = tokio::sync::OnceCell::new();
    conformance::model(5, 20_260_103, || async {
        let store = opened.get_or_init(|| open(&hosts, &keyspace, "")).await;
        emptied(store).await;
        view(store.clone())
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(drop_keyspace(&hosts, &keyspace));
}
