//! Segments: parts of the index of one window, and their encoding (`docs/format.md`).

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt32Type, UInt64Type};
use arrow_array::{ArrayRef, Int64Array, RecordBatch, UInt32Array, UInt64Array};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use chronotile_chunk::{
    Binding, Body, ChunkRows, Columns, Defaults, EncodeError, Head, Layout, Origin, ROWS_MAX, Zone, encode,
};
use chronotile_types::{BatchId, Cell, ChunkId, Damage, SchemaError, Tile, Window, ZoneKey};

use super::group::{Groups, join, pick, representatives};
use crate::keys::Keys;

const VERSION: u8 = 1;
/// Segments of several tiles are cut at this many bytes.
const BYTES_GOOD: usize = 1 << 20;
/// A tile whose segment alone would be larger is left out: an index of it would help no query.
const BYTES_MAX: usize = 4 << 20;

/// How often values occur in tiles. Each entry has the values, the cell of the tile, and the number of rows.
#[derive(Clone)]
pub(crate) struct Postings {
    pub columns: Vec<ArrayRef>,
    /// Ascending.
    pub cells: Vec<i64>,
    pub counts: Vec<u64>,
}

impl Postings {
    /// Joins the entries of several parts, ordered by cell.
    pub(crate) fn join(parts: Vec<Self>, width: usize) -> Result<Self, ArrowError> {
        let cells: Vec<i64> = parts.iter().flat_map(|part| part.cells.iter().copied()).collect();
        let counts: Vec<u64> = parts.iter().flat_map(|part| part.counts.iter().copied()).collect();
        let columns = join(&parts.into_iter().map(|part| part.columns).collect::<Vec<_>>(), width)?;
        if cells.is_sorted() {
            return Ok(Self { columns, cells, counts });
        }
        let mut order: Vec<u32> = (0..cells.len() as u32).collect();
        order.sort_by_key(|entry| cells[*entry as usize]);
        Ok(Self {
            columns: pick(&columns, &order)?,
            cells: order.iter().map(|entry| cells[*entry as usize]).collect(),
            counts: order.iter().map(|entry| counts[*entry as usize]).collect(),
        })
    }

    fn slice(&self, range: Range<usize>) -> Self {
        Self {
            columns: self.columns.iter().map(|column| column.slice(range.start, range.len())).collect(),
            cells: self.cells[range.clone()].to_vec(),
            counts: self.counts[range].to_vec(),
        }
    }
}

/// Neighbouring tiles of a window and the values that occur in them.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Cells of the tiles, ascending.
    pub cells: Vec<i64>,
    /// The print of each tile.
    pub prints: Vec<u64>,
    /// Distinct values, one array for each column of the index.
    pub values: Vec<ArrayRef>,
    /// First posting of each value, followed by the total number of postings.
    pub starts: Vec<u32>,
    /// The tile of each posting, as its position in `cells`; ordered by value and cell.
    pub tiles: Vec<u32>,
    /// The number of rows of each posting.
    pub counts: Vec<u64>,
}

impl Segment {
    /// The segment of `tiles`, given as cell and print in order of cell, with their postings.
    fn new(postings: &Postings, tiles: &[(i64, u64)]) -> Result<Self, ArrowError> {
        let groups = Groups::new(&postings.columns, postings.cells.len())?;
        let found = representatives(&postings.columns, &groups)?;
        let keys = Keys::new(&found)?;
        let mut order: Vec<u32> = (0..groups.rows.len() as u32).collect();
        order.sort_by(|a, b| keys.compare(*a as usize, *b as usize));
        let mut ranks = vec![0u32; order.len()];
        order.iter().enumerate().for_each(|(rank, group)| ranks[*group as usize] = rank as u32);
        let mut entries: Vec<(u32, i64, u64)> = (groups.of_row.iter().zip(&postings.cells).zip(&postings.counts))
            .map(|((group, cell), count)| (ranks[*group as usize], *cell, *count))
            .collect();
        entries.sort_unstable();
        let mut segment = Self {
            cells: tiles.iter().map(|tile| tile.0).collect(),
            prints: tiles.iter().map(|tile| tile.1).collect(),
            values: pick(&found, &order)?,
            starts: vec![0; order.len() + 1],
            tiles: Vec::with_capacity(entries.len()),
            counts: Vec::with_capacity(entries.len()),
        };
        for (rank, cell, count) in entries {
            // Every posting belongs to one of the given tiles.
            let Ok(tile) = segment.cells.binary_search(&cell) else { continue };
            segment.tiles.push(tile as u32);
            segment.counts.push(count);
            segment.starts[rank as usize + 1] += 1;
        }
        (1..segment.starts.len()).for_each(|value| segment.starts[value] += segment.starts[value - 1]);
        Ok(segment)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let values: usize = self.values.iter().map(|column| column.get_array_memory_size()).sum();
        let tiles = size_of_val(&self.cells[..]) + size_of_val(&self.prints[..]);
        let postings = size_of_val(&self.starts[..]) + size_of_val(&self.tiles[..]) + size_of_val(&self.counts[..]);
        size_of::<Self>() + values + tiles + postings
    }

