//! Writes points: checks them, groups them by dataset, and stores them durably before it returns.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, TimestampNanosecondType, UInt32Type, UInt64Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray,
    UInt32Array, new_null_array,
};
use arrow_schema::DataType as ArrowType;
use arrow_select::filter::filter_record_batch;
use arrow_select::take::take;
use chronotile_archive::{CellSelection, Dataset, ReadRequest, WriteOptions, exact_values};
use chronotile_types::{Instant, TimeRange};
use futures::TryStreamExt;
use hashbrown::HashMap;

use crate::columns::{DELETED, cast};
use crate::error::{HistorianError, Result};
use crate::filter::{PointFilter, Row, filters};
use crate::historian::{Historian, SharedTag, now_ns};
use crate::rules::Status;
use crate::schema;
use crate::tag::{DataType, Storage, TagKey};

/// How to handle a value that is NaN, infinite or null while its status is not Bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NotFinite {
    /// Refuse the whole write.
    #[default]
    Refuse,
    /// Store it as Bad_SensorFailure, without a value.
    Bad,
}

/// Options of a write.
#[derive(Clone, Debug, Default)]
pub struct PointsOptions {
    /// Name of the batch. Writing the same points again under this name stores nothing.
    pub batch: Option<String>,
    /// Whether to replace a stored batch of this name that has other points.
    pub replace: bool,
    /// How to handle values that are not finite numbers.
    pub not_finite: NotFinite,
}

/// Report of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PointsReport {
    /// Number of points stored.
    pub points: u64,
    /// Number of points left out because a later one of the same write has the same tag and time.
    pub duplicates: u64,
    /// Whether anything was stored; false if the batch was already stored.
    pub stored: bool,
}

/// Bad_SensorFailure.
const SENSOR_FAILURE: u32 = 0x808C_0000;

/// Group and data type of rows, which decide their dataset.
type Class = (String, DataType);

impl Historian {
    /// Stores points: columns `tag` (name or number), `time`, `value` and, if not all are Good, `status`. Of several
    /// points with the same tag and time, the one written last counts, within this batch and overall. They are durable
    /// when this returns.
    ///
    /// # Errors
    /// An unknown tag, a value of another type than its tag's, a time too far ahead of the clock, or a value that is
    /// not a finite number; nothing is stored then. An error of the engine.
    pub async fn write(&self, batches: Vec<RecordBatch>, options: &PointsOptions) -> Result<PointsReport> {
        let mut parts: Vec<((String, Storage), Vec<RecordBatch>)> = Vec::new();
        let mut first_row = 0;
        // An empty list has no type to check.
        for batch in batches.iter().filter(|batch| batch.num_rows() > 0) {
            for (group, storage, rows) in self.conform(batch, first_row, options).await? {
                let place = (group, storage);
                match parts.iter_mut().find(|(key, _)| *key == place) {
                    Some((_, held)) => held.push(rows),
                    None => parts.push((place, vec![rows])),
                }
            }
            first_row += batch.num_rows() as u64;
        }
        // All points are checked before the first dataset is written, so a refused point leaves nothing stored in any
        // dataset.
        let mut report = PointsReport::default();
        for ((group, storage), rows) in parts {
            let dataset = self.points_of(&group, storage).await?;
            let write = WriteOptions { batch: options.batch.clone(), replace: options.replace, ..Default::default() };
            let done = dataset.write(rows.into_iter().map(Ok), write).await?;
            report.points += done.rows;
            report.duplicates += done.duplicates;
            report.stored |= done.stored;
        }
        Ok(report)
    }

    /// Converts rows to the columns of the datasets, grouped by dataset.
    async fn conform(
        &self,
        batch: &RecordBatch,
        first_row: u64,
        options: &PointsOptions,
    ) -> Result<Vec<(String, Storage, RecordBatch)>> {
        check_names(batch)?;
        let column = |name: &str| batch.column_by_name(name).cloned();
        let missing = |name: &str| HistorianError::Columns(format!("column {name:?} is missing"));
        let tags = self.tag_column(&column("tag").ok_or_else(|| missing("tag"))?).await?;
        let time = time_column(&column("time").ok_or_else(|| missing("time"))?)?;
        let value = column("value").ok_or_else(|| missing("value"))?;
        let status = status_column(column("status"), batch.num_rows())?;
        let work = ConformedPoints { tags, time, value, status, first_row, options };
        work.check_times(self.options.future_max_ns)?;
        work.classes()
    }

