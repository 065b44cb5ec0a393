//! A dataset's definition in compiled form: what every write and read needs, computed once.

use std::sync::{Arc, OnceLock};

use arrow_array::{Array, ArrayRef, StringArray, new_null_array};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{ArrowError, Field};
use bytes::Bytes;
use chronotile_chunk::{Binding, Defaults, Head, Layout, MISSING_BYTES_MAX};
use chronotile_store::{Chunk, ChunkKey, DatasetRef, RecordPut};
use chronotile_types::{Damage, DatasetSpec, MergeRule, name_hint};

use crate::catalog;
use crate::catalog::clock::Clock;
use crate::error::{ArchiveError, Result};
use crate::keys::Keys;

/// Metadata key of an added column's default, as text: the value that older rows read as.
pub(crate) const DEFAULT_METADATA: &str = "chronotile.default";

/// Most rows in a chunk that this release writes.
pub(crate) const CHUNK_ROWS_MAX: usize = 1 << 16;

/// The compiled definition of a dataset.
#[derive(Clone)]
pub(crate) struct Frame {
    pub spec: Arc<DatasetSpec>,
    /// The dataset's reference for calls to the engine.
    pub dataset: DatasetRef,
    pub layout: Layout,
    pub defaults: Defaults,
    /// Position of the time column.
    pub time: usize,
    /// Positions of the id columns.
    pub ids: Vec<usize>,
    /// Position of the version column.
    pub version: Option<usize>,
    /// Positions of the columns whose texts get filters.
    pub text: Vec<usize>,
    /// The clock of the archive's writers; reading a chunk's head advances it.
    pub clock: Arc<Clock>,
    /// The same definition with more columns, once a chunk was found that has them ([`Frame::extend`]).
    extended: Arc<OnceLock<Frame>>,
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frame").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Frame {
    pub(crate) fn new(spec: DatasetSpec, clock: Arc<Clock>) -> Result<Self> {
        let layout = Layout::new(spec.schema.clone())?;
        let mut defaults = Defaults::none();
        for (column, field) in spec.schema.fields().iter().enumerate() {
            if let Some(value) = default_value(field).map_err(|e| compute(&spec, "reading a default", e))? {
                let set = defaults.set(&layout, column, &value);
                set.map_err(|source| ArchiveError::Encode { dataset: spec.name.clone(), source })?;
            }
        }
        let version = match &spec.merge {
            MergeRule::Latest { version: Some(name) } => Some(name.as_str()),
            _ => None,
        };
        let place = |name: &str| position(&spec, name);
        let (time, version) = (place(&spec.time.column)?, version.map(place).transpose()?);
        let places = |names: &[String]| names.iter().map(|name| place(name)).collect::<Result<Vec<_>>>();
        let (ids, text) = (places(&spec.id)?, places(&spec.text)?);
        let dataset = DatasetRef::from(&spec);
        let (spec, extended) = (Arc::new(spec), Arc::default());
        Ok(Self { layout, defaults, time, ids, version, text, clock, dataset, spec, extended })
    }

    /// Position of a column a caller names.
    pub(crate) fn column(&self, name: &str) -> Result<usize> {
        position(&self.spec, name)
    }

    /// Positions of the columns that the cell is computed from.
    pub(crate) fn cell_columns(&self) -> Result<Vec<usize>> {
        self.spec.cell.columns().into_iter().map(|name| self.column(name)).collect()
    }

    /// Keys that order the versions of a record, if the dataset has a version column; `column` returns a column by
    /// position.
    pub(crate) fn versions(&self, column: impl FnOnce(usize) -> ArrayRef) -> Result<Option<Keys>> {
        let keys = self.version.map(|version| Keys::new(&[column(version)])).transpose();
        keys.map_err(|e| self.compute("comparing versions", e))
    }

    /// Whether the time column is one of the id columns.
    pub(crate) fn timed_ids(&self) -> bool {
        self.ids.contains(&self.time)
    }

    /// Whether a read returns the newest version of each id.
    pub(crate) fn keeps_latest(&self) -> bool {
        matches!(self.spec.merge, MergeRule::Latest { .. })
    }

    /// Parses and checks a chunk's head.
    pub(crate) fn head(&self, chunk: &Chunk) -> Result<Head> {
        let head = Head::parse(&chunk.head, &binding(&chunk.key)).map_err(|damage| self.damaged(&chunk.key, damage))?;
        self.clock.saw_head(&head);
        Ok(head)
    }

    /// Refuses a definition of which a chunk of the fewest columns and the most rows could not be read any more.
    pub(crate) fn check_added_columns(&self) -> Result<()> {
        let first = self.spec.columns_in(0).unwrap_or(0);
        let (bytes, bytes_max) =
            (self.defaults.missing_row_bytes(&self.layout, first), MISSING_BYTES_MAX / CHUNK_ROWS_MAX);
        if bytes <= bytes_max {
            return Ok(());
        }
        Err(self.refuse(format!(
            "its added columns would take {bytes} bytes in each older row, more than {bytes_max}: add fewer, or with \
             shorter defaults, or create another dataset"
        )))
    }

