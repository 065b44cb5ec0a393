//! Damaged chunks are detected, and no bytes make the decoder panic, hang or exceed its limits.

use std::sync::Arc;

use arrow_array::{Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use chronotile_chunk::{
    Binding, Body, BodyLayout, ChunkRows, Columns, Defaults, Encoded, Grams, Head, Layout, encode_as, reseal,
};
use chronotile_types::{Cell, ChunkId, DamageKind, Tile, Window};
use proptest::prelude::*;

use crate::common::*;

/// Reads everything in a chunk. The result does not matter, only that the calls return.
fn touch(layout: &Layout, head: &[u8], body: &[u8], columns_in_schema: usize) -> bool {
    let Ok(head) = Head::parse(head, &BINDING) else { return false };
    let all: Vec<usize> = (0..layout.schema().fields().len()).collect();
    for filter in all.iter().filter_map(|column| head.text_filter(*column)) {
        let _ = filter.may_hold(&Grams::of(body));
    }
    let mut set = Columns::new(layout, &all, &Defaults::none());
    let whole = set.append(&head, body, columns_in_schema).is_ok();
    assert_eq!(set.finish().num_rows(), if whole { head.rows as usize } else { 0 });
    if let Ok(opened) = Body::open(&head, body) {
        let _ = opened.row_origins();
        let _ = opened.ordinals();
        if opened.decodes_single_rows() {
            let picked: Vec<u32> = (0..head.rows).filter(|row| row % 3 == 1).collect();
            let mut some = Columns::new(layout, &all, &Defaults::none());
            let read = some.append_rows(&opened, columns_in_schema, &picked).is_ok();
            assert_eq!(some.finish().num_rows(), if read { picked.len() } else { 0 });
        }
        all.iter().for_each(|column| drop(opened.stats(layout, columns_in_schema, *column)));
        all.iter().rev().for_each(|column| {
            let mut one = Columns::new(layout, &[*column], &Defaults::none());
            let _ = one.append_body(&opened, columns_in_schema);
            drop(one.finish());
        });
    }
    whole
}

/// A chunk with every kind of column, small enough to change each of its bytes.
fn sample(body_layout: BodyLayout, columns: usize, rows: usize, seed: u64) -> (Layout, RecordBatch, Encoded) {
    let mut rng = Rng(seed);
    let schema = arbitrary_schema(&mut rng, columns);
    let layout = Layout::new(schema.clone()).unwrap();
    let batch = arbitrary_batch(&mut rng, &schema, rows);
    let indexes: Vec<u32> = (0..rows as u32).map(|row| row % 2).collect();
    let numbers: Vec<i64> = (0..rows as i64).collect();
    let mut second = ORIGIN;
    second.written_us += 5;
    let is_text = |column: &usize| schema.field(*column).data_type() == &DataType::Utf8;
    let texts: Vec<usize> = (0..columns).filter(is_text).collect();
    let set = ChunkRows {
        batch: &batch,
        origins: &[ORIGIN, second],
        row_origin: Some(&indexes),
        ordinals: Some(&numbers),
        text: &texts,
    };
    let chunk = encode_as(body_layout, &layout, 1, &set, &zone(), true, &BINDING).unwrap();
    (layout, batch, chunk)
}

#[test]
fn every_changed_byte_and_every_cut_is_detected() {
    let mut filters = 0;
    for (body_layout, columns, rows, seed) in [
        (BodyLayout::Small, 30, 5, 1),
        (BodyLayout::Small, 12, 40, 2),
        (BodyLayout::Columnar, 20, 90, 3),
        (BodyLayout::Columnar, 6, 300, 4),
    ] {
        let (layout, batch, chunk) = sample(body_layout, columns, rows, seed);
        assert_eq!(read_all(&layout, &chunk).unwrap(), batch);
        filters += (0..columns).filter(|column| head_of(&chunk).text_filter(*column).is_some()).count();
        for part in 0..2 {
            let len = if part == 0 { chunk.head.len() } else { chunk.body.len() };
            for at in 0..len {
                for change in [1u8, 0x80, 0xff] {
                    let mut bad = chunk.clone();
                    let bytes = if part == 0 { &mut bad.head } else { &mut bad.body };
                    bytes[at] ^= change;
                    assert!(read_all(&layout, &bad).is_err(), "part {part} byte {at} changed by {change:#x} unnoticed");
                }
                let mut short = chunk.clone();
                let bytes = if part == 0 { &mut short.head } else { &mut short.body };
                bytes.truncate(at);
                assert!(read_all(&layout, &short).is_err(), "part {part} cut to {at} unnoticed");
            }
            let mut long = chunk.clone();
            let bytes = if part == 0 { &mut long.head } else { &mut long.body };
            bytes.push(0);
            assert!(read_all(&layout, &long).is_err(), "a byte added to part {part} unnoticed");
        }
    }
    assert!(filters > 0, "no sample has a text filter");
}

#[test]
fn a_chunk_under_another_tile_or_id_is_detected() {
    let (_, _, chunk) = sample(BodyLayout::Small, 3, 5, 9);
    let Binding { tile, chunk: id } = BINDING;
    for other in [
        Binding { tile: Tile { cell: Cell(tile.cell.0 + 1), ..tile }, chunk: id },
        Binding { tile: Tile { window: Window(tile.window.0 ^ 1), ..tile }, chunk: id },
        Binding { tile, chunk: ChunkId(id.0 ^ 1 << 90) },
    ] {
        assert_eq!(Head::parse(&chunk.head, &other).unwrap_err().0, DamageKind::Checksum);
    }
    assert!(Head::parse(&chunk.head, &BINDING).is_ok());
}

#[test]
fn the_body_of_another_chunk_is_detected() {
    let (layout, _, one) = sample(BodyLayout::Small, 3, 5, 9);
    let (_, _, other) = sample(BodyLayout::Small, 3, 5, 10);
    assert!(read_all(&layout, &Encoded { body: other.body, ..one }).is_err());
}

#[test]
fn a_newer_container_is_named_as_such() {
    let (_, _, mut chunk) = sample(BodyLayout::Small, 3, 5, 9);
    chunk.head[0] = 2;
    assert_eq!(Head::parse(&chunk.head, &BINDING).unwrap_err().0, DamageKind::UnknownVersion(2));
}

#[test]
fn a_damaged_chunk_leaves_the_set_as_it_was() {
    for body_layout in [BodyLayout::Small, BodyLayout::Columnar] {
        let (layout, batch, chunk) = sample(body_layout, 15, 70, 5);
        let head = Head::parse(&chunk.head, &BINDING).unwrap();
        let all: Vec<usize> = (0..15).collect();
        let mut set = Columns::new(&layout, &all, &Defaults::none());
        set.append(&head, &chunk.body, 15).unwrap();
        let mut failures = 0;
        for at in 0..chunk.body.len() {
            let mut bad = chunk.clone();
            bad.body[at] ^= 0x55;
            reseal(&mut bad.head, &bad.body, &BINDING);
            let head = Head::parse(&bad.head, &BINDING).unwrap();
            let before = set.rows();
            if set.append(&head, &bad.body, 15).is_err() {
                failures += 1;
                assert_eq!(set.rows(), before);
            } else {
                // Values changed without breaking a rule: start again with the intact rows only.
                set = Columns::new(&layout, &all, &Defaults::none());
                set.append(&head_of(&chunk), &chunk.body, 15).unwrap();
            }
        }
        assert!(failures > 10, "only {failures} changes broke a rule");
        set.append(&head, &chunk.body, 15).unwrap();
        let want = arrow_select::concat::concat_batches(&layout.schema().clone(), [&batch, &batch]).unwrap();
        assert_eq!(set.finish(), want);
    }
}

fn head_of(chunk: &Encoded) -> Head {
    Head::parse(&chunk.head, &BINDING).unwrap()
}

#[test]
fn a_tiny_chunk_cannot_announce_a_flood() {
    // A million rows of a thousand constant columns take only a few kilobytes of valid bytes.
    let constant = |rows: usize| {
        let schema = Arc::new(Schema::new(
            (0..1000).map(|i| Field::new(format!("c{i}"), DataType::Int64, false)).collect::<Vec<_>>(),
        ));
        let column = Arc::new(Int64Array::from(vec![7; rows]));
        RecordBatch::try_new(schema, vec![column as _; 1000]).unwrap()
    };
    let batch = constant(100);
    let layout = Layout::new(batch.schema()).unwrap();
    let mut chunk = write_as(BodyLayout::Columnar, &layout, &batch);
    // Byte 3 is the row count, 100; nothing else in a constant column depends on it. Three bytes make it 2^20.
    assert_eq!(chunk.head[3], 100);
    chunk.head.splice(3..4, [0x80, 0x80, 0x40]);
    reseal(&mut chunk.head, &chunk.body, &BINDING);
    assert_eq!(Head::parse(&chunk.head, &BINDING).unwrap().rows, 1 << 20);
    let damage = read_all(&layout, &chunk).unwrap_err();
    assert!(damage.to_string().contains("more than a chunk may hold"), "{damage}");
    assert_eq!(read(&layout, &chunk, &[3]).unwrap().num_rows(), 1 << 20);
}

/// A column of float64 decimals: first byte, scale, exceptions, codec of the integers and so on.
#[test]
fn decimals_that_break_a_rule_are_refused() {
    let values: Vec<f64> = (0..200).map(|i| if i == 40 { f64::NAN } else { f64::from(i % 7) / 10.0 }).collect();
    let batch = RecordBatch::try_from_iter([("value", Arc::new(Float64Array::from(values)) as _)]).unwrap();
    let layout = Layout::new(batch.schema()).unwrap();
    let chunk = write_as(BodyLayout::Columnar, &layout, &batch);
    assert_eq!(read_all(&layout, &chunk).unwrap(), batch);
    // The directory takes two bytes, and 200 values have no extremes.
    let node = chunk.body.iter().position(|byte| byte & 7 == 6).unwrap();
    assert_eq!(chunk.body[node + 1..node + 3], [1, 1], "scale 1, one exception");
    // The last bytes are the position of the exception, a constant 40, and its uncompressed value.
    let place = chunk.body.len() - 8 - 1 - 4;
    assert_eq!(chunk.body[place], 40);
    for (at, value, says) in
        [(node + 1, 23, "scale"), (node + 1, 0x81, "scale"), (node + 2, 0xff, "limit"), (place, 200, "out of order")]
    {
        let mut bad = chunk.clone();
        bad.body[at] = value;
        reseal(&mut bad.head, &bad.body, &BINDING);
        let damage = read_all(&layout, &bad).unwrap_err().to_string();
        assert!(damage.contains(says), "{at}: {damage}");
    }
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    let texts = Arc::new(StringArray::from(vec!["aé", "b", "cd"]));
    let schema = Arc::new(Schema::new(vec![Field::new("t", DataType::Utf8, false)]));
    let batch = RecordBatch::try_new(schema.clone(), vec![texts]).unwrap();
    let layout = Layout::new(schema).unwrap();
    for body_layout in [BodyLayout::Small, BodyLayout::Columnar] {
        let chunk = write_as(body_layout, &layout, &batch);
        let at = chunk.body.iter().position(|byte| *byte == 0xc3).unwrap();
        let mut bad = chunk.clone();
        bad.body[at] = 0xff;
        reseal(&mut bad.head, &bad.body, &BINDING);
        assert!(read_all(&layout, &bad).unwrap_err().to_string().contains("UTF-8"));
    }
    // Lengths 3 1 2 become 2 2 2: all bytes are still valid UTF-8, but a value now ends within a character.
    let mut bad = write_as(BodyLayout::Small, &layout, &batch);
    let at = bad.body.windows(3).position(|w| w == [3, 1, 2]).unwrap();
    bad.body[at..at + 2].copy_from_slice(&[2, 2]);
    reseal(&mut bad.head, &bad.body, &BINDING);
    assert!(read_all(&layout, &bad).unwrap_err().to_string().contains("within a character"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn arbitrary_bytes_never_panic(seed: u64, head: Vec<u8>, body: Vec<u8>, sealed: bool) {
        let mut rng = Rng(seed);
        let layout = Layout::new(arbitrary_schema(&mut rng, 6)).unwrap();
        let mut head = head;
        if sealed && !head.is_empty() {
            head[0] = 1;
            reseal(&mut head, &body, &BINDING);
        }
        touch(&layout, &head, &body, 6);
    }

    #[test]
    fn changed_bytes_behind_a_mended_checksum_never_panic(
        seed: u64, columns in 1..10usize, rows in prop_oneof![1..9usize, 60..200usize],
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        in_head: bool, columnar: bool, declared in 0..12usize,
    ) {
        let body_layout = if columnar { BodyLayout::Columnar } else { BodyLayout::Small };
        let (layout, _, mut chunk) = sample(body_layout, columns, rows, seed);
        for (at, value) in changes {
            let bytes = if in_head { &mut chunk.head } else { &mut chunk.body };
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        chunk.head[0] = 1;
        reseal(&mut chunk.head, &chunk.body, &BINDING);
        touch(&layout, &chunk.head, &chunk.body, if in_head { declared } else { columns });
    }

    #[test]
    fn changed_bytes_of_decimals_and_sequences_never_panic(
        seed: u64, rows in 4..400usize, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let batch = decimal_batch(&mut Rng(seed), rows);
        let layout = Layout::new(batch.schema()).unwrap();
        let mut chunk = write_as(BodyLayout::Columnar, &layout, &batch);
        for (at, value) in changes {
            let at = at.index(chunk.body.len());
            chunk.body[at] = value;
        }
        reseal(&mut chunk.head, &chunk.body, &BINDING);
        touch(&layout, &chunk.head, &chunk.body, batch.num_columns());
    }
}
