//! The list of tag names: sorted and stored beside the definitions, so that patterns are searched without reading all
//! of them.
//!
//! A name is listed before its tag is defined: a name may lack its tag, but no tag lacks its name. Archives of earlier
//! releases have no list; the next definition or maintenance creates it, and a batch of its own marks it as complete.

use std::str::Chars;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray, TimestampNanosecondArray};
use chronotile_archive::{ArchiveError, CellSelection, Comparison, Dataset, Predicate, ReadRequest, WriteOptions};
use chronotile_types::nearest;
use futures::TryStreamExt;
use memchr::memmem;

use crate::error::{HistorianError, Result};
use crate::historian::{Historian, SharedTag};
use crate::maintenance::join_chunks;
use crate::schema;
use crate::tag::TagKey;

/// The batch that marks the list of names as complete. Its one row is not the name of a tag.
const WHOLE: &str = "whole";
/// If more names match, all definitions are read, which is then as fast as looking up each.
const LOOKED_UP_MAX: usize = 1_000;
/// Maximum number of candidates of each kind for an unknown name: on either side of its position, containing it, or
/// differing in one place.
const NEIGHBOURS_MAX: usize = 250;
/// Maximum number of names that are compared with an unknown one.
const COMPARED_MAX: usize = 5_000;
/// Maximum number of bytes in which a candidate differs from the unknown name.
const DIFFERENT_BYTES_MAX: usize = 3;

/// A pattern of names: `*` matches any characters, `?` matches one, every other character matches itself.
#[derive(Debug)]
pub(crate) struct Pattern<'a> {
    /// The text before the first `*` or `?`.
    pub prefix: &'a str,
    rest: &'a str,
    /// The longest of the other parts without `*` and `?`.
    part: &'a str,
}

impl<'a> Pattern<'a> {
    pub(crate) fn new(pattern: &'a str) -> Self {
        let (prefix, rest) = pattern.split_at(pattern.find(['*', '?']).unwrap_or(pattern.len()));
        let part = rest.split(['*', '?']).max_by_key(|part| part.len()).unwrap_or_default();
        Self { prefix, rest, part }
    }

    /// Whether the pattern matches every name.
    fn fits_all(&self) -> bool {
        self.prefix.is_empty() && self.rest.chars().all(|c| c == '*')
    }

    /// Whether the pattern matches a name.
    pub(crate) fn fits(&self, name: &str) -> bool {
        name.strip_prefix(self.prefix).is_some_and(|name| matches(self.rest, name))
    }

    /// The first `limit` names that match, of sorted names.
    ///
    /// The names are contiguous in memory, so the longest part of the pattern is searched in all of them at once: a few
    /// milliseconds for a million.
    fn first_of<'n>(&self, names: &'n StringArray, limit: usize) -> Vec<&'n str> {
        let rows = between(names, self.prefix);
        // The names may be a slice. Its offsets count from the start of the whole text, which `value_data` returns.
        let offsets = names.value_offsets();
        let (text, end) = (names.value_data(), offsets[rows.end] as usize);
        let part = memmem::Finder::new(self.part);
        let (mut row, mut from, mut found) = (rows.start, offsets[rows.start] as usize, Vec::new());
        while row < rows.end && found.len() < limit {
            let Some(hit) = part.find(&text[from..end]).map(|hit| from + hit) else { break };
            row += offsets[row + 1..rows.end + 1].partition_point(|end| *end as usize <= hit);
            if row == rows.end {
                break;
            }
            // A hit that extends into the next name does not count.
            let name = names.value(row);
            let inside = hit + self.part.len() <= offsets[row + 1] as usize;
            if inside && self.fits(name) {
                found.push(name);
            }
            (row, from) = if inside { (row + 1, offsets[row + 1] as usize) } else { (row, hit + 1) };
        }
        found
    }
}

/// The rows of names with this prefix, in sorted names.
fn between(names: &StringArray, prefix: &str) -> std::ops::Range<usize> {
    let first = |fits: &dyn Fn(&str) -> bool| {
        let (mut low, mut high) = (0, names.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if fits(names.value(middle)) { high = middle } else { low = middle + 1 }
        }
        low
    };
    // Names with the prefix follow each other, so each condition is false up to a row and true from there on.
    first(&|name| name >= prefix)..first(&|name| name > prefix && !name.starts_with(prefix))
}

