//! The cell of a record, and the cells that a place covers.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, Float64Array, RecordBatch};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::DataType;
use chronotile_sky::{PixelRange, Pixelization, Region, Scheme};
use chronotile_store::Cells;
use chronotile_types::{Cell, CellRule, DatasetSpec, MergeRule};
use hashbrown::{HashMap, HashSet};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{ArchiveError, Result};
use crate::keys::{KeySet, Keys};
use crate::read::literal::exact_values;
use crate::request::CellSelection;

/// Column, row and reason of a value for which there is no cell.
pub(crate) type CellFailure = (String, usize, String);

/// Checks the pixelization of a cell rule.
pub(crate) fn check(spec: &DatasetSpec) -> Result<()> {
    if let Some(pixels) = pixelization(&spec.cell)? {
        // Fails for indices that no cell can hold.
        pixels.index_many(&[], &[], &mut [])?;
    }
    Ok(())
}

fn pixelization(rule: &CellRule) -> Result<Option<Pixelization>> {
    match rule {
        CellRule::Sky { scheme, level, .. } => {
            Ok(Some(Pixelization::new(scheme.parse::<Scheme>()?, u32::from(*level))?))
        }
        _ => Ok(None),
    }
}

/// The cell of every row of `rows`, which have the dataset's columns.
pub(crate) fn cells_of(spec: &DatasetSpec, rows: &RecordBatch) -> std::result::Result<Vec<i64>, CellFailure> {
    let columns: Vec<_> = spec.cell.columns().iter().filter_map(|name| rows.column_by_name(name).cloned()).collect();
    cells_of_columns(&spec.cell, &columns, rows.num_rows())
}

/// The cell for every row of the rule's own columns.
fn cells_of_columns(rule: &CellRule, columns: &[ArrayRef], rows: usize) -> std::result::Result<Vec<i64>, CellFailure> {
    let names = rule.columns();
    let unfit = |column: usize, row: usize, reason: &str| (names[column].to_owned(), row, reason.to_owned());
    match rule {
        CellRule::Single => Ok(vec![0; rows]),
        CellRule::Sky { ra, .. } => {
            let position = |i: usize| degrees(&columns[i]).map_err(|(row, reason)| unfit(i, row, reason));
            let (ra_deg, dec_deg) = (position(0)?, position(1)?);
            let pixels = pixelization(rule).map_err(|e| (ra.clone(), 0, e.to_string()))?;
            let mut cells = vec![0; rows];
            if let Some(pixels) = pixels {
                let (ra_deg, dec_deg) = (ra_deg.values(), dec_deg.values());
                pixels.index_many(ra_deg, dec_deg, &mut cells).map_err(|_| {
                    let bad = |row: &usize| pixels.index(ra_deg[*row], dec_deg[*row]).is_err();
                    let row = (0..rows).find(bad).unwrap_or(0);
                    match ra_deg[row].is_finite() {
                        true => unfit(1, row, &format!("is {}: give degrees from -90 to 90", dec_deg[row])),
                        false => unfit(0, row, &format!("is {}: give finite degrees", ra_deg[row])),
                    }
                })?;
            }
            Ok(cells)
        }
        CellRule::Value { .. } => whole(&columns[0]).map_err(|(row, reason)| unfit(0, row, reason)),
        CellRule::IdBucket { size, .. } => {
            let values = whole(&columns[0]).map_err(|(row, reason)| unfit(0, row, reason))?;
            Ok(values.into_iter().map(|value| value.div_euclid(*size as i64)).collect())
        }
        CellRule::Hash { buckets, .. } => Ok((0..rows).map(|row| hash_cell(columns, row, *buckets)).collect()),
    }
}

/// Degrees as float64; null has no position.
fn degrees(column: &ArrayRef) -> std::result::Result<Float64Array, (usize, &'static str)> {
    if let Some(row) = (0..column.len()).find(|row| column.is_null(*row)) {
        return Err((row, "is null; every record needs a position"));
    }
    match column.data_type() {
        DataType::Float64 => Ok(column.as_primitive::<Float64Type>().clone()),
        _ => Ok(column.as_primitive::<Float32Type>().unary(f64::from)),
    }
}

