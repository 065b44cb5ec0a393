//! Bytes that break a rule of the format are refused, even if their checksums are correct.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use chronotile_chunk::{
    Body, BodyLayout, ChunkRows, ColumnStats, Columns, Defaults, Encoded, Head, Layout, Zone, encode_as, ordinals,
    reseal,
};
use chronotile_types::{Damage, DamageKind, ZoneKey};

use crate::common::*;

fn one_column(data_type: DataType, is_nullable: bool) -> Layout {
    Layout::new(Arc::new(Schema::new(vec![Field::new("x", data_type, is_nullable)]))).unwrap()
}

fn list_of(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("item", item, true)))
}

fn struct_of(child: DataType) -> DataType {
    DataType::Struct(vec![Field::new("child", child, true)].into())
}

/// The head of a chunk with `rows` rows and this form and body.
fn head_for(body_layout: BodyLayout, rows: usize, body: &[u8]) -> Head {
    let layout = one_column(DataType::Int8, true);
    let column = arrow_array::new_null_array(&DataType::Int8, rows);
    let mut chunk =
        write_as(body_layout, &layout, &RecordBatch::try_new(layout.schema().clone(), vec![column]).unwrap());
    reseal(&mut chunk.head, body, &BINDING);
    let mut head = Head::parse(&chunk.head, &BINDING).unwrap();
    head.set_body_bytes(body.len());
    head
}

/// Decodes the columns `wanted` of a body; a small block also by picking all of its rows.
fn read_body(
    body_layout: BodyLayout,
    layout: &Layout,
    rows: usize,
    body: &[u8],
    wanted: &[usize],
) -> Result<RecordBatch, Damage> {
    let head = head_for(body_layout, rows, body);
    let columns = layout.schema().fields().len();
    let mut set = Columns::new(layout, wanted, &Defaults::none());
    let whole = set.append(&head, body, columns).map(|()| set.finish());
    if body_layout == BodyLayout::Small {
        let mut picked = Columns::new(layout, wanted, &Defaults::none());
        let all: Vec<u32> = (0..rows as u32).collect();
        let picked = picked
            .append_rows(&Body::open(&head, body).unwrap(), columns, &all)
            .map(|()| std::mem::replace(&mut picked, Columns::new(layout, wanted, &Defaults::none())).finish());
        assert_eq!(picked.is_ok(), whole.is_ok(), "rows picked and the whole: {picked:?} and {whole:?}");
    }
    whole
}

/// Two rows of one column in a small block.
fn small(data_type: DataType, body: &[u8]) -> Result<RecordBatch, Damage> {
    read_body(BodyLayout::Small, &one_column(data_type, true), 2, body, &[0])
}

/// `rows` rows of one column in the columnar form.
fn columnar(data_type: DataType, rows: usize, column: &[u8]) -> Result<RecordBatch, Damage> {
    let body = [&[column.len() as u8], column].concat();
    read_body(BodyLayout::Columnar, &one_column(data_type, true), rows, &body, &[0])
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Damage>, says: &str) {
    let damage = result.unwrap_err().to_string();
    assert!(damage.contains(says), "{damage}");
}

#[test]
fn a_shape_that_a_type_does_not_have_is_refused() {
    small(struct_of(DataType::Int8), &[0x30]).unwrap();
    for shape in 1..=3 {
        refused(small(struct_of(DataType::Int8), &[0x30 | shape]), "tag");
    }
    small(DataType::Boolean, &[0x03]).unwrap();
    refused(small(DataType::Boolean, &[0x02]), "tag");
    refused(small(DataType::Utf8, &[0x02]), "tag");
    refused(small(list_of(DataType::Int8), &[0x32]), "tag");
    for tag in 9..16 {
        refused(small(DataType::Int8, &[tag, 0, 0, 0]), "tag");
    }
}

