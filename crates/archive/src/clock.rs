//! Write stamps and ids of unnamed batches.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use chronotile_types::BatchId;

static LAST_US: AtomicI64 = AtomicI64::new(0);

/// Microseconds since the Unix epoch by this machine's clock; every call in a process gives a later one.
pub(crate) fn stamp_us() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64);
    let next = |last: i64| Some(now.max(last + 1));
    // `next` never declines, so the update always succeeds.
    let last = LAST_US.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or(now);
    now.max(last + 1)
}

/// Nanoseconds since the Unix epoch by this machine's clock.
pub(crate) fn now_ns() -> i128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i128)
}

/// A new batch id: ordered by time, and unique by 64 random bits of the process and a counter.
pub(crate) fn unique_batch(stamp_us: i64) -> BatchId {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // Each RandomState has its own random keys, which makes its empty hash a random number.
    let random = RandomState::new().build_hasher().finish();
    BatchId(((stamp_us as u128) << 64) | u128::from(random))
}
