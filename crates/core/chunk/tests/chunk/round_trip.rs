//! Decoding returns what was encoded, for all types, values, nulls, slices, forms and projections.

use std::sync::Arc;

use arrow_array::types::{Float32Type, Float64Type, Int16Type};
use arrow_array::{
    Array, ArrayRef, Float32Array, Float64Array, Int64Array, ListArray, PrimitiveArray, RecordBatch, StringArray,
};
use arrow_schema::{DataType, Field, Schema};
use chronotile_chunk::{
    Binding, Body, BodyLayout, ChunkRows, ColumnStats, Columns, Defaults, EncodeError, Head, Layout, Origin,
    decoded_bytes, encode, encode_as, ordinals, row_origins,
};
use chronotile_types::{BatchId, ZoneKey};
use proptest::prelude::*;

use crate::common::*;

const FORMS: [BodyLayout; 2] = [BodyLayout::Small, BodyLayout::Columnar];

fn row_counts() -> impl Strategy<Value = usize> {
    prop_oneof![1..9usize, 60..70usize, 1..400usize]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn arbitrary_rows_come_back_bit_for_bit(seed: u64, columns in 1..12usize, rows in row_counts()) {
        let mut rng = Rng(seed);
        let schema = arbitrary_schema(&mut rng, columns);
        let layout = Layout::new(schema.clone()).unwrap();
        let batch = arbitrary_batch(&mut rng, &schema, rows);
        for body_layout in FORMS {
            let chunk = write_as(body_layout, &layout, &batch);
            prop_assert_eq!(&read_all(&layout, &chunk).unwrap(), &batch);
            prop_assert_eq!(&write_as(body_layout, &layout, &batch), &chunk, "the same rows gave other bytes");
            // Decoded rows have no garbage under nulls and no offsets, and must still encode to the same bytes.
            prop_assert_eq!(&write_as(body_layout, &layout, &read_all(&layout, &chunk).unwrap()), &chunk);
        }
    }

    #[test]
    fn a_projection_equals_reading_all_and_selecting(seed: u64, columns in 1..12usize, rows in row_counts(), order: u64) {
        let mut rng = Rng(seed);
        let schema = arbitrary_schema(&mut rng, columns);
        let layout = Layout::new(schema.clone()).unwrap();
        let batch = arbitrary_batch(&mut rng, &schema, rows);
        let mut wanted: Vec<usize> = (0..columns).filter(|_| rng.chance(50)).collect();
        wanted.sort_by_key(|column| (*column as u64 + 1).wrapping_mul(order | 1));
        for body_layout in FORMS {
            let chunk = write_as(body_layout, &layout, &batch);
            let got = read(&layout, &chunk, &wanted).unwrap();
            prop_assert_eq!(got.num_rows(), rows);
            prop_assert_eq!(got, batch.project(&wanted).unwrap());
        }
    }

    #[test]
    fn rows_picked_from_chunks_equal_those_of_whole_ones(seed: u64, columns in 1..12usize, counts in prop::collection::vec(row_counts(), 1..5), added: bool) {
        let mut rng = Rng(seed);
        let before = arbitrary_schema(&mut rng, columns);
        let later = arbitrary_field(&mut rng, "later", 2).with_nullable(true);
        let fields: Vec<_> = before.fields().iter().cloned().chain(added.then(|| Arc::new(later))).collect();
        let layout = Layout::new(Arc::new(Schema::new(fields))).unwrap();
        let all: Vec<usize> = (0..columns + usize::from(added)).collect();
        let empty = || Columns::new(&layout, &all, &Defaults::none());
        let (mut picked, mut whole, mut wanted) = (empty(), empty(), vec![]);
        for rows in counts {
            let batch = arbitrary_batch(&mut rng, &before, rows);
            let chunk = write_as(BodyLayout::Small, &Layout::new(before.clone()).unwrap(), &batch);
            let head = Head::parse(&chunk.head, &BINDING).unwrap();
            let body = Body::open(&head, &chunk.body).unwrap();
            let share = rng.below(101) as u64;
            let rows: Vec<u32> = (0..rows as u32).filter(|_| rng.chance(share)).collect();
            wanted.extend(rows.iter().map(|row| whole.rows() as u32 + row));
            picked.append_rows(&body, columns, &rows).unwrap();
            whole.append_body(&body, columns).unwrap();
        }
        let wanted = arrow_array::UInt32Array::from(wanted);
        prop_assert_eq!(picked.finish(), arrow_select::take::take_record_batch(&whole.finish(), &wanted).unwrap());
    }

    /// Otherwise rows could be written that no reader accepts.
    #[test]
    fn a_reader_needs_as_many_bytes_as_the_writer_has_counted(seed: u64, columns in 1..12usize, rows in row_counts(), share in 0..101u64) {
        let mut rng = Rng(seed);
        let schema = arbitrary_schema(&mut rng, columns);
        let layout = Layout::new(schema.clone()).unwrap();
        let batch = arbitrary_batch(&mut rng, &schema, rows);
        let counted = {
            let rows = ChunkRows { batch: &batch, origins: &[ORIGIN], row_origin: None, ordinals: None, text: &[] };
            decoded_bytes(&layout, &rows).unwrap()
        };
        let all: Vec<usize> = (0..columns).collect();
        let limited = |bytes_max: usize| {
            let mut set = Columns::new(&layout, &all, &Defaults::none());
            set.limit_decoded_bytes(bytes_max);
            set
        };
        for body_layout in FORMS {
            let chunk = write_as(body_layout, &layout, &batch);
            let head = Head::parse(&chunk.head, &BINDING).unwrap();
            let body = Body::open(&head, &chunk.body).unwrap();
            let mut set = limited(counted);
            set.append_body(&body, columns).unwrap();
            prop_assert_eq!(set.bytes(), counted);
            prop_assert!(counted == 0 || limited(counted - 1).append_body(&body, columns).is_err());
            if body.decodes_single_rows() {
                let picked: Vec<u32> = (0..rows as u32).filter(|_| rng.chance(share)).collect();
                limited(counted).append_rows(&body, columns, &picked).unwrap();
            }
        }
    }

    #[test]
    fn texts_and_lists_are_picked_whatever_their_lengths(
        // A length below 128 takes one byte, a larger one two.
        lens in prop::collection::vec(prop::option::of(prop_oneof![4 => 0..3usize, 1 => 126..130usize, 1 => 250..300usize]), 1..40),
        picks: u64,
    ) {
        let texts = StringArray::from_iter(lens.iter().enumerate().map(|(i, len)| Some(i.to_string().repeat((*len)?))));
        let lists = ListArray::from_iter_primitive::<Int16Type, _, _>(
            lens.iter().enumerate().map(|(i, len)| Some((0..(*len)?).map(move |at| Some((i * 7 + at) as i16)))),
        );
        let batch = RecordBatch::try_from_iter([("text", Arc::new(texts) as ArrayRef), ("list", Arc::new(lists))]).unwrap();
        let layout = Layout::new(batch.schema()).unwrap();
        let chunk = write_as(BodyLayout::Small, &layout, &batch);
        let head = Head::parse(&chunk.head, &BINDING).unwrap();
        let rows: Vec<u32> = (0..lens.len() as u32).filter(|row| picks >> row & 1 == 1).collect();
        let mut picked = Columns::new(&layout, &[0, 1], &Defaults::none());
        picked.append_rows(&Body::open(&head, &chunk.body).unwrap(), 2, &rows).unwrap();
        let wanted = arrow_array::UInt32Array::from(rows);
        prop_assert_eq!(picked.finish(), arrow_select::take::take_record_batch(&batch, &wanted).unwrap());
    }

    #[test]
    fn decimals_and_sequences_come_back_bit_for_bit(seed: u64, rows in row_counts(), changes in prop::collection::vec(any::<(prop::sample::Index, u64)>(), 0..6)) {
        let mut rng = Rng(seed);
        let batch = decimal_batch(&mut rng, rows);
        let layout = Layout::new(batch.schema()).unwrap();
        // Every column has some values with random bits.
        let mut columns = batch.columns().to_vec();
        for (at, bits) in changes {
            for column in &mut columns {
                let data = column.to_data();
                let width = data.data_type().primitive_width().unwrap();
                let mut bytes = data.buffers()[0].as_slice().to_vec();
                let at = at.index(rows) * width;
                bytes[at..at + width].copy_from_slice(&bits.to_le_bytes()[..width]);
                let changed = data.into_builder().buffers(vec![arrow_buffer::Buffer::from(bytes)]).build().unwrap();
                *column = arrow_array::make_array(changed);
            }
        }
        let batch = RecordBatch::try_new(batch.schema(), columns).unwrap();
        let chunk = write_as(BodyLayout::Columnar, &layout, &batch);
        prop_assert_eq!(&read_all(&layout, &chunk).unwrap(), &batch);
        prop_assert_eq!(&write_as(BodyLayout::Columnar, &layout, &read_all(&layout, &chunk).unwrap()), &chunk);
    }

    #[test]
    fn many_chunks_equal_their_rows_in_a_line(seed: u64, columns in 1..8usize, counts in prop::collection::vec(row_counts(), 1..6)) {
        let mut rng = Rng(seed);
        let schema = arbitrary_schema(&mut rng, columns);
        let layout = Layout::new(schema.clone()).unwrap();
        let batches: Vec<_> = counts.iter().map(|rows| arbitrary_batch(&mut rng, &schema, *rows)).collect();
        let mut set = Columns::new(&layout, &(0..columns).collect::<Vec<_>>(), &Defaults::none());
        for batch in &batches {
            let chunk = write_as(FORMS[rng.below(2)], &layout, batch);
            set.append(&Head::parse(&chunk.head, &BINDING).unwrap(), &chunk.body, columns).unwrap();
        }
        prop_assert_eq!(set.rows(), counts.iter().sum::<usize>());
        prop_assert_eq!(set.finish(), arrow_select::concat::concat_batches(&schema, &batches).unwrap());
    }

    #[test]
    fn columns_added_later_read_as_default_or_null(seed: u64, old in 1..6usize, added in 1..6usize, rows in row_counts()) {
        let mut rng = Rng(seed);
        let mut fields: Vec<Field> = (0..old).map(|i| arbitrary_field(&mut rng, &format!("c{i}"), 2)).collect();
        let before = Arc::new(Schema::new(fields.clone()));
        fields.extend((0..added).map(|i| arbitrary_field(&mut rng, &format!("n{i}"), 2).with_nullable(true)));
        let after = Arc::new(Schema::new(fields));
        let layout = Layout::new(after.clone()).unwrap();
        let (mut defaults, mut expected) = (Defaults::none(), Vec::new());
        for (column, field) in after.fields().iter().enumerate().skip(old) {
            let value = arbitrary_array(&mut rng, field, 1);
            let with_default = rng.chance(50);
            if with_default {
                defaults.set(&layout, column, &value).unwrap();
            }
            expected.push(if with_default { repeat(&value, rows) } else { arrow_array::new_null_array(field.data_type(), rows) });
        }
        let batch = arbitrary_batch(&mut rng, &before, rows);
        let want: Vec<ArrayRef> = batch.columns().iter().cloned().chain(expected).collect();
        let want = RecordBatch::try_new(after.clone(), want).unwrap();
        for body_layout in FORMS {
            let chunk = write_as(body_layout, &Layout::new(before.clone()).unwrap(), &batch);
            let mut set = Columns::new(&layout, &(0..old + added).collect::<Vec<_>>(), &defaults);
            set.append(&Head::parse(&chunk.head, &BINDING).unwrap(), &chunk.body, old).unwrap();
            prop_assert_eq!(&set.finish(), &want);
        }
    }

    #[test]
    fn origins_ordinals_and_zone_come_back(
        seed: u64, rows in row_counts(), origin_count in 1..20usize, ids: (Vec<u8>, Vec<u8>), times: (i64, i64), unique: bool
    ) {
        let mut rng = Rng(seed);
        let schema = arbitrary_schema(&mut rng, 2);
        let layout = Layout::new(schema.clone()).unwrap();
        let batch = arbitrary_batch(&mut rng, &schema, rows);
        let origins: Vec<_> = (0..origin_count)
            .map(|_| Origin {
                batch: BatchId(u128::from(rng.next()) << 70),
                written_us: rng.next() as i64,
                token: rng.next() as u32,
            })
            .collect();
        let indexes: Vec<u32> = (0..rows).map(|_| rng.below(origin_count) as u32).collect();
        let numbers: Vec<i64> = (0..rows).map(|row| if seed % 2 == 0 { row as i64 } else { rng.next() as i64 }).collect();
        let (low, high) = (ids.0.clone().min(ids.1.clone()), ids.0.max(ids.1));
        let zone = chronotile_chunk::Zone {
            time_min: times.0.min(times.1),
            time_max: times.0.max(times.1),
            id_min: ZoneKey::from_bytes(&low),
            id_max: ZoneKey::from_bytes(&high),
        };
        let row_set = ChunkRows { batch: &batch, origins: &origins, row_origin: Some(&indexes), ordinals: Some(&numbers), text: &[] };
        for body_layout in FORMS {
            let chunk = encode_as(body_layout, &layout, 7, &row_set, &zone, unique, &BINDING).unwrap();
            let head = Head::parse(&chunk.head, &BINDING).unwrap();
            prop_assert_eq!(&*head.origins, &origins[..]);
            prop_assert_eq!((head.schema_version, head.rows, head.unique_ids), (7, rows as u32, unique));
            prop_assert_eq!(head.zone, zone);
            let expected = (origin_count > 1).then(|| indexes.clone());
            prop_assert_eq!(row_origins(&head, &chunk.body).unwrap(), expected);
            prop_assert_eq!(ordinals(&head, &chunk.body).unwrap(), Some(numbers.clone()));
            prop_assert_eq!(&read_all(&layout, &chunk).unwrap(), &batch);
        }
    }

    #[test]
    fn every_bit_of_a_float_survives_every_codec(bits in prop::collection::vec(any::<u64>(), 1..600), offset in 0..40u64) {
        // Half of the values are special, mixed with ordinary ones, so that pco tries its float modes.
        let doubles: Vec<f64> = bits.iter().enumerate().map(|(i, b)| match b % 4 {
            0 => f64::from_bits(*b),
            1 => f64::from_bits(0x7ff8_0000_0000_0000 | b >> 16),
            2 => -0.0,
            _ => (i as f64 + offset as f64) * 0.1,
        }).collect();
        let singles: Vec<f32> = doubles.iter().zip(&bits).map(|(d, b)| match b % 4 {
            0 => f32::from_bits(*b as u32),
            1 => f32::from_bits(0x7f80_0001 | (*b >> 40) as u32),
            _ => *d as f32,
        }).collect();
        let schema = Arc::new(Schema::new(vec![
            Field::new("d", DataType::Float64, false),
            Field::new("s", DataType::Float32, false),
        ]));
        let layout = Layout::new(schema.clone()).unwrap();
        let columns: Vec<ArrayRef> = vec![Arc::new(Float64Array::from(doubles.clone())), Arc::new(Float32Array::from(singles.clone()))];
        let batch = RecordBatch::try_new(schema, columns).unwrap();
        for body_layout in FORMS {
            let got = read_all(&layout, &write_as(body_layout, &layout, &batch)).unwrap();
            let d: &PrimitiveArray<Float64Type> = got.column(0).as_any().downcast_ref().unwrap();
            let s: &PrimitiveArray<Float32Type> = got.column(1).as_any().downcast_ref().unwrap();
            prop_assert!(d.values().iter().zip(&doubles).all(|(a, b)| a.to_bits() == b.to_bits()));
            prop_assert!(s.values().iter().zip(&singles).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}

fn repeat(value: &ArrayRef, rows: usize) -> ArrayRef {
    arrow_select::concat::concat(&vec![value.as_ref(); rows]).unwrap()
}

fn one_column(name: &str, array: ArrayRef) -> RecordBatch {
    let schema = Schema::new(vec![Field::new(name, array.data_type().clone(), true)]);
    RecordBatch::try_new(Arc::new(schema), vec![array]).unwrap()
}

#[test]
fn every_type_comes_back_in_both_forms() {
    let mut rng = Rng(11);
    for data_type in flat_types() {
        for style in 0..40 {
            let field = Field::new("x", data_type.clone(), true);
            let array = arbitrary_array(&mut rng, &field, 1 + style * 7);
            let batch = one_column("x", array);
            let layout = Layout::new(batch.schema()).unwrap();
            for body_layout in FORMS {
                assert_eq!(read_all(&layout, &write_as(body_layout, &layout, &batch)).unwrap(), batch, "{data_type}");
            }
        }
    }
}

#[test]
fn null_empty_and_nan_stay_apart() {
    let floats = Float64Array::from(vec![Some(f64::NAN), None, Some(0.0), Some(-0.0), None]);
    let texts = StringArray::from(vec![Some(""), None, Some("a"), Some(""), None]);
    let schema =
        Arc::new(Schema::new(vec![Field::new("f", DataType::Float64, true), Field::new("t", DataType::Utf8, true)]));
    let batch = RecordBatch::try_new(schema.clone(), vec![Arc::new(floats), Arc::new(texts)]).unwrap();
    let layout = Layout::new(schema).unwrap();
    for body_layout in FORMS {
        let got = read_all(&layout, &write_as(body_layout, &layout, &batch)).unwrap();
        let floats: &Float64Array = got.column(0).as_any().downcast_ref().unwrap();
        assert_eq!(floats.null_count(), 2);
        assert!(floats.value(0).is_nan() && floats.is_valid(0));
        assert_eq!((floats.value(2).to_bits(), floats.value(3).to_bits()), (0, 1 << 63));
        let texts: &StringArray = got.column(1).as_any().downcast_ref().unwrap();
        assert!(texts.is_valid(0) && texts.value(0).is_empty() && texts.is_null(1));
    }
}

#[test]
fn decimals_and_sequences_of_many_chunks_stand_in_a_line() {
    let batches = [400, 30, 700].map(|rows| decimal_batch(&mut Rng(rows), rows as usize));
    let layout = Layout::new(batches[0].schema()).unwrap();
    let mut set = Columns::new(&layout, &(0..batches[0].num_columns()).collect::<Vec<_>>(), &Defaults::none());
    for batch in &batches {
        let chunk = write_as(BodyLayout::Columnar, &layout, batch);
        set.append(&Head::parse(&chunk.head, &BINDING).unwrap(), &chunk.body, batch.num_columns()).unwrap();
    }
    assert_eq!(set.finish(), arrow_select::concat::concat_batches(layout.schema(), &batches).unwrap());
}

#[test]
fn extremes_are_kept_without_nulls_and_nans() {
    let mut values: Vec<Option<f64>> = (0..1000).map(|i| Some(f64::from(i) * 0.37 - 5.0)).collect();
    values[10] = None;
    values[20] = Some(f64::NAN);
    let batch = one_column("x", Arc::new(Float64Array::from(values)));
    let layout = Layout::new(batch.schema()).unwrap();
    let chunk = write_as(BodyLayout::Columnar, &layout, &batch);
    let head = Head::parse(&chunk.head, &BINDING).unwrap();
    let body = Body::open(&head, &chunk.body).unwrap();
    let want = ColumnStats::Float { min: -5.0, max: 999.0 * 0.37 - 5.0, has_nan: true };
    assert_eq!(body.stats(&layout, 1, 0).unwrap(), Some(want));
    assert_eq!(body.stats(&layout, 1, 1).unwrap(), None);

    let batch = one_column("x", Arc::new(Int64Array::from_iter_values((0..1000).map(|i| (i * 7919) % 1000 - 300))));
    let chunk = write_as(BodyLayout::Columnar, &Layout::new(batch.schema()).unwrap(), &batch);
    let head = Head::parse(&chunk.head, &BINDING).unwrap();
    let stats = Body::open(&head, &chunk.body).unwrap().stats(&Layout::new(batch.schema()).unwrap(), 1, 0).unwrap();
    assert_eq!(stats, Some(ColumnStats::Signed { min: -300, max: 699 }));
}

#[test]
fn rows_that_do_not_fit_are_refused_with_the_reason() {
    let batch = one_column("x", Arc::new(Int64Array::from(vec![1, 2])));
    let layout = Layout::new(batch.schema()).unwrap();
    let rows = ChunkRows { batch: &batch, origins: &[ORIGIN], row_origin: None, ordinals: None, text: &[] };
    let write = |layout: &Layout, rows: &ChunkRows| encode(layout, 1, rows, &zone(), true, &BINDING).unwrap_err();

    let empty = batch.slice(0, 0);
    assert_eq!(write(&layout, &ChunkRows { batch: &empty, ..rows }), EncodeError::RowCount(0));
    assert!(matches!(write(&layout, &ChunkRows { origins: &[], ..rows }), EncodeError::Origins(_)));
    assert!(matches!(write(&layout, &ChunkRows { row_origin: Some(&[0, 1]), ..rows }), EncodeError::Origins(_)));
    assert!(matches!(write(&layout, &ChunkRows { ordinals: Some(&[0]), ..rows }), EncodeError::Origins(_)));

    let other = one_column("x", Arc::new(Float64Array::from(vec![1.0, 2.0])));
    let message = write(&layout, &ChunkRows { batch: &other, ..rows }).to_string();
    assert!(message.contains("\"x\"") && message.contains("cast"), "{message}");

    let strict = Layout::new(Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, false)]))).unwrap();
    let nulls = one_column("x", Arc::new(Int64Array::from(vec![Some(1), None])));
    assert!(write(&strict, &ChunkRows { batch: &nulls, ..rows }).to_string().contains("null"));

    let huge = one_column("x", Arc::new(StringArray::from(vec!["x".repeat(65 << 20)])));
    let texts = Layout::new(huge.schema()).unwrap();
    assert_eq!(write(&texts, &ChunkRows { batch: &huge, ..rows }), EncodeError::TooLarge);

    let mut backwards = zone();
    backwards.time_max = backwards.time_min - 1;
    assert_eq!(encode(&layout, 1, &rows, &backwards, true, &BINDING).unwrap_err(), EncodeError::Zone);
}

