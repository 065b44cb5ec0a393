//! The SQLite engine keeps the contract of [`Store`].

use std::sync::Arc;

use chronotile_sqlite::{Options, SqliteStore, Synchronous};
use chronotile_store::{Store, conformance};
use tempfile::TempDir;

fn fresh(folder: &TempDir, synchronous: Synchronous) -> Arc<dyn Store> {
    let path = tempfile::Builder::new().tempdir_in(folder).unwrap().keep().join("archive.db");
    Arc::new(SqliteStore::open(path, Options { synchronous, ..Options::default() }).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_claim_of_the_contract_holds() {
    let folder = TempDir::new().unwrap();
    conformance::run(|| async { fresh(&folder, Synchronous::Full) }).await;
}

#[test]
fn random_operations_agree_with_a_plain_map() {
    let folder = TempDir::new().unwrap();
    conformance::model(100, 20_260_102, || async { fresh(&folder, Synchronous::Normal) });
}
