//! Conversion of points from the archive's batches to the columns that callers get.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, TimestampNanosecondType, UInt32Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Float64Array, RecordBatch, StringArray, TimestampNanosecondArray, UInt32Array,
    new_null_array,
};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType as ArrowType, Field, Schema, SchemaRef};
use arrow_select::filter::filter_record_batch;

use crate::error::{HistorianError, Result};
use crate::rules::Output;
use crate::schema::nanoseconds;
use crate::tag::{DataType, Tag};

/// The status of a deletion marker. It is newer than the point it hides, and is hidden itself. No OPC UA code has this
/// value.
pub(crate) const DELETED: u32 = u32::MAX;

/// The columns of stored points that computations need.
pub(crate) const POINT_COLUMNS: [&str; 3] = ["time", "value", "status"];

/// Casts a column; a value that does not fit is an error.
pub(crate) fn cast(array: &ArrayRef, to: &ArrowType) -> std::result::Result<ArrayRef, arrow_schema::ArrowError> {
    cast_with_options(array, to, &CastOptions { safe: false, ..CastOptions::default() })
}

/// Removes deleted points.
pub(crate) fn undeleted(batch: RecordBatch) -> Result<RecordBatch> {
    let Some(statuses) = batch.column_by_name("status").and_then(|c| c.as_primitive_opt::<UInt32Type>()) else {
        return Ok(batch);
    };
    if !statuses.values().contains(&DELETED) {
        return Ok(batch);
    }
    let keep: BooleanArray = statuses.values().iter().map(|status| Some(*status != DELETED)).collect();
    filter_record_batch(&batch, &keep).map_err(HistorianError::compute("leaving out deleted points"))
}

/// The points of one tag as slices.
pub(crate) struct Points {
    times: TimestampNanosecondArray,
    values: Float64Array,
    statuses: Option<UInt32Array>,
}

impl Points {
    /// Converts a batch with [`POINT_COLUMNS`] and removes deleted points. Null values become NaN, texts zero.
    pub(crate) fn new(batch: RecordBatch) -> Result<Self> {
        let batch = undeleted(batch)?;
        let value = batch.column(1);
        let numbers: ArrayRef = match value.data_type() {
            ArrowType::Utf8 => {
                // Any number does: aggregates of text use no values, but NaN would make the point Bad.
                Arc::new((0..value.len()).map(|row| value.is_valid(row).then_some(0.0)).collect::<Float64Array>())
            }
            _ => cast(value, &ArrowType::Float64).map_err(HistorianError::compute("converting values"))?,
        };
        let numbers = numbers.as_primitive::<Float64Type>();
        let values = if numbers.null_count() == 0 {
            numbers.clone()
        } else {
            numbers.iter().map(|value| Some(value.unwrap_or(f64::NAN))).collect()
        };
        let statuses = batch.column(2).as_primitive::<UInt32Type>().clone();
        let good = statuses.values().iter().all(|status| *status == 0);
        let times = batch.column(0).as_primitive::<TimestampNanosecondType>().clone();
        Ok(Self { times, values, statuses: (!good).then_some(statuses) })
    }

    pub(crate) fn times(&self) -> &[i64] {
        self.times.values()
    }

    pub(crate) fn values(&self) -> &[f64] {
        self.values.values()
    }

    /// The statuses; `None` if all are Good with no bits set.
    pub(crate) fn statuses(&self) -> Option<&[u32]> {
        self.statuses.as_ref().map(|statuses| statuses.values().as_ref())
    }
}

/// The common Arrow type of the values of tags of these types.
pub(crate) fn common_type<'a>(kinds: impl Iterator<Item = &'a DataType>) -> ArrowType {
    let one = |kind: &DataType| match kind {
        DataType::Float => ArrowType::Float64,
        DataType::Integer => ArrowType::Int64,
        DataType::Bool => ArrowType::Boolean,
        DataType::String => ArrowType::Utf8,
    };
    let wider = |a: ArrowType, b: ArrowType| match (a, b) {
        (a, b) if a == b => a,
        (ArrowType::Utf8, _) | (_, ArrowType::Utf8) => ArrowType::Utf8,
        _ => ArrowType::Float64,
    };
    kinds.map(one).reduce(wider).unwrap_or(ArrowType::Float64)
}

/// The schema of points that callers get.
pub(crate) fn points_schema(value: ArrowType) -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("tag", ArrowType::Utf8, false),
        Field::new("time", nanoseconds(), false),
        Field::new("value", value, true),
        Field::new("status", ArrowType::UInt32, false),
    ]))
}

/// Converts stored points, in a batch with [`POINT_COLUMNS`], to the schema that callers get.
pub(crate) fn shown(tag: &Tag, batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let failed = HistorianError::compute("converting values");
    let batch = undeleted(batch)?;
    let mut value = batch.column(1).clone();
    if tag.data_type == DataType::Bool && *schema.field(2).data_type() != ArrowType::Float64 {
        // Bool values are stored as floats; a cast by way of Boolean makes the texts true and false of them.
        value = cast(&value, &ArrowType::Boolean).map_err(&failed)?;
    }
    let value = cast(&value, schema.field(2).data_type()).map_err(&failed)?;
    let columns = vec![names(tag, batch.num_rows()), batch.column(0).clone(), value, batch.column(2).clone()];
    RecordBatch::try_new(schema.clone(), columns).map_err(failed)
}

fn names(tag: &Tag, rows: usize) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(std::iter::repeat_n(tag.name.as_str(), rows)))
}

/// Converts computed results to the schema that callers get. The value type may be boolean or integer if the aggregate
/// returns stored values.
pub(crate) fn computed(tag: &Tag, output: Output, schema: &SchemaRef) -> Result<RecordBatch> {
    let failed = HistorianError::compute("gathering results");
    let rows = output.times.len();
    let values: Float64Array = output.values.iter().map(|value| (!value.is_nan()).then_some(*value)).collect();
    let values: ArrayRef = Arc::new(values);
    let wanted = schema.field(2).data_type();
    let values = match wanted {
        ArrowType::Utf8 => new_null_array(wanted, rows),
        _ => cast(&values, wanted).map_err(&failed)?,
    };
    let times = TimestampNanosecondArray::from(output.times).with_timezone("UTC");
    let columns: Vec<ArrayRef> =
        vec![names(tag, rows), Arc::new(times), values, Arc::new(UInt32Array::from(output.statuses))];
    RecordBatch::try_new(schema.clone(), columns).map_err(failed)
}
