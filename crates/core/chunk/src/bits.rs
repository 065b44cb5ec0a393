//! Bit strings, least significant bit first, as in Arrow's bitmaps.

use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer};

/// A growing bit string. Bits past `len` in the last word are zero.
#[derive(Default)]
pub(crate) struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    /// Appends the low `count` bits of `word`, 1 to 64; its other bits must be zero.
    #[inline]
    pub(crate) fn push_word(&mut self, word: u64, count: usize) {
        let used = self.len % 64;
        if used == 0 {
            self.words.push(word);
        } else {
            // There is a partly used word, since `len` is not a multiple of 64.
            if let Some(last) = self.words.last_mut() {
                *last |= word << used;
            }
            // `used` is at least 1 here, so the shift below is less than 64.
            if used + count > 64 {
                self.words.push(word >> (64 - used));
            }
        }
        self.len += count;
    }

    /// Appends the first `count` bits of `bytes`, which has at least as many.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8], count: usize) {
        for_each_word(bytes, count, |word, count| self.push_word(word, count));
    }

    pub(crate) fn push_run(&mut self, bit: bool, mut count: usize) {
        while count > 0 {
            let step = count.min(64);
            self.push_word(if bit { u64::MAX >> (64 - step) } else { 0 }, step);
            count -= step;
        }
    }

    pub(crate) fn reserve(&mut self, count: usize) {
        self.words.reserve(count.div_ceil(64));
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        if len < self.len {
            self.words.truncate(len.div_ceil(64));
            // `push_word` combines bits with `|=`, so the bits after the end must become zero.
            if let (Some(last), true) = (self.words.last_mut(), !len.is_multiple_of(64)) {
                *last &= u64::MAX >> (64 - len % 64);
            }
            self.len = len;
        }
    }

    pub(crate) fn into_buffer(self) -> BooleanBuffer {
        BooleanBuffer::new(Buffer::from_vec(self.words), 0, self.len)
    }
}

/// A validity bitmap without cost until the first null: bits are appended lazily, padded with ones for earlier rows.
#[derive(Default)]
pub(crate) struct Validity {
    bits: Option<Bits>,
}

impl Validity {
    /// Appends a bitmap of `count` rows after `rows` earlier ones.
    pub(crate) fn push_bitmap(&mut self, rows: usize, bitmap: &[u8], count: usize) {
        self.padded(rows).push_bytes(bitmap, count);
    }

    /// Appends `count` nulls after `rows` earlier rows.
    pub(crate) fn push_nulls(&mut self, rows: usize, count: usize) {
        self.padded(rows).push_run(false, count);
    }

    fn padded(&mut self, rows: usize) -> &mut Bits {
        let bits = self.bits.get_or_insert_default();
        bits.push_run(true, rows - bits.len());
        bits
    }

    pub(crate) fn truncate(&mut self, rows: usize) {
        if let Some(bits) = &mut self.bits {
            bits.truncate(rows);
        }
    }

    pub(crate) fn finish(mut self, rows: usize) -> Option<NullBuffer> {
        self.bits.is_some().then(|| {
            self.padded(rows);
            NullBuffer::new(self.bits.unwrap_or_default().into_buffer())
        })
    }
}

/// Calls `visit(word, count)` over the first `count` bits, 64 at a time; bits past `count` are cleared.
#[inline]
pub(crate) fn for_each_word(bytes: &[u8], mut count: usize, mut visit: impl FnMut(u64, usize)) {
    let mut rest = bytes;
    while count > 0 {
        let step = count.min(64);
        let take = step.div_ceil(8);
        let mut word = [0; 8];
        word[..take].copy_from_slice(&rest[..take]);
        rest = &rest[take..];
        visit(u64::from_le_bytes(word) & (u64::MAX >> (64 - step)), step);
        count -= step;
    }
}

/// Calls `visit` with the position of every set bit among the first `count` bits.
#[inline]
pub(crate) fn for_each_one(bytes: &[u8], count: usize, mut visit: impl FnMut(usize)) {
    let mut base = 0;
    for_each_word(bytes, count, |mut word, step| {
        while word != 0 {
            visit(base + word.trailing_zeros() as usize);
            word &= word - 1;
        }
        base += step;
    });
}

/// The number of set bits among the first `count` bits.
#[inline]
pub(crate) fn count_ones(bytes: &[u8], count: usize) -> usize {
    let mut ones = 0;
    for_each_word(bytes, count, |word, _| ones += word.count_ones() as usize);
    ones
}

#[inline]
pub(crate) fn get(bytes: &[u8], index: usize) -> bool {
    bytes[index / 8] >> (index % 8) & 1 == 1
}

/// Packs booleans into bytes appended to `out`.
pub(crate) fn pack(out: &mut Vec<u8>, bits: impl Iterator<Item = bool>) {
    let start = out.len();
    for (index, bit) in bits.enumerate() {
        if index % 8 == 0 {
            out.push(0);
        }
        out[start + index / 8] |= u8::from(bit) << (index % 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pushed_bits_come_back(parts: Vec<Vec<bool>>, cut: prop::sample::Index) {
            let mut bits = Bits::default();
            let mut want = Vec::new();
            for part in &parts {
                let mut bytes = Vec::new();
                pack(&mut bytes, part.iter().copied());
                prop_assert_eq!(count_ones(&bytes, part.len()), part.iter().filter(|b| **b).count());
                let mut ones = Vec::new();
                for_each_one(&bytes, part.len(), |at| ones.push(at));
                prop_assert!(ones.iter().all(|at| part[*at] && get(&bytes, *at)));
                bits.push_bytes(&bytes, part.len());
                want.extend_from_slice(part);
            }
            let cut = cut.index(want.len() + 1);
            bits.truncate(cut);
            want.truncate(cut);
            bits.push_run(true, 3);
            want.extend([true; 3]);
            prop_assert_eq!(bits.into_buffer().iter().collect::<Vec<_>>(), want);
        }
    }
}
