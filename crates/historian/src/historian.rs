//! The historian of an archive: opens or creates its datasets, and sets and applies retention.

mod catalog;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use chronotile_archive::{Archive, ArchiveError, Dataset};
use chronotile_types::{Duration, name_hint};
use tokio::sync::RwLock;

use self::catalog::Catalog;
use crate::error::{HistorianError, Result};
use crate::schema;
use crate::tag::{GROUP_DEFAULT, Storage, Tag};

/// Options of a historian. They are not stored.
#[derive(Clone, Debug)]
pub struct HistorianOptions {
    /// How far the time of a point may be ahead of this machine's clock, ns; `None` for no limit.
    pub future_max_ns: Option<i64>,
    /// Whether to create the historian's datasets if they are missing.
    pub create: bool,
}

impl Default for HistorianOptions {
    fn default() -> Self {
        Self { future_max_ns: Some(86_400_000_000_000), create: true }
    }
}

/// Tags and their points in an archive. May be used from many threads, and from many processes on the same archive.
#[derive(Debug)]
pub struct Historian {
    archive: Archive,
    pub(crate) options: HistorianOptions,
    pub(crate) tags: Dataset,
    pub(crate) annotations: Dataset,
    pub(crate) catalog: RwLock<Catalog>,
    datasets: RwLock<HashMap<String, Dataset>>,
}

impl Historian {
    /// Opens the historian of an archive.
    ///
    /// # Errors
    /// The archive has no historian and `create` is false, or a dataset with one of its names has another definition.
    pub async fn open(archive: Archive, options: HistorianOptions) -> Result<Self> {
        let tags = obtain(&archive, schema::tags()?, options.create).await?;
        let annotations = obtain(&archive, schema::annotations()?, options.create).await?;
        let catalog = RwLock::new(Catalog::default());
        Ok(Self { archive, options, tags, annotations, catalog, datasets: RwLock::default() })
    }

    /// The archive.
    pub fn archive(&self) -> &Archive {
        &self.archive
    }

    /// The dataset of a tag's points, created or opened on first use.
    pub(crate) async fn points(&self, tag: &Tag) -> Result<Dataset> {
        self.points_of(&tag.group, tag.data_type.storage()).await
    }

    pub(crate) async fn points_of(&self, group: &str, storage: Storage) -> Result<Dataset> {
        self.dataset(schema::points(group, storage)?).await
    }

    /// The dataset of a group's hourly statistics, created or opened on first use.
    pub(crate) async fn summaries(&self, group: &str) -> Result<Dataset> {
        self.dataset(schema::summaries(group)?).await
    }

    /// The dataset of tag names, created or opened on first use.
    pub(crate) async fn names_dataset(&self) -> Result<Dataset> {
        self.dataset(schema::names()?).await
    }

    async fn dataset(&self, spec: chronotile_types::DatasetSpec) -> Result<Dataset> {
        let name = spec.name.to_string();
        if let Some(dataset) = self.datasets.read().await.get(&name) {
            return Ok(dataset.clone());
        }
        // No lock is held here. If two callers create the same dataset, the second opens that of the first.
        let dataset = obtain(&self.archive, spec, self.options.create).await?;
        self.datasets.write().await.insert(name, dataset.clone());
        Ok(dataset)
    }

    /// The existing datasets of points of a group, with their storage type.
    pub(crate) async fn existing_points(&self, group: &str) -> Result<Vec<(Storage, Dataset)>> {
        let names = self.archive.dataset_names().await?;
        let mut found = Vec::new();
        for storage in [Storage::Float, Storage::Integer, Storage::Text] {
            let spec = schema::points(group, storage)?;
            if names.contains(&spec.name.to_string()) {
                found.push((storage, self.dataset(spec).await?));
            }
        }
        Ok(found)
    }

    /// Names of the groups that have points.
    pub async fn groups(&self) -> Result<Vec<String>> {
        let names = self.archive.dataset_names().await?;
        let group = |name: &str| {
            let rest = name.strip_prefix("historian_")?;
            let group = ["_float", "_integer", "_string"].iter().find_map(|suffix| rest.strip_suffix(suffix))?;
            Some(group.to_owned())
        };
        let mut groups: Vec<String> = names.iter().filter_map(|name| group(name)).collect();
        groups.sort();
        groups.dedup();
        Ok(groups)
    }

    /// Refuses a group that has neither points nor tags.
    async fn check_group(&self, group: &str) -> Result<()> {
        let mut known = self.groups().await?;
        // The default group is always valid: tags defined without a group will belong to it.
        known.push(GROUP_DEFAULT.to_owned());
        if known.iter().any(|name| name == group) {
            return Ok(());
        }
        // Other processes may have defined tags in the meantime.
        self.refresh().await;
        known.extend(self.all_tags().await?.iter().map(|tag| tag.group.clone()));
        known.sort();
        known.dedup();
        match known.iter().any(|name| name == group) {
            true => Ok(()),
            false => Err(HistorianError::UnknownGroup { group: group.to_owned(), hint: name_hint(group, &known) }),
        }
    }

    /// Sets the age at which [`Historian::retire`] drops the points of a group.
    ///
    /// # Errors
    /// No tag belongs to the group; an error of the engine.
    pub async fn set_retention(&self, group: &str, retention: Option<Duration>) -> Result<()> {
        self.check_group(group).await?;
        for storage in [Storage::Float, Storage::Integer, Storage::Text] {
            // Datasets that do not exist yet are created, so that points that are written later have the retention,
            // too.
            self.points_of(group, storage).await?.set_retention(retention).await?;
        }
        Ok(self.summaries(group).await?.set_retention(retention).await?)
    }

    /// Drops the points of a group that are older than its retention, by this machine's clock and never by the times of
    /// points. Drops whole slices of 30 days. Returns the number of points dropped.
    ///
    /// # Errors
    /// No tag belongs to the group; an error of the engine.
    pub async fn retire(&self, group: &str, dry_run: bool) -> Result<u64> {
        self.check_group(group).await?;
        let mut rows = 0;
        for (_, dataset) in self.existing_points(group).await? {
            if dataset.spec().retention.is_some() {
                let slices = dataset.retire(chronotile_archive::RetireLimit::Retention, dry_run).await?;
                rows += slices.iter().map(|slice| slice.rows).sum::<u64>();
            }
        }
        let summaries = self.summaries(group).await?;
        if summaries.spec().retention.is_some() {
            summaries.retire(chronotile_archive::RetireLimit::Retention, dry_run).await?;
        }
        Ok(rows)
    }
}

async fn obtain(archive: &Archive, spec: chronotile_types::DatasetSpec, create: bool) -> Result<Dataset> {
    match archive.dataset(spec.name.as_str()).await {
        Err(ArchiveError::DatasetNotFound { .. }) if create => Ok(archive.create(spec, true).await?),
        Err(ArchiveError::DatasetNotFound { name, .. }) => Err(HistorianError::Request(format!(
            "the archive holds no process history, as it has no dataset {name}: define a tag or write points first"
        ))),
        found => Ok(found?),
    }
}

/// This machine's clock, ns since the Unix epoch.
pub(crate) fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// A tag that several requests share.
pub(crate) type SharedTag = Arc<Tag>;
