//! Size and speed of chunks, compared with Arrow IPC + zstd and Parquet + zstd, on survey-like rows of 100 columns.
//!
//! `cargo run --release -p chronotile-chunk --example codec_bench`; `bench/chunks/codec.py` makes the table. Arguments: `json`
//! prints a line of JSON per measurement, `chunks` compares the two forms, `profile` decodes small chunks for a profiler,
//! `history` measures points of process history.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{
    Array, ArrayRef, BooleanArray, Float32Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
    UInt32Array,
};
use arrow_ipc::CompressionType;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use chronotile_chunk::{
    Binding, BodyLayout, ChunkRows, Columns, Defaults, Encoded, Head, Layout, Origin, Zone, encode, encode_as,
};
use chronotile_types::{BatchId, Cell, ChunkId, Tile, Window, ZoneKey};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

/// SplitMix64, so that every run measures the same rows.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// An approximately normal number: the centred sum of four uniform numbers.
    fn noise(&mut self) -> f64 {
        (0..4).map(|_| self.unit()).sum::<f64>() - 2.0
    }
}

/// The kind of a column of a survey's source table, within one tile.
#[derive(Clone, Copy)]
enum Column {
    Id,
    Visit,
    Detector,
    Time,
    Position,
    Flux32,
    Error32,
    Moment64,
    Sometimes32,
    Absent32,
    Absent64,
    Flag,
    Band,
    Count,
    Parent,
}

/// 60 float32, 16 float64, 9 int64, 11 bool, 2 int32, 2 text columns; a tenth always null, as in real alerts.
fn columns() -> Vec<Column> {
    use Column::*;
    let mut all = vec![Id, Parent, Visit, Detector, Time, Position, Position, Band, Band, Count, Count];
    all.extend([Flux32; 28].iter().chain(&[Error32; 17]).chain(&[Sometimes32; 8]).chain(&[Absent32; 7]));
    all.extend([Moment64; 10].iter().chain(&[Absent64; 3]).chain(&[Flag; 11]).chain(&[Visit; 5]));
    all
}

fn schema(columns: &[Column]) -> SchemaRef {
    use Column::*;
    let field = |(i, column): (usize, &Column)| {
        let data_type = match column {
            Id | Parent | Visit => DataType::Int64,
            Detector | Count => DataType::Int32,
            Time | Position | Moment64 | Absent64 => DataType::Float64,
            Flux32 | Error32 | Sometimes32 | Absent32 => DataType::Float32,
            Flag => DataType::Boolean,
            Band => DataType::Utf8,
        };
        Field::new(format!("column_{i}"), data_type, !matches!(column, Id))
    };
    Arc::new(Schema::new(columns.iter().enumerate().map(field).collect::<Vec<_>>()))
}

/// `rows` rows of a tile, written by visits of `per_visit` rows each.
fn rows(rng: &mut Rng, columns: &[Column], schema: &SchemaRef, rows: usize, per_visit: usize) -> RecordBatch {
    use Column::*;
    let first = rng.next() % 100_000;
    let visit = |row: usize| 2_025_110_000_000 + (first + (row / per_visit) as u64) as i64;
    let array = |column: &Column| -> ArrayRef {
        match column {
            Id => {
                Arc::new(Int64Array::from_iter_values((0..rows).map(|r| (visit(r) << 20) + (rng.next() % 9000) as i64)))
            }
            Parent => Arc::new(Int64Array::from_iter_values((0..rows).map(|_| (rng.next() >> 2) as i64))),
            Visit => Arc::new(Int64Array::from_iter_values((0..rows).map(visit))),
            Detector => Arc::new(Int32Array::from_iter_values((0..rows).map(|r| (visit(r) % 189) as i32))),
            Count => Arc::new(Int32Array::from_iter_values((0..rows).map(|_| (rng.next() % 40) as i32))),
            Time => Arc::new(Float64Array::from_iter_values((0..rows).map(|r| 60_000.0 + visit(r) as f64 * 0.000_417))),
            Position => Arc::new(Float64Array::from_iter_values((0..rows).map(|_| 150.0 + rng.unit() * 0.1))),
            Moment64 => Arc::new(Float64Array::from_iter_values((0..rows).map(|_| 3.0 + rng.noise()))),
            Flux32 => Arc::new(Float32Array::from_iter_values((0..rows).map(|_| (rng.noise() * 1500.0) as f32))),
            Error32 => Arc::new(Float32Array::from_iter_values((0..rows).map(|_| (90.0 + rng.noise() * 12.0) as f32))),
            Sometimes32 => {
                Arc::new((0..rows).map(|_| (rng.unit() < 0.7).then(|| rng.noise() as f32)).collect::<Float32Array>())
            }
            Absent32 => Arc::new(Float32Array::new_null(rows)),
            Absent64 => Arc::new(Float64Array::new_null(rows)),
            Flag => Arc::new(BooleanArray::from_iter((0..rows).map(|_| Some(rng.unit() < 0.03)))),
            Band => {
                Arc::new(StringArray::from_iter_values((0..rows).map(|r| ["g", "r", "i", "z"][visit(r) as usize % 4])))
            }
        }
    };
    RecordBatch::try_new(schema.clone(), columns.iter().map(array).collect()).expect("columns fit the schema")
}