    /// The definition that decodes chunks with these heads: this one, or one with columns that were added since. Columns
    /// have the same positions in both.
    pub(crate) fn decoding<'a>(&self, heads: impl IntoIterator<Item = &'a Head>) -> &Self {
        let version = heads.into_iter().map(|head| head.schema_version).max().unwrap_or(0);
        let mut frame = self;
        while frame.spec.columns_in(version).is_none()
            && let Some(extended) = frame.extended.get()
        {
            frame = extended;
        }
        frame
    }

    /// Whether [`Frame::decoding`] has all columns of chunks with these heads.
    pub(crate) fn decodes<'a>(&self, heads: impl IntoIterator<Item = &'a Head, IntoIter: Clone>) -> bool {
        let mut heads = heads.into_iter();
        let frame = self.decoding(heads.clone());
        heads.all(|head| frame.spec.columns_in(head.schema_version).is_some())
    }

    /// Notes that columns were added to the dataset. Ignores the definition of another dataset, which was created under
    /// the name since.
    pub(crate) fn extend(&self, spec: DatasetSpec) -> Result<()> {
        if let Some(extended) = self.extended.get() {
            return extended.extend(spec);
        }
        if self.is_still(&spec) && spec.schema.fields().len() > self.spec.schema.fields().len() {
            // If another read has noted columns meanwhile, those suffice, or a later call adds the rest.
            self.extended.set(Self::new(spec, self.clock.clone())?).ok();
        }
        Ok(())
    }

    /// Whether `current` defines the same dataset, perhaps with columns that were added since. If not, the dataset was
    /// dropped, and another one was created under its name.
    fn is_still(&self, current: &DatasetSpec) -> bool {
        let own = self.spec.as_ref();
        let as_before = DatasetSpec { schema: own.schema.clone(), ..current.clone() };
        current.schema.fields().starts_with(own.schema.fields())
            && current.schema_versions.starts_with(&own.schema_versions)
            && current.group == own.group
            && difference(own, &as_before).is_none()
    }

    /// Fails if `current` defines another dataset of the same name.
    pub(crate) fn check_still(&self, current: &DatasetSpec) -> Result<()> {
        if self.is_still(current) { Ok(()) } else { Err(ArchiveError::dropped(current.name.to_string())) }
    }

    /// The condition that the definition is stored as these bytes.
    pub(crate) fn defined_as(&self, stored: Bytes) -> RecordPut {
        catalog::unchanged(catalog::dataset_key(self.spec.name.as_str()), stored)
    }

    /// Number of columns in a chunk with this head.
    pub(crate) fn columns_in(&self, key: &ChunkKey, head: &Head) -> Result<usize> {
        let unknown = || self.damaged(key, Damage::malformed("its schema version is newer than the dataset's"));
        self.spec.columns_in(head.schema_version).ok_or_else(unknown)
    }

    pub(crate) fn damaged(&self, key: &ChunkKey, damage: Damage) -> ArchiveError {
        ArchiveError::Damaged { dataset: self.spec.name.clone(), tile: key.tile, chunk: key.id, damage }
    }

    pub(crate) fn compute(&self, work: &'static str, source: ArrowError) -> ArchiveError {
        compute(&self.spec, work, source)
    }

    pub(crate) fn refuse(&self, reason: impl Into<String>) -> ArchiveError {
        ArchiveError::Request { dataset: self.spec.name.clone(), reason: reason.into() }
    }
}

fn compute(spec: &DatasetSpec, work: &'static str, source: ArrowError) -> ArchiveError {
    ArchiveError::Compute { dataset: spec.name.clone(), work, source }
}

/// The identity that a chunk's checksums cover.
pub(crate) fn binding(key: &ChunkKey) -> Binding {
    Binding { tile: key.tile, chunk: key.id }
}

fn position(spec: &DatasetSpec, name: &str) -> Result<usize> {
    spec.schema.index_of(name).map_err(|_| {
        let names: Vec<_> = spec.schema.fields().iter().map(|f| f.name().as_str()).collect();
        let reason = format!("no column {name:?}{}", name_hint(name, &names));
        ArchiveError::Request { dataset: spec.name.clone(), reason }
    })
}

/// The value, an array of length 1, that rows without the column read as: its default, or null.
pub(crate) fn absent_value(field: &Field) -> std::result::Result<ArrayRef, ArrowError> {
    Ok(default_value(field)?.unwrap_or_else(|| new_null_array(field.data_type(), 1)))
}

