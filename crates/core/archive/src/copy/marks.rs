//! Marks batches on the target: unfinished before their chunks are removed, finished once all chunks are there.

use chronotile_store::{Commit, Expect, RecordPut, StoreError};
use chronotile_types::BatchId;
use futures::{StreamExt, TryStreamExt};

use super::ledger::{Ledger, StartedBatch, copy_attempt, fingerprint, known};
use super::{Shared, lost_race};
use crate::catalog::{self, BatchRecord, Intent, Retired};
use crate::error::Result;

/// Batches whose records are changed concurrently.
const MARK_AT_ONCE: usize = 16;
/// Bytes of chunk lists up to which they are committed together with the record.
const ONE_STEP_BYTES: usize = 64 << 10;

async fn put(shared: &Shared, before: Vec<RecordPut>, after: Vec<RecordPut>) -> Result<()> {
    let commit = Commit { before, after, ..Commit::default() };
    match shared.target.commit(&shared.home, commit).await {
        Err(StoreError::RecordConflict { .. }) => Err(lost_race(shared)),
        result => Ok(result?),
    }
}

/// Marks batches as unfinished on the target if they are finished there but have changed on the source. Call this
/// before removing any of their chunks.
pub(super) async fn unmark(shared: &Shared, there: &mut Ledger, now: &Ledger) -> Result<()> {
    // A removed batch that is being written again counts as finished too, because of the record of its removal.
    let stale = |id: &BatchId| !there.begun.contains_key(id) && !there.is_as_in(*id, now);
    let stale: Vec<BatchId> = there.finished.keys().copied().filter(stale).collect();
    let unmarks = stale.into_iter().map(|batch| unmark_one(shared, batch));
    let unmarked: Vec<(BatchId, StartedBatch, BatchRecord)> =
        futures::stream::iter(unmarks.collect::<Vec<_>>()).buffer_unordered(MARK_AT_ONCE).try_collect().await?;
    for (batch, begun, hidden) in unmarked {
        there.begun.insert(batch, begun);
        there.finished.insert(batch, known(hidden)?);
    }
    Ok(())
}

async fn unmark_one(shared: &Shared, batch: BatchId) -> Result<(BatchId, StartedBatch, BatchRecord)> {
    let home = &shared.home;
    let record_key = catalog::batch_key(home, batch);
    let Some((record, bytes)) = catalog::get::<BatchRecord>(shared.target.as_ref(), &record_key).await? else {
        return Err(lost_race(shared));
    };
    let key = catalog::intent_key(home, batch);
    // A stamp of its own: with the record's stamp, the intent would count as left over from a write that ended.
    let attempt = copy_attempt(&shared.claim.record.attempt);
    let intent = Intent { key: record.key.clone(), written_us: shared.into.stamp_us().await?, attempt };
    let value = catalog::to_json(&key, &intent)?;
    // Hides the batch from readers of the target until it is complete again.
    shared.into.supersede(batch).await?;
    let previous = Some(record.as_previous());
    let hidden = BatchRecord { removed: true, ended_us: shared.into.stamp_us().await?, previous, ..record };
    let hide = catalog::put(record_key.clone(), catalog::to_json(&record_key, &hidden)?, Expect::Is(bytes));
    put(shared, vec![hide, catalog::put(key, value.clone(), Expect::Absent)], vec![]).await?;
    Ok((batch, StartedBatch { intent, bytes: value }, hidden))
}

/// Gives these batches on the target the state that they have on the source, and updates `there`. Leaves batches that
/// are changing on the source for the next pass. Returns how many were finished and how many removed.
pub(super) async fn mark(
    shared: &Shared,
    batches: Vec<BatchId>,
    there: &mut Ledger,
    now: &Ledger,
) -> Result<(u64, u64)> {
    let known_there = &*there;
    let marks: Vec<_> = batches.into_iter().map(|batch| mark_one(shared, batch, known_there, now)).collect();
    let marked: Vec<Option<(BatchId, BatchRecord)>> =
        futures::stream::iter(marks).buffer_unordered(MARK_AT_ONCE).try_collect().await?;
    let (mut finished, mut removed) = (0, 0);
    for (batch, record) in marked.into_iter().flatten() {
        *if record.removed { &mut removed } else { &mut finished } += 1;
        there.begun.remove(&batch);
        there.finished.insert(batch, known(record)?);
    }
    Ok((finished, removed))
}

