//! Tiles as observed from the heads of their chunks.

use std::ops::Range;

use chronotile_chunk::Head;
use chronotile_store::ChunkKey;
use chronotile_types::{SliceId, Tile, Window, ZoneKey};
use xxhash_rust::xxh3::xxh3_64;

/// An observed tile.
#[derive(Clone, Debug)]
pub(crate) struct ObservedTile {
    pub slice: SliceId,
    pub tile: Tile,
    /// The range of its chunk keys in [`SliceTiles::keys`].
    pub keys: Range<usize>,
    /// Hash of the ids of its chunks.
    pub print: u64,
    /// Ticks of its first and last row.
    pub time: (i64, i64),
    /// Whether all of its rows count.
    pub visible: bool,
    pub ids: (ZoneKey, ZoneKey),
}

/// Tiles of one or more slices, in the order of a scan.
#[derive(Debug, Default)]
pub(crate) struct SliceTiles {
    pub tiles: Vec<ObservedTile>,
    pub keys: Vec<ChunkKey>,
    /// One head for each distinct set of origins of a chunk; empty if the tiles are not to be cached.
    pub heads: Vec<Head>,
    pub heads_bytes: usize,
    /// Positions of the tiles, ordered by window.
    pub by_window: Vec<(Window, u32)>,
}

impl SliceTiles {
    pub(super) fn push(&mut self, key: ChunkKey, head: &Head, visible: bool) {
        let (zone, place) = (&head.zone, self.keys.len());
        self.keys.push(key);
        match self.tiles.last_mut() {
            Some(seen) if seen.tile == key.tile && seen.slice == key.slice => {
                seen.keys.end += 1;
                seen.time = (seen.time.0.min(zone.time_min), seen.time.1.max(zone.time_max));
                seen.visible &= visible;
                seen.ids = (seen.ids.0.min(zone.id_min), seen.ids.1.max(zone.id_max));
            }
            _ => self.tiles.push(ObservedTile {
                slice: key.slice,
                tile: key.tile,
                keys: place..place + 1,
                print: 0,
                time: (zone.time_min, zone.time_max),
                visible,
                ids: (zone.id_min, zone.id_max),
            }),
        }
    }

    pub(super) fn finished(mut self) -> Self {
        let keys = &self.keys;
        self.tiles.iter_mut().for_each(|seen| seen.print = print(&keys[seen.keys.clone()]));
        self
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&self.tiles[..]) + size_of_val(&self.keys[..]) + size_of_val(&self.by_window[..]) + self.heads_bytes
    }

    /// Positions of the tiles in a range of windows, in order.
    pub(super) fn in_windows(&self, (first, last): (Window, Window)) -> Vec<u32> {
        let (Some((low, _)), Some((high, _))) = (self.by_window.first(), self.by_window.last()) else { return vec![] };
        if first <= *low && *high <= last {
            return (0..self.tiles.len() as u32).collect();
        }
        let start = self.by_window.partition_point(|(window, _)| *window < first);
        let end = self.by_window.partition_point(|(window, _)| *window <= last);
        // If `first` is after `last`, `end` may be before `start`, and such a range would panic.
        let mut places: Vec<u32> = self.by_window[start..end.max(start)].iter().map(|(_, at)| *at).collect();
        places.sort_unstable();
        places
    }
}

/// Hash of the ids of a tile's chunks, independent of their order.
pub(crate) fn print(keys: &[ChunkKey]) -> u64 {
    let mut ids: Vec<[u8; 16]> = keys.iter().map(|key| key.id.to_bytes()).collect();
    ids.sort_unstable();
    xxh3_64(ids.as_flattened())
}

#[cfg(test)]
mod tests {
    use super::*;
    use chronotile_types::{Cell, ChunkId};

    fn observed(windows: &[i32]) -> SliceTiles {
        let tile = |window: &i32| ObservedTile {
            slice: SliceId(0),
            tile: Tile { cell: Cell(0), window: Window(*window) },
            keys: 0..0,
            print: 0,
            time: (0, 0),
            visible: true,
            ids: (ZoneKey::MIN, ZoneKey::MIN),
        };
        let mut by_window: Vec<_> = windows.iter().map(|window| Window(*window)).zip(0..).collect();
        by_window.sort_unstable();
        SliceTiles { tiles: windows.iter().map(tile).collect(), by_window, ..SliceTiles::default() }
    }

    #[test]
    fn tiles_of_some_windows_are_found_in_their_order() {
        let seen = observed(&[1, 2, 4, 1, 3, 4]);
        for first in -1..7 {
            for last in -1..7 {
                let wanted: Vec<u32> = (0..)
                    .zip(&seen.tiles)
                    .filter(|(_, seen)| (first..=last).contains(&seen.tile.window.0))
                    .map(|(at, _)| at)
                    .collect();
                assert_eq!(seen.in_windows((Window(first), Window(last))), wanted, "{first} to {last}");
            }
        }
        assert!(observed(&[]).in_windows((Window(0), Window(9))).is_empty());
    }

    #[test]
    fn a_print_is_of_the_ids_of_chunks_in_any_order() {
        let key = |id| ChunkKey { slice: SliceId(0), tile: Tile { cell: Cell(0), window: Window(0) }, id: ChunkId(id) };
        let of = |ids: &[u128]| print(&ids.iter().map(|id| key(*id)).collect::<Vec<_>>());
        assert_eq!(of(&[1, 2, 3]), of(&[3, 1, 2]));
        assert_eq!(of(&[1 << 64]), xxh3_64(&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]));
        assert!(of(&[1, 2]) != of(&[1, 3]) && of(&[1]) != of(&[1, 1]));
    }
}
