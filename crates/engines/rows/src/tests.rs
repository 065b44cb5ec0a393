//! Converts chunks to rows and back without a cluster: the bytes of the lines serve as a result.

use std::sync::Arc;

use arrow_array::builder::{Int16Builder, ListBuilder};
use arrow_array::types::*;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, Float64Array, Int64Array, PrimitiveArray,
    RecordBatch, StringArray, StructArray,
};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use bytes::Bytes;
use chronotile_chunk::{Binding, BodyLayout, ChunkRows, Layout, Origin, Zone, encode_as, encode_plain};
use chronotile_cql::scylla::frame::response::result::{ColumnSpec, ColumnType, NativeType, TableSpec};
use chronotile_store::{Chunk, ChunkKey};
use chronotile_tables::{Decoder, Mapping};
use chronotile_types::{BatchId, Cell, ChunkId, NativeColumns, SliceId, Tile, Window, ZoneKey};
use proptest::prelude::*;

use crate::gather::{GatheredChunks, Gatherer};
use crate::types::{cql_type, mapping};
use crate::{Codec, OWN_COLUMNS, READ_COUNT, RowsError, WRITTEN_COUNT};

const TILE: Tile = Tile { cell: Cell(-5), window: Window(-7) };

fn native(fields: Vec<Field>, versions: &[u32]) -> Arc<NativeColumns> {
    Arc::new(NativeColumns { schema: Arc::new(Schema::new(fields)), versions: versions.to_vec() })
}

fn key(id: u128) -> ChunkKey {
    ChunkKey { slice: SliceId(3), tile: TILE, id: ChunkId(id) }
}

/// A chunk of some rows; several rows come from several batches.
fn chunk(id: u128, batch: &RecordBatch, version: u32) -> Chunk {
    let rows = batch.num_rows();
    let origins =
        [(1, 50), (2, 40), (2, 41)].map(|(batch, written_us)| Origin { batch: BatchId(batch), written_us, token: 7 });
    let used = rows.min(3);
    let row_origin: Vec<u32> = (0..rows).map(|row| (row % used) as u32).collect();
    let ordinals: Vec<i64> = (0..rows as i64).map(|row| row * 3 - 4).collect();
    let zone = Zone { time_min: -3, time_max: 9, id_min: ZoneKey::MIN, id_max: ZoneKey::from_i64(8) };
    let is_text = |column: &usize| *batch.column(*column).data_type() == DataType::Utf8;
    let text: Vec<usize> = (0..batch.num_columns()).filter(is_text).collect();
    let rows = ChunkRows {
        batch,
        origins: &origins[..used],
        row_origin: Some(&row_origin),
        ordinals: Some(&ordinals),
        text: &text,
    };
    let layout = Layout::new(batch.schema()).unwrap();
    let binding = Binding { tile: TILE, chunk: ChunkId(id) };
    let encoded = encode_plain(&layout, version, &rows, &zone, id.is_multiple_of(2), &binding).unwrap();
    Chunk { key: key(id), rows: encoded.rows, head: encoded.head.into(), body: encoded.body.into() }
}

/// The serialized values of a line.
fn cells(line: &Bytes) -> Vec<Option<&[u8]>> {
    let (mut cells, mut rest) = (vec![], line.as_ref());
    while let Some((len, after)) = rest.split_first_chunk::<4>() {
        let (cell, after) = match usize::try_from(i32::from_be_bytes(*len)) {
            Ok(len) => (Some(&after[..len]), &after[len..]),
            Err(_) => (None, after),
        };
        cells.push(cell);
        rest = after;
    }
    cells
}

/// The result that a node would return: the lines' values in the order of a `SELECT`, with the epoch.
fn answer(codec: &Codec, lines: &[&Bytes], columns: usize, epoch: Option<i64>) -> RecordBatch {
    let mut frame = vec![];
    let mut put = |cell: Option<&[u8]>| match cell {
        Some(bytes) => {
            frame.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
            frame.extend_from_slice(bytes);
        }
        None => frame.extend_from_slice(&(-1_i32).to_be_bytes()),
    };
    let epoch = epoch.map(i64::to_be_bytes);
    for line in lines {
        let cells = cells(line);
        put(epoch.as_ref().map(|bytes| bytes.as_slice()));
        // Window, chunk, row, head, batch, written, ordinal, rows, bytes of WRITTEN.
        [1, 2, 3, 6, 7, 8, 9, 4, 5].into_iter().for_each(|place| put(cells[place]));
        (0..columns).for_each(|place| put(cells.get(WRITTEN_COUNT + place).copied().flatten()));
    }
    use NativeType as N;
    let own = [N::BigInt, N::Int, N::Blob, N::Int, N::Blob, N::Blob, N::BigInt, N::BigInt, N::Int, N::Int]
        .map(ColumnType::Native);
    assert_eq!(own.len(), READ_COUNT);
    let fields = &codec.native().schema.fields()[..columns];
    let types = own.into_iter().chain(fields.iter().map(|field| cql_type(field.data_type()).unwrap()));
    let table = || TableSpec::owned("k".to_owned(), "t".to_owned());
    let specs: Vec<_> = types.map(|cql| ColumnSpec::owned("c".to_owned(), cql, table())).collect();
    let mappings = std::iter::repeat_n(Mapping::default(), READ_COUNT);
    let mappings = mappings.chain(fields.iter().map(|field| mapping(field.data_type()))).collect();
    Decoder::of_columns(&specs, mappings).unwrap().decode(&frame, lines.len()).unwrap()
}

