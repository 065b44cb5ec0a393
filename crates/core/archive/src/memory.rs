//! A memory budget for a service with many clients: request bodies, reads and responses are charged before they
//! allocate.
//!
//! Reads of an archive are charged once [`Archive::limit_memory`](crate::Archive::limit_memory) is called.
//!
//! Dropping a [`Charge`] releases it. [`Charge::keep`] ties it to bytes, so that a body or a piece of a response is
//! charged for exactly as long as it exists, wherever it waits.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use bytes::Bytes;
use chronotile_types::ErrorKind;

/// Charges of at most this many bytes may also use the part of the budget that is reserved for small ones, so that a
/// few large requests do not block all others.
const SMALL_BYTES: usize = 1 << 20;
/// One part in this many of the budget is reserved for small charges.
const SMALL_SHARE: usize = 8;

/// The budget. Clones share it.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Budget>);

/// The budget of the reads of an archive and its datasets; `None` if unlimited.
pub(crate) type MemoryLimit = Arc<RwLock<Option<Memory>>>;

#[derive(Debug)]
struct Budget {
    bytes_max: usize,
    bytes: AtomicUsize,
    refused: AtomicU64,
}

/// Why a charge was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Others use the memory at the moment.
    #[error("the memory limit of reads and requests is reached, and {bytes} more bytes are needed: repeat in a second")]
    InUse {
        /// Bytes requested.
        bytes: usize,
    },
    /// The charge exceeds the whole budget: waiting does not help.
    #[error(
        "the call needs more than the {bytes_max} bytes of memory that all reads and requests share: request or send \
        less at a time, or raise the limit (memory_bytes_max of open, --memory of a service)"
    )]
    TooLarge {
        /// The budget.
        bytes_max: usize,
    },
}

impl MemoryError {
    /// The stable name of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InUse { .. } => ErrorKind::MemoryInUse,
            Self::TooLarge { .. } => ErrorKind::TooLarge,
        }
    }
}

impl Memory {
    /// A budget of `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Budget { bytes_max, bytes: AtomicUsize::new(0), refused: AtomicU64::new(0) }))
    }

    /// A charge of 0 bytes, for [`Charge::grow`].
    pub fn empty(&self) -> Charge {
        Charge { memory: self.clone(), bytes: 0 }
    }

    /// Charges `bytes`: all of them or none.
    ///
    /// # Errors
    /// The budget has no room.
    pub fn charge(&self, bytes: usize) -> Result<Charge, MemoryError> {
        let mut charge = self.empty();
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// Bytes charged now.
    pub fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// The budget, bytes.
    pub fn bytes_max(&self) -> usize {
        self.0.bytes_max
    }

    /// Charges refused so far.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }
}

/// Memory charged to the budget until this is dropped.
#[derive(Debug)]
pub struct Charge {
    memory: Memory,
    bytes: usize,
}