    /// The points that pass a filter, including those it held back before. Points of text tags, and of tags without
    /// deviations, pass unchanged. If the call fails or its future is dropped, the filter is unchanged.
    ///
    /// # Errors
    /// As [`Historian::write`] for columns and tags; integers that are not exact as doubles, in which deviations are
    /// compared. Other values are not checked yet.
    pub async fn filter(&self, filter: &Mutex<PointFilter>, batches: Vec<RecordBatch>) -> Result<Vec<RecordBatch>> {
        let points = self.filterable(batches).await?;
        // Nothing from here on is refused or awaits, so the filter takes either all points or none.
        let mut filter = filter.lock().unwrap_or_else(PoisonError::into_inner);
        let pass = |points| match points {
            Filterable::Unfiltered(batch) => Ok(batch),
            Filterable::Points(points) => {
                let mut rows = Vec::new();
                points.into_iter().for_each(|(tag, point)| filter.push(&tag, point, &mut rows));
                crate::filter::rows(rows)
            }
        };
        points.into_iter().map(pass).collect()
    }

    /// Looks up the tags of points and converts the values that a filter compares.
    async fn filterable(&self, batches: Vec<RecordBatch>) -> Result<Vec<Filterable>> {
        let mut found = Vec::with_capacity(batches.len());
        for batch in batches.into_iter().filter(|batch| batch.num_rows() > 0) {
            check_names(&batch)?;
            let missing = |name: &str| HistorianError::Columns(format!("column {name:?} is missing"));
            let column = |name: &str| batch.column_by_name(name).cloned().ok_or_else(|| missing(name));
            let (tags, value) = (self.tag_column(&column("tag")?).await?, column("value")?);
            let numeric = value.data_type().is_numeric() || *value.data_type() == ArrowType::Boolean;
            let is_filtered: BooleanArray =
                tags.rows.iter().map(|tag| Some(numeric && filters(&tags.tags[*tag as usize]))).collect();
            if is_filtered.true_count() == 0 {
                found.push(Filterable::Unfiltered(batch));
                continue;
            }
            let failed = HistorianError::compute("filtering points");
            // Rows of other tags pass as they are: the conversion to doubles below would round their integers beyond
            // 2^53.
            if is_filtered.false_count() > 0 {
                let others = is_filtered.iter().map(|filtered| filtered.map(|filtered| !filtered)).collect();
                found.push(Filterable::Unfiltered(filter_record_batch(&batch, &others).map_err(&failed)?));
            }
            let chosen = |column: &ArrayRef| arrow_select::filter::filter(column, &is_filtered).map_err(&failed);
            let value = doubles(&chosen(&value)?)?;
            let value = value.as_primitive::<Float64Type>();
            let times = time_column(&chosen(&column("time")?)?)?;
            let status = batch.column_by_name("status").map(chosen).transpose()?;
            let status = status_column(status, value.len())?;
            let of_rows = tags.rows.iter().map(|tag| &tags.tags[*tag as usize]).filter(|tag| filters(tag));
            let points = of_rows.enumerate().map(|(row, tag)| {
                let number = if value.is_valid(row) { value.value(row) } else { f64::NAN };
                (tag.clone(), (tag.number, times.value(row), number, status.value(row)))
            });
            found.push(Filterable::Points(points.collect()));
        }
        Ok(found)
    }

