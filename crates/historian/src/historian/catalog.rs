//! The catalog of tags: defined in the archive; found by name with one read, by number or pattern in a cache.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray,
};
use chronotile_archive::{CellSelection, Dataset, ReadRequest, WriteOptions};
use futures::TryStreamExt;

use crate::error::{HistorianError, Result};
use crate::historian::{Historian, SharedTag};
use crate::names::{CachedNames, Pattern};
use crate::rules::Settings;
use crate::schema;
use crate::tag::{DataType, GROUP_BYTES_MAX, NAME_BYTES_MAX, Storage, Tag, TagKey, UNIT_BYTES_MAX};

/// The tags that this process has cached.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    by_name: HashMap<String, SharedTag>,
    by_number: HashMap<i64, SharedTag>,
    /// Whether all tags of the archive were read at some time.
    complete: bool,
    /// All tags by name, once requested.
    sorted: Option<Arc<Vec<SharedTag>>>,
    /// The dataset of names, once known to be complete.
    pub(crate) names: Option<Dataset>,
    /// All names, once a pattern without a prefix was requested.
    pub(crate) listed: Option<Arc<CachedNames>>,
    /// Incremented by each definition in this process, to detect that a list read meanwhile may lack the new names.
    pub(crate) definitions: u64,
}

impl Catalog {
    fn add(&mut self, tag: SharedTag) {
        self.by_number.insert(tag.number, tag.clone());
        self.by_name.insert(tag.name.clone(), tag);
    }

    pub(crate) fn all_names(&self) -> impl Iterator<Item = String> + '_ {
        self.by_name.keys().cloned()
    }
}

/// Checks a definition as far as possible without the archive.
fn check(tag: &Tag) -> Result<()> {
    let refuse = |reason: &str| Err(HistorianError::Definition { tag: tag.name.clone(), reason: reason.to_owned() });
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if tag.name.is_empty() || tag.name.len() > NAME_BYTES_MAX || tag.name.chars().any(char::is_control) {
        return refuse("its name must have 1 to 512 bytes and no control characters");
    }
    if tag.group.is_empty() || tag.group.len() > GROUP_BYTES_MAX || !tag.group.chars().all(legal) {
        return refuse("its group must have 1 to 24 characters of a-z, 0-9 and _");
    }
    if tag.unit.len() > UNIT_BYTES_MAX || tag.unit.chars().any(char::is_control) {
        return refuse("its unit must have up to 512 bytes and no control characters");
    }
    if let Err(refused) = tag.settings.check() {
        return refuse(&refused.to_string());
    }
    if tag.number < 0 {
        return refuse("its number must not be negative");
    }
    if tag.data_type == DataType::String && (tag.exception_deviation >= 0.0 || tag.compression_deviation >= 0.0) {
        return refuse("text has no deviations");
    }
    if tag.exception_deviation.is_nan() || tag.compression_deviation.is_nan() {
        return refuse("a deviation is a number, or negative for none");
    }
    Ok(())
}

/// The default number of a tag: derived from its name, so that it is the same in every process.
fn number_of(name: &str) -> i64 {
    // FNV-1a with the top bit cleared. Among a million names, the chance of a collision is one in ten million; the
    // second definition is then refused.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    // A final mix, so that names that differ only at the end differ in all bits.
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 29)) & (i64::MAX as u64)) as i64
}