/// The default of an added column, an array of length 1; `None` if it has none.
pub(crate) fn default_value(field: &Field) -> std::result::Result<Option<ArrayRef>, ArrowError> {
    let Some(text) = field.metadata().get(DEFAULT_METADATA) else { return Ok(None) };
    let text: ArrayRef = Arc::new(StringArray::from(vec![text.as_str()]));
    // With `safe`, Arrow would replace a text that is no value of the type by null, and older rows would read as null.
    let value = cast_with_options(&text, field.data_type(), &CastOptions { safe: false, ..CastOptions::default() })?;
    Ok((value.null_count() == 0).then_some(value))
}

/// The first part in which two definitions differ, apart from those that may be changed: retention and the bound on
/// motion.
pub(crate) fn difference(a: &DatasetSpec, b: &DatasetSpec) -> Option<&'static str> {
    let parts = [
        (a.schema.fields() != b.schema.fields(), "schema"),
        (a.cell != b.cell, "cell rule"),
        (a.time != b.time, "time axis"),
        (a.window != b.window, "window"),
        (a.windows_per_slice != b.windows_per_slice, "slice length"),
        (a.id != b.id, "list of id columns"),
        (a.merge != b.merge, "merge rule"),
        (a.layout != b.layout, "layout"),
        (a.partition_cells != b.partition_cells, "number of cells in a partition"),
        (a.text != b.text, "list of text columns"),
        (a.group.as_ref().map(|g| &g.group) != b.group.as_ref().map(|g| &g.group), "group"),
        (a.slices_name() != b.slices_name(), "owner of its slices"),
    ];
    parts.into_iter().find_map(|(differs, part)| differs.then_some(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::Int64Array;
    use arrow_schema::{DataType, Schema};
    use chronotile_types::{
        CellRule, DatasetName, Membership, SliceOwner, StorageLayout, TimeFormat, TimeScale, TimeSpec,
    };

    use crate::time_axis::tests::spec;

    #[test]
    fn a_default_that_is_no_value_of_its_column_is_an_error_and_not_null() {
        let field = |text: &str| {
            let metadata = [(DEFAULT_METADATA.to_owned(), text.to_owned())].into_iter().collect();
            Field::new("n", DataType::Int64, true).with_metadata(metadata)
        };
        assert_eq!(absent_value(&field("-7")).unwrap().as_ref(), &Int64Array::from(vec![-7]));
        assert!(absent_value(&field("seven")).is_err() && default_value(&field("seven")).is_err());
        let plain = Field::new("n", DataType::Int64, true);
        assert_eq!(absent_value(&plain).unwrap().as_ref(), &Int64Array::from(vec![None]));
        assert!(default_value(&plain).unwrap().is_none());
    }

    #[test]
    fn the_first_part_that_differs_is_named_but_for_those_that_may_change() {
        let base = || spec(TimeFormat::Timestamp);
        let name = |name: &str| DatasetName::new(name).unwrap();
        let member = |slices_of| Some(Membership { number: 1, slices_of, ..Membership::of(name("survey")) });
        let mut fields: Vec<Field> = base().schema.fields().iter().map(|field| Field::clone(field)).collect();
        fields.push(Field::new("more", DataType::Int64, true));
        for (part, changed) in [
            ("schema", DatasetSpec { schema: Arc::new(Schema::new(fields)), ..base() }),
            ("cell rule", DatasetSpec { cell: CellRule::Single, ..base() }),
            ("time axis", DatasetSpec { time: TimeSpec { scale: TimeScale::Tai, ..base().time }, ..base() }),
            ("window", DatasetSpec { window: "2s".parse().unwrap(), ..base() }),
            ("slice length", DatasetSpec { windows_per_slice: 3, ..base() }),
            ("list of id columns", DatasetSpec { id: vec!["tag".into()], ..base() }),
            ("merge rule", DatasetSpec { merge: MergeRule::Latest { version: None }, ..base() }),
            ("layout", DatasetSpec { layout: StorageLayout::Rows, ..base() }),
            ("number of cells in a partition", DatasetSpec { partition_cells: 2, ..base() }),
            ("list of text columns", DatasetSpec { text: vec!["tag".into()], ..base() }),
            ("group", DatasetSpec { group: member(None), ..base() }),
        ] {
            assert_eq!((difference(&base(), &changed), difference(&changed, &base())), (Some(part), Some(part)));
            assert_eq!(difference(&changed, &changed), None, "{part}");
        }
        let (alone, owner) =
            (DatasetSpec { group: member(None), ..base() }, SliceOwner { dataset: name("a"), number: 0 });
        let sharing = DatasetSpec { group: member(Some(owner)), ..base() };
        assert_eq!(difference(&alone, &sharing), Some("owner of its slices"));
        let changed = DatasetSpec { retention: "1d".parse().ok(), moves_deg: 1.0, ..base() };
        assert_eq!(difference(&base(), &changed), None);
    }
}
