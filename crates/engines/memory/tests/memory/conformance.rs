//! The memory engine fulfils the contract of [`Store`].

use std::sync::Arc;

use chronotile_memory::MemoryStore;
use chronotile_store::{Store, conformance};

async fn fresh() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_claim_of_the_contract_holds() {
    conformance::run(fresh).await;
}

#[test]
fn random_operations_agree_with_a_plain_map() {
    conformance::model(500, 20_260_101, fresh);
}