async fn mark_one(
    shared: &Shared,
    batch: BatchId,
    there: &Ledger,
    now: &Ledger,
) -> Result<Option<(BatchId, BatchRecord)>> {
    let (home, source, target) = (&shared.home, shared.source.as_ref(), shared.target.as_ref());
    let parts = catalog::parts(source, home, batch).await?;
    // Read after the parts: if the record has not changed, the parts belong to it.
    let begun = catalog::get::<Intent>(source, &catalog::intent_key(home, batch)).await?;
    let key = catalog::batch_key(home, batch);
    let Some((record, _)) = catalog::get::<BatchRecord>(source, &key).await? else { return Ok(None) };
    let wanted = now.finished.get(&batch).map(|known| known.fingerprint);
    if begun.is_some_and(|(intent, _)| intent.written_us != record.written_us)
        || Some(fingerprint(record.clone())?) != wanted
    {
        return Ok(None);
    }
    let (parts, _) = record.own_parts(parts);
    // A new end stamp: reads of the target that run now must not assume that the batch was there before.
    let ended_us = shared.into.stamp_us().await?;
    let marked = BatchRecord { ended_us, copied: Some(shared.claim.record.copy.clone()), ..record };
    // The lists of chunks come before the record that makes them count, and stale lists go with that record: whoever
    // finds the new record finds exactly its lists.
    let mut lists: Vec<RecordPut> = parts.iter().map(|part| part.put(home, batch)).collect();
    let stale = catalog::parts(target, home, batch).await?;
    let stale = stale.iter().filter(|old| parts.iter().all(|part| part.number != old.number));
    let mut last: Vec<RecordPut> = stale.map(|part| catalog::delete_part(home, batch, part.number)).collect();
    let expect = match (there.finished.get(&batch), catalog::get::<BatchRecord>(target, &key).await?) {
        (None, None) => Expect::Absent,
        (Some(known), Some((found, bytes))) if fingerprint(found.clone())? == known.fingerprint => Expect::Is(bytes),
        _ => return Err(lost_race(shared)),
    };
    last.push(catalog::put(key.clone(), catalog::to_json(&key, &marked)?, expect));
    let intent_key = catalog::intent_key(home, batch);
    let expect = there.begun.get(&batch).map_or(Expect::Absent, |begun| Expect::Is(begun.bytes.clone()));
    last.push(RecordPut { key: intent_key, value: None, expect });
    let bytes: usize = lists.iter().filter_map(|put| put.value.as_ref()).map(bytes::Bytes::len).sum();
    if bytes <= ONE_STEP_BYTES {
        // All records are in one group of the catalog, so they take effect together, in a single round trip.
        lists.append(&mut last);
    }
    put(shared, lists, last).await?;
    Ok(Some((batch, marked)))
}

/// Makes the target's records of retired slices equal to the source's.
pub(super) async fn copy_retired(shared: &Shared) -> Result<()> {
    let prefix = catalog::items("retired", &shared.home);
    let there = catalog::list(shared.target.as_ref(), &prefix).await?;
    let here = catalog::list(shared.source.as_ref(), &prefix).await?;
    let differing = here.iter().filter(|record| !there.contains(record));
    let mut puts: Vec<RecordPut> =
        differing.map(|record| catalog::put(record.key.clone(), record.value.clone(), Expect::Any)).collect();
    let gone = there.iter().filter(|record| here.iter().all(|other| other.key != record.key));
    puts.extend(gone.map(|record| catalog::delete(record.key.clone())));
    // Each of these records is a group of its own, and only records of one group are put in one step on every engine.
    for record in puts {
        put(shared, vec![record], vec![]).await?;
    }
    Ok(())
}

/// Whether a slice that the source does not have was retired there.
pub(super) async fn is_retired(shared: &Shared, slice: chronotile_types::SliceId) -> Result<bool> {
    let key = catalog::retired_key(&shared.home, slice);
    Ok(catalog::get::<Retired>(shared.source.as_ref(), &key).await?.is_some())
}
