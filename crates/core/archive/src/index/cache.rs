//! The cache of index segments and of the tiles of slices that a process keeps between requests.
//!
//! No entry expires by age. A segment is identified by the hash of its bytes, which the record of its window names.
//! The tiles of a slice are valid as long as the engine's record of changes ([`chronotile_store::changes_key`]) is
//! the same as before they were read.

use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use chronotile_types::SliceId;
use hashbrown::HashMap;

use super::observed::SliceTiles;
use super::segment::Segment;

/// Bytes of segments, and of tiles, that a process caches for one dataset.
const SEGMENTS_BYTES: usize = 32 << 20;
pub(crate) const TILES_BYTES: usize = 64 << 20;

/// The cache of one dataset.
#[derive(Debug)]
pub(crate) struct IndexCache {
    segments: Mutex<LruCache<String, Arc<Segment>>>,
    slices: Mutex<LruCache<SliceId, Observed>>,
}

/// The cached tiles of a slice in one of its states.
#[derive(Clone, Debug)]
struct Observed {
    state: Bytes,
    tiles: Tiles,
}

/// How to get the tiles of a slice.
#[derive(Clone, Debug)]
pub(crate) enum Tiles {
    /// Read only the requested ones: the slice may have changed again by the next request.
    Once,
    /// Read and cache all of them: the slice has not changed since the previous request.
    Fill,
    /// Too large for the cache.
    TooMany,
    Known(Arc<SliceTiles>),
}

impl Default for IndexCache {
    fn default() -> Self {
        Self { segments: Mutex::new(LruCache::new(SEGMENTS_BYTES)), slices: Mutex::new(LruCache::new(TILES_BYTES)) }
    }
}

impl IndexCache {
    pub(crate) fn segment(&self, key: &str) -> Option<Arc<Segment>> {
        lock(&self.segments).get(key)
    }

    pub(crate) fn keep_segment(&self, key: String, segment: Arc<Segment>) {
        let bytes = segment.memory_bytes() + key.len();
        lock(&self.segments).put(key, segment, bytes);
    }

    /// How to get the tiles of a slice that is in this state.
    pub(crate) fn tiles(&self, slice: SliceId, state: &Bytes) -> Tiles {
        let mut slices = lock(&self.slices);
        match slices.get(&slice) {
            Some(seen) if seen.state == *state => seen.tiles,
            _ => {
                slices.put(slice, Observed { state: state.clone(), tiles: Tiles::Fill }, 0);
                Tiles::Once
            }
        }
    }

    /// Caches the tiles that a slice had in this state; `None` if they are too large.
    pub(crate) fn keep_tiles(&self, slice: SliceId, state: Bytes, tiles: Option<Arc<SliceTiles>>) {
        let bytes = tiles.as_ref().map_or(0, |tiles| tiles.memory_bytes());
        let tiles = tiles.map_or(Tiles::TooMany, Tiles::Known);
        lock(&self.slices).put(slice, Observed { state, tiles }, bytes);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An LRU cache: if the values exceed `bytes_max` together, those unused for the longest are dropped.
#[derive(Debug)]
struct LruCache<K, V> {
    entries: HashMap<K, Entry<V>>,
    bytes: usize,
    bytes_max: usize,
    /// Counts calls, so that uses are ordered.
    clock: u64,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    bytes: usize,
    last_used: u64,
}

impl<K: Hash + Eq + Clone, V: Clone> LruCache<K, V> {
    fn new(bytes_max: usize) -> Self {
        Self { entries: HashMap::new(), bytes: 0, bytes_max, clock: 0 }
    }

    fn get<Q: Hash + hashbrown::Equivalent<K> + ?Sized>(&mut self, key: &Q) -> Option<V> {
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        entry.last_used = self.clock;
        Some(entry.value.clone())
    }

    fn put(&mut self, key: K, value: V, bytes: usize) {
        let bytes = bytes + size_of::<(K, Entry<V>)>();
        if bytes > self.bytes_max {
            return;
        }
        self.clock += 1;
        let before = self.entries.insert(key, Entry { value, bytes, last_used: self.clock });
        self.bytes = self.bytes + bytes - before.map_or(0, |entry| entry.bytes);
        if self.bytes > self.bytes_max {
            self.shrink();
        }
    }

    /// Drops at least a quarter of the bytes, oldest first, so that this seldom happens.
    fn shrink(&mut self) {
        let mut order: Vec<(u64, K)> = self.entries.iter().map(|(key, entry)| (entry.last_used, key.clone())).collect();
        order.sort_unstable_by_key(|(last_used, _)| *last_used);
        for (_, key) in order {
            if self.bytes <= self.bytes_max / 4 * 3 {
                break;
            }
            self.bytes -= self.entries.remove(&key).map_or(0, |entry| entry.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_asked_for_the_longest_goes_first() {
        let mut cache: LruCache<u32, u32> = LruCache::new(100_000);
        (0..10).for_each(|key| cache.put(key, key, 9_000));
        assert_eq!(cache.get(&0), Some(0));
        cache.put(10, 10, 15_000);
        assert!(cache.bytes <= 75_000);
        let mut left: Vec<u32> = cache.entries.keys().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [0, 5, 6, 7, 8, 9, 10]);
        assert_eq!((cache.get(&0), cache.get(&1), cache.get(&10)), (Some(0), None, Some(10)));
        cache.put(11, 11, 200_000);
        assert_eq!(cache.get(&11), None, "larger than all that may be kept");
        (0..1_000).for_each(|_| cache.put(0, 0, 9_000));
        assert_eq!(cache.bytes, cache.entries.values().map(|entry| entry.bytes).sum::<usize>());
    }

    #[test]
    fn tiles_are_known_in_the_state_they_were_kept_for_alone() {
        let cache = IndexCache::default();
        let (slice, first, second) = (SliceId(1), Bytes::from_static(b"1"), Bytes::from_static(b"2"));
        assert!(matches!(cache.tiles(slice, &first), Tiles::Once));
        assert!(matches!(cache.tiles(slice, &first), Tiles::Fill));
        cache.keep_tiles(slice, first.clone(), Some(Arc::default()));
        assert!(matches!(cache.tiles(slice, &first), Tiles::Known(_)));
        assert!(matches!(cache.tiles(slice, &second), Tiles::Once));
        assert!(matches!(cache.tiles(slice, &first), Tiles::Once));
        assert!(matches!(cache.tiles(SliceId(2), &first), Tiles::Once));
    }
}
