//! A cluster to test on: `CHRONOTILE_TEST_CASSANDRA` holds its contact points, separated by commas.

use std::sync::atomic::{AtomicU32, Ordering};

use chronotile_cassandra::{CassandraStore, Options};
use chronotile_cql::{Session, Settings};

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
