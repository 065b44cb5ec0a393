//! The limits of a chunk and of a set of columns, to the last byte and row, in encoder and decoder.

use std::sync::Arc;

use arrow_array::builder::FixedSizeBinaryBuilder;
use arrow_array::types::Int16Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Int8Array, Int32Array, ListArray, RecordBatch, StringArray, StructArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Schema};
use chronotile_chunk::{
    Body, BodyLayout, ChunkRows, Columns, DECODED_BYTES_MAX, Defaults, EncodeError, Encoded, Head, Layout,
    MISSING_BYTES_MAX, ROWS_MAX, Zone, encode, encode_as, reseal,
};

use crate::common::*;

const ROWS: usize = ROWS_MAX as usize;
fn bools(rows: usize) -> ArrayRef {
    Arc::new(BooleanArray::from(vec![false; rows]))
}

fn struct_of(inner: ArrayRef) -> ArrayRef {
    Arc::new(StructArray::from(vec![(Arc::new(Field::new("b", inner.data_type().clone(), false)), inner)]))
}

fn structs(rows: usize) -> ArrayRef {
    struct_of(bools(rows))
}

/// Constant columns of each kind. Decoded, a row takes 4 MiB: 16 bytes, and the rest in the first binary column.
fn one_of_each(rows: usize) -> RecordBatch {
    let mut wide = FixedSizeBinaryBuilder::with_capacity(rows, (4 << 20) - 16);
    let value = vec![0; (4 << 20) - 16];
    (0..rows).for_each(|_| wide.append_value(&value).unwrap());
    let lists = ListArray::from_iter_primitive::<Int16Type, _, _>((0..rows).map(|_| Some([])));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(wide.finish()),
        structs(rows),
        Arc::new(StringArray::from(vec!["a"; rows])),
        Arc::new(lists),
        Arc::new(Int32Array::from(vec![0; rows])),
    ];
    repeated(&bools(rows), 1, &columns)
}

/// `count` copies of a column, and more columns.
fn repeated(column: &ArrayRef, count: usize, more: &[ArrayRef]) -> RecordBatch {
    let columns = std::iter::repeat_n(column, count).chain(more);
    RecordBatch::try_from_iter(columns.enumerate().map(|(i, column)| (format!("c{i}"), column.clone()))).unwrap()
}

fn bare(batch: &RecordBatch) -> ChunkRows<'_> {
    ChunkRows { batch, origins: &[ORIGIN], row_origin: None, ordinals: None, text: &[] }
}

fn written(batch: &RecordBatch) -> Result<Encoded, EncodeError> {
    let layout = Layout::new(batch.schema()).unwrap();
    encode(&layout, 1, &bare(batch), &zone(), true, &BINDING)
}

#[test]
fn a_chunk_decodes_to_as_many_bytes_as_it_may_and_no_more() {
    let full = one_of_each(16);
    let (layout, chunk) = (Layout::new(full.schema()).unwrap(), written(&full).unwrap());
    let mut set = Columns::new(&layout, &[0, 1, 2, 3, 4, 5], &Defaults::none());
    set.append(&Head::parse(&chunk.head, &BINDING).unwrap(), &chunk.body, 6).unwrap();
    assert_eq!((set.bytes(), set.rows()), (DECODED_BYTES_MAX, 16));
    let columns: Vec<ArrayRef> = full.columns().to_vec();
    assert_eq!(written(&repeated(&bools(16), 1, &columns)).unwrap_err(), EncodeError::TooLarge);
}

#[test]
fn a_reader_refuses_more_bytes_than_a_chunk_may_decode_to() {
    let columns: Vec<ArrayRef> = one_of_each(8).columns().to_vec();
    let few = repeated(&bools(8), 1, &columns);
    let layout = Layout::new(few.schema()).unwrap();
    for body_layout in [BodyLayout::Small, BodyLayout::Columnar] {
        let mut chunk = write_as(body_layout, &layout, &few);
        assert_eq!(chunk.head[3], 8);
        chunk.head[3] = 16;
        reseal(&mut chunk.head, &chunk.body, &BINDING);
        let damage = read_all(&layout, &chunk).unwrap_err().to_string();
        assert!(damage.contains("more than a chunk may hold"), "{damage}");
        assert_eq!(read(&layout, &chunk, &[1, 2, 3, 4, 5, 6]).unwrap().num_rows(), 16);
    }
}