/// Candidates for an unknown name, from sorted names: those next to its position, those that contain it, and those that
/// differ in one place. Takes two passes over the text of all names.
fn candidates<'n>(name: &str, names: &'n StringArray) -> Vec<&'n str> {
    let place = between(names, name).start;
    let around = place.saturating_sub(NEIGHBOURS_MAX)..names.len().min(place + NEIGHBOURS_MAX);
    let mut found: Vec<&str> = around.map(|row| names.value(row)).collect();
    // A `*` or `?` in the unknown name would be taken for a wildcard.
    if name.chars().nth(2).is_some() && !name.contains(['*', '?']) {
        found.extend(Pattern::new(&format!("*{name}*")).first_of(names, NEIGHBOURS_MAX));
    }
    found.extend(names.iter().flatten().filter(|known| differs_in_one_place(name, known)).take(NEIGHBOURS_MAX));
    found
}

/// Whether two names are equal, ignoring case, except for a few consecutive bytes.
fn differs_in_one_place(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let longer = a.len().max(b.len());
    if longer - a.len().min(b.len()) > DIFFERENT_BYTES_MAX {
        return false;
    }
    let same = |(a, b): &(&u8, &u8)| a.eq_ignore_ascii_case(b);
    let head = a.iter().zip(b).take_while(same).count();
    // Where letters repeat, both ends may count the same bytes. At most, that adds a candidate, which `nearest` judges.
    head + a.iter().rev().zip(b.iter().rev()).take_while(same).count() + DIFFERENT_BYTES_MAX >= longer
}

/// Names read from the list, as sorted parts; a name may occur in several.
#[derive(Debug)]
pub(crate) struct CachedNames {
    parts: Vec<StringArray>,
    /// The fingerprint of the list when it was read; see [`fingerprint`].
    fingerprint: Option<u64>,
}

impl CachedNames {
    /// Adds further names, which must be sorted.
    pub(crate) fn with(&self, names: &[String]) -> Self {
        let new = StringArray::from_iter_values(names);
        Self { parts: self.parts.iter().cloned().chain([new]).collect(), fingerprint: self.fingerprint }
    }
}

/// A fingerprint of the list: while it is unchanged, so are the names.
async fn fingerprint(dataset: &Dataset) -> Result<Option<u64>> {
    // All names are in one tile: their rule has one hash bucket, and each row has time 0.
    Ok(dataset.spans(&[0], (0, 0)).await?.first().map(|span| span.fingerprint))
}

/// Whether `name` fits a pattern of `*`, `?` and plain characters. Takes time in proportion to both lengths' product at most.
fn matches(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.chars(), name.chars());
    // The text after the last `*`, and the rest of the name that this `*` has not matched yet.
    let mut retry: Option<(Chars<'_>, Chars<'_>)> = None;
    loop {
        let (mut rest, mut left) = (pattern.clone(), name.clone());
        match (rest.next(), left.next()) {
            (Some('*'), _) => {
                retry = Some((rest.clone(), name.clone()));
                pattern = rest;
            }
            (None, None) => return true,
            (Some(wanted), Some(found)) if wanted == '?' || wanted == found => (pattern, name) = (rest, left),
            _ => {
                // After a mismatch, the last `*` matches one more character. Earlier ones need no retry: they matched
                // at the first place that fits, which leaves the most text.
                let Some((behind, swallowed)) = &mut retry else { return false };
                if swallowed.next().is_none() {
                    return false;
                }
                (pattern, name) = (behind.clone(), swallowed.clone());
            }
        }
    }
}

impl Historian {
    /// Tags whose names match, found in the list of names; `None` if there is no list, or reading all definitions is as
    /// fast.
    pub(crate) async fn find_listed(&self, pattern: &Pattern<'_>, limit: usize) -> Result<Option<Vec<SharedTag>>> {
        if pattern.fits_all() {
            return Ok(None);
        }
        let Some(dataset) = self.whole_names().await? else { return Ok(None) };
        let listed = self.names_with(&dataset, pattern.prefix).await?;
        // One name more than is looked up shows that too many match.
        let wanted = LOOKED_UP_MAX + 1;
        let mut names: Vec<&str> = listed.parts.iter().flat_map(|names| pattern.first_of(names, wanted)).collect();
        names.sort_unstable();
        // The parts may have names in common, see `CachedNames`.
        names.dedup();
        let too_many = names.len() > LOOKED_UP_MAX;
        if too_many && limit > LOOKED_UP_MAX {
            return Ok(None);
        }
        names.truncate(LOOKED_UP_MAX);
        // A name may lack its tag. Only then are more names needed than tags.
        let (first, more) = names.split_at(limit.min(names.len()));
        let mut found = Vec::new();
        for names in [first, more] {
            if found.len() < limit {
                let keys: Vec<TagKey> = names.iter().map(|name| TagKey::Name((*name).to_owned())).collect();
                found.extend(self.lookup(&keys).await?.into_iter().flatten());
            }
        }
        if too_many && found.len() < limit {
            return Ok(None);
        }
        found.truncate(limit);
        Ok(Some(found))
    }

