//! What can be wrong with a file or a disk: each has its error, and nothing is damaged.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use chronotile_sqlite::{Options, SqliteStore};
use chronotile_store::{Chunk, Commit, DropSlice, Outcome, Store, StoreError};
use chronotile_types::SliceId;
use tempfile::TempDir;

use crate::common::{chunk, chunks, dataset, files_in, increment, integrity, key, open, put};

fn open_error(path: &Path, options: Options) -> StoreError {
    let error = SqliteStore::open(path, options).map(|_| ()).unwrap_err();
    let text = error.to_string();
    let name = path.file_name().unwrap().to_string_lossy();
    assert!(text.contains(&*name), "the message does not name the file: {text}");
    assert_eq!(error.outcome(), Outcome::Refused);
    error
}

/// Opens a file in every way and checks that neither it nor its folder changed.
fn refused_untouched(path: &Path, is_expected: impl Fn(&StoreError) -> bool) {
    let folder = path.parent().unwrap();
    let state = || (fs::read(path).ok(), files_in(folder));
    let before = state();
    for (create, read_only) in [(true, false), (false, false), (false, true), (true, true)] {
        let error = open_error(path, Options { create, read_only, ..Options::default() });
        assert!(is_expected(&error), "{error}");
        assert!(state() == before, "opening {} changed something: {:?}", path.display(), files_in(folder));
    }
}

fn not_an_archive(error: &StoreError) -> bool {
    matches!(error, StoreError::NotAnArchive { .. })
}

async fn archive_with_chunks(path: &Path, count: u128) {
    let store = open(path);
    store.create_slice(&dataset(), SliceId(0)).await.unwrap();
    store.commit(&dataset(), put((0..count).map(|id| chunk(key(id as i64, id), 3_000)))).await.unwrap();
}

#[test]
fn files_of_others_are_refused_and_left_untouched() {
    let folder = TempDir::new().unwrap();
    let texts: [(&str, &[u8]); 5] = [
        ("empty", b""),
        ("byte", b"S"),
        ("text", b"ra,dec,jd\n1,2,3\n"),
        ("zeros", &[0; 20_000]),
        ("looks-like", b"SQLite format 3\x01 and more"),
    ];
    for (name, content) in texts {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        refused_untouched(&path, not_an_archive);
    }
}

#[test]
fn databases_of_others_are_refused_and_left_untouched() {
    let folder = TempDir::new().unwrap();
    for mode in ["DELETE", "WAL"] {
        let path = folder.path().join(format!("other-{mode}.db"));
        let conn = rusqlite::Connection::open(&path).unwrap();
        conn.query_row(&format!("PRAGMA journal_mode = {mode}"), [], |_| Ok(())).unwrap();
        conn.execute_batch("CREATE TABLE catalog(key, value); CREATE TABLE slices(a)").unwrap();
        // Once with the other program at work and its log beside the file, once after it ended.
        refused_untouched(&path, not_an_archive);
        drop(conn);
        refused_untouched(&path, not_an_archive);
    }
}

#[test]
fn a_folder_or_a_pipe_is_refused() {
    let outer = TempDir::new().unwrap();
    let folder = outer.path().join("folder");
    fs::create_dir(&folder).unwrap();
    refused_untouched(&folder, not_an_archive);
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let error = open_error(&pipe, Options::default());
    assert!(not_an_archive(&error), "{error}");
}

#[test]
fn missing_files_and_folders_are_told_apart() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("missing.db");
    for options in [
        Options { create: false, ..Options::default() },
        Options { read_only: true, ..Options::default() },
        Options { create: false, read_only: true, ..Options::default() },
    ] {
        let error = open_error(&missing, options).to_string();
        assert!(error.contains("the file does not exist"), "{error}");
    }
    let nowhere = folder.path().join("no/such/folder/archive.db");
    for create in [true, false] {
        let error = open_error(&nowhere, Options { create, ..Options::default() });
        assert!(matches!(error, StoreError::NotFound { .. }), "{error}");
        assert!(error.to_string().contains("no/such/folder does not exist"), "{error}");
    }
    assert_eq!(files_in(folder.path()), [""; 0]);
}