/// Reads lines in pages of `page` rows.
fn gathered(codec: &Arc<Codec>, lines: &[&Bytes], page: usize) -> GatheredChunks {
    let columns = codec.columns().len();
    let mut gatherer = Gatherer::new(codec.clone(), columns, SliceId(3), TILE.cell);
    let mut all = GatheredChunks::default();
    let mut add = |gathered: GatheredChunks| {
        assert!(!gathered.epoch_changed);
        all.chunks.extend(gathered.chunks);
        all.incomplete.extend(gathered.incomplete);
    };
    for lines in lines.chunks(page) {
        add(gatherer.push_rows(&answer(codec, lines, columns, Some(7))).unwrap());
    }
    add(gatherer.finish());
    all
}

fn lines(codec: &Codec, chunk: &Chunk) -> Vec<Bytes> {
    codec.check(chunk).unwrap();
    codec.lines(chunk).unwrap().lines.into_iter().map(|line| line.0).collect()
}

fn primitive<T: ArrowPrimitiveType>(values: &[Option<i64>], make: impl Fn(i64) -> T::Native) -> ArrayRef {
    Arc::new(values.iter().map(|value| value.map(&make)).collect::<PrimitiveArray<T>>())
}

/// Columns of every kind with bits taken from `values`.
fn columns(values: &[Option<i64>]) -> Vec<(&'static str, ArrayRef)> {
    let texts: Vec<Option<String>> = values.iter().map(|v| v.map(|v| "ä".repeat((v & 3) as usize))).collect();
    let bytes: Vec<Option<Vec<u8>>> = values.iter().map(|v| v.map(|v| v.to_le_bytes().to_vec())).collect();
    let fixed = FixedSizeBinaryArray::try_from_sparse_iter_with_size(bytes.iter().cloned(), 8).unwrap();
    let mut lists = ListBuilder::new(Int16Builder::new());
    for value in values {
        value.iter().for_each(|v| (0..v & 3).for_each(|n| lists.values().append_value((v >> n) as i16)));
        lists.append(value.is_some());
    }
    let within = |v: i64, most: i64| v.rem_euclid(most);
    let u64s = primitive::<UInt64Type>(values, |v| v as u64);
    let decimals = || {
        let array = values.iter().map(|v| v.map(i128::from)).collect::<PrimitiveArray<Decimal128Type>>();
        Arc::new(array.with_precision_and_scale(38, 4).unwrap()) as ArrayRef
    };
    let deep = StructArray::try_new(
        vec![Field::new("u", DataType::UInt64, true), Field::new("d", DataType::Decimal128(38, 4), true)].into(),
        vec![u64s.clone(), decimals()],
        arrow_buffer::NullBuffer::from_iter(values.iter().map(|v| v.is_some_and(|v| v & 1 == 0))).into(),
    );
    vec![
        ("t", primitive::<TimestampMicrosecondType>(values, |v| v)),
        ("flag", Arc::new(values.iter().map(|v| v.map(|v| v & 1 == 1)).collect::<BooleanArray>())),
        ("i8", primitive::<Int8Type>(values, |v| v as i8)),
        ("u8", primitive::<UInt8Type>(values, |v| v as u8)),
        ("u16", primitive::<UInt16Type>(values, |v| v as u16)),
        ("u32", primitive::<UInt32Type>(values, |v| v as u32)),
        ("u64", u64s),
        ("f32", primitive::<Float32Type>(values, |v| f32::from_bits(v as u32))),
        ("f64", primitive::<Float64Type>(values, |v| f64::from_bits(v as u64))),
        ("d32", primitive::<Date32Type>(values, |v| v as i32)),
        ("d64", primitive::<Date64Type>(values, |v| v)),
        ("t32", primitive::<Time32SecondType>(values, |v| within(v, 86_400) as i32)),
        ("t64", primitive::<Time64MicrosecondType>(values, |v| within(v, 86_400_000_000))),
        ("s", primitive::<TimestampSecondType>(values, |v| v / 1_000)),
        ("ns", primitive::<DurationNanosecondType>(values, |v| v)),
        ("text", Arc::new(StringArray::from(texts))),
        ("bytes", Arc::new(bytes.iter().map(|b| b.as_deref()).collect::<BinaryArray>())),
        ("fixed", Arc::new(fixed)),
        ("decimal", decimals()),
        ("list", Arc::new(lists.finish())),
        ("deep", Arc::new(deep.unwrap())),
    ]
}

