//! The list of the tags' names: kept in order beside the definitions, so that a pattern is looked up without reading all of them.
//!
//! A name is listed before its tag is defined, so a name may be listed without a tag and no tag is missing. Archives of earlier
//! releases have no list; the next definition or maintenance makes it, and a batch of its own says that it is whole.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, RecordBatch, StringArray, TimestampNanosecondArray};
use chronotile_archive::{
    ArchiveError, Comparison, ConsolidateOptions, Dataset, Place, Predicate, ReadRequest, WriteOptions,
};
use futures::TryStreamExt;

use crate::error::{HistorianError, Result};
use crate::historian::{Historian, SharedTag};
use crate::schema;
use crate::tag::TagKey;

/// The batch that says that the names of all tags are listed. Its one row is no tag's name.
const WHOLE: &str = "whole";
/// Where more names fit, all definitions are read: that takes no longer than to look up each.
const LOOKED_UP_MAX: usize = 1_000;

/// A pattern of names: `*` stands for any characters and `?` for one; all else for itself.
#[derive(Debug)]
pub(crate) struct Pattern<'a> {
    /// What stands before the first `*` or `?`.
    pub prefix: &'a str,
    rest: Vec<char>,
    /// The longest of the other parts without `*` and `?`.
    part: &'a str,
}

impl<'a> Pattern<'a> {
    pub(crate) fn new(pattern: &'a str) -> Self {
        let (prefix, rest) = pattern.split_at(pattern.find(['*', '?']).unwrap_or(pattern.len()));
        let part = rest.split(['*', '?']).max_by_key(|part| part.len()).unwrap_or_default();
        Self { prefix, rest: rest.chars().collect(), part }
    }

    /// Whether every name fits.
    fn fits_all(&self) -> bool {
        self.prefix.is_empty() && self.part.is_empty()
    }

    /// Whether a name fits.
    pub(crate) fn fits(&self, name: &str) -> bool {
        let Some(name) = name.strip_prefix(self.prefix) else { return false };
        name.contains(self.part) && matches(&self.rest, name)
    }
}

/// Whether `name` fits a pattern of `*`, `?` and plain characters. Takes time in proportion to both lengths' product at most.
fn matches(pattern: &[char], name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    let (mut p, mut n) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => (p, n) = (p + 1, n + 1),
            _ => {
                let Some((star, from)) = retry else { return false };
                (p, n) = (star + 1, from + 1);
                retry = Some((star, from + 1));
            }
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

impl Historian {
    /// Tags whose names fit, found in the list of names; `None` where there is none, or where reading all definitions is as
    /// well.
    pub(crate) async fn find_listed(&self, pattern: &Pattern<'_>, limit: usize) -> Result<Option<Vec<SharedTag>>> {
        if pattern.fits_all() {
            return Ok(None);
        }
        let Some(dataset) = self.whole_names().await? else { return Ok(None) };
        let parts = self.names_with(&dataset, pattern.prefix).await?;
        let all = parts.iter().flat_map(|names| names.iter().flatten());
        let mut names: Vec<&str> =
            all.filter(|name| !name.is_empty() && pattern.fits(name)).take(LOOKED_UP_MAX.min(limit) + 1).collect();
        if names.len() > LOOKED_UP_MAX {
            return Ok(None);
        }
        names.truncate(limit);
        let keys: Vec<TagKey> = names.into_iter().map(|name| TagKey::Name(name.to_owned())).collect();
        Ok(Some(self.lookup(&keys).await?.into_iter().flatten().collect()))
    }

    /// The names that begin so, in order. All of them are kept in memory once somebody asked for a pattern without a beginning.
    async fn names_with(&self, dataset: &Dataset, prefix: &str) -> Result<Arc<Vec<StringArray>>> {
        if let Some(names) = &self.catalog.read().await.listed {
            return Ok(names.clone());
        }
        let begins = Predicate {
            column: "name".to_owned(),
            comparison: Comparison::Prefix,
            values: Arc::new(StringArray::from(vec![prefix])),
        };
        let request = ReadRequest {
            place: Place::All,
            columns: Some(vec!["name".to_owned()]),
            predicates: if prefix.is_empty() { vec![] } else { vec![begins] },
            ..ReadRequest::default()
        };
        let batches: Vec<RecordBatch> = dataset.read_as_known(request).await?.try_collect().await?;
        let names = Arc::new(batches.iter().map(|batch| batch.column(0).as_string::<i32>().clone()).collect());
        if prefix.is_empty() {
            self.catalog.write().await.listed = Some(Arc::clone(&names));
        }
        Ok(names)
    }

    /// The list of names, if it has all of them.
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

    /// Lists new names, and at first those of all tags there are. Call it before the tags are defined, with all tags known.
    pub(crate) async fn list_names(&self, new: Vec<String>) -> Result<()> {
        if let Some(dataset) = self.whole_names().await? {
            return write_names(&dataset, new, None).await;
        }
        let mut all = new;
        all.extend(self.catalog.read().await.all_names());
        let dataset = self.names_dataset().await?;
        write_names(&dataset, all, None).await?;
        // The same in every process that comes this far, so that it does not matter who is the first.
        write_names(&dataset, vec![String::new()], Some(WHOLE)).await
    }

    /// Makes the list of an archive that has none, and joins the chunks of one that was written in many pieces.
    pub(crate) async fn maintain_names(&self) -> Result<()> {
        if self.whole_names().await?.is_none() {
            self.complete().await?;
            self.list_names(vec![]).await?;
        }
        self.names_dataset().await?.consolidate(ConsolidateOptions::default(), None).await?;
        Ok(())
    }
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
}
