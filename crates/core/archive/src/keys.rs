//! Values of one or several columns as comparable keys: ids of records, wanted ids, values to group by.

use std::cmp::Ordering;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef};
use arrow_buffer::NullBuffer;
use arrow_row::{RowConverter, Rows, SortField};
use arrow_schema::{ArrowError, DataType};
use chronotile_types::ZoneKey;
use hashbrown::HashSet;

/// One key per row of a set of columns. Keys of several [`Keys`] over columns of the same types compare with each
/// other.
pub(crate) enum Keys {
    /// A single integer column: the value with its sign bit flipped, so that order is kept.
    Integers(Vec<u64>, Option<NullBuffer>),
    /// Anything else, in Arrow's row form.
    Rows(Rows),
}

/// One key, borrowed. Null comes before every value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Key<'a> {
    Null,
    Integer(u64),
    Bytes(&'a [u8]),
}

/// One key, owned. Hashes as [`Key`] does, since the variants are in the same order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum OwnedKey {
    Null,
    Integer(u64),
    Bytes(Box<[u8]>),
}

impl Key<'_> {
    pub(crate) fn to_owned(self) -> OwnedKey {
        match self {
            Self::Null => OwnedKey::Null,
            Self::Integer(value) => OwnedKey::Integer(value),
            Self::Bytes(bytes) => OwnedKey::Bytes(bytes.into()),
        }
    }
}

impl hashbrown::Equivalent<OwnedKey> for Key<'_> {
    fn equivalent(&self, owned: &OwnedKey) -> bool {
        match (self, owned) {
            (Self::Null, OwnedKey::Null) => true,
            (Self::Integer(a), OwnedKey::Integer(b)) => a == b,
            (Self::Bytes(a), OwnedKey::Bytes(b)) => **a == **b,
            _ => false,
        }
    }
}

impl Keys {
    /// Keys of the rows of `columns`, one or more arrays of equal length.
    pub(crate) fn new(columns: &[ArrayRef]) -> Result<Self, ArrowError> {
        if let [column] = columns
            && let Some(values) = integers(column)
        {
            return Ok(Self::Integers(values, column.nulls().cloned()));
        }
        let fields = columns.iter().map(|c| SortField::new(c.data_type().clone())).collect();
        Ok(Self::Rows(RowConverter::new(fields)?.convert_columns(columns)?))
    }

    /// The key of row `row`.
    pub(crate) fn get(&self, row: usize) -> Key<'_> {
        match self {
            Self::Integers(_, Some(nulls)) if nulls.is_null(row) => Key::Null,
            Self::Integers(values, _) => Key::Integer(values[row]),
            Self::Rows(rows) => Key::Bytes(rows.row(row).data()),
        }
    }

    /// Order of two rows.
    pub(crate) fn compare(&self, a: usize, b: usize) -> Ordering {
        self.get(a).cmp(&self.get(b))
    }
}

/// Compares two rows by optional keys; without keys they are equal.
pub(crate) fn compare_by(keys: Option<&Keys>, a: usize, b: usize) -> Ordering {
    keys.map_or(Ordering::Equal, |keys| keys.compare(a, b))
}

/// The values of an integer column as unsigned integers in the same order; `None` for other types.
pub(crate) fn integers(column: &ArrayRef) -> Option<Vec<u64>> {
    const SIGN: u64 = 1 << 63;
    macro_rules! signed {
        ($t:ty) => {
            column.as_primitive::<$t>().values().iter().map(|v| (i64::from(*v) as u64) ^ SIGN).collect()
        };
    }
    macro_rules! unsigned {
        ($t:ty) => {
            column.as_primitive::<$t>().values().iter().map(|v| u64::from(*v)).collect()
        };
    }
    Some(match column.data_type() {
        DataType::Int8 => signed!(Int8Type),
        DataType::Int16 => signed!(Int16Type),
        DataType::Int32 => signed!(Int32Type),
        DataType::Int64 => signed!(Int64Type),
        DataType::UInt8 => unsigned!(UInt8Type),
        DataType::UInt16 => unsigned!(UInt16Type),
        DataType::UInt32 => unsigned!(UInt32Type),
        DataType::UInt64 => unsigned!(UInt64Type),
        _ => return None,
    })
}

