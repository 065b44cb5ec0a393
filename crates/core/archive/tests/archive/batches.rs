//! Batches as their callers list, look up and remove them, also after some of their slices were retired; retention
//! limits; and reuse of names.

use std::sync::Arc;
use std::time::Duration;

use chronotile_archive::{Archive, ArchiveError, Dataset, Group, RetireLimit};
use chronotile_memory::MemoryStore;
use chronotile_store::{Commit, Store};
use chronotile_types::{DatasetSpec, Instant, SliceId};

use crate::common::*;
use crate::groups;

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

fn before(t: i64) -> RetireLimit {
    RetireLimit::Before(Instant::NativeTicks(t))
}

#[tokio::test]
async fn what_was_retired_of_a_batch_is_told_however_many_slices_it_spans() {
    // Slices of two hours. Records of up to 16 slices are looked up one by one, of more slices they are listed.
    for slices in [3, 16, 17, 40] {
        let store = memory();
        let dataset = create(&store, spec()).await;
        let places: Vec<_> = (0..slices * 2).map(|hour| (hour * HOUR, hour, 0)).collect();
        write(&dataset, &rows(&[(0, 1_000, 0), (1, 1_001, 0)]), named("before")).await.unwrap();
        dataset.retire(before(2 * HOUR), false).await.unwrap();
        // Retiring the first slice earlier does not affect a batch that is written to it later.
        write(&dataset, &rows(&places), named("a")).await.unwrap();
        let after: Vec<_> = places[4..].iter().map(|(t, id, tag)| (t + 1, id + 100, *tag)).collect();
        write(&dataset, &rows(&after), named("after")).await.unwrap();
        let retired = async |key: &str| {
            let info = dataset.batch(key).await.unwrap().unwrap();
            assert!(dataset.batches().await.unwrap().contains(&info), "{info:?}");
            info.rows_retired
        };
        let all = async || [retired("before").await, retired("a").await, retired("after").await];
        assert_eq!(all().await, [2, 0, 0], "{slices}");
        dataset.retire(before(4 * HOUR), false).await.unwrap();
        assert_eq!(all().await, [2, 4, 0], "{slices}");
        dataset.retire(before(6 * HOUR), false).await.unwrap();
        assert_eq!(all().await, [2, 6, 2], "{slices}");
        // Other content may take a name only once all rows of the batch are gone.
        for (key, free) in [("before", true), ("a", slices == 3), ("after", slices == 3)] {
            let other = write(&dataset, &rows(&[(100 * HOUR, 5_000, 0)]), named(key)).await;
            assert_eq!(other.is_ok(), free, "{slices} {key}");
        }
        if slices > 3 {
            assert_eq!(dataset.remove_batch("a").await.unwrap(), places.len() as u64 - 6);
        }
        assert_sound(&dataset).await;
    }
}

/// Whether batch `a` is finished, `None` if it is unknown; checks that lookup and listing agree.
async fn known(dataset: &Dataset) -> Option<bool> {
    let found = dataset.batch("a").await.unwrap();
    assert_eq!(dataset.batches().await.unwrap(), found.clone().into_iter().collect::<Vec<_>>());
    found.map(|batch| batch.finished)
}

async fn known_of_group(group: &Group) -> Option<bool> {
    let found = group.batch("a").await.unwrap();
    assert_eq!(group.batches().await.unwrap(), found.clone().into_iter().collect::<Vec<_>>());
    assert!(found.iter().all(|batch| batch.key.as_deref() == Some("a") && batch.datasets.is_empty() != batch.finished));
    found.map(|batch| batch.finished)
}

#[tokio::test]
async fn a_batch_is_unfinished_from_its_first_step_and_gone_after_its_removal() {
    for kept in [Duration::ZERO, Duration::from_secs(600)] {
        let store = memory();
        create(&store, spec()).await;
        let on = |store: &Arc<dyn Store>| Archive::on("test:", store.clone()).with_superseded_kept(kept);
        let dataset = on(&store).dataset("records").await.unwrap();
        let half = async |options| {
            let half = on(&dying_in_a_write(&store)).dataset("records").await.unwrap();
            half.write(several_steps("half"), tight(options)).await.unwrap_err();
        };
        assert_eq!(known(&dataset).await, None);
        for round in 0..2 {
            half(named("a")).await;
            assert_eq!(known(&dataset).await, Some(false), "{kept:?} {round}");
            assert_eq!(dataset.remove_batch("a").await.unwrap(), 0);
            assert_eq!(known(&dataset).await, None, "{kept:?} {round}");
            let again = dataset.remove_batch("a").await.unwrap_err();
            assert!(matches!(again, ArchiveError::BatchNotFound { .. }), "{again}");
        }
        write(&dataset, &rows(&[(0, 1, 0)]), named("a")).await.unwrap();
        // Until a replacement ends, the stored content counts.
        half(replacing("a")).await;
        assert_eq!(known(&dataset).await, Some(true));
        assert_eq!(ids(&read_all(&dataset).await), [1]);
        assert_eq!(dataset.remove_batch("a").await.unwrap(), 1);
        assert_eq!(known(&dataset).await, None);
        assert_eq!(chunks(store.as_ref(), &placed()).await.is_empty(), kept.is_zero(), "readers may need its rows");
        assert!(matches!(dataset.remove_batch("a").await, Err(ArchiveError::BatchNotFound { .. })));
    }
}

