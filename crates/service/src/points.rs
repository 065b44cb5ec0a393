//! The points of a write request: every text format is read into [`Points`], and `columns` converts them for the historian.
//!
//! Memory is bounded by the size of the request: a point takes about thirty bytes, points are kept in blocks of limited
//! size, and only the first refusals are kept. All of it is charged to the service's memory beforehand.

mod block;
mod columns;
mod refusals;
mod series;
mod value;

use std::hash::BuildHasher;

use chronotile_archive::memory::{Charge, MemoryError};
use chronotile_historian::NAME_BYTES_MAX;
use hashbrown::{DefaultHashBuilder, HashTable};

use block::{BLOCK_ROWS_FIRST, Block, ROW_BYTES};
pub(crate) use columns::Checks;
pub use refusals::{REFUSALS_KEPT_MAX, Refusals, Refused};
pub(crate) use refusals::{cut, shown};
pub(crate) use series::{check_series, series_name};
pub(crate) use value::check_texts;
pub use value::{TEXT_BYTES_MAX, Value};

/// Memory of a tag name besides its own bytes, here and where it is looked up.
const NAME_BYTES: usize = 256;
/// Maximum number of tags in one request body.
pub(crate) const NAMES_MAX: usize = 100_000;

/// The points of one request, by row.
#[derive(Debug, Default)]
pub struct Points {
    names: Vec<Box<str>>,
    /// Hash index of `names`.
    name_index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// Index of the latest name: successive points often have the same tag.
    last_name: Option<u32>,
    blocks: Vec<Block>,
    count: usize,
    /// Lines that could not be parsed.
    pub refused: Refusals,
    /// Whether the format marks integers as such; otherwise `1` may be a value of a float tag.
    pub(crate) marks_integers: bool,
    charge: Option<Charge>,
    memory_error: Option<MemoryError>,
}

impl Points {
    /// Creates an empty list whose memory is paid for by `charge`, which grows with it.
    pub(crate) fn charged(charge: Charge) -> Self {
        Self { charge: Some(charge), ..Self::default() }
    }

    /// Adds a point. Once memory runs out, all further points are dropped: see [`Self::memory_error`].
    ///
    /// # Errors
    /// The name or the text is too long.
    pub fn push(&mut self, line: u64, name: &str, time: i64, value: Value<'_>, status: u32) -> Result<(), String> {
        if name.len() > NAME_BYTES_MAX {
            let bytes = name.len();
            return Err(format!(
                "the name {} has {bytes} bytes, more than the {NAME_BYTES_MAX} of a tag name",
                shown(name)
            ));
        }
        check_texts([&value])?;
        if self.memory_error.is_none() {
            let stored = self.store(line, name, time, &value, status);
            self.memory_error = stored.err();
        }
        Ok(())
    }

    fn store(&mut self, line: u64, name: &str, time: i64, value: &Value<'_>, status: u32) -> Result<(), MemoryError> {
        let text_bytes = if let Value::Text(text) = value { text.len() } else { 0 };
        if !self.blocks.last().is_some_and(|block| block.has_room(text_bytes)) {
            self.blocks.push(Block::default());
        }
        // If memory runs out here or below, an empty block may remain, which has no rows and does no harm.
        let tag = self.name_position(name)?;
        let charge = &mut self.charge;
        let mut pay = |bytes: usize| charge.as_mut().map_or(Ok(()), |charge| charge.grow(bytes));
        if let Some(block) = self.blocks.last_mut() {
            let rows = block.rows_to_reserve();
            if rows > 0 {
                pay(rows * ROW_BYTES)?;
                block.reserve(rows);
            }
            // At least as much again as there is, so that the bytes copied when the text moves stay linear in its
            // length. `reserve_exact` takes no more than was paid; `reserve` might.
            if block.texts.len() + text_bytes > block.texts.capacity() {
                let more = text_bytes.max(block.texts.len()).max(BLOCK_ROWS_FIRST);
                pay(more)?;
                block.texts.reserve_exact(more);
            }
            // Line numbers are only for messages, so the largest one may stand for all beyond it.
            block.push(u32::try_from(line).unwrap_or(u32::MAX), tag, time, value, status);
            self.count += 1;
        }
        Ok(())
    }