    /// The tags of a column of names or numbers.
    async fn tag_column(&self, column: &ArrayRef) -> Result<TagColumn> {
        if let ArrowType::Dictionary(_, _) = column.data_type() {
            let dictionary = column.as_any_dictionary_opt();
            if let Some(dictionary) = dictionary {
                // A null may be in the keys or in the values.
                if let Some(row) =
                    column.logical_nulls().and_then(|nulls| (0..nulls.len()).find(|row| nulls.is_null(*row)))
                {
                    return Err(no_tag(row));
                }
                // A filter leaves entries in the dictionary that no row refers to, so these may be anything.
                let mut places = vec![None; dictionary.values().len()];
                let mut used: Vec<u32> = Vec::new();
                // `normalized_keys` requires a value.
                let keys = if column.is_empty() { vec![] } else { dictionary.normalized_keys() };
                let places_of_rows = keys.into_iter().map(|key| {
                    *places[key].get_or_insert_with(|| {
                        used.push(key as u32);
                        used.len() - 1
                    })
                });
                let rows: Vec<usize> = places_of_rows.collect();
                let failed = HistorianError::compute("looking up tags");
                let used = take(dictionary.values(), &UInt32Array::from(used), None).map_err(failed)?;
                // An async function that calls itself needs an allocation. The distinct names are looked up once, not
                // once per row.
                let values = Box::pin(self.tag_column(&used)).await?;
                let rows = rows.into_iter().map(|place| values.rows[place]).collect();
                return Ok(TagColumn { tags: values.tags, rows });
            }
        }
        check_no_nulls(column)?;
        let failed = |_| HistorianError::Columns("column \"tag\" must hold names (utf8) or numbers (int64)".to_owned());
        if column.data_type().is_integer() {
            let numbers = cast(column, &ArrowType::Int64).map_err(failed)?;
            let numbers = numbers.as_primitive::<Int64Type>();
            return self.distinct(numbers.values().iter().copied(), |number| TagKey::Number(*number)).await;
        }
        if !matches!(column.data_type(), ArrowType::Utf8 | ArrowType::LargeUtf8 | ArrowType::Utf8View) {
            return Err(failed(arrow_schema::ArrowError::InvalidArgumentError(String::new())));
        }
        let names = cast(column, &ArrowType::Utf8).map_err(failed)?;
        let names = names.as_string::<i32>();
        self.distinct((0..names.len()).map(|row| names.value(row)), |name| TagKey::Name((*name).to_owned())).await
    }

    async fn distinct<K: std::hash::Hash + Eq + Copy>(
        &self,
        rows: impl Iterator<Item = K>,
        key: impl Fn(&K) -> TagKey,
    ) -> Result<TagColumn> {
        let mut places: HashMap<K, u32> = HashMap::new();
        let mut keys = Vec::new();
        let mut last: Option<(K, u32)> = None;
        let rows: Vec<u32> = rows
            // A run of rows of the same tag needs only one lookup in the map.
            .map(|item| match last {
                Some((before, place)) if before == item => place,
                _ => {
                    let place = *places.entry(item).or_insert_with(|| {
                        keys.push(key(&item));
                        keys.len() as u32 - 1
                    });
                    last = Some((item, place));
                    place
                }
            })
            .collect();
        Ok(TagColumn { tags: self.resolve(&keys).await?, rows })
    }

    /// Deletes the points of a tag in `[start, end)`, and returns their number. Each is hidden by a newer deletion
    /// marker, so no space is freed. A point written there later is visible again.
    ///
    /// # Errors
    /// An unknown tag; an error of the engine.
    pub async fn delete(&self, key: &TagKey, start: i64, end: i64) -> Result<u64> {
        let tag = self.resolve(std::slice::from_ref(key)).await?.remove(0);
        let dataset = self.points(&tag).await?;
        let time = TimeRange { start: Some(Instant::NativeTicks(start)), end: Some(Instant::NativeTicks(end)) };
        let request = ReadRequest {
            cells: CellSelection::Cells(vec![tag.number]),
            time,
            columns: Some(vec!["tag".into(), "time".into(), "status".into()]),
            ..ReadRequest::default()
        };
        let mut rows = dataset.read(request).await?;
        let mut deleted = 0;
        while let Some(batch) = rows.try_next().await? {
            // Points that are already hidden are neither counted nor hidden again.
            let batch = crate::columns::undeleted(batch)?;
            if batch.num_rows() > 0 {
                deleted += batch.num_rows() as u64;
                hide(&dataset, &batch).await?;
            }
        }
        Ok(deleted)
    }

