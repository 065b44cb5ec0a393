//! Which slices a read has to look in.

use chronotile_store::Store;
use chronotile_types::{SliceId, Window};
use tokio::sync::OnceCell;

use crate::error::Result;
use crate::frame::Frame;

/// The slices of a group or of a single dataset, looked up once, on first use.
pub(crate) struct SliceList<'a> {
    store: &'a dyn Store,
    found: OnceCell<Vec<SliceId>>,
}

impl<'a> SliceList<'a> {
    pub(crate) fn new(store: &'a dyn Store) -> Self {
        Self { store, found: OnceCell::new() }
    }

    /// As [`slices_in`].
    pub(crate) async fn within(&self, frame: &Frame, windows: (Window, Window)) -> Result<Vec<SliceId>> {
        let (first, last) = (frame.spec.slice_of(windows.0), frame.spec.slice_of(windows.1));
        // An unbounded period covers up to 2^32 slices, so the difference takes 64 bits.
        if self.store.capabilities().cheap_missing_slices && i64::from(last.0) - i64::from(first.0) < FEW {
            return Ok((first.0..=last.0).map(SliceId).collect());
        }
        let every = self.found.get_or_try_init(|| self.store.slices(&frame.dataset)).await?;
        Ok(every.iter().copied().filter(|slice| (first..=last).contains(slice)).collect())
    }
}

/// Below this number of slices, engines with cheap missing slices need not be asked which exist.
const FEW: i64 = 4;

/// The slices to read for these windows, ascending.
pub(crate) async fn slices_in(store: &dyn Store, frame: &Frame, windows: (Window, Window)) -> Result<Vec<SliceId>> {
    SliceList::new(store).within(frame, windows).await
}
