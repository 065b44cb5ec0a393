//! The store with fewer capabilities, which other tests use, keeps the rest of the contract: it passes the
//! conformance suite.

use std::sync::Arc;

use chronotile_memory::MemoryStore;
use chronotile_store::{Store, conformance};

use crate::common::{PROMISES, weakened};

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_any_one_promise_passes_the_suite_of_every_engine() {
    for which in 0..PROMISES.len() + 2 {
        conformance::run(
            || async move { weakened(&(Arc::new(MemoryStore::new()) as Arc<dyn Store>)).swap_remove(which) },
        )
        .await;
    }
}
