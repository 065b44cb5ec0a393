//! A cluster to test on: `CHRONOTILE_TEST_CASSANDRA` holds its contact points, separated by commas.
#![allow(dead_code)] // Each test file uses a part of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow_schema::Schema;
use chronotile_cassandra::{CassandraStore, Options};
use chronotile_cql::{Session, Settings};
use chronotile_store::{Definition, Store};
use chronotile_types::{CellRule, DatasetName, DatasetSpec, MergeRule, StorageLayout, TimeFormat, TimeScale, TimeSpec};

/// A dataset's definition that nobody changes.
#[derive(Debug)]
struct Fixed(Arc<DatasetSpec>);

impl Definition for Fixed {
    fn current(&self) -> Arc<DatasetSpec> {
        self.0.clone()
    }
}

/// The view of a store that keeps a dataset of these columns so.
pub fn laid_out(
    store: &CassandraStore,
    name: &DatasetName,
    schema: Schema,
    layout: StorageLayout,
    partition_cells: u32,
) -> Arc<dyn Store> {
    let spec = DatasetSpec {
        name: name.clone(),
        schema_versions: vec![schema.fields().len() as u32],
        schema: Arc::new(schema),
        cell: CellRule::Single,
        time: TimeSpec { column: "rows".into(), format: TimeFormat::Timestamp, scale: TimeScale::Utc },
        window: "1d".parse().unwrap(),
        windows_per_slice: 1,
        id: vec![],
        merge: MergeRule::Append,
        retention: None,
        indexes: vec![],
        layout,
        partition_cells,
        text: vec![],
        moves_deg: 0.0,
    };
    store.laid_out(Arc::new(Fixed(Arc::new(spec)))).unwrap().unwrap()
}

/// The contact points; `None`, and a loud line, where there is no cluster.
pub fn contact_points() -> Option<String> {
    let found = std::env::var("CHRONOTILE_TEST_CASSANDRA").ok().filter(|text| !text.is_empty());
    if found.is_none() {
        eprintln!("SKIPPED: NO CLUSTER. Run  ./dev test-cluster  which starts one and sets CHRONOTILE_TEST_CASSANDRA");
    }
    found
}

/// A keyspace name that nothing has used before.
pub fn keyspace() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    format!("t{}_{}_{}", now.as_millis(), std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

pub fn settings(contact_points: &str, keyspace: &str, parameters: &str) -> Settings {
    Settings::parse(&format!("cassandra://{contact_points}/{keyspace}?catalog_buckets=8&{parameters}")).unwrap()
}

pub async fn open(contact_points: &str, keyspace: &str, parameters: &str) -> CassandraStore {
    let settings = settings(contact_points, keyspace, parameters);
    CassandraStore::open(settings, Options::default()).await.unwrap()
}

/// Drops a keyspace.
pub async fn drop_keyspace(contact_points: &str, keyspace: &str) {
    let session = Session::connect(settings(contact_points, keyspace, "")).await.unwrap();
    session.change_schema(&format!("DROP KEYSPACE IF EXISTS {keyspace}")).await.unwrap();
}