impl Historian {
    /// Defines tags, or changes their definitions, except number, data type and group, which are fixed. A number of -1
    /// stands for one derived from the name.
    ///
    /// # Errors
    /// An invalid definition, a number that another tag has, or a change of a fixed part. Nothing is defined then.
    pub async fn define(&self, mut tags: Vec<Tag>) -> Result<Vec<SharedTag>> {
        self.complete().await?;
        let catalog = self.catalog.read().await;
        let refuse = |tag: &Tag, reason: String| HistorianError::Definition { tag: tag.name.clone(), reason };
        let mut given: HashMap<i64, String> = HashMap::new();
        for tag in &mut tags {
            let known = catalog.by_name.get(&tag.name);
            if tag.number == -1 {
                tag.number = known.map_or_else(|| number_of(&tag.name), |known| known.number);
            }
            check(tag)?;
            if let Some(known) = known
                && (known.number, known.data_type, &known.group) != (tag.number, tag.data_type, &tag.group)
            {
                let (number, kind, group) = (known.number, known.data_type.name(), &known.group);
                let reason =
                    format!("it exists with number {number}, type {kind} and group {group}, which cannot change");
                return Err(refuse(tag, reason));
            }
            let holder = catalog.by_number.get(&tag.number).map(|other| other.name.clone());
            // Two tags of the same call may share a number, too, before the catalog knows either.
            let holder = holder.or_else(|| given.insert(tag.number, tag.name.clone()));
            if let Some(holder) = holder.filter(|holder| *holder != tag.name) {
                return Err(refuse(tag, format!("tag {holder:?} already has number {}: give another", tag.number)));
            }
        }
        let mut new: Vec<String> =
            tags.iter().map(|tag| &tag.name).filter(|name| !catalog.by_name.contains_key(*name)).cloned().collect();
        new.sort_unstable();
        // The write lock below waits for all readers: with this guard it would wait forever.
        drop(catalog);
        // Create the datasets now, because readers do not create them.
        let places: HashSet<(&str, Storage)> =
            tags.iter().map(|tag| (tag.group.as_str(), tag.data_type.storage())).collect();
        for (group, storage) in places {
            self.points_of(group, storage).await?;
            self.summaries(group).await?;
        }
        let rows = rows_of(&tags)?;
        // List the names first: a crash in between leaves a name without a tag, which lookups ignore. A tag without a
        // name would be missing from every search by pattern.
        self.list_names(new.clone()).await?;
        self.tags.write([Ok(rows)], WriteOptions::default()).await?;
        let tags: Vec<SharedTag> = tags.into_iter().map(Arc::new).collect();
        let mut catalog = self.catalog.write().await;
        tags.iter().for_each(|tag| catalog.add(tag.clone()));
        catalog.sorted = None;
        catalog.definitions += 1;
        // With the new names, the cached list is complete. Its fingerprint remains that of the read, so `refresh` drops
        // the list if names were added.
        catalog.listed = catalog.listed.take().map(|listed| Arc::new(listed.with(&new)));
        Ok(tags)
    }

    /// Drops the cached tags, so that changes by other processes become visible. The cached names are kept if the list
    /// is unchanged.
    pub async fn refresh(&self) {
        let unchanged = self.names_still_listed().await;
        let mut catalog = self.catalog.write().await;
        // `names_still_listed` compared the list without this lock, and a definition may have replaced it since.
        let listed = catalog.listed.take().zip(unchanged).filter(|(now, then)| Arc::ptr_eq(now, then));
        // A list whose read began before this point may lack names of other processes, so it must not be cached either.
        let definitions = catalog.definitions + 1;
        *catalog = Catalog { listed: listed.map(|(now, _)| now), definitions, ..Catalog::default() };
    }