impl Charge {
    /// Bytes charged.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Charges `more` bytes in addition, or leaves the charge unchanged.
    ///
    /// # Errors
    /// The budget has no room.
    pub fn grow(&mut self, more: usize) -> Result<(), MemoryError> {
        let budget = &self.memory.0;
        let bytes_max = budget.bytes_max;
        let whole = self.bytes.saturating_add(more);
        // The size of the whole charge counts, so that a large charge cannot grow in small steps into the reserved
        // part.
        let limit = if whole <= SMALL_BYTES { bytes_max } else { bytes_max - bytes_max / SMALL_SHARE };
        let taken = budget.bytes.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |bytes| {
            bytes.checked_add(more).filter(|after| *after <= limit)
        });
        if taken.is_err() {
            budget.refused.fetch_add(1, Ordering::Relaxed);
            return Err(if whole > limit {
                MemoryError::TooLarge { bytes_max: limit }
            } else {
                MemoryError::InUse { bytes: more }
            });
        }
        self.bytes = whole;
        Ok(())
    }

    /// Changes the charge to `bytes`.
    ///
    /// # Errors
    /// The budget has no room for the additional bytes.
    pub fn set(&mut self, bytes: usize) -> Result<(), MemoryError> {
        if let Some(more) = bytes.checked_sub(self.bytes) {
            return self.grow(more);
        }
        self.memory.0.bytes.fetch_sub(self.bytes - bytes, Ordering::AcqRel);
        self.bytes = bytes;
        Ok(())
    }

    /// Ties the charge to `bytes` until their last clone or slice is dropped.
    pub fn keep(self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(ChargedBytes { bytes, _charge: self })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory.0.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// The charge of a read; nothing if the archive has no budget.
#[derive(Debug)]
pub(crate) struct ReadCharge(Option<Charge>);

impl ReadCharge {
    /// A charge of 0 bytes.
    pub(crate) fn of(memory: Option<&Memory>) -> Self {
        Self(memory.map(Memory::empty))
    }

    /// Changes the charge to `bytes`.
    ///
    /// # Errors
    /// The budget has no room.
    pub(crate) fn set(&mut self, bytes: usize) -> Result<(), MemoryError> {
        self.0.as_mut().map_or(Ok(()), |charge| charge.set(bytes))
    }
}

struct ChargedBytes {
    // Fields are dropped in order: the bytes are freed before their charge is released.
    bytes: Vec<u8>,
    _charge: Charge,
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A growing vector of bytes, whose capacity is charged before it is allocated.
#[derive(Debug)]
pub struct ChargedVec {
    bytes: Vec<u8>,
    charge: Charge,
}

impl ChargedVec {
    /// An empty vector.
    pub fn new(memory: &Memory) -> Self {
        Self { bytes: Vec::new(), charge: memory.empty() }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Adds `piece`. The capacity grows by half at a time.
    ///
    /// # Errors
    /// The budget has no room; the content stays unchanged.
    pub fn extend(&mut self, piece: &[u8]) -> Result<(), MemoryError> {
        let needed = self.bytes.len().saturating_add(piece.len());
        if needed > self.bytes.capacity() {
            let room = needed.max(self.bytes.capacity() + self.bytes.capacity() / 2);
            let charged = self.charge.bytes();
            self.charge.set(room)?;
            // If the process has less memory than its budget, only this request fails.
            if self.bytes.try_reserve_exact(room - self.bytes.len()).is_err() {
                self.charge.set(charged)?;
                return Err(MemoryError::InUse { bytes: room });
            }
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// The bytes, with their charge.
    pub fn freeze(mut self) -> Bytes {
        self.bytes.shrink_to_fit();
        // Never more than before, so this cannot fail.
        let _ = self.charge.set(self.bytes.capacity().min(self.charge.bytes));
        self.charge.keep(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn what_is_dropped_can_be_charged_again() {
        let memory = Memory::new(80 * MIB);
        let first = memory.charge(40 * MIB).unwrap();
        assert_eq!(memory.charge(40 * MIB).unwrap_err(), MemoryError::InUse { bytes: 40 * MIB });
        assert_eq!((memory.bytes(), memory.refused()), (40 * MIB, 1));
        drop(first);
        assert_eq!(memory.charge(70 * MIB).unwrap().bytes(), 70 * MIB);
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn more_than_the_whole_is_told_apart_from_a_busy_moment() {
        let memory = Memory::new(80 * MIB);
        assert_eq!(memory.charge(71 * MIB).unwrap_err(), MemoryError::TooLarge { bytes_max: 70 * MIB });
        assert_eq!(memory.charge(usize::MAX).unwrap_err(), MemoryError::TooLarge { bytes_max: 70 * MIB });
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn small_charges_have_room_where_large_ones_fill_the_rest() {
        let memory = Memory::new(80 * MIB);
        let _large = memory.charge(70 * MIB).unwrap();
        assert!(memory.charge(2 * MIB).is_err());
        let small: Vec<Charge> = (0..10).map(|_| memory.charge(MIB).unwrap()).collect();
        assert!(memory.charge(1).is_err());
        drop(small);
        let mut growing = memory.charge(MIB).unwrap();
        assert!(growing.grow(1).is_err(), "a charge that grows is judged by its whole size");
        assert_eq!(growing.bytes(), MIB);
    }

    #[test]
    fn bytes_hold_their_charge_until_the_last_slice_is_gone() {
        let memory = Memory::new(80 * MIB);
        let mut gathered = ChargedVec::new(&memory);
        for _ in 0..100 {
            gathered.extend(&[7; 1_000]).unwrap();
            assert!(gathered.charge.bytes() >= gathered.bytes.capacity());
        }
        let bytes = gathered.freeze();
        let slice = bytes.slice(99_999..);
        assert_eq!((bytes.len(), &slice[..], memory.bytes()), (100_000, &[7][..], 100_000));
        drop(bytes);
        assert_eq!(memory.bytes(), 100_000);
        drop(slice);
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn what_does_not_fit_leaves_what_was_gathered() {
        let memory = Memory::new(8 * MIB);
        let mut gathered = ChargedVec::new(&memory);
        let mut failed = None;
        while failed.is_none() {
            failed = gathered.extend(&vec![1; MIB]).err();
        }
        assert_eq!(failed, Some(MemoryError::TooLarge { bytes_max: 7 * MIB }));
        assert!(gathered.len() >= 4 * MIB && memory.bytes() <= 7 * MIB);
        drop(gathered);
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn a_charge_of_all_that_there_is_waits_for_others() {
        let memory = Memory::new(80 * MIB);
        assert_eq!(memory.bytes_max(), 80 * MIB);
        let others = memory.charge(1).unwrap();
        assert_eq!(memory.charge(70 * MIB).unwrap_err(), MemoryError::InUse { bytes: 70 * MIB });
        drop(others);
        assert_eq!(memory.charge(70 * MIB).unwrap().bytes(), 70 * MIB);
        assert_eq!(MemoryError::InUse { bytes: 1 }.kind(), ErrorKind::MemoryInUse);
        assert_eq!(MemoryError::TooLarge { bytes_max: 1 }.kind(), ErrorKind::TooLarge);
    }

    #[test]
    fn room_grows_by_half_at_a_time() {
        let memory = Memory::new(80 * MIB);
        let mut gathered = ChargedVec::new(&memory);
        assert!(gathered.is_empty());
        let mut rooms = vec![];
        for _ in 0..50 {
            gathered.extend(&[7; 100]).unwrap();
            rooms.push(memory.bytes());
        }
        rooms.dedup();
        assert_eq!(rooms, [100, 200, 300, 450, 675, 1_012, 1_518, 2_277, 3_415, 5_122]);
        assert!(!gathered.is_empty());
        // A piece that just fits does not grow the capacity.
        gathered.extend(&[7; 122]).unwrap();
        assert_eq!(memory.bytes(), 5_122);
        assert_eq!(gathered.freeze(), [7; 5_122][..]);
    }
}
