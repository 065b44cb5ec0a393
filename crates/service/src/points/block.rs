//! Compact storage of points: blocks of columns whose memory is known in advance.

use std::borrow::Cow;

use super::value::Value;

/// Maximum number of rows of a block.
pub(super) const BLOCK_ROWS: usize = 65_536;

/// Initial capacity of a block in rows.
pub(super) const BLOCK_ROWS_FIRST: usize = 64;

/// Maximum bytes of text in a block, unless a single text is longer.
pub(super) const BLOCK_TEXT_BYTES: usize = 4 << 20;

/// Memory of a row in a block: six columns, including the status.
pub(super) const ROW_BYTES: usize = 4 + 8 + 1 + 8 + 4 + 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Float,
    Integer,
    Bool,
    Text,
    Null,
}

/// A run of points by column. `bits` has the bits of a value; for a text, its offset and length in `texts`, 32 bits each.
#[derive(Debug, Default)]
pub(super) struct Block {
    pub(super) tags: Vec<u32>,
    pub(super) times: Vec<i64>,
    pub(super) kinds: Vec<Kind>,
    pub(super) bits: Vec<u64>,
    pub(super) lines: Vec<u32>,
    /// Empty while all statuses are Good, which is the usual case.
    pub(super) statuses: Vec<u32>,
    pub(super) texts: String,
}

impl Block {
    pub(super) fn len(&self) -> usize {
        self.tags.len()
    }

    pub(super) fn has_room(&self, text_bytes: usize) -> bool {
        self.len() < BLOCK_ROWS && (self.texts.is_empty() || self.texts.len() + text_bytes <= BLOCK_TEXT_BYTES)
    }

    /// Rows to reserve before the next push: none while there is capacity, otherwise as many as there are now.
    pub(super) fn rows_to_reserve(&self) -> usize {
        match self.len() < self.tags.capacity() {
            true => 0,
            // Capacities are 0 or powers of two from BLOCK_ROWS_FIRST to BLOCK_ROWS, so the upper bound is at least the
            // lower one, which `clamp` requires.
            false => self.len().clamp(BLOCK_ROWS_FIRST, BLOCK_ROWS - self.len()),
        }
    }

    pub(super) fn reserve(&mut self, rows: usize) {
        self.tags.reserve_exact(rows);
        self.times.reserve_exact(rows);
        self.kinds.reserve_exact(rows);
        self.bits.reserve_exact(rows);
        self.lines.reserve_exact(rows);
    }

    pub(super) fn push(&mut self, line: u32, tag: u32, time: i64, value: &Value<'_>, status: u32) {
        let (kind, bits) = match value {
            Value::Float(number) => (Kind::Float, number.to_bits()),
            Value::Integer(number) => (Kind::Integer, number.cast_unsigned()),
            Value::Bool(value) => (Kind::Bool, u64::from(*value)),
            Value::Text(text) => {
                // Offset and length fit in 32 bits each: `has_room` bounds the texts of a block, `check_texts` a single
                // text.
                let start = self.texts.len() as u64;
                self.texts.push_str(text);
                (Kind::Text, start << 32 | text.len() as u64)
            }
            Value::Null => (Kind::Null, 0),
        };
        // The first status other than Good gives all earlier rows theirs, so that later rows are at their own index.
        if status != 0 && self.statuses.is_empty() {
            self.statuses = vec![0; self.len()];
        }
        self.tags.push(tag);
        self.times.push(time);
        self.kinds.push(kind);
        self.bits.push(bits);
        self.lines.push(line);
        if status != 0 || !self.statuses.is_empty() {
            self.statuses.push(status);
        }
    }

    pub(super) fn status(&self, row: usize) -> u32 {
        self.statuses.get(row).copied().unwrap_or(0)
    }

    pub(super) fn value(&self, row: usize) -> Value<'_> {
        let bits = self.bits[row];
        match self.kinds[row] {
            Kind::Float => Value::Float(f64::from_bits(bits)),
            Kind::Integer => Value::Integer(bits.cast_signed()),
            Kind::Bool => Value::Bool(bits != 0),
            Kind::Text => {
                let (start, length) = ((bits >> 32) as usize, (bits & u64::from(u32::MAX)) as usize);
                Value::Text(Cow::Borrowed(&self.texts[start..start + length]))
            }
            Kind::Null => Value::Null,
        }
    }
}
