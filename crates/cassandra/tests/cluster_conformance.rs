//! The distributed engine keeps the contract of [`Store`], on a real cluster.
#![allow(clippy::unwrap_used)] // In a test a panic is the way to fail.

mod common;

use std::sync::Arc;
use std::time::Instant;

use chronotile_cassandra::CassandraStore;
use chronotile_store::{Store, conformance};
use chronotile_types::DatasetName;
use common::{contact_points, drop_keyspace, keyspace, open};

/// Datasets that the suite uses.
const DATASETS: [&str; 8] = ["detections", "a", "a_1", "b", "other", "x", "y", "detections_1"];

/// Makes an archive as empty as a new one; making a keyspace for each claim would take minutes.
async fn emptied(store: &CassandraStore) {
    for dataset in DATASETS {
        let dataset = DatasetName::new(dataset).unwrap();
        for slice in store.slices(&dataset).await.unwrap() {
            store.drop_slice(&dataset, slice).await.unwrap();
        }
    }
    store.forget_all_records().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_claim_of_the_contract_holds() {
    let Some(hosts) = contact_points() else { return };
    let keyspace = keyspace();
    let store = open(&hosts, &keyspace, "").await;
    let only = std::env::var("CHRONOTILE_TEST_CLAIM").unwrap_or_default();
    for (name, claim) in conformance::CLAIMS.iter().filter(|(name, _)| name.contains(&only)) {
        let begun = Instant::now();
        emptied(&store).await;
        claim(Arc::new(store.clone())).await;
        println!("claim {name}: {:.1} s", begun.elapsed().as_secs_f64());
    }
    drop_keyspace(&hosts, &keyspace).await;
}

#[test]
fn random_operations_agree_with_a_plain_map() {
    let Some(hosts) = contact_points() else { return };
    let keyspace = keyspace();
    // A session lives in the runtime it was made in, and the suite makes its own.
    let opened: tokio::sync::OnceCell<CassandraStore> = tokio::sync::OnceCell::new();
    conformance::model(5, 20_260_103, || async {
        let store = opened.get_or_init(|| open(&hosts, &keyspace, "")).await;
        emptied(store).await;
        Arc::new(store.clone()) as Arc<dyn Store>
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(drop_keyspace(&hosts, &keyspace));
}
