//! Finds one row for each id. Fast when nearly all ids are unique: the hash table has row numbers instead of keys.

use arrow_array::ArrayRef;
use arrow_schema::ArrowError;
use xxhash_rust::xxh3::xxh3_64;

use crate::keys::{Key, Keys, integers};

/// Ids of rows, each with a hash code: equal ids have equal codes, different ids seldom do.
pub(crate) struct Ids {
    codes: Vec<u64>,
    values: Values,
}

enum Values {
    /// Equal codes mean equal ids.
    Codes,
    /// Integer columns without nulls.
    Integers(Vec<Vec<u64>>),
    Keys(Keys),
}

impl Ids {
    /// The ids in one or more id columns of equal length.
    pub(crate) fn new(columns: &[ArrayRef]) -> Result<Self, ArrowError> {
        let numbers = |column: &ArrayRef| if column.null_count() == 0 { integers(column) } else { None };
        let Some(mut numbers) = columns.iter().map(numbers).collect::<Option<Vec<_>>>() else {
            let keys = Keys::new(columns)?;
            let rows = columns.first().map_or(0, |column| column.len());
            // Different ids may have the same code, such as null and 0: `same` then compares the keys.
            let code = |row| match keys.get(row) {
                Key::Null => 0,
                Key::Integer(value) => value,
                Key::Bytes(bytes) => xxh3_64(bytes),
            };
            return Ok(Self { codes: (0..rows).map(code).collect(), values: Values::Keys(keys) });
        };
        if numbers.len() == 1 {
            return Ok(Self { codes: numbers.swap_remove(0), values: Values::Codes });
        }
        let mut codes = vec![0; numbers.first().map_or(0, Vec::len)];
        for column in &numbers {
            for (code, value) in codes.iter_mut().zip(column) {
                *code = spread(*code ^ value);
            }
        }
        Ok(Self { codes, values: Values::Integers(numbers) })
    }

    fn same(&self, a: usize, b: usize) -> bool {
        self.codes[a] == self.codes[b]
            && match &self.values {
                Values::Codes => true,
                Values::Integers(columns) => columns.iter().all(|column| column[a] == column[b]),
                Values::Keys(keys) => keys.get(a) == keys.get(b),
            }
    }

    /// Clears `keep` for all but one of the rows with the same id. `newer(a, b)` returns whether row `a` wins over
    /// row `b`.
    pub(crate) fn keep_one_each<E>(
        &self,
        keep: &mut [bool],
        mut newer: impl FnMut(usize, usize) -> Result<bool, E>,
    ) -> Result<(), E> {
        const FREE: u32 = u32::MAX;
        // At least half of the places stay free, so that a search soon ends at a free one. With a single place, the
        // shift would be by 64 bits, which overflows.
        let places = (2 * keep.len()).next_power_of_two().max(2);
        let shift = 64 - places.trailing_zeros();
        let mut table = vec![FREE; places];
        for row in 0..keep.len() {
            if !keep[row] {
                continue;
            }
            // `spread` mixes the upper bits best, so the place is taken from them.
            let mut place = (spread(self.codes[row]) >> shift) as usize;
            loop {
                let other = table[place];
                if other == FREE {
                    table[place] = row as u32;
                    break;
                }
                if self.same(row, other as usize) {
                    let loser = if newer(row, other as usize)? {
                        table[place] = row as u32;
                        other as usize
                    } else {
                        row
                    };
                    keep[loser] = false;
                    break;
                }
                place = (place + 1) % places;
            }
        }
        Ok(())
    }
}

/// Spreads the bits of a number over its upper bits: mixes its halves, then multiplies by 2^64 divided by the golden
/// ratio.
fn spread(number: u64) -> u64 {
    (number ^ number >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{Int32Array, Int64Array, StringArray};
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn kept(columns: &[ArrayRef], keep: &[bool], ages: &[u8]) -> Vec<bool> {
        let mut keep = keep.to_vec();
        let newer = |a: usize, b: usize| Ok::<_, ArrowError>((ages[a], a) > (ages[b], b));
        Ids::new(columns).unwrap().keep_one_each(&mut keep, newer).unwrap();
        keep
    }

    proptest! {
        #[test]
        fn the_newest_row_of_each_id_is_kept(
            rows in prop::collection::vec((-3..3_i64, proptest::option::weighted(0.9, 0..3_i32), any::<bool>(), 0..4_u8), 0..60),
        ) {
            let column = |array: ArrayRef| array;
            let first = column(Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0 << 40))));
            let second = column(Arc::new(Int32Array::from_iter(rows.iter().map(|row| row.1))));
            let whole = column(Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| row.1.unwrap_or(-1)))));
            let text = column(Arc::new(StringArray::from_iter(rows.iter().map(|row| row.1.map(|n| format!("n{n}"))))));
            let keep: Vec<bool> = rows.iter().map(|row| row.2).collect();
            let ages: Vec<u8> = rows.iter().map(|row| row.3).collect();
            let by = |id: &dyn Fn(usize) -> String| {
                let mut newest = BTreeMap::new();
                for row in (0..rows.len()).filter(|row| keep[*row]) {
                    let best = newest.entry(id(row)).or_insert(row);
                    if (ages[row], row) > (ages[*best], *best) {
                        *best = row;
                    }
                }
                (0..rows.len()).map(|row| newest.values().any(|best| *best == row)).collect::<Vec<_>>()
            };
            prop_assert_eq!(kept(std::slice::from_ref(&first), &keep, &ages), by(&|row| format!("{}", rows[row].0)));
            for other in [second, whole, text] {
                let both = by(&|row| format!("{} {:?}", rows[row].0, rows[row].1));
                prop_assert_eq!(kept(&[first.clone(), other.clone()], &keep, &ages), both.clone());
                prop_assert_eq!(kept(std::slice::from_ref(&other), &keep, &ages), by(&|row| format!("{:?}", rows[row].1)));
            }
        }
    }
}