#[tokio::test]
async fn an_archive_of_a_newer_format_is_refused_and_left_untouched() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("newer.db");
    archive_with_chunks(&path, 3).await;
    rusqlite::Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 99").unwrap();
    refused_untouched(&path, |error| matches!(error, StoreError::NewerFormat { found: 99, known: 1, .. }));
}

#[tokio::test]
async fn a_cut_archive_is_reported_damaged_and_left_untouched() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("cut.db");
    archive_with_chunks(&path, 100).await;
    let whole = fs::read(&path).unwrap();
    for bytes in [50, 100, 16_384, 20_000, whole.len() - 16_384, whole.len() - 1] {
        fs::write(&path, &whole[..bytes]).unwrap();
        refused_untouched(&path, |error| matches!(error, StoreError::Corrupt { .. }));
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(chunks(&open(&path)).await.unwrap().len(), 100);
}

#[tokio::test]
async fn overwritten_pages_are_an_error_or_unreadable_chunks_and_never_wrong_ones() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("damaged.db");
    archive_with_chunks(&path, 100).await;
    let whole = fs::read(&path).unwrap();
    let (mut errors, mut unreadable) = (0, 0);
    for page in 1..whole.len() / 16_384 {
        let mut damaged = whole.clone();
        // The page's own header: kind, free space, number of rows and their places.
        damaged[page * 16_384..page * 16_384 + 64].fill(0xa5);
        fs::write(&path, damaged).unwrap();
        let options = Options { read_only: true, ..Options::default() };
        let outcome = match SqliteStore::open(&path, options) {
            Ok(store) => chunks(&(Arc::new(store) as Arc<dyn Store>)).await,
            Err(error) => Err(error),
        };
        match outcome {
            Err(StoreError::Corrupt { .. }) => errors += 1,
            Err(error) => panic!("{error}"),
            // A page that a scan does not need, or one of some chunks.
            Ok(found) => {
                assert_eq!(found.len(), 100);
                let empty = found.iter().filter(|chunk| chunk.head.is_empty() && chunk.body.is_empty()).count();
                let whole = (0..100).filter(|id| found[*id as usize] == chunk(key(*id as i64, *id), 3_000)).count();
                assert_eq!(empty + whole, 100);
                unreadable += usize::from(empty > 0);
            }
        }
    }
    assert!(errors > 0 && unreadable >= 15, "{errors} and {unreadable} of the pages noticed");
}

#[tokio::test]
async fn a_store_leaves_one_file_behind() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("archive.db");
    archive_with_chunks(&path, 50).await;
    assert_eq!(files_in(folder.path()), ["archive.db"]);
    let store = open(&path);
    assert_eq!(chunks(&store).await.unwrap().len(), 50);
    drop(store);
    assert_eq!(files_in(folder.path()), ["archive.db"]);
    assert_eq!(integrity(&path), "ok");
}

#[tokio::test]
async fn odd_file_names_work() {
    let folder = TempDir::new().unwrap();
    for name in ["a b?c#d%20.db", "file:x.db", "größe.db", ":memory:"] {
        let path = folder.path().join(name);
        archive_with_chunks(&path, 2).await;
        let read_only = SqliteStore::open(&path, Options { read_only: true, ..Options::default() }).unwrap();
        assert_eq!(chunks(&(Arc::new(read_only) as Arc<dyn Store>)).await.unwrap().len(), 2, "{name}");
        assert!(path.is_file(), "{name}");
    }
}