fn batch(values: &[Option<i64>]) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns(values).into_iter().map(|(name, array)| (name, array, true)))
        .unwrap()
}

fn codec_of(batch: &RecordBatch) -> Arc<Codec> {
    let fields: Vec<Field> = batch.schema().fields().iter().map(|field| field.as_ref().clone()).collect();
    let count = fields.len() as u32;
    Arc::new(Codec::new(native(fields, &[count])).unwrap())
}

fn value() -> impl Strategy<Value = Option<i64>> {
    let edges = prop::sample::select(vec![0, -1, 1, i64::MIN, i64::MAX, 1 << 31, 1 << 63]);
    prop::option::weighted(0.8, prop_oneof![any::<i64>(), edges, -300..300_i64])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn chunks_come_back_byte_for_byte_whatever_the_pages(
        chunks in prop::collection::vec(prop::collection::vec(value(), 1..12), 1..5),
        page in 1_usize..9,
    ) {
        let chunks: Vec<Chunk> = chunks.iter().zip(1..).map(|(values, id)| chunk(id, &batch(values), 0)).collect();
        let codec = codec_of(&batch(&[None]));
        let all: Vec<Bytes> = chunks.iter().flat_map(|chunk| lines(&codec, chunk)).collect();
        let got = gathered(&codec, &all.iter().collect::<Vec<_>>(), page);
        prop_assert_eq!(got.incomplete, vec![]);
        prop_assert_eq!(got.chunks, chunks);
    }
}

#[test]
fn a_read_selects_all_that_nodes_compare() {
    let selected = codec_of(&batch(&[None])).select(0);
    let selected: Vec<&str> = selected.split(", ").collect();
    let columns = OWN_COLUMNS.split(", ").filter_map(|column| column.split_whitespace().next());
    let lacking: Vec<&str> = columns.filter(|column| !selected.contains(column)).collect();
    assert_eq!(lacking, ["ct_cell"], "the partition's key is known");
}

#[test]
fn a_chunk_with_missing_rows_is_incomplete_and_without_its_first_row_is_skipped() {
    let chunks = [1, 2, 3].map(|id| chunk(id, &batch(&[Some(1), None, Some(3)]), 0));
    let codec = codec_of(&batch(&[None]));
    let all: Vec<Bytes> = chunks.iter().flat_map(|chunk| lines(&codec, chunk)).collect();
    let without = |missing: usize| {
        let left: Vec<&Bytes> = all.iter().enumerate().filter(|(at, _)| *at != missing).map(|(_, line)| line).collect();
        (1..9).map(|page| gathered(&codec, &left, page)).collect::<Vec<_>>()
    };
    for missing in [4, 5] {
        for got in without(missing) {
            assert_eq!(got.incomplete, [key(2)]);
            let hollow = Chunk { body: Bytes::new(), ..chunks[1].clone() };
            assert_eq!(got.chunks, [chunks[0].clone(), hollow, chunks[2].clone()]);
        }
    }
    for got in without(3) {
        assert_eq!((got.incomplete, got.chunks), (vec![], vec![chunks[0].clone(), chunks[2].clone()]));
    }
}

#[test]
fn a_changed_value_no_longer_fits_the_checksum() {
    let original = chunk(1, &batch(&[Some(1), Some(2)]), 0);
    let codec = codec_of(&batch(&[None]));
    let mut all = lines(&codec, &original);
    let changed = lines(&codec, &chunk(1, &batch(&[Some(1), Some(3)]), 0));
    all[1] = changed[1].clone();
    let got = gathered(&codec, &all.iter().collect::<Vec<_>>(), 10).chunks;
    assert_eq!(got[0].head, original.head);
    assert_ne!(got[0].body, original.body);
}

#[test]
fn leftover_rows_of_a_longer_chunk_under_the_same_key_are_skipped() {
    let (long, short) = (chunk(1, &batch(&[Some(1), Some(2), Some(3)]), 0), chunk(1, &batch(&[Some(9)]), 0));
    let codec = codec_of(&batch(&[None]));
    let (old, mut all) = (lines(&codec, &long), lines(&codec, &short));
    all.extend_from_slice(&old[1..]);
    assert_eq!(gathered(&codec, &all.iter().collect::<Vec<_>>(), 2).chunks, [short]);
}