#[test]
fn a_codec_that_a_type_does_not_have_is_refused() {
    columnar(list_of(DataType::Int8), 2, &[0, 3, 16]).unwrap();
    columnar(struct_of(DataType::Int8), 2, &[0, 3]).unwrap();
    for codec in 1..=7 {
        refused(columnar(list_of(DataType::Int8), 2, &[codec, 3, 16]), "codec");
        refused(columnar(struct_of(DataType::Int8), 2, &[codec, 3]), "codec");
    }
    let two = [[1u8; 8], [2; 8]].concat();
    let sequence = [&[7], two.as_slice()].concat();
    columnar(DataType::Int64, 2, &sequence).unwrap();
    refused(columnar(DataType::Float64, 2, &sequence), "codec");
    refused(columnar(DataType::Decimal128(20, 3), 2, &[6, 1, 0, 3]), "codec");
    columnar(DataType::Float64, 2, &[6, 1, 0, 3]).unwrap();
    refused(columnar(DataType::Int64, 2, &[6, 1, 0, 3]), "codec");
    refused(columnar(DataType::Utf8, 2, &[3 | 1 << 5]), "not numbers");
    refused(columnar(DataType::Int64, 2, &[3 | 1 << 6]), "codec");
}

#[test]
fn distances_are_narrower_than_their_values_and_of_integers() {
    let narrow = |width: usize, distance: u8| [&[2][..], &vec![7; width], &[distance], &[1; 8]].concat();
    let cut = |mut body: Vec<u8>, distance: u8| {
        body.truncate(body.len() - 8 + 2 * usize::from(distance));
        body
    };
    small(DataType::Int32, &cut(narrow(4, 1), 1)).unwrap();
    small(DataType::Int32, &cut(narrow(4, 2), 2)).unwrap();
    for (data_type, width, distance) in [
        (DataType::Int32, 4, 4),
        (DataType::Int32, 4, 3),
        (DataType::Int16, 2, 2),
        (DataType::Int16, 2, 4),
        (DataType::Int8, 1, 1),
        (DataType::Float32, 4, 1),
        (DataType::Float64, 8, 4),
    ] {
        refused(small(data_type.clone(), &cut(narrow(width, distance), distance)), "unknown width");
        let column = cut(narrow(width, distance), distance);
        refused(columnar(data_type, 2, &column), "unknown width");
    }
    refused(small(DataType::Decimal128(20, 3), &cut(narrow(16, 1), 1)), "tag");
}

#[test]
fn exceptions_of_decimals_are_in_order_and_once_each() {
    let column = |places: [u32; 2]| {
        let places = places.map(u32::to_le_bytes).concat();
        [&[6, 1, 2, 3, 0, 0], places.as_slice(), &[0], &[1; 16]].concat()
    };
    columnar(DataType::Float64, 20, &column([4, 19])).unwrap();
    for places in [[4, 4], [5, 4], [4, 20]] {
        refused(columnar(DataType::Float64, 20, &column(places)), "out of order");
    }
}

#[test]
fn nulls_are_refused_where_the_schema_allows_none() {
    let strict = one_column(DataType::Int8, false);
    // All rows are null, or one of two.
    for body in [&[8][..], &[4, 1, 5]] {
        read_body(BodyLayout::Small, &one_column(DataType::Int8, true), 2, body, &[0]).unwrap();
        refused(read_body(BodyLayout::Small, &strict, 2, body, &[0]), "allows none");
    }
    for body in [&[1, 16][..], &[4, 8 | 1, 0, 1, 5]] {
        read_body(BodyLayout::Columnar, &one_column(DataType::Int8, true), 2, body, &[0]).unwrap();
        refused(read_body(BodyLayout::Columnar, &strict, 2, body, &[0]), "allows none");
    }
}

#[test]
fn bytes_behind_the_last_value_are_refused() {
    refused(small(DataType::Int8, &[3, 0]), "bytes follow the last column");
    refused(columnar(DataType::Int8, 2, &[3, 0]), "bytes follow a column");
    refused(read_body(BodyLayout::Columnar, &one_column(DataType::Int8, true), 2, &[1, 3, 0], &[0]), "add up");
}