/// Integers as i64; a null, or a value beyond i64, has no cell.
fn whole(column: &ArrayRef) -> std::result::Result<Vec<i64>, (usize, &'static str)> {
    if let Some(row) = (0..column.len()).find(|row| column.is_null(*row)) {
        return Err((row, "is null; every record needs a cell"));
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    match cast_with_options(column, &DataType::Int64, &options) {
        Ok(cast) => Ok(cast.as_primitive::<Int64Type>().values().to_vec()),
        Err(_) => {
            let values = column.as_primitive_opt::<UInt64Type>().map(|a| a.values().to_vec()).unwrap_or_default();
            let row = values.iter().position(|value| i64::try_from(*value).is_err()).unwrap_or(0);
            Err((row, "exceeds the largest cell number (2^63 - 1)"))
        }
    }
}

/// XXH3-64 of the row's values, its top bit cleared, modulo the number of buckets. A value is hashed as one byte (0 for null,
/// else 1) and then: integers as 8 bytes little-endian (sign extended), bool as one byte, text and binary as their length in
/// 4 bytes little-endian and their bytes.
fn hash_cell(columns: &[ArrayRef], row: usize, buckets: Option<u32>) -> i64 {
    let mut bytes = Vec::with_capacity(32);
    for column in columns {
        push_value(&mut bytes, column, row);
    }
    let hash = (xxh3_64(&bytes) & (i64::MAX as u64)) as i64;
    buckets.map_or(hash, |buckets| hash % i64::from(buckets))
}

fn push_value(bytes: &mut Vec<u8>, column: &ArrayRef, row: usize) {
    if column.is_null(row) {
        return bytes.push(0);
    }
    bytes.push(1);
    // The length keeps two columns with `ab` and `c` apart from those with `a` and `bc`.
    let mut text = |value: &[u8]| {
        bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        bytes.extend_from_slice(value);
    };
    match column.data_type() {
        DataType::Utf8 => text(column.as_string::<i32>().value(row).as_bytes()),
        DataType::Binary => text(column.as_binary::<i32>().value(row)),
        DataType::Boolean => bytes.push(column.as_boolean().value(row).into()),
        _ => bytes.extend_from_slice(&integer_bits(column, row).to_le_bytes()),
    }
}

fn integer_bits(column: &ArrayRef, row: usize) -> u64 {
    use arrow_array::types::*;
    match column.data_type() {
        DataType::Int8 => i64::from(column.as_primitive::<Int8Type>().value(row)) as u64,
        DataType::Int16 => i64::from(column.as_primitive::<Int16Type>().value(row)) as u64,
        DataType::Int32 => i64::from(column.as_primitive::<Int32Type>().value(row)) as u64,
        DataType::UInt8 => column.as_primitive::<UInt8Type>().value(row).into(),
        DataType::UInt16 => column.as_primitive::<UInt16Type>().value(row).into(),
        DataType::UInt32 => column.as_primitive::<UInt32Type>().value(row).into(),
        DataType::UInt64 => column.as_primitive::<UInt64Type>().value(row),
        _ => column.as_primitive::<Int64Type>().value(row) as u64,
    }
}

/// A place resolved for a scan: the cells to read, and the condition on single rows.
pub(crate) struct ResolvedCells {
    pub cells: Cells,
    pub rows: RowRule,
    /// Cells of the requested keys, with the number of distinct keys in each; empty for other places.
    pub keys_in_cell: HashMap<Cell, usize>,
}

impl ResolvedCells {
    fn new(cells: Cells, rows: RowRule) -> Self {
        Self { cells, rows, keys_in_cell: HashMap::new() }
    }
}

/// The condition that a place sets for single rows of the covered cells.
pub(crate) enum RowRule {
    /// No condition.
    All,
    /// The cell rule's columns have one of these values.
    Keys(KeySet),
    /// The position is in the region.
    Region(Region),
}

/// Maximum number of pixel ranges that cover a region before neighbouring ones are joined: each range costs a lookup.
const COVER_RANGES_MAX: usize = 4_096;

/// The cells that `place` covers.
pub(crate) fn resolve(spec: &DatasetSpec, place: &CellSelection) -> Result<ResolvedCells> {
    let refuse = |reason: String| ArchiveError::Request { dataset: spec.name.clone(), reason };
    match place {
        CellSelection::All => Ok(ResolvedCells::new(Cells::All, RowRule::All)),
        CellSelection::Cells(cells) => Ok(ResolvedCells::new(ranges(cells.clone()), RowRule::All)),
        CellSelection::Keys(columns) => {
            let names = spec.cell.columns();
            if matches!(spec.cell, CellRule::Sky { .. } | CellRule::Single) {
                return Err(refuse("it has no cells by key: read it by region, ids or a predicate".to_owned()));
            }
            let columns = conform_keys(spec, &names, columns, "keys")?;
            let rows = columns.first().map_or(0, |c| c.len());
            let cells = cells_of_columns(&spec.cell, &columns, rows);
            let cells =
                cells.map_err(|(column, row, reason)| refuse(format!("key {row}: column {column:?} {reason}")))?;
            let wanted = KeySet::new(&columns).map_err(|e| refuse(format!("the keys cannot be used: {e}")))?;
            let keys = Keys::new(&columns).map_err(|e| refuse(format!("the keys cannot be used: {e}")))?;
            let distinct: HashSet<_> = cells.iter().enumerate().map(|(row, cell)| (*cell, keys.get(row))).collect();
            let mut keys_in_cell = HashMap::new();
            distinct.iter().for_each(|(cell, _)| *keys_in_cell.entry(Cell(*cell)).or_insert(0) += 1);
            Ok(ResolvedCells { cells: ranges(cells), rows: RowRule::Keys(wanted), keys_in_cell })
        }
        CellSelection::Region(region) => {
            let Some(pixels) = pixelization(&spec.cell)? else {
                return Err(refuse("it has no sky pixels: read it by cells, keys or ids".to_owned()));
            };
            // An older version of a record may be in the region when the newest is not, and vice versa.
            let reach_deg = if matches!(spec.merge, MergeRule::Latest { .. }) { spec.moves_deg } else { 0.0 };
            let cover = region.cover_around(&pixels, reach_deg, COVER_RANGES_MAX);
            Ok(ResolvedCells::new(pixel_cells(&cover), RowRule::Region(region.clone())))
        }
    }
}

/// Pixels as cells. The deepest MQ3C and Q3C pixels have indices past 2^63, which as cells are negative.
fn pixel_cells(cover: &[PixelRange]) -> Cells {
    let mut cells: Vec<(Cell, Cell)> = Vec::with_capacity(cover.len());
    for range in cover {
        let (first, last) = (range.first as i64, range.last as i64);
        if first <= last {
            cells.push((Cell(first), Cell(last)));
        } else {
            cells.extend([(Cell(first), Cell(i64::MAX)), (Cell(i64::MIN), Cell(last))]);
        }
    }
    cells.sort_unstable();
    Cells::Ranges(Arc::from(cells))
}

/// Casts arrays that were given as values of `names` to the dataset's types.
pub(crate) fn conform_keys(
    spec: &DatasetSpec,
    names: &[&str],
    given: &[ArrayRef],
    what: &str,
) -> Result<Vec<ArrayRef>> {
    let refuse = |reason: String| ArchiveError::Request { dataset: spec.name.clone(), reason };
    if given.len() != names.len() {
        return Err(refuse(format!(
            "{what} need {} column(s), {}; {} given",
            names.len(),
            names.join(", "),
            given.len()
        )));
    }
    if given.windows(2).any(|pair| pair[0].len() != pair[1].len()) {
        return Err(refuse(format!("the columns of {what} differ in length")));
    }
    let conform = |(name, array): (&&str, &ArrayRef)| {
        let field = spec.schema.field_with_name(name).map_err(|_| refuse(format!("{name:?} is not in the dataset")))?;
        exact_values(array, field.data_type()).map_err(|reason| refuse(format!("{what}: column {name:?} {reason}")))
    };
    names.iter().zip(given).map(conform).collect()
}

/// The given cells as sorted, disjoint, inclusive ranges.
fn ranges(mut cells: Vec<i64>) -> Cells {
    cells.sort_unstable();
    cells.dedup();
    let mut merged: Vec<(Cell, Cell)> = Vec::new();
    for cell in cells {
        match merged.last_mut() {
            // No cell follows the greatest one.
            Some((_, last)) if last.0.checked_add(1) == Some(cell) => *last = Cell(cell),
            _ => merged.push((Cell(cell), Cell(cell))),
        }
    }
    Cells::Ranges(Arc::from(merged))
}

/// Clears `keep` for positions outside the region.
pub(crate) fn filter_region(region: &Region, ra: &ArrayRef, dec: &ArrayRef, keep: &mut [bool]) {
    match (degrees(ra), degrees(dec)) {
        (Ok(ra), Ok(dec)) => match region.contains_many(ra.values(), dec.values()) {
            Ok(inside) => keep.iter_mut().zip(inside).for_each(|(keep, inside)| *keep &= inside),
            // Writes also refuse invalid positions, so no stored row is lost here.
            Err(_) => keep.fill(false),
        },
        // Rows without a position are refused when they are written.
        _ => keep.fill(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_cells_become_one_range() {
        let expected: Arc<[_]> =
            Arc::from(vec![(Cell(-1), Cell(1)), (Cell(5), Cell(5)), (Cell(i64::MAX), Cell(i64::MAX))]);
        assert_eq!(ranges(vec![5, 0, 1, -1, 1, i64::MAX]), Cells::Ranges(expected));
    }

    #[test]
    fn pixels_past_the_largest_cell_are_cells_below_zero() {
        let cover = |first: u64, last: u64| match pixel_cells(&[PixelRange { first, last }]) {
            Cells::Ranges(ranges) => ranges.iter().map(|(first, last)| (first.0, last.0)).collect(),
            Cells::All => vec![],
        };
        let half = 1_u64 << 63;
        assert_eq!(cover(3, 3), [(3, 3)]);
        assert_eq!(cover(3, half - 1), [(3, i64::MAX)]);
        assert_eq!(cover(half, half + 2), [(i64::MIN, i64::MIN + 2)]);
        assert_eq!(cover(half - 2, half + 1), [(i64::MIN, i64::MIN + 1), (i64::MAX - 1, i64::MAX)]);
    }

    /// Hashes rows as docs/format.md defines it; the bytes to hash are written out by hand.
    #[test]
    fn values_of_every_type_are_hashed_by_their_bytes() {
        use arrow_array::*;
        let wide = |value: i64| [&[1][..], &value.to_le_bytes()].concat();
        let text = |value: &[u8]| [&[1][..], &(value.len() as u32).to_le_bytes(), value].concat();
        let cases: [(ArrayRef, Vec<u8>); 13] = [
            (Arc::new(Int8Array::from(vec![-2])), wide(-2)),
            (Arc::new(Int16Array::from(vec![-300])), wide(-300)),
            (Arc::new(Int32Array::from(vec![-70_000])), wide(-70_000)),
            (Arc::new(Int64Array::from(vec![i64::MIN])), wide(i64::MIN)),
            (Arc::new(UInt8Array::from(vec![200])), wide(200)),
            (Arc::new(UInt16Array::from(vec![60_000])), wide(60_000)),
            (Arc::new(UInt32Array::from(vec![4_000_000_000])), wide(4_000_000_000)),
            (Arc::new(UInt64Array::from(vec![u64::MAX])), wide(-1)),
            (Arc::new(BooleanArray::from(vec![true])), vec![1, 1]),
            (Arc::new(BooleanArray::from(vec![false])), vec![1, 0]),
            (Arc::new(StringArray::from(vec!["caf\u{e9}"])), text("caf\u{e9}".as_bytes())),
            (Arc::new(BinaryArray::from(vec![&[0, 255][..]])), text(&[0, 255])),
            (Arc::new(StringArray::from(vec![None::<&str>])), vec![0]),
        ];
        for (column, bytes) in &cases {
            let hash = xxh3_64(bytes) & (u64::MAX >> 1);
            assert_eq!(hash_cell(std::slice::from_ref(column), 0, None), hash as i64, "{}", column.data_type());
            assert_eq!(hash_cell(std::slice::from_ref(column), 0, Some(7)), (hash % 7) as i64);
            let both = [&bytes[..], &cases[0].1].concat();
            let hash = xxh3_64(&both) & (u64::MAX >> 1);
            assert_eq!(hash_cell(&[column.clone(), cases[0].0.clone()], 0, None), hash as i64);
        }
    }
}