const BINDING: Binding = Binding { tile: Tile { cell: Cell(5), window: Window(7) }, chunk: ChunkId(9) };
const ORIGIN: Origin = Origin { batch: BatchId(1 << 100), written_us: 1_763_700_000_000_000, token: 0x1234_5678 };

fn zone() -> Zone {
    Zone {
        time_min: 1_763_700_000_000_000,
        time_max: 1_763_700_100_000_000,
        id_min: ZoneKey::from_i64(2_025_110_000_000 << 20),
        id_max: ZoneKey::from_i64((2_025_110_000_000 << 20) + 9000),
    }
}

fn parts(batch: &RecordBatch) -> ChunkRows<'_> {
    ChunkRows { batch, origins: &[ORIGIN], row_origin: None, ordinals: None, text: &[] }
}

/// Seconds per item: the median of at least five repetitions.
fn time(items: usize, mut run: impl FnMut()) -> f64 {
    run();
    let mut samples = Vec::new();
    let begun = Instant::now();
    while samples.len() < 5 || begun.elapsed().as_secs_f64() < 0.3 {
        let start = Instant::now();
        run();
        samples.push(start.elapsed().as_secs_f64() / items as f64);
    }
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Raw size of the values in bytes: widths times rows, a bit per boolean, and text.
fn raw_bytes(batch: &RecordBatch) -> usize {
    let column = |array: &ArrayRef| match array.data_type() {
        DataType::Boolean => array.len().div_ceil(8),
        DataType::Utf8 => {
            array.as_any().downcast_ref::<StringArray>().map_or(0, |a| a.value_data().len() + 4 * a.len())
        }
        other => array.len() * other.primitive_width().unwrap_or(0),
    };
    batch.columns().iter().map(column).sum()
}

struct Line {
    codec: &'static str,
    rows: usize,
    raw: usize,
    bytes: f64,
    encode: f64,
    decode: f64,
    decode4: f64,
}

impl Line {
    fn print(&self, json: bool) {
        let Line { codec, rows, raw, bytes, encode, decode, decode4 } = self;
        let (ratio, us) = (bytes / *raw as f64, 1e6);
        if json {
            println!(
                "{{\"codec\":\"{codec}\",\"rows\":{rows},\"raw_bytes\":{raw},\"bytes\":{bytes:.0},\"encode_us\":{:.2},\"decode_us\":{:.2},\"decode_4_columns_us\":{:.2}}}",
                encode * us,
                decode * us,
                decode4 * us
            );
        } else {
            println!(
                "{codec:<22} {rows:>5} rows {raw:>8} raw {bytes:>9.0} bytes {ratio:>6.2} x  encode {:>9.1} us  decode {:>8.2} us  4 columns {:>8.2} us",
                encode * us,
                decode * us,
                decode4 * us
            );
        }
    }
}

const FOUR: [usize; 4] = [4, 5, 20, 70];

fn read_chunks(layout: &Layout, chunks: &[Encoded], projection: &[usize]) -> RecordBatch {
    let mut set = Columns::new(layout, projection, &Defaults::none());
    set.reserve(chunks.iter().map(|chunk| chunk.rows as usize).sum());
    for chunk in chunks {
        let head = Head::parse(&chunk.head, &BINDING).expect("the head is sound");
        set.append(&head, &chunk.body, layout.columns_count()).expect("the body is sound");
    }
    set.finish()
}

trait Count {
    fn columns_count(&self) -> usize;
}

impl Count for Layout {
    fn columns_count(&self) -> usize {
        self.schema().fields().len()
    }
}

fn chunk_line(codec: &'static str, form: Option<BodyLayout>, layout: &Layout, batches: &[RecordBatch]) -> Line {
    let write = |batch: &RecordBatch| match form {
        Some(form) => encode_as(form, layout, 1, &parts(batch), &zone(), true, &BINDING),
        None => encode(layout, 1, &parts(batch), &zone(), true, &BINDING),
    };
    let chunks: Vec<_> = batches.iter().map(|batch| write(batch).expect("the rows fit")).collect();
    let all: Vec<_> = (0..layout.columns_count()).collect();
    let read = read_chunks(layout, &chunks[..1], &all);
    assert_eq!(read, batches[0], "the chunk does not give its rows back");
    Line {
        codec,
        rows: batches[0].num_rows(),
        raw: raw_bytes(&batches[0]),
        bytes: chunks.iter().map(|c| c.head.len() + c.body.len()).sum::<usize>() as f64 / chunks.len() as f64,
        encode: time(batches.len(), || batches.iter().for_each(|batch| drop(black_box(write(batch))))),
        decode: time(batches.len(), || drop(black_box(read_chunks(layout, &chunks, &all)))),
        decode4: time(batches.len(), || drop(black_box(read_chunks(layout, &chunks, &FOUR)))),
    }
}

fn ipc_line(batches: &[RecordBatch]) -> Line {
    let write = |batch: &RecordBatch| {
        let options =
            IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD)).expect("zstd is built in");
        let mut writer =
            StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).expect("memory takes it");
        writer.write(batch).expect("memory takes it");
        writer.into_inner().expect("memory takes it")
    };
    let files: Vec<_> = batches.iter().map(write).collect();
    let read = |projection: Option<Vec<usize>>| {
        for file in &files {
            let reader = StreamReader::try_new(file.as_slice(), projection.clone()).expect("the file is sound");
            reader.for_each(|batch| drop(black_box(batch)));
        }
    };
    Line {
        codec: "Arrow IPC + zstd",
        rows: batches[0].num_rows(),
        raw: raw_bytes(&batches[0]),
        bytes: files.iter().map(Vec::len).sum::<usize>() as f64 / files.len() as f64,
        encode: time(batches.len(), || batches.iter().for_each(|batch| drop(black_box(write(batch))))),
        decode: time(batches.len(), || read(None)),
        decode4: time(batches.len(), || read(Some(FOUR.to_vec()))),
    }
}