#[test]
fn lists_that_are_passed_over_hold_no_more_than_a_chunk_may() {
    let fields = vec![Field::new("list", list_of(DataType::Int8), true), Field::new("x", DataType::Int8, true)];
    let layout = Layout::new(Arc::new(Schema::new(fields))).unwrap();
    // 2^26 as a varint; the shape of the items is zero, and so is that of x.
    let (most, more) = ([0x80, 0x80, 0x80, 0x20], [0x81, 0x80, 0x80, 0x20]);
    let body = |shape: u8, lens: &[&[u8]]| [&[0x30 | shape, 3], lens.concat().as_slice()].concat();
    let pass = |rows: usize, body: &[u8]| read_body(BodyLayout::Small, &layout, rows, body, &[1]);
    pass(1, &body(1, &[&most])).unwrap();
    pass(1, &body(0, &[&most])).unwrap();
    pass(2, &body(0, &[&most, &[0]])).unwrap();
    refused(pass(1, &body(1, &[&more])), "limit");
    refused(pass(2, &body(1, &[&most])), "limit");
    refused(pass(2, &body(0, &[&most, &[1]])), "limit");
    refused(pass(3, &body(0, &[&most, &[0], &most])), "limit");
    // The same if the lists are read.
    for (rows, body) in [(1, body(1, &[&most])), (2, body(1, &[&most])), (2, body(0, &[&most, &[1]]))] {
        assert!(read_body(BodyLayout::Small, &layout, rows, &body, &[0]).is_err());
    }
}

#[test]
fn lists_of_which_few_are_picked_hold_no_more_than_a_chunk_may() {
    let layout = one_column(list_of(DataType::Int8), true);
    let pick = |shape: u8, lens: &[u8], rows: usize, picked: &[u32]| {
        let body = [&[0x30 | shape], lens].concat();
        let head = head_for(BodyLayout::Small, rows, &body);
        let mut set = Columns::new(&layout, &[0], &Defaults::none());
        set.append_rows(&Body::open(&head, &body).unwrap(), 1, picked).map(|()| set.finish())
    };
    let most = [0x80, 0x80, 0x80, 0x20];
    assert_eq!(pick(0, &[&most[..], &[0]].concat(), 2, &[1]).unwrap().num_rows(), 1);
    refused(pick(0, &[&most[..], &[1]].concat(), 2, &[1]), "lengths exceed");
    refused(pick(0, &[&most[..], &most].concat(), 2, &[]), "lengths exceed");
    assert_eq!(pick(1, &[0x80, 0x80, 0x80, 0x10], 2, &[]).unwrap().num_rows(), 0);
    refused(pick(1, &most, 2, &[]), "lengths exceed");
}

#[test]
fn a_text_that_stands_for_all_is_picked_whatever_their_number() {
    let layout = one_column(DataType::Utf8, true);
    let body = [&[1, 65], "t".repeat(65).as_bytes()].concat();
    let head = head_for(BodyLayout::Small, 1 << 20, &body);
    let mut set = Columns::new(&layout, &[0], &Defaults::none());
    set.append_rows(&Body::open(&head, &body).unwrap(), 1, &[7]).unwrap();
    assert_eq!(set.finish().column(0).as_ref(), &StringArray::from(vec!["t".repeat(65)]));
}

#[test]
fn long_texts_are_passed_over() {
    let lens = [3usize, 200, 0, 131];
    let first: ArrayRef = Arc::new(StringArray::from_iter_values(lens.map(|len| "t".repeat(len))));
    let last: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c", "d"]));
    let batch = RecordBatch::try_from_iter([("first", first), ("last", last)]).unwrap();
    let layout = Layout::new(batch.schema()).unwrap();
    for body_layout in [BodyLayout::Small, BodyLayout::Columnar] {
        let chunk = write_as(body_layout, &layout, &batch);
        assert_eq!(read(&layout, &chunk, &[1]).unwrap(), batch.project(&[1]).unwrap());
    }
}