    /// Adds an annotation to a time of a tag.
    ///
    /// # Errors
    /// As [`Historian::write`].
    pub async fn annotate(&self, key: &TagKey, time: i64, author: &str, text: &str) -> Result<()> {
        let tag = self.resolve(std::slice::from_ref(key)).await?.remove(0);
        let nanoseconds =
            |time: i64| -> ArrayRef { Arc::new(TimestampNanosecondArray::from(vec![time]).with_timezone("UTC")) };
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![tag.number])),
            nanoseconds(time),
            nanoseconds(now_ns()),
            Arc::new(StringArray::from(vec![author])),
            Arc::new(StringArray::from(vec![text])),
        ];
        let rows = RecordBatch::try_new(schema::annotations()?.schema, columns);
        let rows = rows.map_err(HistorianError::compute("adding an annotation"))?;
        self.annotations.write([Ok(rows)], WriteOptions::default()).await?;
        Ok(())
    }
}

/// Writes deletion markers over points.
async fn hide(dataset: &Dataset, batch: &RecordBatch) -> Result<()> {
    let spec = dataset.spec();
    let columns: Vec<ArrayRef> = vec![
        batch.column(0).clone(),
        batch.column(1).clone(),
        new_null_array(spec.schema.field(2).data_type(), batch.num_rows()),
        Arc::new(UInt32Array::from(vec![DELETED; batch.num_rows()])),
    ];
    let rows =
        RecordBatch::try_new(spec.schema.clone(), columns).map_err(HistorianError::compute("deleting points"))?;
    dataset.write([Ok(rows)], WriteOptions::default()).await?;
    Ok(())
}

/// The values as doubles, for comparison with deviations.
fn doubles(values: &ArrayRef) -> Result<ArrayRef> {
    match values.data_type().is_integer() {
        true => exact_values(values, &ArrowType::Float64).map_err(|reason| {
            HistorianError::Columns(format!("column \"value\" {reason}: deviations are compared in doubles"))
        }),
        false => cast(values, &ArrowType::Float64).map_err(HistorianError::compute("converting values")),
    }
}

fn check_no_nulls(column: &ArrayRef) -> Result<()> {
    // A column of a type without nulls of its own may be said to have any length.
    if column.null_count() == 0 {
        return Ok(());
    }
    match (0..column.len()).find(|row| column.is_null(*row)) {
        Some(row) => Err(no_tag(row)),
        None => Ok(()),
    }
}

fn no_tag(row: usize) -> HistorianError {
    HistorianError::Columns(format!("row {row} has no tag"))
}

/// Refuses duplicate columns, and a column `Status`, which would be ignored: Bad points would be stored as Good.
fn check_names(batch: &RecordBatch) -> Result<()> {
    let names: Vec<&str> = batch.schema_ref().fields().iter().map(|field| field.name().as_str()).collect();
    for own in ["tag", "time", "value", "status"] {
        if names.iter().filter(|name| **name == own).count() > 1 {
            return Err(HistorianError::Columns(format!("column {own:?} appears twice")));
        }
    }
    let other = |name: &&&str| name.trim().eq_ignore_ascii_case("status");
    match names.iter().find(other) {
        Some(name) if !names.contains(&"status") => {
            let advice = "rename it to \"status\", or leave it out if it holds no qualities";
            Err(HistorianError::Columns(format!("column {name:?} is not read: {advice}")))
        }
        _ => Ok(()),
    }
}

fn time_column(column: &ArrayRef) -> Result<TimestampNanosecondArray> {
    let refuse = |reason: String| HistorianError::Columns(format!("column \"time\" {reason}"));
    if column.null_count() > 0 {
        return Err(refuse("has nulls: every point needs a time".to_owned()));
    }
    if !matches!(column.data_type(), ArrowType::Timestamp(_, _) | ArrowType::Int64) {
        let kind = column.data_type();
        return Err(refuse(format!("is {kind}: give timestamps, or nanoseconds since 1970 as int64")));
    }
    let nanoseconds = ArrowType::Timestamp(arrow_schema::TimeUnit::Nanosecond, None);
    let times = cast(column, &nanoseconds).map_err(|_| {
        refuse("holds a time before 1677 or after 2262, which 64-bit nanoseconds cannot count".to_owned())
    })?;
    Ok(times.as_primitive::<TimestampNanosecondType>().clone().with_timezone("UTC"))
}