    /// Returns the index of a name in `names`, adding the name if it is new.
    fn name_position(&mut self, name: &str) -> Result<u32, MemoryError> {
        if let Some(last) = self.last_name.filter(|last| &*self.names[*last as usize] == name) {
            return Ok(last);
        }
        let hash = self.hasher.hash_one(name);
        let found = self.name_index.find(hash, |position| &*self.names[*position as usize] == name);
        let position = match found {
            Some(position) => *position,
            None => {
                if let Some(charge) = &mut self.charge {
                    charge.grow(NAME_BYTES + 2 * name.len())?;
                }
                let position = self.names.len() as u32;
                self.names.push(name.into());
                let (names, hasher) = (&self.names, &self.hasher);
                self.name_index.insert_unique(hash, position, |position| hasher.hash_one(&*names[*position as usize]));
                position
            }
        };
        self.last_name = Some(position);
        Ok(position)
    }

    /// Charges `bytes` in addition to the points, for the life of `self`. If that fails, [`Self::memory_error`] is set.
    pub(crate) fn pay(&mut self, bytes: usize) {
        let paid = self.charge.as_mut().map_or(Ok(()), |charge| charge.grow(bytes));
        self.memory_error = self.memory_error.or(paid.err());
    }

    /// The error after which points were dropped. `self` is then incomplete and must not be stored.
    pub fn memory_error(&self) -> Option<MemoryError> {
        self.memory_error
    }

    /// Records a line that could not be parsed. Lines must be given in ascending order.
    pub fn refuse(&mut self, line: u64, message: impl Into<String>) {
        self.refused.note(line, || message.into());
    }

    /// The points as (line, tag, time, value, status).
    pub fn rows(&self) -> impl Iterator<Item = (u64, &str, i64, Value<'_>, u32)> {
        self.blocks.iter().flat_map(|block| {
            (0..block.len()).map(|row| {
                let name = &*self.names[block.tags[row] as usize];
                (u64::from(block.lines[row]), name, block.times[row], block.value(row), block.status(row))
            })
        })
    }

