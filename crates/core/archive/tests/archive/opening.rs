//! URLs of archives and the options for opening one.

use std::sync::Arc;
use std::time::Duration;

use chronotile_archive::{Archive, ArchiveError, OpenOptions, WriteOptions};
use chronotile_memory::MemoryStore;
use chronotile_store::Store;
use chronotile_types::{DatasetName, DatasetSpec, ErrorKind};

use crate::common::*;

async fn refused(url: &str, options: &OpenOptions) -> ArchiveError {
    match Archive::open(url, options).await {
        Ok(archive) => panic!("{url} was opened: {archive:?}"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_url_that_names_no_archive_is_refused_with_the_reason() {
    for (url, reason) in [
        ("archive.db", "it names no engine"),
        ("memory:here", "memory: takes no path"),
        ("sqlite:", "the path is empty"),
        ("sqlite://", "the path is empty"),
        ("postgres:records", "\"postgres\" is not an engine of this release"),
        ("cassandra://host", "it names no keyspace"),
        ("cassandra://user:secret@host/keyspace", "a password does not belong in a URL"),
    ] {
        let error = refused(url, &OpenOptions::default()).await;
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{error}");
        let text = error.to_string();
        assert!(text.contains(reason) && !text.contains("secret"), "{text}");
    }
}

#[tokio::test]
async fn each_archive_in_memory_is_one_of_its_own() {
    let archive = Archive::open("memory:", &OpenOptions::default()).await.unwrap();
    assert_eq!((archive.url(), archive.engine()), ("memory:", "memory"));
    archive.create(spec(), false).await.unwrap();
    let other = Archive::open("memory:", &OpenOptions::default()).await.unwrap();
    assert_eq!(other.dataset_names().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_file_is_made_where_that_is_allowed_and_read_without_a_change_where_it_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive.db");
    let (url, same) = (format!("sqlite:{}", path.display()), format!("sqlite://{}", path.display()));
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    for options in [
        OpenOptions { create: false, ..OpenOptions::default() },
        read_only.clone(),
        OpenOptions { create: false, ..read_only.clone() },
    ] {
        assert_eq!(refused(&url, &options).await.kind(), ErrorKind::ArchiveNotFound);
        assert!(!path.exists(), "{options:?} made a file");
    }
    let archive = Archive::open(&url, &OpenOptions::default()).await.unwrap();
    assert_eq!((archive.url(), archive.engine()), (&*url, "sqlite"));
    let dataset = archive.create(spec(), false).await.unwrap();
    write(&dataset, &rows(&[(1, 1, 1)]), named("a")).await.unwrap();
    for options in [read_only.clone(), OpenOptions { create: false, ..read_only }] {
        let reader = Archive::open(&same, &options).await.unwrap().dataset("records").await.unwrap();
        assert_eq!(ids(&read_all(&reader).await), [1]);
        let error = write(&reader, &rows(&[(2, 2, 1)]), WriteOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    }
    let again = OpenOptions { create: false, ..OpenOptions::default() };
    let dataset = Archive::open(&same, &again).await.unwrap().dataset("records").await.unwrap();
    write(&dataset, &rows(&[(2, 2, 1)]), WriteOptions::default()).await.unwrap();
    assert_eq!(ids(&read_all(&dataset).await), [1, 2]);
}

/// Rows of a replaced batch stay for reads that began earlier, for as long as the archive was opened to keep them.
#[tokio::test]
async fn rows_that_were_replaced_are_kept_as_long_as_the_options_say() {
    for (superseded_kept, chunks_kept) in [(Duration::ZERO, 1), (Duration::from_secs(600), 2)] {
        let (store, folder) = sqlite();
        drop(create(&store, spec()).await);
        let url = format!("sqlite:{}", folder.path().join("archive.db").display());
        let options = OpenOptions { superseded_kept, ..OpenOptions::default() };
        let dataset = Archive::open(&url, &options).await.unwrap().dataset("records").await.unwrap();
        write(&dataset, &noted(&[(1, 1, 1)], "old"), named("a")).await.unwrap();
        write(&dataset, &noted(&[(1, 1, 1)], "new"), replacing("a")).await.unwrap();
        assert_eq!(id_notes(&read_all(&dataset).await), [(1, "new".to_owned())]);
        assert_eq!(chunks(store.as_ref(), &placed()).await.len(), chunks_kept);
        // That rows are kept leaves the batch finished.
        assert_eq!(dataset.verify(None).await.unwrap().batches_unfinished, 0);
        assert!(dataset.batches().await.unwrap().iter().all(|batch| batch.finished));
    }
}

#[tokio::test]
async fn a_write_waits_for_other_writers_no_longer_than_the_options_say() {
    let (_store, folder) = sqlite();
    let path = folder.path().join("archive.db");
    let options = OpenOptions { timeout_s: 0, ..OpenOptions::default() };
    let archive = Archive::open(&format!("sqlite:{}", path.display()), &options).await.unwrap();
    let dataset = archive.create(spec(), false).await.unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let busy = write(&dataset, &rows(&[(1, 1, 1)]), named("a")).await.unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
    other.execute_batch("ROLLBACK").unwrap();
    assert!(write(&dataset, &rows(&[(1, 1, 1)]), named("a")).await.unwrap().stored);
}

#[tokio::test]
async fn an_archive_lists_the_definitions_of_its_datasets_by_name() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    assert_eq!(archive(&store).datasets().await.unwrap(), []);
    let mut created = Vec::new();
    for name in ["b", "a"] {
        let name = DatasetName::new(name).unwrap();
        created.push(create(&store, DatasetSpec { name, ..spec() }).await.spec());
    }
    created.reverse();
    assert_eq!(archive(&store).datasets().await.unwrap(), created);
}
