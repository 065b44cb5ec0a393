//! One scan for reads of several datasets that share slices, whose chunks are in the same partitions.

use std::sync::Arc;

use chronotile_store::{DatasetRef, Scan, Store, Windows};
use chronotile_types::SliceId;

use crate::error::Result;
use crate::read::groups::scan_all;
use crate::read::query::Query;
use crate::read::shared_scan::{Subscriber, hand_out};

/// Begins one scan for each set of reads of the same cells in slices that their datasets share.
///
/// # Errors
/// The engine.
pub(crate) async fn share_scans(store: &Arc<dyn Store>, queries: &mut [Query]) -> Result<()> {
    let mut sets: Vec<Vec<usize>> = Vec::new();
    for (at, query) in queries.iter().enumerate().filter(|(_, query)| may_share(query)) {
        match sets.iter_mut().find(|set| set.iter().all(|other| are_together(&queries[*other], query))) {
            Some(set) => set.push(at),
            None => sets.push(vec![at]),
        }
    }
    for set in sets.into_iter().filter(|set| set.len() > 1) {
        let (dataset, scan) = scan_of(&queries[set[0]], set.iter().map(|at| &queries[*at]));
        let chunks = scan_all(store, &dataset, scan).await?;
        let mut subscribers = Vec::with_capacity(set.len());
        for at in set {
            let query = &mut queries[at];
            let (subscriber, shared_scan) = Subscriber::new(query.windows.into(), query.asks_older());
            query.shared_scan = Some(shared_scan);
            subscribers.push(subscriber);
        }
        // The task ends by itself at the end of the scan, or once all reads have dropped their receivers.
        tokio::spawn(hand_out(chunks, subscribers));
    }
    Ok(())
}

/// Whether a read is certain to read everything in its cells and windows, including bodies.
fn may_share(query: &Query) -> bool {
    query.frame.spec.indexes.is_empty() && !query.prunes_by_head()
}

fn are_together(a: &Query, b: &Query) -> bool {
    let spec = |query: &Query| query.frame.spec.clone();
    // Reads of the same dataset do not share a scan, since their windows may overlap.
    spec(a).slices_name() == spec(b).slices_name() && spec(a).name != spec(b).name && a.cells == b.cells
}

/// A scan of everything that these reads cover, `first` among them.
fn scan_of<'a>(first: &Query, queries: impl Iterator<Item = &'a Query> + Clone) -> (DatasetRef, Scan) {
    let mut slices: Vec<SliceId> = queries.clone().flat_map(|query| query.slices.iter().copied()).collect();
    slices.sort_unstable();
    slices.dedup();
    let dataset = first.frame.dataset.together(queries.clone().map(|query| &query.frame.dataset));
    let windows = Windows::of(queries.clone().map(|query| query.windows));
    let older = queries.clone().any(Query::asks_older);
    (dataset, Scan { slices, cells: first.cells.clone(), windows, bodies: true, older })
}