fn int8_chunk(body_layout: BodyLayout, zone: &Zone) -> Encoded {
    let layout = one_column(DataType::Int8, true);
    let column: ArrayRef = Arc::new(arrow_array::Int8Array::from(vec![1, 2]));
    let batch = RecordBatch::try_new(layout.schema().clone(), vec![column]).unwrap();
    let rows = ChunkRows { batch: &batch, origins: &[ORIGIN], row_origin: None, ordinals: None, text: &[] };
    encode_as(body_layout, &layout, 1, &rows, zone, true, &BINDING).unwrap()
}

/// Positions in the head of [`int8_chunk`] with [`zone`].
const FLAGS: usize = 1;
const KEY_MIN_LEN: usize = 12;
const KEY_MAX_SHARED: usize = 21;
const KEY_MAX: usize = 23;
const ORIGIN_COUNT: usize = 25;

fn changed(body_layout: BodyLayout, zone: &Zone, change: impl FnOnce(&mut Vec<u8>)) -> Result<Head, Damage> {
    let mut chunk = int8_chunk(body_layout, zone);
    change(&mut chunk.head);
    reseal(&mut chunk.head, &chunk.body, &BINDING);
    Head::parse(&chunk.head, &BINDING)
}

#[test]
fn flags_without_a_meaning_are_refused() {
    for body_layout in [BodyLayout::Small, BodyLayout::Columnar] {
        refused(changed(body_layout, &zone(), |head| head[FLAGS] |= 0x80), "flags");
        refused(changed(body_layout, &zone(), |head| head[FLAGS] |= 0x30), "compression");
    }
    refused(changed(BodyLayout::Columnar, &zone(), |head| head[FLAGS] |= 0x10), "flags");
}

#[test]
fn keys_longer_than_a_key_are_refused() {
    let with_keys = |keys: &[u8]| {
        changed(BodyLayout::Small, &zone(), |head| drop(head.splice(KEY_MIN_LEN..ORIGIN_COUNT, keys.iter().copied())))
    };
    let keys = |min_len: u8, shared: u8, rest: u8| {
        [&[min_len], vec![1; min_len.into()].as_slice(), &[shared, rest], vec![9; rest.into()].as_slice()].concat()
    };
    for (min_len, shared, rest) in [(0, 0, 0), (0, 0, 16), (16, 16, 0), (16, 0, 16), (8, 1, 15), (8, 8, 8)] {
        with_keys(&keys(min_len, shared, rest)).unwrap();
    }
    for (min_len, shared, rest) in [(17, 0, 8), (17, 17, 0), (8, 9, 0), (8, 1, 16), (16, 16, 1), (0, 0, 17)] {
        refused(with_keys(&keys(min_len, shared, rest)), "longer than a key");
    }
}

#[test]
fn a_range_may_be_one_value_and_does_not_end_before_it_begins() {
    let one = Zone { time_max: zone().time_min, id_max: zone().id_min, ..zone() };
    let same = changed(BodyLayout::Small, &one, |_| ()).unwrap();
    assert_eq!(same.zone, one);
    let all = Zone { time_min: i64::MIN, time_max: i64::MAX, id_min: ZoneKey::MIN, id_max: ZoneKey::MAX };
    assert_eq!(changed(BodyLayout::Small, &all, |_| ()).unwrap().zone, all);
    // The minimum time becomes the largest number, so that adding the span wraps around.
    refused(changed(BodyLayout::Small, &all, |head| head[4] = 0xfe), "ends before");
    refused(changed(BodyLayout::Small, &zone(), |head| head[KEY_MAX] = 0), "ends before");
    let shorter = |head: &mut Vec<u8>| head[KEY_MAX_SHARED] = 5;
    assert!(changed(BodyLayout::Small, &zone(), shorter).is_ok());
}