fn parquet_line(batches: &[RecordBatch]) -> Line {
    let write = |batch: &RecordBatch| {
        let zstd = Compression::ZSTD(ZstdLevel::try_new(3).expect("3 is a level"));
        let properties = WriterProperties::builder().set_compression(zstd).build();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).expect("memory takes it");
        writer.write(batch).expect("memory takes it");
        bytes::Bytes::from(writer.into_inner().expect("memory takes it"))
    };
    let files: Vec<_> = batches.iter().map(write).collect();
    let read = |projection: Option<&[usize]>| {
        for file in &files {
            let builder = ParquetRecordBatchReaderBuilder::try_new(file.clone()).expect("the file is sound");
            let mask = match projection {
                Some(columns) => ProjectionMask::roots(builder.parquet_schema(), columns.iter().copied()),
                None => ProjectionMask::all(),
            };
            let reader = builder.with_projection(mask).build().expect("the file is sound");
            reader.for_each(|batch| drop(black_box(batch)));
        }
    };
    Line {
        codec: "Parquet + zstd",
        rows: batches[0].num_rows(),
        raw: raw_bytes(&batches[0]),
        bytes: files.iter().map(|f| f.len()).sum::<usize>() as f64 / files.len() as f64,
        encode: time(batches.len(), || batches.iter().for_each(|batch| drop(black_box(write(batch))))),
        decode: time(batches.len(), || read(None)),
        decode4: time(batches.len(), || read(Some(&FOUR))),
    }
}