#[test]
fn a_small_chunk_of_noise_costs_at_most_a_quarter_more_than_its_columns() {
    let schema = Arc::new(Schema::new(
        (0..100)
            .map(|i| Field::new(format!("c{i}"), if i % 3 == 0 { DataType::Float64 } else { DataType::Float32 }, true))
            .collect::<Vec<_>>(),
    ));
    let mut rng = Rng(4);
    let columns: Vec<ArrayRef> = (0..100)
        .map(|i| -> ArrayRef {
            if i % 3 == 0 {
                Arc::new(Float64Array::from_iter_values((0..5).map(|_| rng.unit())))
            } else {
                Arc::new(Float32Array::from_iter_values((0..5).map(|_| rng.unit() as f32)))
            }
        })
        .collect();
    let batch = RecordBatch::try_new(schema.clone(), columns).unwrap();
    let raw = 34 * 5 * 8 + 66 * 5 * 4;
    let layout = Layout::new(schema).unwrap();
    let rows = ChunkRows { batch: &batch, origins: &[ORIGIN], row_origin: None, ordinals: None, text: &[] };
    let chunk = encode(&layout, 1, &rows, &zone(), true, &Binding { ..BINDING }).unwrap();
    let cost = chunk.head.len() + chunk.body.len();
    assert!(cost * 4 <= raw * 5, "{cost} bytes for {raw}");
}