    /// Range of the postings of a value, given by its number.
    pub(crate) fn postings(&self, value: usize) -> Range<usize> {
        self.starts[value] as usize..self.starts[value + 1] as usize
    }

    /// The entries of the tiles that `keep` selects.
    pub(crate) fn entries_of(&self, keep: &[bool]) -> Result<Postings, ArrowError> {
        let (mut rows, mut cells, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        for value in 0..self.starts.len() - 1 {
            for posting in self.postings(value).filter(|posting| keep[self.tiles[*posting] as usize]) {
                rows.push(value as u32);
                cells.push(self.cells[self.tiles[posting] as usize]);
                counts.push(self.counts[posting]);
            }
        }
        Ok(Postings { columns: pick(&self.values, &rows)?, cells, counts })
    }

    fn encode(&self, shape: &Shape) -> Result<Vec<u8>, EncodeError> {
        // No value has this number, so the first posting is stored as a tile and not as a distance.
        let mut before = (usize::MAX, 0);
        let steps =
            (0..self.starts.len() - 1).flat_map(|value| self.postings(value).map(move |posting| (value, posting)));
        let steps: UInt32Array = steps
            .map(|(value, posting)| {
                let tile = self.tiles[posting];
                let step = if before.0 == value { tile - before.1 } else { tile };
                before = (value, tile);
                step
            })
            .collect();
        let mut values = self.values.clone();
        values.push(Arc::new(self.starts.windows(2).map(|pair| pair[1] - pair[0]).collect::<UInt32Array>()));
        let blocks: [Vec<ArrayRef>; 3] = [
            vec![Arc::new(Int64Array::from(self.cells.clone())), Arc::new(UInt64Array::from(self.prints.clone()))],
            values,
            vec![Arc::new(steps), Arc::new(UInt64Array::from(self.counts.clone()))],
        ];
        let mut bytes = vec![VERSION];
        for (number, columns) in blocks.into_iter().enumerate() {
            shape.put(&mut bytes, number, columns)?;
        }
        Ok(bytes)
    }

    /// # Errors
    /// Bytes that are not a segment of this index and window.
    pub(crate) fn decode(bytes: &[u8], shape: &Shape) -> Result<Self, Damage> {
        let Some((&VERSION, mut rest)) = bytes.split_first() else {
            return Err(Damage::malformed("a segment of an unknown version"));
        };
        let tiles = shape.take(&mut rest, 0)?;
        let values = shape.take(&mut rest, 1)?;
        let postings = shape.take(&mut rest, 2)?;
        if !rest.is_empty() {
            return Err(Damage::malformed("bytes follow a segment"));
        }
        let numbers = |column: &ArrayRef| column.as_primitive::<UInt32Type>().values().to_vec();
        let wide = |column: &ArrayRef| column.as_primitive::<UInt64Type>().values().to_vec();
        let width = values.num_columns() - 1;
        let mut segment = Self {
            cells: tiles.column(0).as_primitive::<Int64Type>().values().to_vec(),
            prints: wide(tiles.column(1)),
            values: values.columns()[..width].to_vec(),
            starts: vec![0],
            tiles: numbers(postings.column(0)),
            counts: wide(postings.column(1)),
        };
        segment.read_lists(&numbers(values.column(width)))?;
        Ok(segment)
    }

    /// Converts list lengths and steps within the lists to positions.
    fn read_lists(&mut self, lengths: &[u32]) -> Result<(), Damage> {
        let malformed = || Damage::malformed("the postings of a segment do not fit its values and tiles");
        let mut next = 0usize;
        for length in lengths {
            let end = next + *length as usize;
            let steps = self.tiles.get_mut(next..end).ok_or_else(malformed)?;
            let mut tile = 0u32;
            for step in steps {
                tile = tile.checked_add(*step).ok_or_else(malformed)?;
                *step = tile;
                if tile as usize >= self.cells.len() {
                    return Err(malformed());
                }
            }
            next = end;
            self.starts.push(end as u32);
        }
        let sound = next == self.tiles.len() && self.cells.is_sorted_by(|a, b| a < b);
        if sound { Ok(()) } else { Err(malformed()) }
    }
}

/// The layouts of the blocks of a segment, and the index and window that these belong to.
pub(crate) struct Shape {
    layouts: [Layout; 3],
    id: u64,
    window: Window,
}

impl Shape {
    /// For an index with columns of these types; `id` is the index's id in the catalog.
    pub(crate) fn new(types: &[DataType], id: &str, window: Window) -> Result<Self, SchemaError> {
        let layout = |fields: Vec<Field>| Layout::new(Arc::new(Schema::new(fields)));
        let plain = |name: &str, data_type| Field::new(name, data_type, false);
        let values = types.iter().enumerate().map(|(place, t)| Field::new(format!("c{place}"), t.clone(), true));
        let values = values.chain([plain("postings", DataType::UInt32)]).collect();
        let layouts = [
            layout(vec![plain("cell", DataType::Int64), plain("print", DataType::UInt64)])?,
            layout(values)?,
            layout(vec![plain("tile", DataType::UInt32), plain("rows", DataType::UInt64)])?,
        ];
        // Ids are generated by this library as hexadecimal digits.
        Ok(Self { layouts, id: u64::from_str_radix(id, 16).unwrap_or(0), window })
    }

