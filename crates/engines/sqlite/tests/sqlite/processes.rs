//! Many processes on one archive, and processes that are killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chronotile_store::{Commit, Expect, RecordPut, Store};
use chronotile_types::SliceId;
use tempfile::TempDir;

use crate::common::{chunk, chunks, dataset, files_in, increment, integrity, key, open, put};

const ROLE: &str = "CHRONOTILE_TEST_ROLE";
const ARCHIVE: &str = "CHRONOTILE_TEST_ARCHIVE";
const NUMBER: &str = "CHRONOTILE_TEST_NUMBER";

/// Starts this test program again, as the process that [`other_process`] describes.
fn start(role: &str, path: &Path, number: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::other_process", "--ignored", "--nocapture"])
        .env(ROLE, role)
        .env(ARCHIVE, path)
        .env(NUMBER, number.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the process that the other tests start"]
async fn other_process() {
    let number: u64 = std::env::var(NUMBER).unwrap().parse().unwrap();
    let store = open(std::env::var(ARCHIVE).unwrap().as_ref());
    store.create_slice(&dataset(), SliceId(0)).await.unwrap();
    match std::env::var(ROLE).unwrap().as_str() {
        "worker" => work(&store, number).await,
        "writer" => write_until_killed(&store, number).await,
        role => panic!("{role}"),
    }
}

const WORK_ROUNDS: u64 = 25;

async fn work(store: &Arc<dyn Store>, number: u64) {
    for round in 0..WORK_ROUNDS {
        let id = u128::from(number * WORK_ROUNDS + round);
        store.commit(&dataset(), put([chunk(key(round as i64, id), 2_500)])).await.unwrap();
        increment(store, "counter").await;
        let found = chunks(store).await.unwrap();
        assert!(found.iter().any(|chunk| chunk.key.id.0 == id), "a process does not see its own commit");
        assert!(found.is_sorted_by_key(|chunk| chunk.key), "a scan is out of order or doubled");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_processes_create_and_write_one_archive_and_nothing_is_lost_or_doubled() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("archive.db");
    let workers: Vec<_> = (0..8).map(|number| start("worker", &path, number)).collect();
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    assert_eq!(files_in(folder.path()), ["archive.db"]);
    assert_eq!(integrity(&path), "ok");
    let store = open(&path);
    assert_eq!(store.record("counter").await.unwrap().unwrap(), (8 * WORK_ROUNDS).to_string());
    let found = chunks(&store).await.unwrap();
    assert_eq!(found.len() as u64, 8 * WORK_ROUNDS);
    assert!(found.iter().all(|found| *found == chunk(found.key, 2_500)));
}

const WRITERS: u64 = 3;

/// Several tasks, so that commits are killed in groups as well; each prints a number once it is acknowledged. A commit
/// is a small chunk, a large one, and a record; all of it or none is there.
async fn write_until_killed(store: &Arc<dyn Store>, first: u64) {
    let tasks = (0..WRITERS).map(|task| {
        let store = store.clone();
        tokio::spawn(async move {
            for number in (first + task..).step_by(WRITERS as usize) {
                let chunks = killed_chunks(number);
                let record = RecordPut {
                    key: format!("batch/{number:08}"),
                    value: Some(Bytes::from_static(b"done")),
                    expect: Expect::Any,
                };
                let commit = Commit { after: vec![record], ..put(chunks) };
                store.commit(&dataset(), commit).await.unwrap();
                println!("ack {number}");
            }
        })
    });
    futures::future::join_all(tasks.collect::<Vec<_>>()).await;
}

fn killed_chunks(number: u64) -> [chronotile_store::Chunk; 2] {
    let id = u128::from(number);
    [chunk(key((number % 13) as i64, id), 1_000), chunk(key((number % 7) as i64 + 100, id), 40_000)]
}

/// Lets a writer go on for a while, kills it, and returns the numbers it acknowledged.
fn killed_writer(path: &Path, first: u64, pause: Duration) -> Vec<u64> {
    let mut writer = start("writer", path, first);
    let output = BufReader::new(writer.stdout.take().unwrap());
    let reading = std::thread::spawn(move || {
        let numbers = output.lines().map_while(Result::ok);
        numbers.filter_map(|line| line.strip_prefix("ack ")?.parse().ok()).collect()
    });
    std::thread::sleep(pause);
    writer.kill().unwrap();
    writer.wait().unwrap();
    reading.join().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_writer_loses_nothing_acknowledged_and_leaves_no_half_commit() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("archive.db");
    let mut acknowledged: Vec<u64> = vec![];
    for round in 0..16_u64 {
        // From before the archive is made to far into the writing; the numbers only need to spread.
        let pause = Duration::from_micros(2_000 + (round * 7_919) % 120 * 1_000);
        acknowledged.extend(killed_writer(&path, round * 100_000, pause));
        if !path.exists() {
            assert!(acknowledged.is_empty());
            continue;
        }
        // The next process finds the archive as the killed one left it, log included.
        let store = open(&path);
        let records = store.records("batch/", None, usize::MAX).await.unwrap();
        let applied: Vec<u64> = records.iter().map(|record| record.key["batch/".len()..].parse().unwrap()).collect();
        let missing = acknowledged.iter().find(|number| applied.binary_search(number).is_err());
        assert_eq!(missing, None, "an acknowledged commit is lost after kill {round}");
        let mut expected: Vec<_> = applied.iter().flat_map(|number| killed_chunks(*number)).collect();
        expected.sort_by_key(|chunk| chunk.key);
        assert!(chunks(&store).await.unwrap() == expected, "half a commit is left after kill {round}");
        drop(store);
        assert_eq!(integrity(&path), "ok");
    }
    assert!(acknowledged.len() > 30, "only {} commits: the kills came too early", acknowledged.len());
}