/// Zone key of each row of a record's first id column.
///
/// The zone key of an integer is its value; of text and binary, the first bytes; of other types, the first bytes of
/// Arrow's row form.
pub(crate) fn zone_keys(column: &ArrayRef) -> Result<Vec<ZoneKey>, ArrowError> {
    if let Some(values) = integers(column) {
        return Ok(values.into_iter().map(ZoneKey::from_u64).collect());
    }
    Ok(match column.data_type() {
        DataType::Utf8 => {
            column.as_string::<i32>().iter().map(|v| ZoneKey::from_bytes(v.unwrap_or("").as_bytes())).collect()
        }
        DataType::Binary => column.as_binary::<i32>().iter().map(|v| ZoneKey::from_bytes(v.unwrap_or(&[]))).collect(),
        _ => {
            let rows = RowConverter::new(vec![SortField::new(column.data_type().clone())])?;
            let rows = { rows }.convert_columns(std::slice::from_ref(column))?;
            rows.iter().map(|row| ZoneKey::from_bytes(row.data())).collect()
        }
    })
}

/// A set of wanted keys.
pub(crate) struct KeySet {
    keys: HashSet<OwnedKey>,
    /// Distinct zone keys of the first column, ascending.
    zones: Vec<ZoneKey>,
}

impl KeySet {
    /// The keys of the rows of `columns`, which have the dataset's types.
    pub(crate) fn new(columns: &[ArrayRef]) -> Result<Self, ArrowError> {
        let keys = Keys::new(columns)?;
        let rows = columns.first().map_or(0, |c| c.len());
        let mut zones = columns.first().map_or_else(|| Ok(vec![]), zone_keys)?;
        zones.sort_unstable();
        zones.dedup();
        Ok(Self { keys: (0..rows).map(|row| keys.get(row).to_owned()).collect(), zones })
    }

    /// Whether a chunk with zone keys from `min` to `max` may contain a wanted key.
    pub(crate) fn touches(&self, min: ZoneKey, max: ZoneKey) -> bool {
        let first = self.zones.partition_point(|zone| *zone < min);
        self.zones.get(first).is_some_and(|zone| *zone <= max)
    }