fn status_column(column: Option<ArrayRef>, rows: usize) -> Result<UInt32Array> {
    let Some(column) = column else { return Ok(UInt32Array::from(vec![0; rows])) };
    let refuse = || {
        HistorianError::Columns("column \"status\" must hold OPC UA status codes, whole numbers below 2^32 - 1".into())
    };
    if !column.data_type().is_integer() {
        return Err(refuse());
    }
    let codes = cast(&column, &ArrowType::UInt32).map_err(|_| refuse())?;
    let codes = codes.as_primitive::<UInt32Type>();
    // A null counts as Good, as does a missing column.
    let codes: UInt32Array = if codes.null_count() == 0 {
        codes.clone()
    } else {
        codes.iter().map(|code| Some(code.unwrap_or(0))).collect()
    };
    // Stored with this status, a point would be a deletion marker and hide itself.
    if codes.values().contains(&DELETED) { Err(refuse()) } else { Ok(codes) }
}

/// The tags of rows: the distinct tags, and for each row the index of its tag.
struct TagColumn {
    tags: Vec<SharedTag>,
    rows: Vec<u32>,
}

/// Points on their way to a filter.
enum Filterable {
    /// Points that pass as they are.
    Unfiltered(RecordBatch),
    Points(Vec<(SharedTag, Row)>),
}

struct ConformedPoints<'a> {
    tags: TagColumn,
    time: TimestampNanosecondArray,
    value: ArrayRef,
    status: UInt32Array,
    first_row: u64,
    options: &'a PointsOptions,
}