#[tokio::test]
async fn a_read_only_archive_is_read_but_not_written() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("archive.db");
    archive_with_chunks(&path, 5).await;
    let before = fs::read(&path).unwrap();
    let read_only = SqliteStore::open(&path, Options { read_only: true, ..Options::default() }).unwrap();
    let read_only: Arc<dyn Store> = Arc::new(read_only);
    assert_eq!(chunks(&read_only).await.unwrap().len(), 5);
    let writes = [
        read_only.commit(&dataset(), Commit::default()).await,
        read_only.create_slice(&dataset(), SliceId(0)).await,
        read_only.drop_slice(&dataset(), SliceId(0), DropSlice::default()).await,
    ];
    for outcome in writes {
        assert!(matches!(outcome, Err(StoreError::ReadOnly { .. })), "{outcome:?}");
    }
    // A reader sees what a writer elsewhere adds.
    let writer = open(&path);
    writer.commit(&dataset(), put([chunk(key(99, 99), 10)])).await.unwrap();
    assert_eq!(chunks(&read_only).await.unwrap().len(), 6);
    writer.commit(&dataset(), Commit { remove: vec![key(99, 99)], ..Commit::default() }).await.unwrap();
    drop((writer, read_only));
    assert_eq!(fs::read(&path).unwrap().len(), before.len());
}

#[tokio::test]
async fn a_full_file_refuses_a_commit_and_keeps_the_rest() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("archive.db");
    archive_with_chunks(&path, 10).await;
    let full = SqliteStore::open(&path, Options { pages_max: Some(40), ..Options::default() }).unwrap();
    let full: Arc<dyn Store> = Arc::new(full);
    let large = put((100..140).map(|id| chunk(key(1, id), 30_000)));
    let small = |id| put([chunk(key(50, id), 100)]);
    // Asked for together, so that they share a transaction: the large one must not take the small ones with it.
    let (name, name2) = (dataset(), dataset());
    let (first, second, third) =
        tokio::join!(full.commit(&name, small(1)), full.commit(&name2, large.clone()), full.commit(&name, small(2)));
    assert!(matches!(second, Err(StoreError::Full { .. })), "{second:?}");
    first.unwrap();
    third.unwrap();
    assert_eq!(chunks(&full).await.unwrap().len(), 12);
    drop(full);
    assert_eq!(integrity(&path), "ok");
    let roomy = open(&path);
    roomy.commit(&dataset(), large).await.unwrap();
    assert_eq!(chunks(&roomy).await.unwrap().len(), 52);
}

#[tokio::test]
async fn a_held_archive_is_busy_after_the_timeout_and_not_before() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("archive.db");
    archive_with_chunks(&path, 1).await;
    let store = SqliteStore::open(&path, Options { busy_timeout_s: 1, ..Options::default() }).unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let start = Instant::now();
    let error = store.commit(&dataset(), put([chunk(key(5, 5), 10)])).await.unwrap_err();
    assert!(matches!(error, StoreError::Busy { waited_s: 1, .. }), "{error}");
    assert!(start.elapsed() >= Duration::from_secs(1));
    assert_eq!(chunks(&store).await.unwrap().len(), 1, "reads go on beside a writer");
    let holding = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        other.execute_batch("COMMIT").unwrap();
    });
    store.commit(&dataset(), put([chunk(key(6, 6), 10)])).await.unwrap();
    holding.join().unwrap();
    increment(&store, "counter").await;
    assert_eq!(chunks(&store).await.unwrap().len(), 2);
}

/// A small file system of its own, taken away at the end.
struct Disk {
    folder: TempDir,
}

