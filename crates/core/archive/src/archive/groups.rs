//! The groups of an archive.

use chronotile_store::{Expect, RecordPut};
use chronotile_types::{DatasetName, DatasetSpec, GROUP_DATASETS_MAX, Membership, SliceOwner, SpecError, name_hint};
use tokio::time::Instant;

use super::Archive;
use crate::catalog::{self, GroupRecord};
use crate::error::{ArchiveError, Result};
use crate::group::Group;

impl Archive {
    /// Opens a group.
    ///
    /// # Errors
    /// No group of this name; the engine.
    pub async fn group(&self, name: &str) -> Result<Group> {
        let (store, looked) = (self.reading(), Instant::now());
        let Some((record, bytes)) = catalog::get::<GroupRecord>(store.as_ref(), &catalog::group_key(name)).await?
        else {
            return Err(ArchiveError::GroupNotFound { name: name.to_owned(), hint: self.groups_hint(name).await? });
        };
        let common = self.common();
        let mut datasets = Vec::with_capacity(record.datasets.len());
        for name in &record.datasets {
            let key = catalog::dataset_key(name.as_str());
            let Some((spec, stored)) = catalog::get::<DatasetSpec>(store.as_ref(), &key).await? else {
                return Err(ArchiveError::dropped(name.to_string()));
            };
            datasets.push(self.opened(spec, (stored, looked), common.clone())?);
        }
        // The record was read before the definitions: if one has changed in between, the next refresh finds another
        // record.
        common.saw_group(bytes, looked);
        Ok(Group::of(DatasetName::new(name).map_err(SpecError::from)?, datasets))
    }

    /// The names of all groups, in order.
    pub async fn group_names(&self) -> Result<Vec<String>> {
        let prefix = catalog::group_key("");
        let records = catalog::list(self.reading().as_ref(), &prefix).await?;
        Ok(records.iter().filter_map(|record| record.key.strip_prefix(&prefix)).map(str::to_owned).collect())
    }

    async fn groups_hint(&self, name: &str) -> Result<String> {
        let names = self.group_names().await?;
        Ok(if names.is_empty() { "; it has none".to_owned() } else { name_hint(name, &names) })
    }

    /// A definition with its number in the group that it names, and what is to be put with it.
    pub(super) async fn assign_group(&self, spec: DatasetSpec) -> Result<(DatasetSpec, Vec<RecordPut>)> {
        // Datasets and groups share their names.
        let free = catalog::no_record(catalog::group_key(spec.name.as_str()));
        let Some(Membership { group, slices_of, .. }) = spec.group.clone() else { return Ok((spec, vec![free])) };
        let key = catalog::group_key(group.as_str());
        let found = catalog::get::<GroupRecord>(self.store().as_ref(), &key).await?;
        let (mut record, bytes) = found.map_or_else(Default::default, |(record, bytes)| (record, Some(bytes)));
        // A dataset that the group already lists keeps its number; the commit then conflicts with its stored
        // definition.
        let number = record.datasets.iter().position(|name| *name == spec.name).unwrap_or(record.datasets.len());
        if number >= GROUP_DATASETS_MAX {
            return Err(SpecError::Limit {
                setting: "group",
                value: group.to_string(),
                expected: "a group has at most 16 datasets",
            }
            .into());
        }
        let slices_of = match slices_of {
            None => None,
            Some(named) => Some(self.slice_owner(&spec, &named.dataset, &record.datasets[..number]).await?),
        };
        let mut before = vec![free];
        if number == record.datasets.len() {
            if bytes.is_none() {
                before.push(catalog::no_record(catalog::dataset_key(group.as_str())));
            }
            record.datasets.push(spec.name.clone());
            let expect = bytes.map_or(Expect::Absent, Expect::Is);
            before.push(catalog::put(key.clone(), catalog::to_json(&key, &record.changed(self.clock()))?, expect));
        }
        let group = Membership { group, number: number as u8, slices_of };
        Ok((DatasetSpec { group: Some(group), ..spec }, before))
    }

    /// The dataset whose slices a new one shares, among those that joined its group before.
    async fn slice_owner(&self, spec: &DatasetSpec, name: &DatasetName, group: &[DatasetName]) -> Result<SliceOwner> {
        let key = catalog::dataset_key(name.as_str());
        let number = group.iter().position(|other| other == name);
        let stored = catalog::get::<DatasetSpec>(self.store().as_ref(), &key).await?;
        let (Some(number), Some((owner, _))) = (number, stored) else {
            return Err(SpecError::Limit {
                setting: "slices_of",
                value: name.to_string(),
                expected: "name a dataset that joined the same group before",
            }
            .into());
        };
        spec.check_sharing(&owner)?;
        Ok(SliceOwner { dataset: name.clone(), number: number as u8 })
    }
}