    /// Number of points.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no points.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The names of the tags, each once.
    pub fn names(&self) -> &[Box<str>] {
        &self.names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chronotile_archive::memory::Memory;
    use proptest::prelude::*;

    #[test]
    fn what_is_held_is_paid_for_and_what_cannot_be_is_not_held() {
        let memory = Memory::new(64 << 20);
        let mut points = Points::charged(memory.empty());
        points.push(1, "t", 0, Value::Float(1.0), 0).unwrap();
        assert!(memory.bytes() < 4_096, "a single point is charged {} bytes", memory.bytes());
        let text = "x".repeat(1_000);
        for line in 2..=200_000 {
            points.push(line, "t", 0, Value::Float(1.0), 7).unwrap();
            points.push(line, &format!("t{}", line % 1_000), 0, Value::Text((&*text).into()), 0).unwrap();
            let room = |block: &Block| {
                block.tags.capacity() * (ROW_BYTES - 4) + block.statuses.len() * 4 + block.texts.capacity()
            };
            let held = points.blocks.iter().map(room).sum::<usize>();
            assert!(held <= memory.bytes() && memory.bytes() <= 64 << 20, "{held} {}", memory.bytes());
        }
        assert!(points.memory_error().is_some());
        assert!(points.len() > 50_000, "{} fit", points.len());
        drop(points);
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn names_and_texts_that_are_too_long_are_refused() {
        let mut points = Points::default();
        assert!(points.push(1, &"n".repeat(NAME_BYTES_MAX), 0, Value::Null, 0).is_ok());
        assert!(
            points
                .push(1, &"n".repeat(NAME_BYTES_MAX + 1), 0, Value::Null, 0)
                .unwrap_err()
                .contains("more than the 512")
        );
        let text = "é".repeat(TEXT_BYTES_MAX / 2);
        assert!(points.push(1, "t", 0, Value::Text((&*text).into()), 0).is_ok());
        assert!(points.push(1, "t", 0, Value::Text((text + "x").into()), 0).is_err());
        assert_eq!((NAME_BYTES_MAX, TEXT_BYTES_MAX), (512, 1_048_576));
        let long = "v".repeat(NAME_BYTES_MAX);
        assert!(check_series("up", 0, &[("l", &*long)]).unwrap_err().contains("more than the 512"));
        assert!(shown(&"é".repeat(100)).ends_with("... (200 bytes)"));
    }

    #[test]
    fn blocks_are_filled_and_room_in_them_is_made_for_as_many_rows_as_there_are() {
        let rows = |points: &Points| points.blocks.iter().map(Block::len).collect::<Vec<_>>();
        let mut points = Points::default();
        assert!(points.is_empty());
        for line in 1..=65_537 {
            points.push(line, "t", 0, Value::Bool(true), 0).unwrap();
            let block = points.blocks.last().unwrap();
            // Twice as many each time, from 64 up to a whole block.
            assert_eq!(block.tags.capacity(), block.len().next_power_of_two().max(64));
        }
        assert_eq!((rows(&points), points.is_empty(), points.len()), (vec![65_536, 1], false, 65_537));
        let block = &points.blocks[0];
        let row_bytes = size_of_val(&*block.tags)
            + size_of_val(&*block.times)
            + size_of_val(&*block.kinds)
            + size_of_val(&*block.bits)
            + size_of_val(&*block.lines)
            + block.len() * size_of::<u32>();
        assert_eq!(row_bytes, ROW_BYTES * 65_536);

        let text = "x".repeat(1 << 20);
        let mut points = Points::default();
        for line in 1..=5 {
            points.push(line, "t", 0, Value::Text((&*text).into()), 0).unwrap();
        }
        points.push(6, "t", 0, Value::Null, 0).unwrap();
        assert_eq!(rows(&points), [4, 2]);
    }

    #[test]
    fn room_for_texts_is_paid_for_when_it_is_made() {
        let memory = Memory::new(1 << 20);
        let mut points = Points::charged(memory.empty());
        let mut push = |name: &str, text: &str| {
            let before = memory.bytes();
            points.push(1, name, 0, Value::Text(text.into()), 0).unwrap();
            memory.bytes() - before
        };
        let first = push("t", "1234567890");
        assert_eq!(first, ROW_BYTES * BLOCK_ROWS_FIRST + NAME_BYTES + 2 + 64);
        // Exactly fills the 64 bytes that were reserved.
        assert_eq!(push("t", &"x".repeat(54)), 0);
        assert_eq!(push("t", "x"), 64);
        assert_eq!(push("t", &"x".repeat(1_000)), 1_000);
        assert_eq!(push("another", ""), NAME_BYTES + 2 * "another".len());
        assert_eq!(push("another", ""), 0);
        points.pay(5_000);
        assert!(memory.bytes() > 5_000 && points.memory_error().is_none());
        points.pay(1 << 20);
        assert!(points.memory_error().is_some());
    }

    proptest! {
        #[test]
        fn rows_come_back_as_they_were_pushed(rows in proptest::collection::vec((0u8..5, 0u32..3, any::<i64>(), ".{0,5}"), 0..300)) {
            let value = |kind: u8, time: i64, text: &str| match kind {
                0 => Value::Float(time as f64 / 3.0),
                1 => Value::Integer(time),
                2 => Value::Bool(time > 0),
                3 => Value::Text(text.to_owned().into()),
                _ => Value::Null,
            };
            let mut points = Points::default();
            for (line, (kind, status, time, text)) in (1..).zip(&rows) {
                points.push(line, text, *time, value(*kind, *time, text), *status).unwrap();
            }
            prop_assert_eq!(points.len(), rows.len());
            for (found, (line, (kind, status, time, text))) in points.rows().zip((1u64..).zip(&rows)) {
                prop_assert_eq!(found, (line, &**text, *time, value(*kind, *time, text), *status));
            }
        }
    }
}
