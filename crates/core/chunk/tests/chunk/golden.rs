//! Chunks of released formats stay readable.
//!
//! Each golden file is three files of one name in `tests/golden/v1`: `.head`, `.body`, and `.arrow`, an Arrow IPC stream with
//! the schema and the expected rows. `index.json` has the place of each chunk and the expected content of its head.
//! `cargo test -p chronotile-chunk --test chunk golden -- --ignored` wrote them. A released file is never rewritten: a new kind of
//! chunk gets a new name.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, Float32Array, Float64Array, Int64Array, RecordBatch, StringArray, UInt8Array, UInt16Array, UInt64Array,
};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{Field, Schema};
use chronotile_chunk::{
    Binding, BodyLayout, ChunkRows, Encoded, Grams, Head, Layout, Origin, encode_as, encode_plain, fold, ordinals,
    plain_body, row_origins,
};
use chronotile_types::BatchId;
use xxhash_rust::xxh3::xxh3_64;

use crate::common::*;

const NAMES: [&str; 11] = [
    "small_types",
    "small_nested",
    "small_lz4",
    "columnar_types",
    "columnar_nested",
    "columnar_numbers",
    "columnar_decimals",
    "consolidated",
    "text_filters",
    "small_bits",
    "columnar_bits",
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1")
}

/// One column of each type in each of several styles.
fn types(rng: &mut Rng, rows: usize) -> RecordBatch {
    let mut fields = Vec::new();
    for (i, data_type) in flat_types().into_iter().enumerate() {
        fields.extend((0..4).map(|k| Field::new(format!("t{i}_{k}"), data_type.clone(), k > 0)));
    }
    arbitrary_batch(rng, &Arc::new(Schema::new(fields)), rows)
}

fn nested(rng: &mut Rng, rows: usize) -> RecordBatch {
    let fields = (0..24).map(|i| {
        loop {
            let field = arbitrary_field(rng, &format!("n{i}"), 3);
            if field.data_type().is_nested() {
                break field;
            }
        }
    });
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    arbitrary_batch(rng, &schema, rows)
}