#[test]
fn there_is_at_least_one_origin_and_no_more_than_fit_the_head() {
    refused(changed(BodyLayout::Small, &zone(), |head| head[ORIGIN_COUNT] = 0), "no origin");
    refused(changed(BodyLayout::Small, &zone(), |head| head[ORIGIN_COUNT] = 2), "limit");
    refused(changed(BodyLayout::Small, &zone(), |head| head.insert(head.len() - 16, 0)), "bytes follow the head");
}

#[test]
fn a_body_of_another_length_is_told_by_what_is_wrong_with_it() {
    let chunk = int8_chunk(BodyLayout::Small, &zone());
    let head = Head::parse(&chunk.head, &BINDING).unwrap();
    let kind = |body: &[u8]| Body::open(&head, body).map(|_| ()).unwrap_err().0;
    assert_eq!(kind(&chunk.body[1..]), DamageKind::Truncated);
    assert_eq!(kind(&[]), DamageKind::Truncated);
    assert_eq!(kind(&[chunk.body.as_slice(), &[0]].concat()), DamageKind::Checksum);
}

#[test]
fn small_blocks_that_zstd_compressed_are_read() {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["0123456789abcdef".repeat(12)]));
    let batch = RecordBatch::try_from_iter([("t", texts)]).unwrap();
    let layout = Layout::new(batch.schema()).unwrap();
    let mut chunk = write_as(BodyLayout::Small, &layout, &batch);
    assert_eq!(chunk.head[FLAGS] >> 4 & 3, 0, "a block too short for LZ4");
    let packed = zstd::bulk::compress(&chunk.body, 3).unwrap();
    // A length below 2^14 takes two bytes of seven bits.
    let length = |len: usize| [len as u8 | 0x80, (len >> 7) as u8];
    let at = chunk.head.len() - 16;
    assert_eq!(chunk.head[at - 2..at], length(chunk.body.len()));
    chunk.head.splice(at - 2..at, [length(packed.len()), length(chunk.body.len())].concat());
    chunk.head[FLAGS] |= 0x20;
    chunk.body = packed;
    reseal(&mut chunk.head, &chunk.body, &BINDING);
    assert_eq!(read_all(&layout, &chunk).unwrap(), batch);
    let head = Head::parse(&chunk.head, &BINDING).unwrap();
    assert!(!head.is_plain() && head.body_layout == BodyLayout::Small);
}

#[test]
fn a_head_says_how_its_body_is_read() {
    for (body_layout, is_small) in [(BodyLayout::Small, true), (BodyLayout::Columnar, false)] {
        let chunk = int8_chunk(body_layout, &zone());
        let head = Head::parse(&chunk.head, &BINDING).unwrap();
        assert_eq!((head.is_plain(), head.has_row_origins()), (is_small, false));
        assert_eq!(Body::open(&head, &chunk.body).unwrap().decodes_single_rows(), is_small);
        assert_eq!(ordinals(&head, &chunk.body).unwrap(), None);
    }
}

#[test]
fn a_head_without_its_filters_of_texts_is_else_the_same() {
    let texts = StringArray::from_iter_values((0..300).map(|i| format!("connection {i} closed")));
    let batch = RecordBatch::try_from_iter([("t", Arc::new(texts) as ArrayRef)]).unwrap();
    let layout = Layout::new(batch.schema()).unwrap();
    let rows = ChunkRows { batch: &batch, origins: &[ORIGIN], row_origin: None, ordinals: None, text: &[0] };
    let chunk = encode_as(BodyLayout::Small, &layout, 1, &rows, &zone(), true, &BINDING).unwrap();
    let head = Head::parse(&chunk.head, &BINDING).unwrap();
    assert!(head.text_filter(0).is_some());
    let without = head.clone().without_text_filters();
    assert!(without.text_filter(0).is_none() && without != head);
    assert_eq!((without.rows, without.zone, &without.origins), (head.rows, head.zone, &head.origins));
    let mut set = Columns::new(&layout, &[0], &Defaults::none());
    set.append(&without, &chunk.body, 1).unwrap();
    assert_eq!(set.finish(), batch);
}

