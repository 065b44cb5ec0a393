//! The log of calls that the processes of a history make to the engine, and of its answers, in order.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use chronotile_store::{
    CallOptions, Capabilities, Chunk, ChunkKey, Commit, DatasetRef, DropSlice, Record, Result, Scan, Store,
    TileStatistics, Visibility,
};
use chronotile_types::SliceId;
use futures::StreamExt;
use futures::stream::BoxStream;
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::World;

/// Calls shown before the first one that differs.
const SHOWN_BEFORE: usize = 5;

/// Calls and answers, each with its simulated time and its process.
#[derive(Debug, Default)]
pub struct Calls(Mutex<Vec<String>>);

impl Calls {
    /// Removes and returns all lines.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// The first call or answer in which two runs differ, with the lines before it.
pub fn first_difference(first: &[String], again: &[String]) -> Option<String> {
    let pairs = first.iter().zip(again);
    let at = pairs.clone().position(|(a, b)| a != b).unwrap_or(first.len().min(again.len()));
    if at == first.len().max(again.len()) {
        return None;
    }
    let shown = |calls: &[String]| calls.get(at).cloned().unwrap_or_else(|| "the end".into());
    let before = first[at.saturating_sub(SHOWN_BEFORE)..at].join("\n");
    Some(format!("call {at} is first\n{}\nand then\n{}\nafter\n{before}", shown(first), shown(again)))
}

/// A wrapper of an engine that logs every call and answer.
#[derive(Debug)]
pub struct LoggedStore {
    engine: Arc<dyn Store>,
    world: Arc<World>,
    who: &'static str,
}

impl LoggedStore {
    pub fn on(engine: Arc<dyn Store>, world: &Arc<World>, who: &'static str) -> Arc<dyn Store> {
        Arc::new(Self { engine, world: world.clone(), who })
    }

    async fn noted<T: Debug>(
        &self,
        what: &str,
        asked: impl Debug,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        note(&self.world, self.who, &format!("{what} {asked:?}"));
        let answer = answer.await;
        note(&self.world, self.who, &format!("{what} gives {answer:?}"));
        answer
    }
}

fn note(world: &World, who: &str, what: &str) {
    if let Some(Calls(calls)) = &world.calls {
        calls.lock().unwrap().push(format!("{:>14} {who}: {what}", world.elapsed().as_micros()));
    }
}

/// A chunk as text, with hashes in place of its bytes.
fn brief(chunk: &Chunk) -> String {
    format!("{:?} {} {:x} {:x}", chunk.key, chunk.rows, xxh3_64(&chunk.head), xxh3_64(&chunk.body))
}

fn all_brief(chunks: &[Chunk]) -> Vec<String> {
    chunks.iter().map(brief).collect()
}

#[async_trait]
impl Store for LoggedStore {
    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn with_options(&self, options: &CallOptions) -> Result<Arc<dyn Store>> {
        self.engine.with_options(options)
    }

    fn with_visibility(&self, visibility: Visibility) -> Option<Arc<dyn Store>> {
        self.engine.with_visibility(visibility).map(|engine| Self::on(engine, &self.world, self.who))
    }

    async fn commit(&self, dataset: &DatasetRef, commit: Commit) -> Result<()> {
        let Commit { before, put, remove, require_removed, after, stamp_us } = &commit;
        let asked = format!(
            "{} {before:?} {:?} {remove:?} {require_removed} {after:?} {stamp_us}",
            dataset.name,
            all_brief(put)
        );
        self.noted("commit", asked, self.engine.commit(dataset, commit)).await
    }

    async fn scan(&self, dataset: &DatasetRef, scan: Scan) -> Result<BoxStream<'static, Result<Vec<Chunk>>>> {
        let asked = format!("scan {} {scan:?}", dataset.name);
        note(&self.world, self.who, &asked);
        let (world, who) = (self.world.clone(), self.who);
        let found = self.engine.scan(dataset, scan).await;
        note(&world, who, &format!("scan gives {:?}", found.as_ref().err()));
        let chunks = move |chunks: Result<Vec<Chunk>>| {
            note(&world, who, &format!("{asked} finds {:?}", chunks.as_deref().map(all_brief)));
            chunks
        };
        Ok(found?.map(chunks).boxed())
    }

    async fn fetch(&self, dataset: &DatasetRef, keys: Vec<ChunkKey>) -> Result<Vec<Chunk>> {
        note(&self.world, self.who, &format!("fetch {} {keys:?}", dataset.name));
        let found = self.engine.fetch(dataset, keys).await;
        note(&self.world, self.who, &format!("fetch gives {:?}", found.as_deref().map(all_brief)));
        found
    }

    async fn record(&self, key: &str) -> Result<Option<Bytes>> {
        self.noted("record", key, self.engine.record(key)).await
    }

    async fn records(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>> {
        self.noted("records", (prefix, after, limit), self.engine.records(prefix, after, limit)).await
    }

    async fn create_slice(&self, dataset: &DatasetRef, slice: SliceId) -> Result<()> {
        self.noted("create_slice", (&dataset.name, slice), self.engine.create_slice(dataset, slice)).await
    }

    async fn drop_slice(&self, dataset: &DatasetRef, slice: SliceId, when: DropSlice) -> Result<()> {
        let asked = format!("{} {slice:?} {when:?}", dataset.name);
        self.noted("drop_slice", asked, self.engine.drop_slice(dataset, slice, when)).await
    }

    async fn slices(&self, dataset: &DatasetRef) -> Result<Vec<SliceId>> {
        self.noted("slices", &dataset.name, self.engine.slices(dataset)).await
    }

    async fn statistics(&self, dataset: &DatasetRef, slice: SliceId) -> Result<Vec<TileStatistics>> {
        self.noted("statistics", (&dataset.name, slice), self.engine.statistics(dataset, slice)).await
    }
}
