//! The processes that retire old slices or move them elsewhere.

use std::collections::BTreeMap;
use std::time::Duration;

use chronotile_archive::{ArchiveError, ReadRequest};
use chronotile_store::Outcome;
use chronotile_types::SliceId;
use tokio::time::Instant;

use crate::common::{HOUR, between};
use crate::handle::Handle;
use crate::model::{ObservedRows, ReadRecord};
use crate::{Expiry, HANGS, History};

impl History {
    /// Lifetime of a process that drops slices, in a round in which it dies.
    fn drop_patience(&self) -> Duration {
        self.patience(3, if self.world.is_one_step() { 400 } else { 15_000 })
    }

    /// Drops old slices. Writers may write to them again.
    async fn retire(&self, handle: &Handle, who: &'static str, patience: Duration) -> Result<(), ArchiveError> {
        let at = self.model.begin_retire(self.model.slices.before(self.hour), None);
        self.world.note(who, || "retires".into());
        let result = tokio::time::timeout(patience, handle.retire(self.hour, false)).await;
        self.end_retire(who, at, patience, result.map(|result| result.map(|_| true))).await.map(drop)
    }

    /// Notes how a drop ended and returns whether the slices were dropped; `None` if the outcome is unknown.
    async fn end_retire<E>(
        &self,
        who: &'static str,
        at: usize,
        patience: Duration,
        result: Result<Result<bool, ArchiveError>, E>,
    ) -> Result<Option<bool>, ArchiveError> {
        let done = result.as_ref().ok().and_then(|result| result.as_ref().ok()).copied();
        self.model.end_retire(at, done);
        match result {
            Err(_) => {
                assert!(patience < HANGS, "a drop never ends");
                self.world.note(who, || "dies".into());
                Ok(None)
            }
            Ok(Ok(done)) => {
                self.world.note(who, move || format!("ends: {}", if done { "dropped" } else { "changed" }));
                Ok(Some(done))
            }
            Ok(Err(error)) => {
                let text = error.to_string();
                self.world.note(who, move || format!("fails: {text}"));
                assert!(error.outcome() != Outcome::Refused, "{who} cannot drop slices: {error}");
                Err(error)
            }
        }
    }

    /// Completes interrupted drops.
    async fn end_drops(&self, handle: &Handle, who: &'static str, patience: Duration) -> Result<(), ArchiveError> {
        for set in self.sets() {
            let at = self.model.begin_retire([].into(), None);
            self.world.note(who, || "ends drops".into());
            let result = tokio::time::timeout(patience, handle.retire_unchanged(&set, &[])).await;
            self.end_retire(who, at, patience, result.map(|result| result.map(|_| true))).await?;
        }
        Ok(())
    }

    /// Datasets grouped by the slices that they share.
    fn sets(&self) -> Vec<Vec<usize>> {
        match (self.grouped, self.shared) {
            (false, _) => vec![vec![0]],
            (true, false) => vec![vec![0], vec![1]],
            (true, true) => vec![vec![0, 1]],
        }
    }

    /// Moves old slices elsewhere: reads and keeps the rows of each, then drops it if it is unchanged. Returns whether
    /// all were dropped.
    async fn move_old(&self, handle: &Handle, who: &'static str, dies: bool) -> Result<bool, ArchiveError> {
        let patience = || if dies { self.drop_patience() } else { HANGS };
        self.end_drops(handle, who, patience()).await?;
        let mut all = true;
        for set in self.sets() {
            let mut slices: BTreeMap<(i64, i64), (SliceId, u128)> = BTreeMap::new();
            let found = handle.retire(self.hour, true).await?;
            slices.extend(found[set[0]].iter().map(|info| (info.ticks, (info.slice, info.fingerprint))));
            for ((start, end), wanted) in slices {
                let (began, mut copy) = (Instant::now(), ObservedRows::default());
                for dataset in &set {
                    let part =
                        ReadRequest { time: between(start, end), history: self.versions, ..ReadRequest::default() };
                    copy.enter(*dataset, &handle.read_every_write(*dataset, part).await?, self.versions);
                }
                let hours = start / HOUR..end / HOUR;
                for dataset in &set {
                    // Each dataset was read at a different moment.
                    let look = ReadRecord {
                        who,
                        datasets: vec![*dataset],
                        hours: hours.clone(),
                        began,
                        ended: Instant::now(),
                        but: None,
                    };
                    self.model.judge(&look, &copy.only(*dataset));
                }
                let slice = self.model.slices.at(set[0], hours.start);
                let began = Instant::now();
                let at = self.model.begin_retire([slice].into(), Some(copy.clone()));
                self.world.note(who, move || format!("moves slice {slice:?}"));
                let patience = patience();
                let result = tokio::time::timeout(patience, handle.retire_unchanged(&set, &[wanted])).await;
                let result = result.map(|result| result.map(|dropped| !dropped.is_empty()));
                let done = self.end_retire(who, at, patience, result).await?;
                if done == Some(true) {
                    // The kept rows must be those that the slice held when it was dropped.
                    let look =
                        ReadRecord { who, datasets: set.clone(), hours, began, ended: Instant::now(), but: Some(at) };
                    self.model.judge(&look, &copy);
                }
                all &= done == Some(true);
            }
        }
        Ok(all)
    }

    /// Drops old slices from time to time, or moves them elsewhere.
    pub(crate) async fn dropper(&self, who: &'static str, rounds: u64) {
        let mut handle = self.open(who).await;
        for _ in 0..rounds {
            self.idle(300).await;
            // An error means that another process drops the slices, or that the outcome is unknown.
            match self.old {
                Expiry::Stay => return,
                Expiry::Go => _ = self.retire(&handle, who, self.drop_patience()).await,
                Expiry::Move => {
                    if let Err(error) = self.move_old(&handle, who, true).await {
                        assert!(error.outcome() != Outcome::Refused, "{who} cannot move slices: {error}");
                    }
                }
            }
            if self.chance.below(3) == 0 {
                handle = self.open(who).await;
            }
        }
    }

    /// Completes interrupted drops after the faults have stopped.
    pub(crate) async fn end_all_drops(&self, handle: &Handle) {
        if self.old != Expiry::Stay {
            self.end_drops(handle, "z", HANGS).await.unwrap();
        }
    }

    /// Drops or moves old slices after the faults have stopped.
    pub(crate) async fn drop_last(&self, handle: &Handle) {
        match self.old {
            Expiry::Stay => {}
            Expiry::Go => self.retire(handle, "z", HANGS).await.unwrap(),
            Expiry::Move => assert!(
                self.move_old(handle, "z", false).await.unwrap(),
                "a slice that no process uses was not dropped"
            ),
        }
    }
}