#[test]
fn long_texts_that_repeat_are_read_wherever_they_may_be_written() {
    let (a, b) = ("a".repeat(15 << 20), "b".repeat(15 << 20));
    for texts in [[&a, &a, &a, &a], [&a, &b, &a, &b]] {
        let text: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
        let batch = repeated(&text, 1, &[]);
        let layout = Layout::new(batch.schema()).unwrap();
        for body_layout in [BodyLayout::Small, BodyLayout::Columnar] {
            assert_eq!(read_all(&layout, &write_as(body_layout, &layout, &batch)).unwrap(), batch);
        }
    }
}

#[test]
fn single_rows_are_read_wherever_all_rows_are() {
    // Of a list of bytes, the numbers of the items take more memory than the items.
    let items = 20 << 20;
    let field = Arc::new(Field::new_list_field(DataType::Int8, false));
    let offsets = OffsetBuffer::from_lengths([items, items]);
    let lists: ArrayRef = Arc::new(ListArray::new(field, offsets, Arc::new(Int8Array::from(vec![7; 2 * items])), None));
    let batch = repeated(&lists, 1, &[]);
    let layout = Layout::new(batch.schema()).unwrap();
    let chunk = write_as(BodyLayout::Small, &layout, &batch);
    assert_eq!(read_all(&layout, &chunk).unwrap(), batch);
    let head = Head::parse(&chunk.head, &BINDING).unwrap();
    let mut picked = Columns::new(&layout, &[0], &Defaults::none());
    picked.append_rows(&Body::open(&head, &chunk.body).unwrap(), 1, &[0, 1]).unwrap();
    assert_eq!(picked.finish(), batch);
}

#[test]
fn a_chunk_has_as_many_rows_as_it_may_and_no_more() {
    assert_eq!(written(&repeated(&bools(ROWS), 1, &[])).unwrap().rows, ROWS_MAX);
    let more = repeated(&bools(ROWS + 1), 1, &[]);
    assert_eq!(written(&more).unwrap_err(), EncodeError::RowCount(ROWS + 1));
}

#[test]
fn a_block_takes_as_many_bytes_as_it_may_and_no_more() {
    // 8,193 times 8,191 is one byte below the limit, and the tag takes the remaining byte.
    let (rows, width) = (8_193, 8_191);
    let mut builder = FixedSizeBinaryBuilder::with_capacity(rows, width);
    let mut value = vec![0; width as usize];
    for row in 0..rows as u32 {
        value[..4].copy_from_slice(&row.to_le_bytes());
        builder.append_value(&value).unwrap();
    }
    let batch = repeated(&(Arc::new(builder.finish()) as ArrayRef), 1, &[]);
    let layout = Layout::new(batch.schema()).unwrap();
    let write = |rows: &ChunkRows| encode_as(BodyLayout::Small, &layout, 1, rows, &zone(), true, &BINDING);
    let chunk = write(&bare(&batch)).unwrap();
    assert!(Body::open(&Head::parse(&chunk.head, &BINDING).unwrap(), &chunk.body).is_ok());
    // Ordinals that are all zero take only the byte of their tag.
    let ordinals = vec![0; rows];
    assert_eq!(write(&ChunkRows { ordinals: Some(&ordinals), ..bare(&batch) }).unwrap_err(), EncodeError::TooLarge);
}