    /// Caches the list of names in memory, where patterns without a prefix are searched.
    ///
    /// # Errors
    /// An error of the engine.
    pub async fn keep_names(&self) -> Result<()> {
        if let Some(dataset) = self.whole_names().await? {
            self.names_with(&dataset, "").await?;
        }
        Ok(())
    }

    /// Up to three names of tags that are similar to an unknown one; none if names cannot be read.
    pub async fn near(&self, name: &str) -> Vec<String> {
        // The names are advice in the message of another error, which a failure here must not replace.
        let listed = match self.whole_names().await {
            Ok(Some(dataset)) => self.names_with(&dataset, "").await.ok(),
            _ => None,
        };
        let known = match listed {
            Some(listed) => listed,
            None => {
                let known: Vec<String> = self.catalog.read().await.all_names().take(COMPARED_MAX).collect();
                let parts = vec![in_order(&StringArray::from(known))];
                Arc::new(CachedNames { parts, fingerprint: None })
            }
        };
        let mut found: Vec<&str> =
            known.parts.iter().flat_map(|names| candidates(name, names)).take(COMPARED_MAX).collect();
        found.sort_unstable();
        found.dedup();
        nearest(name, &found).into_iter().map(str::to_owned).collect()
    }

    /// The names cached in memory, if the list is unchanged.
    pub(crate) async fn names_still_listed(&self) -> Option<Arc<CachedNames>> {
        let (dataset, listed) = {
            let catalog = self.catalog.read().await;
            (catalog.names.clone()?, catalog.listed.clone()?)
        };
        let now = fingerprint(&dataset).await.ok()?;
        (now.is_some() && now == listed.fingerprint).then_some(listed)
    }

    /// The names with this prefix. All names are cached once a pattern without a prefix was requested.
    async fn names_with(&self, dataset: &Dataset, prefix: &str) -> Result<Arc<CachedNames>> {
        let definitions = {
            let catalog = self.catalog.read().await;
            if let Some(listed) = &catalog.listed {
                return Ok(listed.clone());
            }
            catalog.definitions
        };
        // Read the fingerprint before the names, so that it does not cover names added in between.
        let fingerprint = if prefix.is_empty() { fingerprint(dataset).await? } else { None };
        let begins = Predicate {
            column: "name".to_owned(),
            comparison: Comparison::Prefix,
            values: Arc::new(StringArray::from(vec![prefix])),
        };
        let request = ReadRequest {
            cells: CellSelection::All,
            columns: Some(vec!["name".to_owned()]),
            predicates: if prefix.is_empty() { vec![] } else { vec![begins] },
            ..ReadRequest::default()
        };
        // A name that is read twice does no harm, and a merge of all names takes three times the processor time.
        let batches: Vec<RecordBatch> = dataset.read_unmerged(request).await?.try_collect().await?;
        let parts = batches.iter().map(|batch| in_order(batch.column(0).as_string())).collect();
        let listed = Arc::new(CachedNames { parts, fingerprint });
        if prefix.is_empty() {
            let mut catalog = self.catalog.write().await;
            if catalog.definitions == definitions {
                catalog.listed = Some(Arc::clone(&listed));
            }
        }
        Ok(listed)
    }

    /// The dataset of names, if it is complete.
    async fn whole_names(&self) -> Result<Option<Dataset>> {
        let known = self.catalog.read().await.names.clone();
        if known.is_some() {
            return Ok(known);
        }
        let dataset = match self.archive().dataset(schema::NAMES).await {
            Err(ArchiveError::DatasetNotFound { .. }) => return Ok(None),
            found => found?,
        };
        let whole = dataset.batch(WHOLE).await?.is_some_and(|batch| batch.finished);
        if whole {
            self.catalog.write().await.names = Some(dataset.clone());
        }
        Ok(whole.then_some(dataset))
    }

    /// Adds new names to the list, or creates it with the names of all tags. Call it before the tags are defined, with
    /// all tags in the cache.
    pub(crate) async fn list_names(&self, new: Vec<String>) -> Result<()> {
        if let Some(dataset) = self.whole_names().await? {
            return write_names(&dataset, new, None).await;
        }
        let mut all = new;
        all.extend(self.catalog.read().await.all_names());
        let dataset = self.names_dataset().await?;
        // The marker comes after the names: a crash between both leaves a list that counts as incomplete and is written
        // again.
        write_names(&dataset, all, None).await?;
        // The batch is the same in every process that comes this far, so concurrent writers do not conflict.
        write_names(&dataset, vec![String::new()], Some(WHOLE)).await
    }

    /// Creates the list if it is missing, and consolidates it; returns the tiles that failed.
    pub(crate) async fn maintain_names(&self) -> Result<Vec<String>> {
        if self.whole_names().await?.is_none() {
            self.complete().await?;
            self.list_names(vec![]).await?;
        }
        Ok(join_chunks(&self.names_dataset().await?).await?.1)
    }
}