/// The extremes of a column, which is written in the columnar form.
fn stats_of(column: ArrayRef) -> Option<ColumnStats> {
    let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
    let layout = Layout::new(batch.schema()).unwrap();
    let chunk = write_as(BodyLayout::Columnar, &layout, &batch);
    let head = Head::parse(&chunk.head, &BINDING).unwrap();
    Body::open(&head, &chunk.body).unwrap().stats(&layout, 1, 0).unwrap()
}

#[test]
fn extremes_of_every_type_of_number_come_back() {
    macro_rules! check {
        ($Array:ident, $T:ty, $Stats:ident, $Wide:ty) => {
            for (min, max) in [(<$T>::MIN, <$T>::MAX), (<$T>::MIN / 3, 7), (1, 5)] {
                // The extremes are among 254 other values.
                let values = (0..256).map(|i| {
                    if i == 40 {
                        min
                    } else if i == 170 {
                        max
                    } else {
                        1 + i as $T % 4
                    }
                });
                let found = stats_of(Arc::new(arrow_array::$Array::from_iter_values(values.clone())));
                let want = ColumnStats::$Stats { min: values.clone().min().unwrap() as $Wide, max: max as $Wide };
                assert_eq!(found, Some(want));
                assert_eq!(stats_of(Arc::new(arrow_array::$Array::from_iter_values(values.take(255)))), None);
            }
        };
    }
    check!(Int8Array, i8, Signed, i64);
    check!(Int16Array, i16, Signed, i64);
    check!(Int32Array, i32, Signed, i64);
    check!(Int64Array, i64, Signed, i64);
    check!(UInt8Array, u8, Unsigned, u64);
    check!(UInt16Array, u16, Unsigned, u64);
    check!(UInt32Array, u32, Unsigned, u64);
    check!(UInt64Array, u64, Unsigned, u64);
    let floats = |nan: bool| (0..300).map(move |i| if nan && i == 9 { f32::NAN } else { i as f32 / 4.0 - 8.0 });
    for nan in [false, true] {
        let want = Some(ColumnStats::Float { min: -8.0, max: 66.75, has_nan: nan });
        assert_eq!(stats_of(Arc::new(arrow_array::Float32Array::from_iter_values(floats(nan)))), want);
        let doubles = floats(nan).map(f64::from);
        assert_eq!(stats_of(Arc::new(arrow_array::Float64Array::from_iter_values(doubles))), want);
    }
}

#[test]
fn ordinals_and_origins_come_back_in_every_shape() {
    let layout = one_column(DataType::Int8, true);
    for rows in [5, 90, 300] {
        let column: ArrayRef = Arc::new(arrow_array::Int8Array::from(vec![1; rows]));
        let batch = RecordBatch::try_new(layout.schema().clone(), vec![column]).unwrap();
        for (ordinal, step) in [(0, 0), (-9, 0), (7, 100)] {
            let numbers: Vec<i64> = (0..rows as i64).map(|row| ordinal + row * row * step).collect();
            let indexes = vec![u32::from(ordinal != 0); rows];
            let given = ChunkRows {
                batch: &batch,
                origins: &[ORIGIN, ORIGIN],
                row_origin: Some(&indexes),
                ordinals: Some(&numbers),
                text: &[],
            };
            for body_layout in [BodyLayout::Small, BodyLayout::Columnar] {
                let chunk = encode_as(body_layout, &layout, 1, &given, &zone(), true, &BINDING).unwrap();
                let head = Head::parse(&chunk.head, &BINDING).unwrap();
                let body = Body::open(&head, &chunk.body).unwrap();
                assert_eq!(body.ordinals().unwrap().unwrap(), numbers);
                assert_eq!(body.row_origins().unwrap().unwrap(), indexes);
                assert_eq!(read_all(&layout, &chunk).unwrap(), batch);
            }
        }
    }
}