/// Hundreds of values that suit pco, dictionaries, zstd and extremes.
fn numbers(rng: &mut Rng, rows: usize) -> RecordBatch {
    let time: Vec<i64> = (0..rows as i64).map(|i| 1_700_000_000_000_000 + i * 1_000_003).collect();
    let flux: Vec<Option<f64>> = (0..rows).map(|_| (!rng.chance(10)).then(|| 100.0 + rng.unit())).collect();
    let decimal: Vec<f64> = (0..rows).map(|_| (rng.unit() * 1000.0).round() / 10.0).collect();
    let magnitude: Vec<f32> =
        (0..rows).map(|i| if i % 50 == 0 { f32::from_bits(0x7fc0_1234) } else { 18.0 + rng.unit() as f32 }).collect();
    let band: Vec<&str> = (0..rows).map(|_| ["u", "g", "r", "é"][rng.below(4)]).collect();
    let name: Vec<String> = (0..rows).map(|i| format!("https://example.org/object/{i:06}")).collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("time", Arc::new(Int64Array::from(time))),
        ("flux", Arc::new(Float64Array::from(flux))),
        ("decimal", Arc::new(Float64Array::from(decimal))),
        ("magnitude", Arc::new(Float32Array::from(magnitude))),
        ("band", Arc::new(StringArray::from(band))),
        ("name", Arc::new(StringArray::from(name))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Noise of every width and sign around some value, with a few values far away.
fn noise(rng: &mut Rng, rows: usize) -> RecordBatch {
    let mut bits = |around: u64, count: u32| -> Vec<u64> {
        (0..rows)
            .map(|i| if i % 31 == 7 { rng.next() } else { around.wrapping_add(rng.next() >> (64 - count)) })
            .collect()
    };
    let (small, medium, large, signed) = (bits(100, 5), bits(9_000, 11), bits(1 << 40, 23), bits(u64::MAX - 500, 10));
    let flux: Vec<Option<f32>> = (0..rows).map(|_| (!rng.chance(10)).then(|| (rng.unit() - 0.5) as f32)).collect();
    let positive: Vec<f32> = (0..rows).map(|_| (1_000.0 * rng.unit()) as f32).collect();
    let position: Vec<f64> = (0..rows).map(|_| 287.0 + 0.18 * rng.unit()).collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("u8", Arc::new(UInt8Array::from_iter_values(small.iter().map(|value| *value as u8)))),
        ("u16", Arc::new(UInt16Array::from_iter_values(medium.iter().map(|value| *value as u16)))),
        ("u64", Arc::new(UInt64Array::from(large))),
        ("i64", Arc::new(Int64Array::from_iter_values(signed.iter().map(|value| *value as i64)))),
        ("flux", Arc::new(Float32Array::from(flux))),
        ("positive", Arc::new(Float32Array::from(positive))),
        ("position", Arc::new(Float64Array::from(position))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Repeated text and numbers of a log, which LZ4 compresses even in a small block.
fn repetitive(rows: usize) -> RecordBatch {
    let line = |i: usize| format!("Received block blk_{i:08} of size 67108864 from /10.251.91.84");
    let lines = StringArray::from_iter_values((0..rows).map(line));
    RecordBatch::try_from_iter([("line", Arc::new(lines) as ArrayRef)]).unwrap()
}

/// Lines of a log with nulls and letters of several alphabets and cases, a text without a filter, and one that is always short.
fn lines(rows: usize) -> RecordBatch {
    let line = |i: usize| match i % 10 {
        0 => None,
        1 => Some(format!("Größe of disk{} is {} \u{212a}B", i % 7, i * 4096)),
        2 => Some(format!("\u{17f}e\u{17f}\u{17f}ion of USER{:02} was opened", i % 13)),
        _ => Some(format!("Connection {} from 10.0.{}.{} refused", i * 7, i % 3, i % 11)),
    };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("line", Arc::new((0..rows).map(line).collect::<StringArray>())),
        ("host", Arc::new(StringArray::from_iter_values((0..rows).map(|i| format!("host{:02}", i % 9))))),
        ("level", Arc::new(StringArray::from_iter_values((0..rows).map(|i| ["E", "W", "I"][i % 3])))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn build(name: &str) -> (RecordBatch, Encoded) {
    let mut rng = Rng(name.bytes().map(u64::from).sum());
    let (body_layout, batch) = match name {
        "small_types" => (BodyLayout::Small, types(&mut rng, 6)),
        "small_nested" => (BodyLayout::Small, nested(&mut rng, 6)),
        "small_lz4" => (BodyLayout::Small, repetitive(20)),
        "columnar_types" => (BodyLayout::Columnar, types(&mut rng, 40)),
        "columnar_nested" => (BodyLayout::Columnar, nested(&mut rng, 40)),
        "columnar_decimals" => (BodyLayout::Columnar, decimal_batch(&mut rng, 700)),
        "text_filters" => (BodyLayout::Columnar, lines(600)),
        "small_bits" => (BodyLayout::Small, noise(&mut rng, 100)),
        "columnar_bits" => (BodyLayout::Columnar, noise(&mut rng, 300)),
        _ => (BodyLayout::Columnar, numbers(&mut rng, 700)),
    };
    let layout = Layout::new(batch.schema()).unwrap();
    if name == "text_filters" {
        let rows = ChunkRows { batch: &batch, origins: &[ORIGIN], row_origin: None, ordinals: None, text: &[0, 2] };
        let chunk = encode_as(body_layout, &layout, 1, &rows, &zone(), true, &BINDING).unwrap();
        return (batch, chunk);
    }
    if name != "consolidated" {
        let chunk = write_as(body_layout, &layout, &batch);
        return (batch, chunk);
    }
    let origins: Vec<Origin> = (0..3)
        .map(|i| Origin {
            batch: BatchId(1000 + i),
            written_us: ORIGIN.written_us - 7 * i as i64,
            token: 0x0101_0101 * i as u32,
        })
        .collect();
    let indexes: Vec<u32> = (0..batch.num_rows()).map(|_| rng.below(3) as u32).collect();
    let numbers: Vec<i64> = (0..batch.num_rows() as i64).collect();
    let rows =
        ChunkRows { batch: &batch, origins: &origins, row_origin: Some(&indexes), ordinals: Some(&numbers), text: &[] };
    let chunk = encode_as(body_layout, &layout, 3, &rows, &zone(), false, &BINDING).unwrap();
    (batch, chunk)
}

#[test]
#[ignore = "writes the golden files instead of reading them"]
fn write_golden_chunks() {
    let Binding { tile, chunk } = BINDING;
    let mut entries = Vec::new();
    for name in NAMES {
        let (batch, encoded) = build(name);
        let write = |kind: &str, bytes: &[u8]| {
            let path = folder().join(format!("{name}.{kind}"));
            if !path.exists() {
                fs::write(path, bytes).unwrap();
            }
        };
        write("head", &encoded.head);
        write("body", &encoded.body);
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        write("arrow", &writer.into_inner().unwrap());
        let head = Head::parse(&encoded.head, &BINDING).unwrap();
        let origins: Vec<_> =
            head.origins.iter().map(|o| format!("[\"{}\", {}, {}]", o.batch, o.written_us, o.token)).collect();
        entries.push(format!(
            "  {{\"name\": \"{name}\", \"cell\": {}, \"window\": {}, \"chunk\": \"{chunk}\", \"rows\": {}, \
             \"schema_version\": {}, \"unique_ids\": {}, \"time\": [{}, {}], \"origins\": [{}],\n   \
             \"row_origins\": {:?}, \"ordinals\": {:?}}}",
            tile.cell.0,
            tile.window.0,
            head.rows,
            head.schema_version,
            head.unique_ids,
            head.zone.time_min,
            head.zone.time_max,
            origins.join(", "),
            row_origins(&head, &encoded.body).unwrap().unwrap_or_default(),
            ordinals(&head, &encoded.body).unwrap().unwrap_or_default(),
        ));
    }
    fs::write(folder().join("index.json"), format!("[\n{}\n]\n", entries.join(",\n"))).unwrap();
}

#[test]
fn golden_chunks_are_readable() {
    for name in NAMES {
        let file = |kind: &str| fs::read(folder().join(format!("{name}.{kind}"))).unwrap();
        let chunk = Encoded { head: file("head"), body: file("body"), rows: 0 };
        let expected = file("arrow");
        let expected = StreamReader::try_new(expected.as_slice(), None).unwrap().next().unwrap().unwrap();
        let layout = Layout::new(expected.schema()).unwrap();
        assert_eq!(read_all(&layout, &chunk).unwrap(), expected, "{name}");
        let head = Head::parse(&chunk.head, &BINDING).unwrap();
        assert_eq!(head.zone, zone(), "{name}");
        let is_consolidated = name == "consolidated";
        assert_eq!(row_origins(&head, &chunk.body).unwrap().is_some(), is_consolidated);
        assert_eq!(ordinals(&head, &chunk.body).unwrap().is_some(), is_consolidated);
    }
}

/// Filters of released chunks, tested with texts that occur and texts that do not.
#[test]
fn golden_filters_say_what_they_always_said() {
    let head = Head::parse(&fs::read(folder().join("text_filters.head")).unwrap(), &BINDING).unwrap();
    let may_hold = |column: usize, text: &str| head.text_filter(column).unwrap().may_hold(&Grams::of(&fold(text)));
    for text in ["Connection 21 from", "SESSION of user", "größe of disk3", "kB", "refused", "öße", "any"] {
        assert!(may_hold(0, text), "{text}");
    }
    for text in ["closed", "from 192.168", "segmentation fault", "Ünicode"] {
        assert!(!may_hold(0, text), "{text}");
    }
    assert!(may_hold(2, "E") && !may_hold(2, "Error"));
}

/// XXH3-64 of the plain bodies of the golden rows. They must never change: an engine that stores rows rebuilds these bodies and
/// compares them with checksums that earlier releases stored.
const PLAIN: [(&str, u64); 7] = [
    ("small_types", 0x6088_fb43_d4ff_00ac),
    ("small_nested", 0xe0cd_8db6_6976_b249),
    ("small_lz4", 0x45fa_b06f_cf40_ca74),
    ("columnar_types", 0x663f_d7b9_65aa_f53e),
    ("columnar_nested", 0xa181_7abc_092b_57ce),
    ("columnar_numbers", 0xce8e_b95e_a1d6_8f7b),
    ("consolidated", 0x08ef_489f_0b20_9e15),
];

#[test]
fn equal_rows_make_the_plain_bodies_they_always_made() {
    let mut found = vec![];
    for (name, _) in PLAIN {
        let file = |kind: &str| fs::read(folder().join(format!("{name}.{kind}"))).unwrap();
        let rows = StreamReader::try_new(file("arrow").as_slice(), None).unwrap().next().unwrap().unwrap();
        let layout = Layout::new(rows.schema()).unwrap();
        let given = ChunkRows { batch: &rows, origins: &[ORIGIN], row_origin: None, ordinals: None, text: &[] };
        let body = plain_body(&layout, &given).unwrap();
        let encoded = encode_plain(&layout, 3, &given, &zone(), true, &BINDING).unwrap();
        let head = Head::parse(&encoded.head, &BINDING).unwrap();
        assert!(head.is_plain(), "{name}");
        assert_eq!(encoded.body, body, "{name}");
        assert_eq!(read_all(&layout, &encoded).unwrap(), rows, "{name}");
        found.push((name, xxh3_64(&body)));
    }
    assert_eq!(found, PLAIN);
}

#[test]
fn golden_chunks_use_every_part_of_the_format() {
    let heads =
        NAMES.map(|name| Head::parse(&fs::read(folder().join(format!("{name}.head"))).unwrap(), &BINDING).unwrap());
    let has = |test: fn(&Head) -> bool| heads.iter().any(test);
    assert!(has(|h| h.body_layout == BodyLayout::Small) && has(|h| h.body_layout == BodyLayout::Columnar));
    assert!(has(|h| h.has_ordinals) && has(Head::has_row_origins) && has(|h| h.origins.len() > 1));
    assert!(has(|h| h.unique_ids) && has(|h| !h.unique_ids));
    // Bits 4 and 5 of the second byte are the compression of the small block.
    let filtered = |column: usize| heads.iter().filter_map(|head| head.text_filter(column)).count();
    assert_eq!((filtered(0), filtered(1), filtered(2)), (1, 0, 1));
    let lz4 = fs::read(folder().join("small_lz4.head")).unwrap();
    assert_eq!(lz4[1] >> 4 & 3, 1);
}
