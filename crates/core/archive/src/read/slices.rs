//! Which slices a read has to look in.

use chronotile_store::Store;
use chronotile_types::{SliceId, Window};

use crate::error::Result;
use crate::frame::Frame;

/// The slices to look in for these windows, ascending. Of a few, some engines find out by themselves which exist.
pub(crate) async fn slices_in(store: &dyn Store, frame: &Frame, windows: (Window, Window)) -> Result<Vec<SliceId>> {
    const FEW: i64 = 4;
    let (first, last) = (frame.spec.slice_of(windows.0), frame.spec.slice_of(windows.1));
    if store.capabilities().cheap_missing_slices && i64::from(last.0) - i64::from(first.0) < FEW {
        return Ok((first.0..=last.0).map(SliceId).collect());
    }
    let mut slices = store.slices(&frame.dataset).await?;
    slices.retain(|slice| (first..=last).contains(slice));
    Ok(slices)
}