impl Disk {
    /// `None`, with the reason printed, where the tests may not mount.
    fn mount(size: &str) -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let options = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder.path()).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self { folder }),
            outcome => {
                eprintln!("SKIPPED: mounting a small file system takes root: {outcome:?}");
                None
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn remount(&self, options: &str) {
        let remount =
            Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(self.folder.path()).status();
        assert!(remount.unwrap().success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(self.folder.path()).status().ok();
    }
}

#[tokio::test]
async fn a_full_disk_refuses_a_commit_and_keeps_what_was_acknowledged() {
    let Some(disk) = Disk::mount("3m") else { return };
    let path = disk.path("archive.db");
    let store = open(&path);
    store.create_slice(&dataset(), SliceId(0)).await.unwrap();
    let mut acknowledged = 0;
    let error = loop {
        match store.commit(&dataset(), put([chunk(key(0, acknowledged), 50_000)])).await {
            Ok(()) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 100, "the disk never fills");
    };
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert!(acknowledged > 5);
    let kept = |found: Vec<chronotile_store::Chunk>| {
        found == (0..acknowledged).map(|id| chunk(key(0, id), 50_000)).collect::<Vec<_>>()
    };
    assert!(kept(chunks(&store).await.unwrap()));
    drop(store);
    disk.remount("size=20m");
    assert_eq!(integrity(&path), "ok");
    let store = open(&path);
    assert!(kept(chunks(&store).await.unwrap()));
    store.commit(&dataset(), put([chunk(key(0, acknowledged), 50_000)])).await.unwrap();
}

#[test]
fn creating_on_a_full_disk_leaves_nothing_behind() {
    let Some(disk) = Disk::mount("32k") else { return };
    let error = open_error(&disk.path("archive.db"), Options::default());
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert_eq!(files_in(disk.folder.path()), [""; 0]);
}

#[tokio::test]
async fn an_archive_on_a_read_only_disk_is_read_when_asked_so() {
    let Some(disk) = Disk::mount("8m") else { return };
    let path = disk.path("archive.db");
    archive_with_chunks(&path, 20).await;
    disk.remount("ro");
    let error = open_error(&path, Options::default());
    assert!(matches!(error, StoreError::ReadOnly { .. }), "{error}");
    let error = open_error(&disk.path("new.db"), Options::default());
    assert!(matches!(error, StoreError::ReadOnly { .. }), "{error}");
    let store = SqliteStore::open(&path, Options { read_only: true, ..Options::default() }).unwrap();
    assert_eq!(chunks(&(Arc::new(store) as Arc<dyn Store>)).await.unwrap().len(), 20);
}

#[tokio::test]
async fn chunks_that_cannot_be_read_are_empty_and_can_be_put_again() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("archive.db");
    archive_with_chunks(&path, 10).await;
    let other = rusqlite::Connection::open(&path).unwrap();
    let rows = other.execute("DELETE FROM chunks_detections_0 WHERE chunk IN (1, 4, 5, 10)", []).unwrap();
    assert_eq!(rows, 4);
    other.execute("UPDATE chunks_detections_0 SET head = 'text', body = 7 WHERE chunk = 7", []).unwrap();
    let store = open(&path);
    let whole = |id: i64| chunk(key(id, id as u128), 3_000);
    let stored = |id: i64| match [0, 3, 4, 6, 9].contains(&id) {
        true => Chunk { head: Bytes::new(), body: Bytes::new(), ..whole(id) },
        false => whole(id),
    };
    assert_eq!(chunks(&store).await.unwrap(), (0..10).map(stored).collect::<Vec<_>>());
    for id in 0..10 {
        assert_eq!(store.fetch(&dataset(), vec![key(id, id as u128)]).await.unwrap(), [stored(id)]);
    }
    store.commit(&dataset(), put((0..10).map(whole))).await.unwrap();
    assert_eq!(chunks(&store).await.unwrap(), (0..10).map(whole).collect::<Vec<_>>());
}

#[tokio::test]
async fn keys_with_extreme_row_numbers_are_read_as_empty_chunks() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("archive.db");
    archive_with_chunks(&path, 6).await;
    let other = rusqlite::Connection::open(&path).unwrap();
    for (cell, row) in [(1, i64::MIN), (4, i64::MAX)] {
        other.execute("UPDATE keys_detections_0 SET chunk = ?1 WHERE cell = ?2", [row, cell]).unwrap();
    }
    let stored = |id: i64| match [1, 4].contains(&id) {
        true => Chunk { head: Bytes::new(), body: Bytes::new(), ..chunk(key(id, id as u128), 3_000) },
        false => chunk(key(id, id as u128), 3_000),
    };
    assert_eq!(chunks(&open(&path)).await.unwrap(), (0..6).map(stored).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_size_that_no_chunk_has_is_an_error_of_statistics() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("archive.db");
    archive_with_chunks(&path, 3).await;
    let other = rusqlite::Connection::open(&path).unwrap();
    for bytes in [-1, i64::MIN, i64::MAX] {
        other.execute("UPDATE keys_detections_0 SET bytes = ?1", [bytes]).unwrap();
        let found = open(&path).statistics(&dataset(), SliceId(0)).await;
        assert!(found.is_err(), "{bytes}: {found:?}");
    }
}

