//! Processes whose clocks are wrong.

use std::sync::Arc;

use chronotile_archive::{Dataset, WriteOptions};
use chronotile_memory::MemoryStore;
use chronotile_store::Store;
use chronotile_types::{DatasetSpec, MergeRule};
use proptest::prelude::*;

use crate::common::*;

/// A dataset as several processes have opened it, whose clocks are wrong by these numbers of seconds.
async fn processes(merge: MergeRule, skews_s: &[i64]) -> Vec<Dataset> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let spec = DatasetSpec { merge, ..spec() };
    let mut datasets = vec![];
    for skew_s in skews_s {
        let skew_us = skew_s * 1_000_000;
        let archive = archive(&store).with_machine_time(move || machine_us() + skew_us);
        datasets.push(archive.create(spec.clone(), true).await.unwrap());
    }
    datasets
}

proptest! {
    #[test]
    fn the_write_acknowledged_last_is_the_one_that_is_read(
        skews_s in proptest::collection::vec(-700..700_i64, 2..4),
        writers in proptest::collection::vec((0..4_usize, 0..3_u8), 1..12),
        latest: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let merge = if latest { MergeRule::Latest { version: None } } else { MergeRule::Append };
            let processes = processes(merge, &skews_s).await;
            for (value, (writer, batch)) in writers.into_iter().enumerate() {
                let dataset = &processes[writer % processes.len()];
                let options = if batch == 0 { WriteOptions::default() } else { replacing(&batch.to_string()) };
                let note = value.to_string();
                write(dataset, &noted(&[(0, 1, 0)], &note), options).await.unwrap();
                for reader in &processes {
                    prop_assert_eq!(id_notes(&read_all(reader).await), vec![(1, note.clone())]);
                }
            }
            Ok(())
        })?;
    }
}