#[test]
fn a_changed_epoch_is_reported_and_its_page_discarded() {
    let codec = codec_of(&batch(&[None]));
    let all = lines(&codec, &chunk(1, &batch(&[Some(1), Some(2)]), 0));
    let columns = codec.columns().len();
    let mut gatherer = Gatherer::new(codec.clone(), columns, SliceId(3), TILE.cell);
    assert!(!gatherer.push_rows(&answer(&codec, &[&all[0]], columns, None)).unwrap().epoch_changed);
    assert!(gatherer.push_rows(&answer(&codec, &[&all[1]], columns, Some(1))).unwrap().epoch_changed);
    assert_eq!(gatherer.window(), Some(TILE.window));
    gatherer.forget();
    assert_eq!(gatherer.window(), None);
    assert_eq!(gatherer.finish().chunks, []);
}

#[test]
fn chunks_of_older_versions_have_the_columns_of_their_time() {
    let old = RecordBatch::try_from_iter([("t", Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef)]).unwrap();
    let fields = vec![Field::new("t", DataType::Int64, false), Field::new("x", DataType::Float64, false)];
    let codec = Arc::new(Codec::new(native(fields, &[1, 2])).unwrap());
    let x: ArrayRef = Arc::new(Float64Array::from(vec![0.5, -0.0]));
    let new = RecordBatch::try_from_iter([("t", old.column(0).clone()), ("x", x)]).unwrap();
    let chunks = [chunk(1, &old, 0), chunk(2, &new, 1)];
    assert_eq!(chunks.each_ref().map(|chunk| codec.columns_of(chunk).unwrap()), [1, 2]);
    let all: Vec<Bytes> = chunks.iter().flat_map(|chunk| lines(&codec, chunk)).collect();
    assert_eq!(gathered(&codec, &all.iter().collect::<Vec<_>>(), 3).chunks, chunks);
    assert_eq!(codec.columns_of(&chunk(3, &new, 2)), Err(RowsError::Version(2)));
    // A reader that did not select the new column is notified.
    let mut gatherer = Gatherer::new(codec.clone(), 1, SliceId(3), TILE.cell);
    let narrow = answer(&codec, &all.iter().collect::<Vec<_>>(), 1, None);
    let got = gatherer.push_rows(&narrow).unwrap();
    assert_eq!((got.chunks, got.narrow), (vec![chunks[0].clone()], false));
    let got = gatherer.finish();
    assert_eq!((got.chunks, got.incomplete, got.narrow), (vec![], vec![], true));
}

#[test]
fn values_without_a_cql_equivalent_are_refused_by_column() {
    let refused = |name: &str, array: ArrayRef| {
        let batch = RecordBatch::try_from_iter_with_nullable([(name, array, true)]).unwrap();
        let chunk = chunk(1, &batch, 0);
        let error = codec_of(&batch).check(&chunk).unwrap_err();
        assert_eq!(codec_of(&batch).lines(&chunk).unwrap_err(), error);
        assert!(matches!(&error, RowsError::Column { column, .. } if column == name), "{error}");
        error.to_string()
    };
    let mut lists = ListBuilder::new(Int16Builder::new());
    lists.values().append_null();
    lists.append(true);
    assert!(refused("a list", Arc::new(lists.finish())).contains("null element"));
    let digits = PrimitiveArray::<Decimal128Type>::from(vec![1_000]).with_precision_and_scale(3, 1).unwrap();
    assert!(refused("price", Arc::new(digits)).contains("more digits"));
    let far = PrimitiveArray::<TimestampSecondType>::from(vec![i64::MAX]);
    assert_eq!(far.data_type(), &DataType::Timestamp(TimeUnit::Second, None));
    assert!(refused("when", Arc::new(far)).contains("out of the range"));
}

#[test]
fn only_chunks_in_plain_form_are_taken() {
    let rows = batch(&[Some(1); 20]);
    let origins = [Origin { batch: BatchId(1), written_us: 1, token: 0 }];
    let layout = Layout::new(rows.schema()).unwrap();
    let zone = Zone { time_min: 0, time_max: 0, id_min: ZoneKey::MIN, id_max: ZoneKey::MAX };
    let given = ChunkRows { batch: &rows, origins: &origins, row_origin: None, ordinals: None, text: &[] };
    let binding = Binding { tile: TILE, chunk: ChunkId(1) };
    let encoded = encode_as(BodyLayout::Columnar, &layout, 0, &given, &zone, true, &binding).unwrap();
    let chunk = Chunk { key: key(1), rows: 20, head: encoded.head.into(), body: encoded.body.into() };
    assert_eq!(codec_of(&rows).check(&chunk), Err(RowsError::NotPlain));
}