#[test]
fn a_set_of_columns_takes_chunks_until_offsets_could_overflow() {
    // A decoded row of these counts as 1,024 bytes by the rule of the format, but takes nine in memory.
    let batch = |text: &str, rows: usize| {
        let mut texts = vec![""; rows];
        texts[0] = text;
        let text: ArrayRef = Arc::new(StringArray::from(texts));
        let nested = (0..28).fold(structs(rows), |inner, _| struct_of(inner));
        repeated(&nested, 34, &[text])
    };
    let (full, odd) = (batch("", 1 << 16), batch(&"t".repeat(1_023), (1 << 16) - 1));
    let layout = Layout::new(full.schema()).unwrap();
    let all: Vec<usize> = (0..full.num_columns()).collect();
    let mut set = Columns::new(&layout, &all, &Defaults::none());
    let (full, odd) = (written(&full).unwrap(), written(&odd).unwrap());
    let append = |set: &mut Columns, chunk: &Encoded| {
        set.append(&Head::parse(&chunk.head, &BINDING).unwrap(), &chunk.body, all.len())
    };
    for _ in 0..22 {
        append(&mut set, &full).unwrap();
    }
    append(&mut set, &odd).unwrap();
    // One more chunk and the columns that it lacks could reach 2^31 - 1, the maximum offset.
    assert_eq!(set.bytes(), i32::MAX as usize - DECODED_BYTES_MAX - MISSING_BYTES_MAX);
    append(&mut set, &full).unwrap();
    let (rows, bytes) = (set.rows(), set.bytes());
    let damage = append(&mut set, &full).unwrap_err().to_string();
    assert!(damage.contains("full"), "{damage}");
    assert_eq!((set.rows(), set.bytes()), (rows, bytes));
}

#[test]
fn bytes_of_a_set_count_what_was_decoded_and_what_was_missing() {
    // All nodes of a struct have rows, the items of a list have none.
    let (number, flag) = (Field::new("number", DataType::Float64, false), Field::new("flag", DataType::Boolean, true));
    let items = Field::new_list("items", Field::new_list_field(DataType::Int64, true), true);
    let missing = 8 + 4 + (1 + 8 + (1 + 1 + 4));
    let fields = [
        Field::new("id", DataType::Int32, false),
        Field::new("name", DataType::Utf8, true),
        Field::new("added", DataType::Float64, true),
        Field::new("text", DataType::Utf8, true),
        Field::new_struct("nested", vec![number, Field::new_struct("inner", vec![flag, items], false)], true),
    ];
    let layout = Layout::new(Arc::new(Schema::new(fields.to_vec()))).unwrap();
    let before = Layout::new(Arc::new(Schema::new(fields[..2].to_vec()))).unwrap();
    let ids: ArrayRef = Arc::new(Int32Array::from(vec![4, 5, 6]));
    let names: ArrayRef = Arc::new(StringArray::from(vec![Some("abc"), None, Some("de")]));
    let batch = RecordBatch::try_new(before.schema().clone(), vec![ids, names]).unwrap();
    for body_layout in [BodyLayout::Small, BodyLayout::Columnar] {
        let chunk = write_as(body_layout, &before, &batch);
        let head = Head::parse(&chunk.head, &BINDING).unwrap();
        let mut set = Columns::new(&layout, &[0, 1, 2, 3, 4], &Defaults::none());
        set.reserve(usize::MAX);
        for times in 1..4 {
            set.append(&head, &chunk.body, 2).unwrap();
            assert_eq!((set.bytes(), set.rows()), (times * (3 * (4 + 4) + 5 + 3 * missing), times * 3));
        }
        let body = Body::open(&head, &chunk.body).unwrap();
        if body.decodes_single_rows() {
            set.append_rows(&body, 2, &[0, 1]).unwrap();
            assert_eq!(set.bytes(), 3 * (3 * (4 + 4) + 5 + 3 * missing) + 2 * (4 + 4) + 3 + 2 * missing);
        }
    }
}