    /// The tags with these names or numbers, in the given order.
    ///
    /// # Errors
    /// A tag is not defined; an error of the engine.
    pub async fn resolve(&self, keys: &[TagKey]) -> Result<Vec<SharedTag>> {
        let found = self.lookup(keys).await?;
        if let Some((key, _)) = keys.iter().zip(&found).find(|(_, tag)| tag.is_none()) {
            let near = match key {
                TagKey::Name(name) => self.near(name).await,
                TagKey::Number(_) => vec![],
            };
            return Err(HistorianError::UnknownTag { tag: key.clone(), near });
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// The tags with these names or numbers, in the given order; `None` for those that are not defined.
    ///
    /// # Errors
    /// An error of the engine.
    pub async fn lookup(&self, keys: &[TagKey]) -> Result<Vec<Option<SharedTag>>> {
        self.learn(keys).await?;
        let catalog = self.catalog.read().await;
        let find = |key: &TagKey| match key {
            TagKey::Name(name) => catalog.by_name.get(name).cloned(),
            TagKey::Number(number) => catalog.by_number.get(number).cloned(),
        };
        Ok(keys.iter().map(find).collect())
    }

    /// Reads tags that are not cached: names from their own cells, numbers by reading all tags.
    async fn learn(&self, keys: &[TagKey]) -> Result<()> {
        let catalog = self.catalog.read().await;
        let mut names: Vec<&str> = Vec::new();
        let mut number_missing = false;
        for key in keys {
            match key {
                TagKey::Name(name) if !catalog.by_name.contains_key(name) => names.push(name),
                TagKey::Number(number) => number_missing |= !catalog.by_number.contains_key(number),
                TagKey::Name(_) => {}
            }
        }
        // The write locks below would wait for this guard forever.
        drop(catalog);
        if number_missing {
            // Another process may have defined the tag since all tags were read, so read them again.
            self.catalog.write().await.complete = false;
            self.complete().await?;
        }
        if !names.is_empty() {
            let names: ArrayRef = Arc::new(StringArray::from(names));
            let found = self.read_tags(CellSelection::Keys(vec![names])).await?;
            let mut catalog = self.catalog.write().await;
            found.into_iter().for_each(|tag| catalog.add(Arc::new(tag)));
        }
        Ok(())
    }

    async fn read_tags(&self, cells: CellSelection) -> Result<Vec<Tag>> {
        let rows = self.tags.read(ReadRequest { cells, ..ReadRequest::default() }).await?;
        let mut tags = Vec::new();
        let batches: Vec<RecordBatch> = rows.try_collect().await?;
        for batch in &batches {
            tags_of(batch, &mut tags);
        }
        Ok(tags)
    }

    /// Reads all tags into the cache.
    pub(crate) async fn complete(&self) -> Result<()> {
        if self.catalog.read().await.complete {
            return Ok(());
        }
        let tags = self.read_tags(CellSelection::All).await?;
        let mut catalog = self.catalog.write().await;
        tags.into_iter().for_each(|tag| catalog.add(Arc::new(tag)));
        (catalog.complete, catalog.sorted) = (true, None);
        Ok(())
    }

    /// All tags, ordered by name.
    pub(crate) async fn all_tags(&self) -> Result<Arc<Vec<SharedTag>>> {
        self.complete().await?;
        if let Some(sorted) = &self.catalog.read().await.sorted {
            return Ok(sorted.clone());
        }
        let mut catalog = self.catalog.write().await;
        let mut tags: Vec<SharedTag> = catalog.by_name.values().cloned().collect();
        tags.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let sorted = Arc::new(tags);
        catalog.sorted = Some(sorted.clone());
        Ok(sorted)
    }

    /// The tags whose names match `pattern`, ordered by name, at most `limit`. `*` matches any characters, `?` matches
    /// one. The text before the first `*` or `?` limits the part of the list of names to read; a pattern that begins
    /// with one of them is compared with all names. If all definitions are cached, or very many names match, the
    /// definitions are searched instead.
    ///
    /// # Errors
    /// An error of the engine.
    pub async fn find(&self, pattern: &str, limit: usize) -> Result<Vec<SharedTag>> {
        let pattern = Pattern::new(pattern);
        if !self.catalog.read().await.complete
            && let Some(found) = self.find_listed(&pattern, limit).await?
        {
            return Ok(found);
        }
        let sorted = self.all_tags().await?;
        let start = sorted.partition_point(|tag| tag.name.as_str() < pattern.prefix);
        let end = start + sorted[start..].partition_point(|tag| tag.name.starts_with(pattern.prefix));
        Ok(sorted[start..end].iter().filter(|tag| pattern.fits(&tag.name)).take(limit).cloned().collect())
    }

    /// Tags as a table: one row each, with the columns that [`Historian::define`] takes.
    ///
    /// # Errors
    /// An Arrow kernel failed.
    pub fn table(tags: &[SharedTag]) -> Result<RecordBatch> {
        let owned: Vec<Tag> = tags.iter().map(|tag| tag.as_ref().clone()).collect();
        let batch = rows_of(&owned)?;
        // Column 1 is the time. It is the same for all tags and only keeps the definitions of a name in one tile.
        let wanted: Vec<usize> = (0..batch.num_columns()).filter(|column| *column != 1).collect();
        batch.project(&wanted).map_err(HistorianError::compute("listing tags"))
    }
}

fn rows_of(tags: &[Tag]) -> Result<RecordBatch> {
    let text = |get: fn(&Tag) -> &str| -> ArrayRef { Arc::new(StringArray::from_iter_values(tags.iter().map(get))) };
    let real = |get: fn(&Tag) -> f64| -> ArrayRef { Arc::new(Float64Array::from_iter_values(tags.iter().map(get))) };
    let flag = |get: fn(&Tag) -> bool| -> ArrayRef {
        Arc::new(tags.iter().map(|tag| Some(get(tag))).collect::<BooleanArray>())
    };
    let columns: Vec<ArrayRef> = vec![
        text(|tag| &tag.name),
        Arc::new(TimestampNanosecondArray::from(vec![0; tags.len()]).with_timezone("UTC")),
        Arc::new(Int64Array::from_iter_values(tags.iter().map(|tag| tag.number))),
        text(|tag| &tag.unit),
        text(|tag| &tag.description),
        text(|tag| &tag.group),
        text(|tag| tag.data_type.name()),
        flag(|tag| tag.settings.stepped),
        flag(|tag| tag.settings.treat_uncertain_as_bad),
        real(|tag| tag.settings.percent_good),
        real(|tag| tag.settings.percent_bad),
        flag(|tag| tag.settings.sloped_extrapolation),
        real(|tag| tag.exception_deviation),
        real(|tag| tag.compression_deviation),
    ];
    RecordBatch::try_new(schema::tags()?.schema, columns).map_err(HistorianError::compute("defining tags"))
}

/// The tags of stored rows. Nulls, and types that a later release may store, read as the default.
fn tags_of(batch: &RecordBatch, tags: &mut Vec<Tag>) {
    let text = |column: usize| batch.column(column).as_string_opt::<i32>();
    let real = |column: usize| batch.column(column).as_primitive_opt::<Float64Type>();
    let flag = |column: usize| batch.column(column).as_boolean_opt();
    let numbers = batch.column(2).as_primitive::<Int64Type>();
    for row in 0..batch.num_rows() {
        let text_at = |column: usize| text(column).map_or_else(String::new, |array| array.value(row).to_owned());
        let real_at = |column: usize, default: f64| real(column).map_or(default, |array| array.value(row));
        let flag_at = |column: usize, default: bool| flag(column).map_or(default, |array| array.value(row));
        tags.push(Tag {
            number: numbers.value(row),
            name: text_at(0),
            unit: text_at(3),
            description: text_at(4),
            group: text_at(5),
            data_type: DataType::from_name(&text_at(6)).unwrap_or(DataType::Float),
            settings: Settings {
                stepped: flag_at(7, false),
                treat_uncertain_as_bad: flag_at(8, true),
                percent_good: real_at(9, 100.0),
                percent_bad: real_at(10, 100.0),
                sloped_extrapolation: flag_at(11, false),
                ..Settings::default()
            },
            exception_deviation: real_at(12, -1.0),
            compression_deviation: real_at(13, -1.0),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_names_are_spread_and_stay_the_same() {
        let numbers: std::collections::HashSet<i64> = (0..100_000).map(|i| number_of(&format!("plant.t{i}"))).collect();
        assert_eq!(numbers.len(), 100_000);
        assert!(numbers.iter().all(|number| *number >= 0));
        assert_eq!(number_of("plant.t1"), number_of("plant.t1"));
    }
}