/// Decodes small chunks for some seconds, for a profiler, and prints the shortest time, which other load on the machine disturbs
/// least.
fn profile(layout: &Layout, batches: &[RecordBatch]) {
    let write = |batch| encode(layout, 1, &parts(batch), &zone(), true, &BINDING).expect("the rows fit");
    let chunks: Vec<_> = batches.iter().map(write).collect();
    let all: Vec<_> = (0..layout.columns_count()).collect();
    // Steps are so short that some repetition of each runs without interruption, even on a loaded machine.
    let steps: Vec<_> = chunks.chunks(50).collect();
    let mut shortest = vec![f64::INFINITY; steps.len() + 1];
    for _ in 0..400 {
        let mut set = Columns::new(layout, &all, &Defaults::none());
        set.reserve(chunks.iter().map(|chunk| chunk.rows as usize).sum());
        let mut start = Instant::now();
        let mut lap = |step: usize| {
            shortest[step] = shortest[step].min(start.elapsed().as_secs_f64());
            start = Instant::now();
        };
        for (step, chunks) in steps.iter().enumerate() {
            for chunk in *chunks {
                let head = Head::parse(&chunk.head, &BINDING).expect("the head is sound");
                set.append(&head, &chunk.body, all.len()).expect("the body is sound");
            }
            lap(step);
        }
        black_box(set.finish());
        lap(steps.len());
    }
    println!("{} small chunks, all columns: {:.2} ms at best", chunks.len(), shortest.iter().sum::<f64>() * 1e3);
    for (name, pack) in [("LZ4", lz4_flex::block::compress as fn(&[u8]) -> Vec<u8>), ("zstd level 1", zstd1)] {
        let packed: Vec<_> = chunks.iter().map(|chunk| pack(&chunk.body)).collect();
        let unpack = || {
            for (packed, chunk) in packed.iter().zip(&chunks) {
                black_box(match name {
                    "LZ4" => lz4_flex::block::decompress(packed, chunk.body.len()).expect("it was compressed"),
                    _ => zstd::bulk::decompress(packed, chunk.body.len()).expect("it was compressed"),
                });
            }
        };
        let bytes = |sizes: &mut dyn Iterator<Item = usize>| sizes.sum::<usize>() as f64;
        println!(
            "{name}: {:.3} of the plain body, {:.2} us to decompress a chunk",
            bytes(&mut packed.iter().map(Vec::len)) / bytes(&mut chunks.iter().map(|c| c.body.len())),
            time(chunks.len(), unpack) * 1e6
        );
    }
}

/// Points of one tag: a random walk of small steps, one per second.
fn points(
    rng: &mut Rng,
    count: usize,
    time: impl Fn(usize, &mut Rng) -> i64,
    value: impl Fn(usize, f64) -> f64,
) -> RecordBatch {
    let mut level = rng.unit();
    let values: Vec<f64> = (0..count)
        .map(|row| {
            level += rng.noise() * 0.007;
            value(row, ((level + 1.0).rem_euclid(2.0) - 1.0).abs())
        })
        .collect();
    let times: Vec<i64> = (0..count).map(|row| time(row, rng)).collect();
    let columns: [(&str, ArrayRef); 4] = [
        ("tag", Arc::new(Int64Array::from(vec![17; count]))),
        ("time", Arc::new(Int64Array::from(times))),
        ("value", Arc::new(Float64Array::from(values))),
        ("status", Arc::new(UInt32Array::from(vec![0; count]))),
    ];
    RecordBatch::try_from_iter(columns).expect("columns are of one length")
}

