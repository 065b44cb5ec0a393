//! Handles on a dataset with another consistency level, time limit or visibility for their calls.

use std::sync::Arc;

use chronotile_archive::{ReadRequest, WriteOptions};
use chronotile_memory::MemoryStore;
use chronotile_store::{CallOptions, Metered, Store, Visibility};

use crate::common::*;
use crate::interposed::Interposed;

fn calls(store: &Metered) -> u64 {
    store.snapshot().iter().map(|each| each.calls).sum()
}

/// A store and a view of it, which count their calls, and one that gives the view where it is asked for it.
fn viewed(
    has_view: impl Fn(Option<Visibility>) -> bool + Send + Sync + 'static,
) -> (Arc<Metered>, Arc<Metered>, Arc<dyn Store>) {
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (below, view) = (Arc::new(Metered::new(memory.clone())), Arc::new(Metered::new(memory)));
    let given = view.clone();
    let store =
        Interposed::with_views(below.clone(), move |asked| has_view(asked).then(|| given.clone() as Arc<dyn Store>));
    (below, view, store)
}

#[tokio::test]
async fn a_handle_with_options_or_another_visibility_writes_and_reads_through_that_view() {
    for wanted in [None, Some(Visibility::EveryWrite)] {
        let (below, view, store) = viewed(move |asked| asked == wanted);
        let dataset = create(&store, spec()).await;
        let handle = match wanted {
            None => dataset.with_options(&CallOptions::default()).unwrap(),
            Some(_) => dataset.seeing_every_write(),
        };
        let before = calls(&below);
        assert!(write(&handle, &rows(&[(1, 1, 1)]), WriteOptions::default()).await.unwrap().stored);
        let written = calls(&view);
        assert_eq!(ids(&read_all(&handle).await), [1]);
        assert_eq!(calls(&below), before, "{wanted:?}");
        assert!(0 < written && written < calls(&view), "{wanted:?}");
        // The handle that it was made from goes on as before.
        let through_view = calls(&view);
        assert!(write(&dataset, &rows(&[(2, 2, 1)]), WriteOptions::default()).await.unwrap().stored);
        assert_eq!(ids(&read_all(&dataset).await), [1, 2]);
        assert_eq!(calls(&view), through_view, "{wanted:?}");
    }
}

#[tokio::test]
async fn an_engine_with_one_copy_of_the_data_has_no_options_and_shows_every_write() {
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        let refused = dataset.with_options(&CallOptions::default()).unwrap_err().to_string();
        assert!(refused.contains("stores one copy"), "{refused}");
        write(&dataset, &rows(&[(1, 1, 1)]), WriteOptions::default()).await.unwrap();
        assert_eq!(ids(&read_all(&dataset.seeing_every_write()).await), [1]);
    }
}

/// Reads may use fewer replicas, writes may not.
#[tokio::test]
async fn what_changes_nothing_asks_for_the_configured_visibility() {
    let (below, view, store) = viewed(|asked| asked == Some(Visibility::Configured));
    let dataset = create(&store, spec()).await;
    write(&dataset, &rows(&[(1, 1, 1)]), named("a")).await.unwrap();
    let before = calls(&below);
    let mut seen = calls(&view);
    let mut went_through_view = |what: &str| {
        assert_eq!(calls(&below), before, "{what}");
        assert!(calls(&view) > seen, "{what}");
        seen = calls(&view);
    };
    let dataset = open(&store, "records").await;
    went_through_view("opening");
    assert_eq!(ids(&read_all(&dataset).await), [1]);
    went_through_view("reading");
    assert_eq!(dataset.count(ReadRequest::default()).await.unwrap(), 1);
    went_through_view("counting");
    assert_eq!(dataset.batches().await.unwrap().len(), 1);
    went_through_view("listing batches");
    assert_eq!(dataset.info().await.unwrap().slices.len(), 1);
    went_through_view("looking at slices");
    let through_view = calls(&view);
    write(&dataset, &rows(&[(2, 2, 1)]), named("b")).await.unwrap();
    assert!(calls(&below) > before);
    // Only the definition is looked at for it.
    assert_eq!(calls(&view), through_view + 1);
}