#[tokio::test]
async fn a_batch_of_a_group_is_unfinished_from_its_first_step_and_gone_after_its_removal() {
    for kept in [Duration::ZERO, Duration::from_secs(600)] {
        let store = memory();
        groups::survey(&store).await;
        let on = |store: &Arc<dyn Store>| Archive::on("test:", store.clone()).with_superseded_kept(kept);
        let group = on(&store).group("survey").await.unwrap();
        let half = async |options| {
            let half = on(&dying_in_a_write(&store)).group("survey").await.unwrap();
            half.write(vec![("sources", several_steps("half"))], tight(options)).await.unwrap_err();
        };
        assert_eq!(known_of_group(&group).await, None);
        for _ in 0..2 {
            half(named("a")).await;
            assert_eq!(known_of_group(&group).await, Some(false), "{kept:?}");
            assert_eq!(group.remove_batch("a").await.unwrap(), 0);
            assert_eq!(known_of_group(&group).await, None, "{kept:?}");
        }
        groups::write_all(&group, groups::tables("a", 2), named("a")).await.unwrap();
        half(replacing("a")).await;
        assert_eq!(known_of_group(&group).await, Some(true));
        let rows: u64 = group.batch("a").await.unwrap().unwrap().datasets.iter().map(|(_, info)| info.rows).sum();
        assert_eq!(group.remove_batch("a").await.unwrap(), rows);
        assert_eq!(known_of_group(&group).await, None);
        assert!(matches!(group.remove_batch("a").await, Err(ArchiveError::BatchNotFound { .. })));
    }
}

#[tokio::test]
async fn slices_are_too_old_from_the_very_microsecond_on() {
    // Slice 100 ends an hour before this time, slice 99 three hours before it.
    const NOW_US: i64 = 203 * HOUR;
    for (past_us, age, expected) in
        [(0, "1h", vec![99, 100]), (-1, "1h", vec![99]), (0, "3h", vec![99]), (-1, "3h", vec![]), (0, "30d", vec![])]
    {
        let store = memory();
        let archive = archive(&store).with_machine_time(move || NOW_US + past_us);
        let kept = DatasetSpec { retention: Some(age.parse().unwrap()), ..spec() };
        let dataset = archive.create(kept, true).await.unwrap();
        write(&dataset, &rows(&[(199 * HOUR, 1, 0), (200 * HOUR, 2, 0), (202 * HOUR, 3, 0)]), named("a"))
            .await
            .unwrap();
        for limit in [RetireLimit::OlderThan(age.parse().unwrap()), RetireLimit::Retention] {
            let would = dataset.retire(limit, true).await.unwrap();
            let slices: Vec<_> = would.iter().map(|slice| slice.slice).collect();
            assert_eq!(slices, expected.iter().copied().map(SliceId).collect::<Vec<_>>(), "{past_us} {age} {limit:?}");
        }
    }
}

#[tokio::test]
async fn datasets_that_are_named_twice_are_retired_once() {
    let store = memory();
    let group = groups::survey(&store).await;
    groups::write_all(&group, groups::tables("a", 2), named("a")).await.unwrap();
    let names = ["sources", "forced", "sources"];
    let retired = group.retire(&names, before(2 * HOUR), false).await.unwrap();
    let rows: Vec<_> = retired.iter().map(|(name, slices)| (name.as_str(), slices[0].rows, slices.len())).collect();
    assert_eq!(rows, [("sources", 40, 1), ("forced", 45, 1)]);
}

/// On nodes, writers go by their last look at a definition for some seconds.
#[tokio::test(start_paused = true)]
async fn a_name_is_free_at_once_on_one_machine_and_after_twelve_seconds_on_nodes() {
    const NOW_US: i64 = 1_700_000_000_000_000;
    for (stepwise, later_us, waits_s) in
        [(false, 0, 0), (true, 0, 12), (true, 5_000_000, 7), (true, 12_000_000, 0), (true, 60_000_000, 0)]
    {
        let below = memory();
        let store = if stepwise { Arc::new(LimitedStore::stepwise(below.clone())) } else { below.clone() };
        let at = async |now_us: i64| {
            below.commit(&placed(), Commit { stamp_us: now_us, ..Commit::default() }).await.unwrap();
            archive(&store).with_machine_time(move || now_us)
        };
        write(&at(NOW_US).await.create(spec(), false).await.unwrap(), &rows(&[(0, 1, 0)]), named("a")).await.unwrap();
        at(NOW_US).await.drop_dataset("records").await.unwrap();
        let later = at(NOW_US + later_us).await;
        let began = tokio::time::Instant::now();
        let again = later.create(spec(), false).await.unwrap();
        let waited = began.elapsed().as_millis().div_ceil(1_000);
        assert_eq!(waited, waits_s, "stepwise={stepwise} {later_us}");
        assert_eq!(read_all(&again).await.num_rows(), 0);
    }
}
