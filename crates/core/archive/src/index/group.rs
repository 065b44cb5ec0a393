//! Groups rows with equal values and counts them.

use arrow_array::{ArrayRef, UInt32Array};
use arrow_schema::ArrowError;
use arrow_select::concat::concat;
use arrow_select::take::take;
use hashbrown::HashMap;

use crate::keys::{Key, Keys};

/// Rows of some columns, grouped by equal values; floats are equal if their bits are.
pub(crate) struct Groups {
    /// Group of each row.
    pub of_row: Vec<u32>,
    /// A row of each group.
    pub rows: Vec<u32>,
}

impl Groups {
    /// `columns`, one or more arrays of `rows` values, or none at all: then all rows are one group.
    pub(crate) fn new(columns: &[ArrayRef], rows: usize) -> Result<Self, ArrowError> {
        if columns.is_empty() {
            return Ok(Self { of_row: vec![0; rows], rows: (0..rows.min(1) as u32).collect() });
        }
        let keys = Keys::new(columns)?;
        let mut found: HashMap<Key<'_>, u32> = HashMap::new();
        let mut groups = Self { of_row: Vec::with_capacity(rows), rows: Vec::new() };
        for row in 0..rows {
            let group = *found.entry(keys.get(row)).or_insert_with(|| {
                groups.rows.push(row as u32);
                groups.rows.len() as u32 - 1
            });
            groups.of_row.push(group);
        }
        Ok(groups)
    }
}

/// A row of each group, for each column.
pub(crate) fn representatives(columns: &[ArrayRef], groups: &Groups) -> Result<Vec<ArrayRef>, ArrowError> {
    pick(columns, &groups.rows)
}

/// Some rows of each column.
pub(crate) fn pick(columns: &[ArrayRef], rows: &[u32]) -> Result<Vec<ArrayRef>, ArrowError> {
    let rows = UInt32Array::from(rows.to_vec());
    columns.iter().map(|column| take(column, &rows, None)).collect()
}

/// Sets of columns of the same types, one after the other.
pub(crate) fn join(sets: &[Vec<ArrayRef>], width: usize) -> Result<Vec<ArrayRef>, ArrowError> {
    let column = |place: usize| {
        let parts: Vec<_> = sets.iter().map(|set| set[place].as_ref()).collect();
        concat(&parts)
    };
    if sets.is_empty() { Ok(vec![]) } else { (0..width).map(column).collect() }
}
