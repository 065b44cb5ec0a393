//! Decodes arbitrary bytes as a chunk. The first byte says how many schema columns the chunk claims to have and whether its
//! checksums are mended, without which the decoder behind them would never be reached.
//!
//! `./dev fuzz`.

#![no_main]

use std::sync::{Arc, OnceLock};

use arrow_schema::{DataType, Field, Schema, TimeUnit};
use chronotile_chunk::{Binding, Body, Columns, Defaults, Grams, Head, Layout, reseal};
use chronotile_types::{Cell, ChunkId, Tile, Window};
use libfuzzer_sys::fuzz_target;

const BINDING: Binding = Binding { tile: Tile { cell: Cell(1), window: Window(2) }, chunk: ChunkId(3) };

fn layout() -> &'static Layout {
    static LAYOUT: OnceLock<Layout> = OnceLock::new();
    LAYOUT.get_or_init(|| {
        use DataType::*;
        let item = |data_type, nullable| Arc::new(Field::new("item", data_type, nullable));
        let pair = Struct(vec![Field::new("a", Utf8, true), Field::new("b", Int16, false)].into());
        let types = [
            Float64,
            Int64,
            Boolean,
            Utf8,
            Float32,
            UInt8,
            Binary,
            FixedSizeBinary(3),
            Decimal128(20, 2),
            List(item(Float32, true)),
            List(item(List(item(Utf8, false)), true)),
            pair.clone(),
            List(item(pair, true)),
            Timestamp(TimeUnit::Microsecond, None),
            Int8,
            UInt32,
        ];
        let fields = types.into_iter().enumerate().map(|(i, t)| Field::new(format!("c{i}"), t, i % 3 != 1));
        Layout::new(Arc::new(Schema::new(fields.collect::<Vec<_>>()))).expect("every type is in the format")
    })
}

fuzz_target!(|data: &[u8]| {
    let [mode, head_len, data @ ..] = data else { return };
    let (head, body) = data.split_at((*head_len as usize).min(data.len()));
    let (mut head, columns) = (head.to_vec(), usize::from(mode & 0x1f));
    if mode & 0x80 != 0 && !head.is_empty() {
        head[0] = 1;
        reseal(&mut head, body, &BINDING);
    }
    let Ok(mut head) = Head::parse(&head, &BINDING) else { return };
    for column in 0..layout().schema().fields().len() {
        let _ = head.text_filter(column).map(|filter| filter.may_hold(&Grams::of(data)));
    }
    if mode & 0x40 != 0 {
        // The body's length follows from the bytes given, whatever the head says.
        head.set_body_bytes(body.len());
    }
    let layout = layout();
    let all: Vec<usize> = (0..layout.schema().fields().len()).collect();
    let mut set = Columns::new(layout, &all, &Defaults::none());
    let whole = set.append(&head, body, columns).is_ok();
    assert_eq!(set.finish().num_rows(), if whole { head.rows as usize } else { 0 });
    if let Ok(opened) = Body::open(&head, body) {
        let _ = opened.row_origins();
        let _ = opened.ordinals();
        if opened.decodes_single_rows() {
            let picked: Vec<u32> = (0..head.rows).filter(|row| row % 3 == 1).take(1_000).collect();
            let mut some = Columns::new(layout, &all, &Defaults::none());
            let read = some.append_rows(&opened, columns, &picked).is_ok();
            assert_eq!(some.finish().num_rows(), if read { picked.len() } else { 0 });
        }
        for column in all {
            let _ = opened.stats(layout, columns, column);
            let mut one = Columns::new(layout, &[column], &Defaults::none());
            let _ = one.append_body(&opened, columns);
            drop(one.finish());
        }
    }
});