#[tokio::test]
async fn replaced_and_removed_chunks_leave_no_row_behind() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("archive.db");
    archive_with_chunks(&path, 50).await;
    let store = open(&path);
    for bytes in [10, 40_000] {
        let replaced = (10..60).map(|id| chunk(key(id as i64, id), bytes));
        let remove = (0..60).step_by(3).map(|id| key(id as i64, id)).collect();
        store.commit(&dataset(), Commit { remove, ..put(replaced) }).await.unwrap();
    }
    let other = rusqlite::Connection::open(&path).unwrap();
    let count = |table: &str| -> i64 {
        other.query_row(&format!("SELECT count(*) FROM {table}_detections_0"), [], |row| row.get(0)).unwrap()
    };
    assert_eq!((count("keys"), count("chunks")), (40, 40));
}

#[tokio::test(flavor = "multi_thread")]
async fn room_of_rows_that_are_taken_away_is_given_back() {
    const COUNT: u128 = 2_000;
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("archive.db");
    let store = open(&path);
    store.create_slice(&dataset(), SliceId(0)).await.unwrap();
    store.commit(&dataset(), put((0..COUNT).map(|id| chunk(key(id as i64, id), 20_000)))).await.unwrap();
    let keys: Vec<_> = (0..COUNT - 20).map(|id| key(id as i64, id)).collect();
    for remove in keys.chunks(60) {
        store.commit(&dataset(), Commit { remove: remove.to_vec(), ..Commit::default() }).await.unwrap();
    }
    assert_eq!(chunks(&store).await.unwrap().len(), 20);
    drop(store);
    let size = fs::metadata(&path).unwrap().len();
    assert!(size < COUNT as u64 * 20_000 / 4, "{size} bytes are left");
    assert_eq!(integrity(&path), "ok");
}

#[cfg(unix)]
#[tokio::test]
async fn writes_and_listings_of_a_file_that_was_renamed_deleted_or_replaced_say_so() {
    for what in ["renamed", "deleted", "replaced"] {
        let folder = TempDir::new().unwrap();
        let (path, elsewhere) = (folder.path().join("archive.db"), folder.path().join("elsewhere.db"));
        archive_with_chunks(&path, 1).await;
        archive_with_chunks(&elsewhere, 2).await;
        let store = open(&path);
        store.commit(&dataset(), put([chunk(key(5, 5), 10)])).await.unwrap();
        let kept = folder.path().join("kept.db");
        match what {
            "renamed" => fs::rename(&path, &kept).unwrap(),
            "deleted" => {
                fs::hard_link(&path, &kept).unwrap();
                fs::remove_file(&path).unwrap();
            }
            _ => {
                fs::hard_link(&path, &kept).unwrap();
                fs::rename(&elsewhere, &path).unwrap();
            }
        }
        for _ in 0..2 {
            let error = store.commit(&dataset(), put([chunk(key(6, 6), 10)])).await.unwrap_err();
            assert!(matches!(error, StoreError::Moved { .. }), "{what}: {error}");
            assert_eq!(error.outcome(), Outcome::Refused);
            assert!(error.to_string().contains("archive.db") && error.to_string().contains(what), "{error}");
        }
        for error in [
            store.create_slice(&dataset(), SliceId(7)).await.unwrap_err(),
            store.records("dataset/", None, 10).await.unwrap_err(),
        ] {
            assert!(matches!(error, StoreError::Moved { .. }), "{what}: {error}");
        }
        // Where the file is put back the write is simply repeated.
        fs::rename(&kept, &path).unwrap();
        store.commit(&dataset(), put([chunk(key(6, 6), 10)])).await.unwrap();
        assert_eq!(chunks(&store).await.unwrap().len(), 3, "{what}");
    }
}