/// Prints bytes per value, and nanoseconds to write and to read one, for a day of points in chunks like those of maintenance.
fn history() {
    const ROWS: usize = 28_800;
    const SECOND: i64 = 1_000_000_000;
    let even = |row: usize, _: &mut Rng| 1_767_225_600 * SECOND + row as i64 * SECOND;
    let late = |row: usize, rng: &mut Rng| even(row, rng) + (rng.next() % 1_000) as i64 * 1_000_000;
    let digits = |power: f64| move |_: usize, value: f64| (value * power).round() / power;
    let mut rng = Rng(1);
    let kinds: [(&str, RecordBatch); 7] = [
        ("two decimals", points(&mut rng, ROWS, even, digits(1e2))),
        ("two decimals, late by milliseconds", points(&mut rng, ROWS, late, digits(1e2))),
        (
            "two decimals, one in a hundred NaN",
            points(&mut rng, ROWS, even, |row, value| if row % 100 == 7 { f64::NAN } else { digits(1e2)(row, value) }),
        ),
        ("six decimals", points(&mut rng, ROWS, even, digits(1e6))),
        (
            "two decimals of float32",
            points(&mut rng, ROWS, even, |row, value| f64::from(digits(1e2)(row, value) as f32)),
        ),
        ("noise of float32", points(&mut rng, ROWS, even, |_, value| f64::from(value as f32))),
        ("noise", points(&mut rng, ROWS, even, |_, value| value)),
    ];
    for (kind, batch) in kinds {
        let layout = Layout::new(batch.schema()).expect("the schema is plain");
        let write = || encode(&layout, 1, &parts(&batch), &zone(), true, &BINDING).expect("the rows fit");
        let chunk = write();
        let read = || read_chunks(&layout, std::slice::from_ref(&chunk), &[0, 1, 2, 3]);
        assert_eq!(
            read().columns()[2].to_data(),
            batch.columns()[2].to_data(),
            "the chunk does not give its rows back"
        );
        let bytes = (chunk.head.len() + chunk.body.len()) as f64 / ROWS as f64;
        let (writing, reading) = (time(ROWS, || drop(black_box(write()))), time(ROWS, || drop(black_box(read()))));
        println!("{kind:<36} {bytes:.4} bytes a value, write {:.1} ns, read {:.2} ns", writing * 1e9, reading * 1e9);
    }
}

fn zstd1(bytes: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(bytes, 1).expect("memory takes it")
}

fn main() {
    if std::env::args().any(|arg| arg == "history") {
        return history();
    }
    let json = std::env::args().any(|arg| arg == "json");
    let quick = std::env::args().any(|arg| arg == "chunks");
    let columns = columns();
    assert_eq!(columns.len(), 100);
    let schema = schema(&columns);
    let layout = Layout::new(schema.clone()).expect("the schema is plain");
    let mut rng = Rng(1);
    if std::env::args().any(|arg| arg == "profile") {
        let batches: Vec<_> = (0..1800).map(|_| rows(&mut rng, &columns, &schema, 5, 5)).collect();
        return profile(&layout, &batches);
    }
    for (count, repeat) in [(5, 1800), (16, 400), (32, 200), (50, 200), (100, 100), (200, 50), (500, 40), (5000, 6)] {
        let asked = [5, 50, 500, 5000].contains(&count);
        if !asked && !quick {
            continue;
        }
        let batches: Vec<_> = (0..repeat).map(|_| rows(&mut rng, &columns, &schema, count, 5)).collect();
        if quick {
            chunk_line("chunk, small", Some(BodyLayout::Small), &layout, &batches).print(json);
            chunk_line("chunk, columnar", Some(BodyLayout::Columnar), &layout, &batches).print(json);
        } else {
            chunk_line("chunk", None, &layout, &batches).print(json);
            // Files take so long that fewer of them suffice for the same figures.
            let fewer = &batches[..batches.len().min(10)];
            ipc_line(fewer).print(json);
            parquet_line(fewer).print(json);
        }
    }
}