    /// Clears `keep` for rows of `columns` that are not wanted.
    pub(crate) fn filter(&self, columns: &[ArrayRef], keep: &mut [bool]) -> Result<(), ArrowError> {
        let keys = Keys::new(columns)?;
        for (row, keep) in keep.iter_mut().enumerate() {
            *keep = *keep && self.keys.contains(&keys.get(row));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{
        BinaryArray, Date32Array, Int8Array, Int16Array, Int32Array, Int64Array, StringArray, UInt8Array, UInt16Array,
        UInt32Array, UInt64Array,
    };
    use proptest::prelude::*;
    use std::sync::Arc;

    #[test]
    fn wanted_keys_are_found_in_columns_with_and_without_nulls() {
        let wanted = KeySet::new(&[Arc::new(Int64Array::from(vec![-3, 7])) as ArrayRef]).unwrap();
        let mut keep = [true; 4];
        let column = Arc::new(Int64Array::from(vec![Some(7), None, Some(-3), Some(3)])) as ArrayRef;
        wanted.filter(&[column], &mut keep).unwrap();
        assert_eq!(keep, [true, false, true, false]);
        assert!(wanted.touches(ZoneKey::from_i64(-5), ZoneKey::from_i64(0)));
        assert!(!wanted.touches(ZoneKey::from_i64(-2), ZoneKey::from_i64(6)));
    }

    #[test]
    fn compound_keys_match_as_a_whole() {
        let columns = |n: Vec<i64>, s: Vec<&str>| -> Vec<ArrayRef> {
            vec![Arc::new(Int64Array::from(n)), Arc::new(StringArray::from(s))]
        };
        let wanted = KeySet::new(&columns(vec![1, 2], vec!["a", "b"])).unwrap();
        let mut keep = [true; 3];
        wanted.filter(&columns(vec![1, 1, 2], vec!["a", "b", "b"]), &mut keep).unwrap();
        assert_eq!(keep, [true, false, true]);
    }

    fn array<A: Array + 'static>(array: A) -> ArrayRef {
        Arc::new(array)
    }

    proptest! {
        #[test]
        fn keys_and_zone_keys_of_integers_order_as_the_integers_do(a: i64, b: i64) {
            macro_rules! check {
                ($($array:ty => $number:ty,)*) => {$(
                    let (a, b) = (a as $number, b as $number);
                    let column = array(<$array>::from(vec![Some(a), Some(b), None]));
                    let keys = Keys::new(std::slice::from_ref(&column)).unwrap();
                    prop_assert!(matches!(keys, Keys::Integers(..)));
                    prop_assert_eq!(keys.compare(0, 1), a.cmp(&b));
                    prop_assert_eq!((keys.compare(2, 0), keys.compare(1, 2)), (Ordering::Less, Ordering::Greater));
                    let zones = zone_keys(&column).unwrap();
                    prop_assert_eq!(zones[0].cmp(&zones[1]), a.cmp(&b));
                )*};
            }
            check!(
                Int8Array => i8, Int16Array => i16, Int32Array => i32, Int64Array => i64, UInt8Array => u8,
                UInt16Array => u16, UInt32Array => u32, UInt64Array => u64,
            );
        }

        #[test]
        fn zone_keys_never_reverse_the_order_of_texts_and_bytes(a in "[a-c\u{0}é]{0,20}", b in "[a-c\u{0}é]{0,20}", days: (i32, i32)) {
            let texts = array(StringArray::from(vec![&*a, &*b]));
            let bytes = array(BinaryArray::from(vec![a.as_bytes(), b.as_bytes()]));
            let dates = array(Date32Array::from(vec![days.0, days.1]));
            for (column, order) in [(&texts, a.cmp(&b)), (&bytes, a.cmp(&b)), (&dates, days.0.cmp(&days.1))] {
                let zones = zone_keys(column).unwrap();
                prop_assert!(zones[0].cmp(&zones[1]) == order || zones[0] == zones[1]);
                let keys = Keys::new(std::slice::from_ref(column)).unwrap();
                prop_assert_eq!(keys.compare(0, 1), order);
            }
            let zones = zone_keys(&dates).unwrap();
            prop_assert_eq!(zones[0] == zones[1], days.0 == days.1);
            for column in [&texts, &bytes] {
                let own = [ZoneKey::from_bytes(a.as_bytes()), ZoneKey::from_bytes(b.as_bytes())];
                prop_assert_eq!(zone_keys(column).unwrap(), own);
            }
        }

        #[test]
        fn wanted_keys_touch_the_ranges_that_have_one(wanted in prop::collection::vec(-9..9_i64, 0..4), low in -9..9_i64, more in 0..5_i64) {
            let keys = KeySet::new(&[array(Int64Array::from(wanted.clone()))]).unwrap();
            let (min, max) = (ZoneKey::from_i64(low), ZoneKey::from_i64(low + more));
            prop_assert_eq!(keys.touches(min, max), wanted.iter().any(|key| (low..=low + more).contains(key)));
        }
    }

    #[test]
    fn a_null_is_a_key_of_its_own() {
        let with_null = array(Int64Array::from(vec![None, Some(0), Some(i64::MIN)]));
        let mut keep = [true, true, false];
        KeySet::new(&[with_null.slice(0, 1)]).unwrap().filter(std::slice::from_ref(&with_null), &mut keep).unwrap();
        assert_eq!(keep, [true, false, false]);
        let keys = Keys::new(&[with_null]).unwrap();
        let owned = [0, 1, 2].map(|row| keys.get(row).to_owned());
        for (row, one) in owned.iter().enumerate() {
            for (other, key) in [0, 1, 2].map(|row| keys.get(row)).iter().enumerate() {
                assert_eq!(hashbrown::Equivalent::equivalent(key, one), row == other);
            }
        }
        let bytes = [OwnedKey::Bytes(b"a"[..].into()), OwnedKey::Bytes(b"b"[..].into())];
        assert_eq!(bytes.map(|key| hashbrown::Equivalent::equivalent(&Key::Bytes(b"a"), &key)), [true, false]);
    }
}