impl ConformedPoints<'_> {
    fn refuse(&self, row: usize, reason: impl Into<String>) -> HistorianError {
        let tag = &self.tags.tags[self.tags.rows[row] as usize];
        HistorianError::Point { row: self.first_row + row as u64, tag: tag.name.clone(), reason: reason.into() }
    }

    fn check_times(&self, future_max_ns: Option<i64>) -> Result<()> {
        let Some(limit) = future_max_ns.map(|ahead| now_ns().saturating_add(ahead)) else { return Ok(()) };
        match self.time.values().iter().position(|time| *time > limit) {
            Some(row) => Err(self.refuse(
                row,
                "its time lies further ahead of this machine's clock than max_future allows: correct it, or have \
                 max_future raised",
            )),
            None => Ok(()),
        }
    }

    fn classes(self) -> Result<Vec<(String, Storage, RecordBatch)>> {
        // Rows are divided by type, not only by dataset: float and bool share a dataset, but their values are checked
        // by different rules.
        let class = |tag: &SharedTag| -> Class { (tag.group.clone(), tag.data_type) };
        let mut classes: Vec<Class> = Vec::new();
        let of_tag: Vec<usize> = self
            .tags
            .tags
            .iter()
            .map(|tag| {
                let class = class(tag);
                classes.iter().position(|known| *known == class).unwrap_or_else(|| {
                    classes.push(class);
                    classes.len() - 1
                })
            })
            .collect();
        let numbers: Vec<i64> = self.tags.tags.iter().map(|tag| tag.number).collect();
        let numbers = Int64Array::from_iter_values(self.tags.rows.iter().map(|row| numbers[*row as usize]));
        let mut parts = Vec::with_capacity(classes.len());
        for (index, (group, kind)) in classes.iter().enumerate() {
            let all = classes.len() == 1;
            let mask = (!all).then(|| {
                self.tags.rows.iter().map(|row| Some(of_tag[*row as usize] == index)).collect::<BooleanArray>()
            });
            let storage = kind.storage();
            let (value, status) = self.values(*kind, mask.as_ref())?;
            let columns: Vec<ArrayRef> =
                vec![Arc::new(numbers.clone()), Arc::new(self.time.clone()), value, Arc::new(status)];
            let failed = HistorianError::compute("sorting points by tag");
            let schema = schema::points(group, storage)?.schema;
            let mut rows = RecordBatch::try_new(schema, columns).map_err(&failed)?;
            if let Some(mask) = &mask {
                rows = filter_record_batch(&rows, mask).map_err(failed)?;
            }
            parts.push((group.clone(), storage, rows));
        }
        Ok(parts)
    }

    /// Converts the values to the stored type of a tag of type `kind`; rows outside of `mask` become null.
    fn values(&self, kind: DataType, mask: Option<&BooleanArray>) -> Result<(ArrayRef, UInt32Array)> {
        let inside = |row: usize| mask.is_none_or(|mask| mask.value(row));
        let first = (0..self.value.len()).find(|row| inside(*row) && self.value.is_valid(*row));
        let given = self.value.data_type();
        let wrong = |row: usize| {
            let Some((row, text)) = self.no_number(row, &inside) else {
                let message =
                    format!("the tag has type {}, but the value has type {given}: convert it first", kind.name());
                return self.refuse(row, message);
            };
            self.refuse(row, format!("the tag has type {}, but the value {text:?} is text", kind.name()))
        };
        let numeric = given.is_numeric() || *given == ArrowType::Null;
        let fits = match kind {
            DataType::Float | DataType::Integer => numeric,
            DataType::Bool => numeric || *given == ArrowType::Boolean,
            DataType::String => {
                matches!(given, ArrowType::Utf8 | ArrowType::LargeUtf8 | ArrowType::Utf8View | ArrowType::Null)
            }
        };
        // Without a value, the type of the column does not matter: all points may be Bad.
        match first {
            Some(row) if !fits => return Err(wrong(row)),
            None if !fits => {
                return Ok((
                    new_null_array(&stored_type(kind), self.value.len()),
                    self.statuses(kind, mask, &|_| false)?,
                ));
            }
            _ => {}
        }
        let failed = HistorianError::compute("converting values");
        if kind == DataType::String {
            let value = cast(&self.value, &ArrowType::Utf8).map_err(failed)?;
            let status = self.statuses(kind, mask, &|row| value.is_valid(row))?;
            return Ok((value, status));
        }
        // Integers are cast directly, because a double would round those beyond 2^53. Integers in other forms follow
        // below.
        if kind == DataType::Integer && given.is_integer() {
            let value = cast(&self.value, &ArrowType::Int64)
                .map_err(|_| self.refuse(first.unwrap_or(0), "a value is out of the range of 64-bit integers"))?;
            let status = self.statuses(kind, mask, &|row| value.is_valid(row))?;
            return Ok((value, status));
        }
        let value = cast(&self.value, &ArrowType::Float64).map_err(&failed)?;
        let value = value.as_primitive::<Float64Type>();
        self.check_whole(kind, value, &inside)?;
        self.check_exact(value, &inside)?;
        let status = self.statuses(kind, mask, &|row| value.is_valid(row) && value.value(row).is_finite())?;
        let all_finite = value.null_count() == 0 && value.values().iter().all(|value| value.is_finite());
        // A NaN or an infinity has a Bad status by now, and is stored as null.
        let value: Float64Array = match all_finite {
            true => value.clone(),
            false => value.iter().map(|value| value.filter(|value| value.is_finite())).collect(),
        };
        let value: ArrayRef = Arc::new(value);
        Ok((cast(&value, &stored_type(kind)).map_err(failed)?, status))
    }

    /// For text values, the first row from `row` on that is not a number, which makes a clearer message than one that
    /// could be; else `row`.
    fn no_number(&self, row: usize, inside: &dyn Fn(usize) -> bool) -> Option<(usize, &str)> {
        let texts = self.value.as_string_opt::<i32>()?;
        let is_none =
            |row: &usize| inside(*row) && texts.is_valid(*row) && texts.value(*row).trim().parse::<f64>().is_err();
        let row = (row..texts.len()).find(is_none).unwrap_or(row);
        Some((row, texts.value(row)))
    }

    /// Refuses integers that a float would round.
    fn check_exact(&self, value: &Float64Array, inside: &dyn Fn(usize) -> bool) -> Result<()> {
        // Compare as i128, which holds every i64 and u64 and also the doubles to which the greatest of them are
        // rounded.
        let given: Box<dyn Fn(usize) -> i128> = match self.value.data_type() {
            ArrowType::Int64 => {
                let whole = self.value.as_primitive::<Int64Type>();
                Box::new(move |row| i128::from(whole.value(row)))
            }
            ArrowType::UInt64 => {
                let whole = self.value.as_primitive::<UInt64Type>();
                Box::new(move |row| i128::from(whole.value(row)))
            }
            _ => return Ok(()),
        };
        let rounded = |row: &usize| inside(*row) && value.is_valid(*row) && value.value(*row) as i128 != given(*row);
        match (0..value.len()).find(rounded) {
            Some(row) => Err(self.refuse(
                row,
                format!("a float cannot hold its value {} exactly: use a tag of integers, or round it", given(row)),
            )),
            None => Ok(()),
        }
    }

    /// Checks that values of integer tags are integers, and values of bool tags 0 or 1.
    fn check_whole(&self, kind: DataType, value: &Float64Array, inside: &dyn Fn(usize) -> bool) -> Result<()> {
        // 2^53: above it, one double stands for several integers, so the integer that was given is unknown.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        let (fits, what): (fn(f64) -> bool, _) = match kind {
            DataType::Integer => {
                (|value| value.fract() == 0.0 && value.abs() <= EXACT, "an integer; give whole numbers")
            }
            DataType::Bool => (|value| value == 0.0 || value == 1.0, "a bool; give true and false, or 1 and 0"),
            _ => return Ok(()),
        };
        let bad = |row: &usize| {
            inside(*row) && value.is_valid(*row) && value.value(*row).is_finite() && !fits(value.value(*row))
        };
        match (0..value.len()).find(bad) {
            Some(row) => Err(self.refuse(row, format!("its value {} is not {what}", value.value(row)))),
            None => Ok(()),
        }
    }

    /// The statuses. Values that are not usable must be Bad, or are made Bad.
    fn statuses(
        &self,
        kind: DataType,
        mask: Option<&BooleanArray>,
        usable: &dyn Fn(usize) -> bool,
    ) -> Result<UInt32Array> {
        let needs_value = |row: usize| {
            mask.is_none_or(|mask| mask.value(row)) && !Status(self.status.value(row)).is_bad() && !usable(row)
        };
        let Some(row) = (0..self.status.len()).find(|row| needs_value(*row)) else { return Ok(self.status.clone()) };
        if self.options.not_finite == NotFinite::Refuse {
            let what = if kind == DataType::String { "has no value" } else { "has no finite value" };
            let reason = format!(
                "{what}, and its status is not Bad: give one, a Bad status, or write with not_finite=bad (--bad-values)"
            );
            return Err(self.refuse(row, reason));
        }
        let code = |row: usize| if needs_value(row) { SENSOR_FAILURE } else { self.status.value(row) };
        Ok(UInt32Array::from_iter_values((0..self.status.len()).map(code)))
    }
}