/// The names in sorted order, without the empty one.
fn in_order(names: &StringArray) -> StringArray {
    if names.iter().is_sorted() {
        let empty = names.iter().take_while(|name| name.is_none_or(str::is_empty)).count();
        return names.slice(empty, names.len() - empty);
    }
    let mut sorted: Vec<&str> = names.iter().flatten().filter(|name| !name.is_empty()).collect();
    sorted.sort_unstable();
    StringArray::from(sorted)
}

async fn write_names(dataset: &Dataset, mut names: Vec<String>, batch: Option<&str>) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    names.sort_unstable();
    names.dedup();
    let times = TimestampNanosecondArray::from(vec![0; names.len()]).with_timezone("UTC");
    let columns: Vec<ArrayRef> = vec![Arc::new(StringArray::from(names)), Arc::new(times)];
    let rows =
        RecordBatch::try_new(schema::names()?.schema, columns).map_err(HistorianError::compute("listing names"))?;
    let options = WriteOptions { batch: batch.map(str::to_owned), ..WriteOptions::default() };
    dataset.write([Ok(rows)], options).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_file_names_do() {
        for (pattern, name) in [
            ("*", ""),
            ("a*c", "abbc"),
            ("*.t?mp", "x.temp"),
            ("**", "x"),
            ("", ""),
            ("a*b*c", "aXbYbZc"),
            ("aé*", "aéb"),
        ] {
            assert!(Pattern::new(pattern).fits(name), "{pattern} {name}");
        }
        for (pattern, name) in [("", "x"), ("a*c", "ab"), ("?", ""), ("*b", "ba"), ("ab*", "b"), ("a*b", "a")] {
            assert!(!Pattern::new(pattern).fits(name), "{pattern} {name}");
        }
    }

    #[test]
    fn a_name_with_a_letter_changed_is_among_the_candidates_wherever_the_letter_is() {
        let known: Vec<String> = (0..20_000).map(|n| format!("site{}.mill{}.bearing.{n}", n % 7, n % 11)).collect();
        let names = in_order(&StringArray::from(known));
        let right = "site4.mill3.bearing.12345";
        for wrong in [
            "sote4.mill3.bearing.12345",
            "site4.mlil3.bearing.12345",
            "SITE4.MILL3.BEARING.12345",
            "site4.mill3.baering.12345",
            "site4.mill3.bearing.123455",
            "ite4.mill3.bearing.12345",
        ] {
            let found = candidates(wrong, &names);
            assert!(found.len() <= COMPARED_MAX);
            assert!(nearest(wrong, &found).contains(&right), "{wrong}: {:?}", nearest(wrong, &found));
        }
        let few = in_order(&StringArray::from(vec!["boiler.pump", "boiler.temperature", "Mill.Speed"]));
        for (wrong, right) in [
            ("boiler.temprature", "boiler.temperature"),
            ("oiler.temperature", "boiler.temperature"),
            ("mill.speed", "Mill.Speed"),
            ("boiler", "boiler.pump"),
            ("temperature", "boiler.temperature"),
        ] {
            assert_eq!(nearest(wrong, &candidates(wrong, &few)).first(), Some(&right), "{wrong}");
        }
        assert!(nearest("*?", &candidates("*?", &few)).is_empty());
        assert!(candidates("x", &few.slice(0, 0)).is_empty());
    }

    #[test]
    fn names_are_found_in_order_wherever_the_pattern_begins() {
        let words = ["", "a", "a.x", "aé.x", "b.xx", "b.xx.y", "bx.x", "c", "cb.xé", "éa.x"];
        let names = in_order(&StringArray::from(words.iter().rev().copied().collect::<Vec<_>>()));
        assert_eq!(names.len(), words.len() - 1);
        let patterns = [
            "a*", "*x", "*.x*", "b*x", "b*.x", "?", "*", "??*", "*é*", "é*", "c*b*", "*x.y", "*b.", "z*", "*xx*x*",
            "a.x",
        ];
        for pattern in patterns.map(Pattern::new) {
            let plain: Vec<&str> =
                words.iter().copied().filter(|name| !name.is_empty() && pattern.fits(name)).collect();
            assert_eq!(pattern.first_of(&names, 100), plain, "{pattern:?}");
            assert_eq!(pattern.first_of(&names, 1), plain[..plain.len().min(1)], "{pattern:?}");
        }
        assert!(Pattern::new("a*").first_of(&names.slice(3, 2), 9).is_empty());
        assert!(Pattern::new("*").first_of(&in_order(&StringArray::from(vec![""])), 9).is_empty());
    }
}
