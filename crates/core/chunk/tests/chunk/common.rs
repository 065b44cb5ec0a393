//! Random schemas and rows from a seed, and helpers that encode and decode a chunk.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, Float64Array, Int64Array, RecordBatch, make_array};
use arrow_buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer};
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use chronotile_chunk::{
    Binding, BodyLayout, ChunkRows, Columns, Defaults, Encoded, Head, Layout, Origin, Zone, encode_as,
};
use chronotile_types::{BatchId, Cell, ChunkId, Damage, Tile, Window, ZoneKey};

/// SplitMix64: the same sequence on every machine, so that golden files can be reproduced.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

pub const BINDING: Binding = Binding {
    tile: Tile { cell: Cell(-77), window: Window(19) },
    chunk: ChunkId(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
};

pub const ORIGIN: Origin = Origin {
    batch: BatchId(0xfeed_0000_1111_2222_3333_4444_5555_6666),
    written_us: 1_763_700_000_123_456,
    token: 0x9abc_def0,
};

pub fn zone() -> Zone {
    Zone {
        time_min: -5,
        time_max: 1 << 45,
        id_min: ZoneKey::from_i64(17_000_000),
        id_max: ZoneKey::from_i64(17_000_999),
    }
}

/// Every type of the format without children.
pub fn flat_types() -> Vec<DataType> {
    use DataType::*;
    use TimeUnit::*;
    vec![
        Boolean,
        Int8,
        Int16,
        Int32,
        Int64,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
        Float32,
        Float64,
        Utf8,
        Binary,
        Date32,
        Date64,
        Time32(Second),
        Time32(Millisecond),
        Time64(Microsecond),
        Time64(Nanosecond),
        Timestamp(Second, None),
        Timestamp(Millisecond, Some("UTC".into())),
        Timestamp(Microsecond, Some("Europe/Paris".into())),
        Timestamp(Nanosecond, None),
        Duration(Second),
        Duration(Millisecond),
        Duration(Microsecond),
        Duration(Nanosecond),
        Decimal128(38, 9),
        FixedSizeBinary(1),
        FixedSizeBinary(5),
        FixedSizeBinary(16),
    ]
}

pub fn arbitrary_type(rng: &mut Rng, depth: usize) -> DataType {
    match rng.below(if depth == 0 { 6 } else { 10 }) {
        6 | 7 => DataType::List(Arc::new(arbitrary_field(rng, "item", depth - 1))),
        8 | 9 => {
            let fields = (0..1 + rng.below(3)).map(|i| arbitrary_field(rng, &format!("f{i}"), depth - 1));
            DataType::Struct(fields.collect::<Vec<_>>().into())
        }
        _ => {
            let types = flat_types();
            types[rng.below(types.len())].clone()
        }
    }
}

pub fn arbitrary_field(rng: &mut Rng, name: &str, depth: usize) -> Field {
    let data_type = arbitrary_type(rng, depth);
    Field::new(name, data_type, rng.chance(70))
}

pub fn arbitrary_schema(rng: &mut Rng, columns: usize) -> SchemaRef {
    Arc::new(Schema::new((0..columns).map(|i| arbitrary_field(rng, &format!("c{i}"), 3)).collect::<Vec<_>>()))
}

/// The distribution of an array's values. Each codec is made for one of them.
#[derive(Clone, Copy)]
enum Style {
    Random,
    Zero,
    Constant(u64),
    Near(u64),
    Few,
    Special,
}

fn style(rng: &mut Rng) -> Style {
    match rng.below(6) {
        0 => Style::Random,
        1 => Style::Zero,
        2 => Style::Constant(rng.next()),
        3 => Style::Near(rng.next()),
        4 => Style::Few,
        _ => Style::Special,
    }
}

fn draw(rng: &mut Rng, style: Style, data_type: &DataType) -> u64 {
    const F64: [u64; 8] = [
        0x7ff8_0000_0000_0000,
        0x7ff0_0000_0000_0001,
        0xfff8_dead_beef_0001,
        0x8000_0000_0000_0000,
        0x7ff0_0000_0000_0000,
        0xfff0_0000_0000_0000,
        1,
        0x3ff8_0000_0000_0000,
    ];
    const F32: [u64; 8] =
        [0x7fc0_0000, 0x7f80_0001, 0xffc1_2345, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 1, 0x3fc0_0000];
    match style {
        Style::Random => rng.next(),
        Style::Zero => 0,
        Style::Constant(value) => value,
        Style::Near(base) => base.wrapping_add(rng.next() % 300),
        Style::Few => [3, 70_000, u64::MAX, 1 << 63][rng.below(4)],
        Style::Special => match data_type {
            DataType::Float32 => F32[rng.below(8)],
            DataType::Float64 => F64[rng.below(8)],
            _ => [0, 1, i64::MAX as u64, i64::MIN as u64, u64::MAX, 0x7fff_ffff, 0x80, 0x8000_0000][rng.below(8)],
        },
    }
}

fn arbitrary_nulls(rng: &mut Rng, nullable: bool, rows: usize) -> Option<NullBuffer> {
    if !nullable || rng.chance(30) {
        return None;
    }
    let percent = [0, 10, 50, 100][rng.below(4)];
    Some(NullBuffer::new((0..rows).map(|_| !rng.chance(percent)).collect::<BooleanBuffer>()))
}

fn width(data_type: &DataType) -> usize {
    match data_type {
        DataType::FixedSizeBinary(width) => *width as usize,
        other => other.primitive_width().unwrap(),
    }
}

/// `rows` values with garbage under nulls, as other libraries leave it.
pub fn arbitrary_array(rng: &mut Rng, field: &Field, rows: usize) -> ArrayRef {
    let style = style(rng);
    let data_type = field.data_type();
    let nulls = arbitrary_nulls(rng, field.is_nullable(), rows);
    let builder = ArrayData::builder(data_type.clone()).len(rows).nulls(nulls);
    let builder = match data_type {
        DataType::Boolean => {
            let bits: BooleanBuffer = (0..rows).map(|_| draw(rng, style, data_type) & 1 == 1).collect();
            builder.add_buffer(bits.into_inner())
        }
        DataType::Utf8 | DataType::Binary => {
            let (mut offsets, mut bytes) = (vec![0i32], Vec::new());
            for _ in 0..rows {
                let value = draw(rng, style, data_type);
                let text = match value % 5 {
                    0 => String::new(),
                    1 => "é\u{1F52D}".repeat((value >> 8) as usize % 3),
                    _ => format!("v{}", value % 1000),
                };
                bytes.extend_from_slice(text.as_bytes());
                if data_type == &DataType::Binary {
                    bytes.push(value as u8);
                }
                offsets.push(bytes.len() as i32);
            }
            builder.add_buffer(Buffer::from_vec(offsets)).add_buffer(Buffer::from_vec(bytes))
        }
        DataType::List(item) => {
            let mut offsets = vec![0i32];
            for _ in 0..rows {
                let len = draw(rng, style, data_type) % 4;
                offsets.push(offsets[offsets.len() - 1] + len as i32);
            }
            let items = arbitrary_array(rng, item, offsets[rows] as usize);
            builder.add_buffer(Buffer::from_vec(offsets)).add_child_data(items.to_data())
        }
        DataType::Struct(fields) => {
            builder.child_data(fields.iter().map(|f| arbitrary_array(rng, f, rows).to_data()).collect())
        }
        _ => {
            let width = width(data_type);
            let mut values = MutableBuffer::new(rows * width);
            for _ in 0..rows {
                let value = draw(rng, style, data_type);
                let wide = (u128::from(value) | u128::from(value >> 3) << 64).to_le_bytes();
                values.extend_from_slice(&wide[..width]);
            }
            builder.add_buffer(values.into())
        }
    };
    make_array(builder.build().unwrap())
}

/// Rows sliced from longer arrays, so that offsets are not zero.
pub fn arbitrary_batch(rng: &mut Rng, schema: &SchemaRef, rows: usize) -> RecordBatch {
    let (before, after) = (rng.below(12), rng.below(3));
    let columns = schema.fields().iter().map(|f| arbitrary_array(rng, f, before + rows + after)).collect();
    RecordBatch::try_new(schema.clone(), columns).unwrap().slice(before, rows)
}

/// Decimals of both types with several digits, nulls and exceptions, and arithmetic sequences of integers.
pub fn decimal_batch(rng: &mut Rng, rows: usize) -> RecordBatch {
    let mut level = 500i64;
    let walk: Vec<i64> = (0..rows)
        .map(|_| {
            level += rng.below(5) as i64 - 2;
            level
        })
        .collect();
    let odd = [f64::from_bits(0x7ff8_dead_beef_0001), -0.0, f64::INFINITY, f64::NEG_INFINITY, 0.1 + 0.2];
    let even =
        |start: i64, step: i64| Int64Array::from_iter_values((0..rows as i64).map(|i| start.wrapping_add(i * step)));
    let double = |power: f64| Float64Array::from_iter_values(walk.iter().map(|whole| *whole as f64 / power));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("time", Arc::new(even(1_767_225_600_000_000_000, 1_000_000_000))),
        ("falling", Arc::new(even(i64::MIN + 9, -5))),
        ("two_digits", Arc::new(double(1e2))),
        ("counts", Arc::new(double(1.0))),
        ("float32", Arc::new(Float32Array::from_iter_values(walk.iter().map(|whole| *whole as f32 / 10.0)))),
        ("widened", Arc::new(Float64Array::from_iter_values(walk.iter().map(|whole| f64::from(*whole as f32 / 1e3))))),
        (
            "wide",
            Arc::new(Float64Array::from_iter_values(walk.iter().map(|whole| (*whole + 123_456_789_012) as f64 / 1e4))),
        ),
        (
            "exceptions",
            Arc::new(Float64Array::from_iter_values(walk.iter().enumerate().map(|(row, whole)| match row % 90 {
                17 => odd[row / 90 % odd.len()],
                _ => *whole as f64 / 1e2,
            }))),
        ),
        (
            "nulls",
            Arc::new(
                walk.iter().map(|whole| (whole % 7 != 0).then_some(*whole as f64 / 1e2)).collect::<Float64Array>(),
            ),
        ),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

pub fn write_as(body_layout: BodyLayout, layout: &Layout, batch: &RecordBatch) -> Encoded {
    let rows = ChunkRows { batch, origins: &[ORIGIN], row_origin: None, ordinals: None, text: &[] };
    encode_as(body_layout, layout, 1, &rows, &zone(), true, &BINDING).unwrap()
}

pub fn read(layout: &Layout, chunk: &Encoded, projection: &[usize]) -> Result<RecordBatch, Damage> {
    let head = Head::parse(&chunk.head, &BINDING)?;
    let mut columns = Columns::new(layout, projection, &Defaults::none());
    columns.append(&head, &chunk.body, layout.schema().fields().len())?;
    Ok(columns.finish())
}

pub fn read_all(layout: &Layout, chunk: &Encoded) -> Result<RecordBatch, Damage> {
    read(layout, chunk, &(0..layout.schema().fields().len()).collect::<Vec<_>>())
}
