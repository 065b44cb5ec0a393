//! Write stamps and unique ids: the only places where this crate uses the machine's clock and random numbers. A
//! simulation supplies both, so that a run can be repeated.
//!
//! Of two versions of a record the later stamp wins. So a stamp must be later than every stamp that its writer could
//! have seen, whatever its machine's clock says; `docs/decisions/016-stamps-and-clocks.md` gives the reasons.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chronotile_chunk::Head;
use chronotile_store::{CLOCK_KEY, ClockSource, Store};
use chronotile_types::BatchId;
use tokio::time::Instant;

use crate::error::{ArchiveError, Result};

/// How long a clock difference reported by a cluster's node is used. Quartz clocks drift by some milliseconds in that
/// time.
const ASKED_FOR: Duration = Duration::from_secs(60);
/// Stamps from here on (the year 75000) are invalid and do not advance the clock.
const STAMP_US_MAX: i64 = i64::MAX / 4;

#[expect(clippy::disallowed_methods, reason = "the one place that reads the system clock")]
fn machine_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64)
}

/// `now_us`, or one microsecond after the last stamp, whichever is later.
fn later(last_us: &AtomicI64, now_us: i64) -> i64 {
    let next = |last: i64| Some(now_us.max(last + 1));
    // `next` never declines, so the update always succeeds.
    let last = last_us.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or(now_us);
    now_us.max(last + 1)
}

/// The clock of an archive's writers: the engine's time, but always later than every stamp that this process has made
/// or seen. Also makes new ids.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    last_us: AtomicI64,
    /// When the engine last reported its time, and the difference to this machine's time.
    asked: Mutex<Option<(Instant, i64)>>,
    machine: Override<i64>,
    random: Override<u64>,
}

/// A source of values: the machine, or the replacement that a simulation supplies.
struct Override<T>(Option<Arc<dyn Fn() -> T + Send + Sync>>);

impl<T> Default for Override<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> std::fmt::Debug for Override<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "simulated" } else { "machine" })
    }
}

impl<T> Override<T> {
    fn by(simulated: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(simulated)))
    }

    fn get(&self, of_machine: impl FnOnce() -> T) -> T {
        self.0.as_ref().map_or_else(of_machine, |simulated| simulated())
    }
}

impl Clock {
    /// A clock that uses `now_us` as the time of the machine.
    pub(crate) fn of_machine(now_us: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        Self { machine: Override::by(now_us), ..Self::default() }
    }

    /// The same clock, with a source of random bits for new ids.
    pub(crate) fn with_random(self, bits: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self { random: Override::by(bits), ..self }
    }

    /// A stamp later than every stamp that this process has made or seen and, as far as the engine's clock allows, than
    /// those of all acknowledged writes.
    ///
    /// # Errors
    /// The engine.
    pub(crate) async fn stamp_us(&self, store: &dyn Store) -> Result<i64> {
        let ahead_us = self.engine_ahead_us(store).await?;
        Ok(later(&self.last_us, self.machine_us() + ahead_us))
    }

    /// The engine's time minus this machine's. An engine that reports the latest stamp is read each time: that costs no
    /// request, and shows the stamps of other processes. For an engine that reports a machine's time, the difference is
    /// cached.
    async fn engine_ahead_us(&self, store: &dyn Store) -> Result<i64> {
        let source = store.capabilities().clock;
        // Each call locks for a single read or write, never across the request. Two tasks may ask at once, which is
        // harmless.
        let known = || self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if let (ClockSource::MachineTime, Some((at, ahead_us))) = (source, *known())
            && at.elapsed() < ASKED_FOR
        {
            return Ok(ahead_us);
        }
        let (before_us, began) = (self.machine_us(), Instant::now());
        // An engine that reports the latest stamp has no such record before its first commit of chunks.
        let Some(answer) = store.record(CLOCK_KEY).await? else { return Ok(0) };
        // The node read its clock between request and answer, so the middle is wrong by at most half of the time that
        // the answer took.
        let middle_us = before_us + began.elapsed().as_micros() as i64 / 2;
        let answer_us = std::str::from_utf8(&answer).ok().and_then(|text| text.parse::<i64>().ok());
        let answer_us = answer_us.ok_or_else(|| ArchiveError::Catalog {
            key: CLOCK_KEY.to_owned(),
            reason: "it is not a number of microseconds".to_owned(),
            source: None,
        })?;
        if source == ClockSource::LatestStamp {
            self.saw(answer_us);
            return Ok(0);
        }
        let ahead_us = answer_us - middle_us;
        *known() = Some((began, ahead_us));
        Ok(ahead_us)
    }

    /// The approximate time, without a request: it may be wrong by the clock errors of machines.
    pub(crate) fn about_now_us(&self) -> i64 {
        let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        self.machine_us() + asked.map_or(0, |(_, ahead_us)| ahead_us)
    }

    fn machine_us(&self) -> i64 {
        self.machine.get(machine_us)
    }

    /// A new batch id: ordered by time, and unique by 64 random bits.
    pub(crate) fn unique_batch(&self, stamp_us: i64) -> BatchId {
        BatchId(((stamp_us as u128) << 64) | u128::from(self.random_bits()))
    }

    /// Random bits.
    pub(crate) fn random_bits(&self) -> u64 {
        self.random.get(random_bits)
    }

    /// A unique text by which a changed record differs from its earlier states.
    pub(crate) fn token(&self) -> String {
        self.unique_batch(self.about_now_us()).to_string()
    }

    /// Stamps made from here on are later than this one.
    pub(crate) fn saw(&self, stamp_us: i64) {
        if stamp_us < STAMP_US_MAX {
            self.last_us.fetch_max(stamp_us, Ordering::Relaxed);
        }
    }

    /// As [`Clock::saw`], for all writes whose rows a chunk contains.
    pub(crate) fn saw_head(&self, head: &Head) {
        head.origins.iter().for_each(|origin| self.saw(origin.written_us));
    }

    /// The latest stamp made or seen.
    pub(crate) fn last_us(&self) -> i64 {
        self.last_us.load(Ordering::Relaxed)
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the system clock")]
fn random_bits() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // Each RandomState has its own random keys, so the hash of no input is a random number.
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
mod tests {
    use chronotile_memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn what_a_process_has_read_sets_its_clock() {
        let clock = Clock::default();
        let store = MemoryStore::new();
        let ahead_us = machine_us() + 600_000_000;
        clock.saw(ahead_us);
        assert_eq!(clock.stamp_us(&store).await.unwrap(), ahead_us + 1);
        clock.saw(ahead_us - 10);
        clock.saw(i64::MAX);
        clock.saw(STAMP_US_MAX);
        assert_eq!(clock.stamp_us(&store).await.unwrap(), ahead_us + 2);
    }

    #[test]
    fn ids_are_ordered_by_their_stamps_and_differ_by_chance() {
        let clock = Clock::default();
        let (first, second) = (clock.unique_batch(5), clock.unique_batch(5));
        assert_ne!(first, second);
        assert_eq!((first.0 >> 64, second.0 >> 64), (5, 5));
        let simulated = Clock::of_machine(|| 9).with_random(|| 7);
        assert_eq!(simulated.unique_batch(5), BatchId(5 << 64 | 7));
        assert_eq!(simulated.token(), BatchId(9 << 64 | 7).to_string());
    }
}