    fn binding(&self, number: usize) -> Binding {
        // The checksums of a block are those of a chunk: they bind the block to its number, its window and its index,
        // so that a block of another place is refused.
        let tile = Tile { cell: Cell(number as i64), window: self.window };
        Binding { tile, chunk: ChunkId(self.id.into()) }
    }

    fn put(&self, bytes: &mut Vec<u8>, number: usize, columns: Vec<ArrayRef>) -> Result<(), EncodeError> {
        let layout = &self.layouts[number];
        let batch = RecordBatch::try_new(layout.schema().clone(), columns).map_err(|_| EncodeError::WrongType)?;
        // A chunk needs an origin and a zone. In a segment they have no meaning.
        let origins = [Origin { batch: BatchId(0), written_us: 0, token: 0 }];
        let rows = ChunkRows { batch: &batch, origins: &origins, row_origin: None, ordinals: None, text: &[] };
        let zone = Zone { time_min: 0, time_max: 0, id_min: ZoneKey::MIN, id_max: ZoneKey::MIN };
        let encoded = encode(layout, 0, &rows, &zone, false, &self.binding(number))?;
        bytes.extend_from_slice(&(encoded.head.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(encoded.body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&encoded.head);
        bytes.extend_from_slice(&encoded.body);
        Ok(())
    }

    fn take(&self, rest: &mut &[u8], number: usize) -> Result<RecordBatch, Damage> {
        let short = || Damage::malformed("a segment ends too early");
        let head_bytes = u32::from_le_bytes(*take(rest).ok_or_else(short)?) as usize;
        let body_bytes = u32::from_le_bytes(*take(rest).ok_or_else(short)?) as usize;
        let (head, after) = rest.split_at_checked(head_bytes).ok_or_else(short)?;
        let (body, after) = after.split_at_checked(body_bytes).ok_or_else(short)?;
        *rest = after;
        let head = Head::parse(head, &self.binding(number))?;
        let body = Body::open(&head, body)?;
        let layout = &self.layouts[number];
        let all: Vec<usize> = (0..layout.schema().fields().len()).collect();
        let mut columns = Columns::new(layout, &all, &Defaults::none());
        columns.append_body(&body, all.len())?;
        Ok(columns.finish())
    }
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8; 4]> {
    let (taken, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    Some(taken)
}

/// Encoded segments, and the number of tiles left out because they have too many values.
#[derive(Default)]
pub(crate) struct Packed {
    pub segments: Vec<Vec<u8>>,
    pub tiles: u64,
    pub values: u64,
    pub left_out: u64,
}

impl Packed {
    /// Packs `tiles` and their postings, both ordered by cell, into segments of suitable size.
    pub(crate) fn add(&mut self, shape: &Shape, postings: &Postings, tiles: &[(i64, u64)]) -> Result<(), ArrowError> {
        if tiles.is_empty() {
            return Ok(());
        }
        let limit = if tiles.len() == 1 { BYTES_MAX } else { BYTES_GOOD };
        // The blocks of a segment are chunks, which have at most this many rows.
        let fits = postings.cells.len() <= ROWS_MAX as usize && tiles.len() <= ROWS_MAX as usize;
        if fits {
            let segment = Segment::new(postings, tiles)?;
            // A segment that cannot be encoded is halved like one that is too large, down to single tiles, which are
            // left out.
            if let Some(bytes) = segment.encode(shape).ok().filter(|bytes| bytes.len() <= limit) {
                self.tiles += tiles.len() as u64;
                self.values += segment.starts.len() as u64 - 1;
                self.segments.push(bytes);
                return Ok(());
            }
        }
        if tiles.len() == 1 {
            self.left_out += 1;
            return Ok(());
        }
        let middle = tiles.len() / 2;
        let cut = postings.cells.partition_point(|cell| *cell < tiles[middle].0);
        self.add(shape, &postings.slice(0..cut), &tiles[..middle])?;
        self.add(shape, &postings.slice(cut..postings.cells.len()), &tiles[middle..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::StringArray;

    fn postings() -> (Postings, Vec<(i64, u64)>) {
        let (mut users, mut states, mut cells, mut counts) = (vec![], vec![], vec![], vec![]);
        for cell in 0..300i64 {
            for user in 0..3 {
                users.push((cell + user) % 7);
                states.push(if user == 2 { None } else { Some(["done", "failed"][user as usize]) });
                cells.push(cell * 3 - 400);
                counts.push((cell as u64 % 5) + 1);
            }
        }
        let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(users)), Arc::new(StringArray::from(states))];
        let tiles = (0..300).map(|cell| (cell * 3 - 400, (cell as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
        (Postings { columns, cells, counts }, tiles)
    }

    fn shape(window: i32) -> Shape {
        Shape::new(&[DataType::Int64, DataType::Utf8], "00000000000000ff", Window(window)).unwrap()
    }

    fn sorted(postings: &Postings) -> Vec<(i64, String, Option<String>, u64)> {
        let users = postings.columns[0].as_primitive::<Int64Type>();
        let states = postings.columns[1].as_string::<i32>();
        let mut all: Vec<_> = (0..postings.cells.len())
            .map(|i| {
                let state = (!arrow_array::Array::is_null(states, i)).then(|| states.value(i).to_owned());
                (postings.cells[i], users.value(i).to_string(), state, postings.counts[i])
            })
            .collect();
        all.sort();
        all
    }

    #[test]
    fn segments_give_back_their_postings() {
        let (postings, tiles) = postings();
        let mut packed = Packed::default();
        packed.add(&shape(-3), &postings, &tiles).unwrap();
        assert_eq!((packed.segments.len(), packed.tiles, packed.left_out), (1, 300, 0));
        let segment = Segment::decode(&packed.segments[0], &shape(-3)).unwrap();
        assert_eq!(segment.cells.len(), 300);
        assert_eq!(segment.prints, tiles.iter().map(|tile| tile.1).collect::<Vec<_>>());
        assert_eq!(segment.starts.len() - 1, 21);
        assert_eq!(sorted(&segment.entries_of(&[true; 300]).unwrap()), sorted(&postings));
    }

    #[test]
    fn entries_of_some_tiles_are_those_of_these_tiles() {
        let (postings, tiles) = postings();
        let segment = Segment::new(&postings, &tiles).unwrap();
        let keep: Vec<bool> = (0..tiles.len()).map(|tile| tile % 3 == 1).collect();
        let kept = |cell: &i64| keep[((cell + 400) / 3) as usize];
        let rows: Vec<u32> = (0..).zip(&postings.cells).filter(|(_, cell)| kept(cell)).map(|(row, _)| row).collect();
        let wanted = Postings {
            columns: pick(&postings.columns, &rows).unwrap(),
            cells: rows.iter().map(|row| postings.cells[*row as usize]).collect(),
            counts: rows.iter().map(|row| postings.counts[*row as usize]).collect(),
        };
        let found = segment.entries_of(&keep).unwrap();
        assert_eq!(sorted(&found), sorted(&wanted));
        // Parts that come in any order are joined by cell.
        let rest = segment.entries_of(&keep.iter().map(|keep| !keep).collect::<Vec<_>>()).unwrap();
        let joined = Postings::join(vec![found, rest], 2).unwrap();
        assert!(joined.cells.is_sorted());
        assert_eq!(sorted(&joined), sorted(&postings));
    }

    #[test]
    fn lists_that_do_not_fit_their_tiles_and_postings_are_refused() {
        let read = |cells: &[i64], steps: &[u32], lengths: &[u32]| {
            let mut segment = Segment {
                cells: cells.to_vec(),
                prints: vec![],
                values: vec![],
                starts: vec![0],
                tiles: steps.to_vec(),
                counts: vec![],
            };
            segment.read_lists(lengths).ok().map(|()| (segment.tiles, segment.starts))
        };
        let cells = [3, 5, 8];
        assert_eq!(read(&cells, &[0, 2, 1, 1], &[2, 0, 2]), Some((vec![0, 2, 1, 2], vec![0, 2, 2, 4])));
        assert_eq!(read(&cells, &[0, 3], &[2]), None, "a tile past the last");
        assert_eq!(read(&cells, &[3], &[1]), None, "a tile past the last");
        assert_eq!(read(&cells, &[1, u32::MAX], &[2]), None, "a step past all numbers");
        assert_eq!(read(&cells, &[0, 1], &[1]), None, "postings of no value");
        assert_eq!(read(&cells, &[0, 1], &[3]), None, "a list past the last posting");
        assert_eq!(read(&[3, 3], &[], &[]), None, "a cell twice");
        assert_eq!(read(&[5, 3], &[], &[]), None, "cells out of order");
    }

    #[test]
    fn a_segment_of_another_window_or_with_a_changed_byte_is_refused() {
        let (postings, tiles) = postings();
        let mut packed = Packed::default();
        packed.add(&shape(1), &postings, &tiles).unwrap();
        let bytes = &packed.segments[0];
        assert!(Segment::decode(bytes, &shape(2)).is_err());
        for place in (0..bytes.len()).step_by(7) {
            let mut changed = bytes.clone();
            changed[place] ^= 0x10;
            assert!(Segment::decode(&changed, &shape(1)).is_err(), "byte {place}");
        }
    }

    #[test]
    fn large_windows_are_cut_and_tiles_of_too_many_values_left_out() {
        let count = (ROWS_MAX as usize) + 10;
        let mut cells = vec![7i64; count];
        cells.extend([9, 11]);
        let values: Vec<i64> =
            (0..count as i64 + 2).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)).collect();
        let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(values))];
        let postings = Postings { columns, counts: vec![1; cells.len()], cells };
        let shape = Shape::new(&[DataType::Int64], "01", Window(0)).unwrap();
        let mut packed = Packed::default();
        packed.add(&shape, &postings, &[(7, 1), (9, 2), (11, 3)]).unwrap();
        assert_eq!((packed.tiles, packed.left_out), (2, 1));
        let segments: Vec<_> = packed.segments.iter().map(|bytes| Segment::decode(bytes, &shape).unwrap()).collect();
        let cells: Vec<i64> = segments.iter().flat_map(|segment| segment.cells.iter().copied()).collect();
        let rows: u64 = segments.iter().flat_map(|segment| &segment.counts).sum();
        assert_eq!((cells, rows, packed.values), (vec![9, 11], 2, 2));
    }
}