fn stored_type(kind: DataType) -> ArrowType {
    match kind.storage() {
        Storage::Float => ArrowType::Float64,
        Storage::Integer => ArrowType::Int64,
        Storage::Text => ArrowType::Utf8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_schema::{Field, Schema};

    #[test]
    fn columns_that_would_be_left_out_without_a_word_are_refused() {
        let check = |names: &[&str]| {
            let fields: Vec<_> = names.iter().map(|name| Field::new(*name, ArrowType::Int64, true)).collect();
            let batch = RecordBatch::new_empty(Arc::new(Schema::new(fields)));
            check_names(&batch).map_err(|error| error.to_string())
        };
        for names in [&["tag", "time", "value"][..], &["value", "unit", "tag", "status", "Status", "time", "unit"]] {
            assert_eq!(check(names), Ok(()));
        }
        for name in ["Status", "STATUS", " status"] {
            let refused = check(&["tag", "time", "value", name]).unwrap_err();
            assert!(refused.contains(&format!("column {name:?} is not read")), "{refused}");
        }
        for name in ["tag", "time", "value", "status"] {
            let refused = check(&["tag", "time", "value", "status", name]).unwrap_err();
            assert!(refused.contains(&format!("column {name:?} appears twice")), "{refused}");
        }
    }
}