#[test]
fn a_missing_column_needs_nulls_or_a_default() {
    let fields = [Field::new("id", DataType::Int8, false), Field::new("added", DataType::Int8, false)];
    let layout = Layout::new(Arc::new(Schema::new(fields.to_vec()))).unwrap();
    let before = Layout::new(Arc::new(Schema::new(fields[..1].to_vec()))).unwrap();
    let ids: ArrayRef = Arc::new(Int8Array::from(vec![1, 2]));
    let chunk = write_as(
        BodyLayout::Small,
        &before,
        &RecordBatch::try_new(before.schema().clone(), vec![ids.clone()]).unwrap(),
    );
    let head = Head::parse(&chunk.head, &BINDING).unwrap();
    let mut set = Columns::new(&layout, &[0, 1], &Defaults::none());
    let damage = set.append(&head, &chunk.body, 1).unwrap_err().to_string();
    assert!(damage.contains("neither nulls nor a default"), "{damage}");
    assert_eq!((set.rows(), set.bytes(), set.finish().num_rows()), (0, 0, 0));
    let mut defaults = Defaults::none();
    defaults.set(&layout, 1, &ids).unwrap();
    let mut set = Columns::new(&layout, &[0, 1], &defaults);
    set.append(&head, &chunk.body, 1).unwrap();
    assert_eq!(set.finish().column(1).as_ref(), &Int8Array::from(vec![1, 1]));
    assert_eq!(defaults.set(&layout, 1, &ids.slice(0, 0)).unwrap_err(), EncodeError::RowCount(0));
}

#[test]
fn the_form_follows_from_rows_and_bytes_of_text() {
    let body_layout = |batch: &RecordBatch| Head::parse(&written(batch).unwrap().head, &BINDING).unwrap().body_layout;
    for (rows, want) in [(128, BodyLayout::Small), (129, BodyLayout::Columnar)] {
        assert_eq!(body_layout(&repeated(&bools(rows), 3, &[])), want);
    }
    let half = "t".repeat(32 << 10);
    for (more, want) in [(0, BodyLayout::Small), (1, BodyLayout::Columnar)] {
        let odd = format!("{half}{}", "x".repeat(more));
        let values = [half.as_str(), &half, &odd, &half];
        // Only the second and third values are written.
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values(values));
        assert_eq!(body_layout(&repeated(&texts.slice(1, 2), 1, &[])), want);
        let bytes: ArrayRef = Arc::new(BinaryArray::from_iter_values(values));
        assert_eq!(body_layout(&repeated(&bytes.slice(1, 2), 1, &[])), want);
        let (one, other) = (texts.slice(1, 1), bytes.slice(2, 1));
        assert_eq!(body_layout(&repeated(&one, 1, &[other])), want);
    }
}

#[test]
fn what_does_not_fit_its_rows_is_refused() {
    let batch = repeated(&bools(2), 1, &[]);
    let layout = Layout::new(batch.schema()).unwrap();
    let refusal = |rows: &ChunkRows, zone: &Zone| encode(&layout, 1, rows, zone, true, &BINDING).unwrap_err();
    let rows = bare(&batch);
    let origins = [ORIGIN, ORIGIN];
    for bad in [
        ChunkRows { origins: &origins, ..rows },
        ChunkRows { origins: &origins, row_origin: Some(&[0, 2]), ..rows },
        ChunkRows { origins: &origins, row_origin: Some(&[0]), ..rows },
        ChunkRows { ordinals: Some(&[1, 2, 3]), ..rows },
    ] {
        assert!(matches!(refusal(&bad, &zone()), EncodeError::Origins(_)));
    }
    let columns = EncodeError::ColumnCount { expected: 1, found: 1 };
    assert_eq!(refusal(&ChunkRows { text: &[1], ..rows }, &zone()), columns);
    let (low, high) = (zone().id_min, zone().id_max);
    assert_eq!(refusal(&rows, &Zone { id_min: high, id_max: low, ..zone() }), EncodeError::Zone);
    let one = Zone { time_max: zone().time_min, id_max: low, ..zone() };
    assert!(encode(&layout, 1, &rows, &one, true, &BINDING).is_ok());
}

#[test]
fn fewer_rows_are_of_use_where_bytes_are_too_many() {
    let of_column = |reason| EncodeError::Column { column: "x".to_owned(), reason: Box::new(reason) };
    assert!(EncodeError::TooLarge.is_too_large() && of_column(EncodeError::TooLarge).is_too_large());
    assert!(!EncodeError::Zone.is_too_large() && !of_column(EncodeError::WrongType).is_too_large());
}
