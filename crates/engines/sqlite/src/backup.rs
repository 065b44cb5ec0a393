//! A consistent copy of an archive file under a new name, made beside live writers.
//!
//! The bytes come through SQLite's backup interface, never through the file system: a file without what its log (`-wal`) holds is
//! not the archive, and a log beside another file damages it.

use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chronotile_store::StoreError;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;

use crate::Options;
use crate::failure::{Phase, store_error};
use crate::open::{Role, beside, connect, folder_of, prepare};

/// Pages of one step: 16 MiB, between two looks at whether to go on.
const STEP_PAGES: i32 = 1_024;
/// Suffixes of files that SQLite would treat as parts of a file of this name.
const COMPANIONS: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Why an archive file could not be copied. Nothing is left at the target.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The source, or writing the copy.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The target exists.
    #[error("{path:?} exists already: choose another name; an existing file is never overwritten")]
    Exists {
        /// The target.
        path: PathBuf,
    },
    /// A file beside the target is a leftover of a deleted archive of the same name.
    #[error(
        "{companion:?} is a leftover of a deleted archive of the same name and would damage the new file: if no \
        process has that archive open, move the leftover away, or choose another name"
    )]
    Companion {
        /// The file.
        companion: PathBuf,
    },
    /// The target's folder does not exist.
    #[error("the folder {folder:?} does not exist: create it first")]
    NoFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// The copy does not hold what it should.
    #[error("the copy of {path:?} is damaged: {reason}")]
    Damaged {
        /// The source.
        path: PathBuf,
        /// What SQLite found.
        reason: String,
    },
    /// The operating system refused.
    #[error("{doing} {path:?} failed: {source}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The caller cancelled the copy.
    #[error("the copy was cancelled")]
    GivenUp,
}

/// A complete copy that has no name yet. Dropping it removes it.
#[derive(Debug)]
pub struct FileDraft {
    /// Private to this process, beside the target; holds the copy and what SQLite keeps beside it.
    folder: TempDir,
    target: PathBuf,
    permissions: Permissions,
}

/// Copies the archive file `from`, as it is at one moment, for the name `target`; [`FileDraft::place`] gives it that name. Writers
/// of any process go on meanwhile; what they commit after the start is not in the copy, and their log grows until the end.
///
/// `progress` is called with (pages done, pages in all) every 16 MiB and ends the copy by returning false.
///
/// # Errors
/// [`BackupError`]; a target that exists, or beside which files of another archive lie, is refused before anything is read.
pub fn copy_file(
    from: &Path,
    target: &Path,
    mut progress: impl FnMut(u64, u64) -> bool,
) -> Result<FileDraft, BackupError> {
    let options = Options { create: false, read_only: true, ..Options::default() };
    let (from, target) = (absolute(from)?, absolute(target)?);
    prepare(&from, &options)?;
    let permissions = fs::metadata(&from).map_err(|e| system("reading", &from, e))?.permissions();
    check_target(&target)?;
    let parent = folder_of(&target);
    let folder = tempfile::Builder::new().prefix(".chronotile-").suffix(".copy").tempdir_in(&parent);
    let folder = folder.map_err(|e| system("creating a temporary folder in", &parent, e))?;
    let draft = FileDraft { folder, target, permissions };
    let path = draft.path();
    let failed = |error| BackupError::Store(store_error(&from, Phase::Before, options.busy_timeout_s, error));
    let source = connect(&from, &options, Role::Reader)?;
    // The transaction keeps one moment of the archive for all steps; without it each commit would begin the copy anew.
    source.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema;").map_err(failed)?;
    let mut copy = new_file(&path).map_err(failed)?;
    {
        let backup = Backup::new(&source, &mut copy).map_err(failed)?;
        loop {
            match backup.step(STEP_PAGES).map_err(failed)? {
                StepResult::Done => {
                    let pages = u64::from(backup.progress().pagecount.unsigned_abs());
                    // The copy is complete: it can no longer be cancelled.
                    progress(pages, pages);
                    break;
                }
                StepResult::More => {}
                // Another connection holds a lock for a moment.
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
            let pages = backup.progress();
            let done = pages.pagecount - pages.remaining;
            if !progress(u64::from(done.unsigned_abs()), u64::from(pages.pagecount.unsigned_abs())) {
                return Err(BackupError::GivenUp);
            }
        }
    }
    copy.close().map_err(|(_, error)| failed(error))?;
    check_copy(&from, &path)?;
    Ok(draft)
}

/// An empty database private to this process, which need not survive a power cut.
fn new_file(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")?;
    Ok(conn)
}

fn check_copy(from: &Path, path: &Path) -> Result<(), BackupError> {
    let options = Options { create: false, ..Options::default() };
    let failed = |error| BackupError::Store(store_error(path, Phase::Before, 0, error));
    let copy = connect(path, &options, Role::Reader)?;
    let found: String = copy.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(failed)?;
    copy.close().map_err(|(_, error)| failed(error))?;
    match found.as_str() {
        "ok" => Ok(()),
        _ => Err(BackupError::Damaged { path: from.to_owned(), reason: found }),
    }
}

/// Refuses a name that exists, or beside which SQLite would find files of another archive.
fn check_target(target: &Path) -> Result<(), BackupError> {
    let folder = folder_of(target);
    if !folder.is_dir() {
        return Err(BackupError::NoFolder { folder });
    }
    if fs::symlink_metadata(target).is_ok() {
        return Err(BackupError::Exists { path: target.to_owned() });
    }
    match COMPANIONS.iter().map(|suffix| beside(target, suffix)).find(|path| fs::symlink_metadata(path).is_ok()) {
        Some(companion) => Err(BackupError::Companion { companion }),
        None => Ok(()),
    }
}

impl FileDraft {
    /// The temporary path of the copy: a usable archive, which a caller may open to check it, and closes again.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("archive.db")
    }

    /// Gives the copy its name, durably, with the mode of the source; returns its size in bytes.
    ///
    /// # Errors
    /// As [`copy_file`]; a file that has appeared under the name since is left as it is.
    pub fn place(self) -> Result<u64, BackupError> {
        let (path, target) = (self.path(), &self.target);
        // A reader of the copy may have left a log beside it.
        for suffix in ["-wal", "-journal"] {
            if fs::metadata(beside(&path, suffix)).is_ok_and(|log| log.len() > 0) {
                return Err(BackupError::Companion { companion: beside(&path, suffix) });
            }
        }
        fs::set_permissions(&path, self.permissions.clone()).map_err(|e| system("setting the mode of", &path, e))?;
        // The content is durable before the name exists: after a power cut, the name never stands for a partial copy.
        let file = File::open(&path).map_err(|e| system("opening", &path, e))?;
        file.sync_all().map_err(|e| system("syncing", &path, e))?;
        let bytes = file.metadata().map_err(|e| system("reading", &path, e))?.len();
        check_target(target)?;
        name_file(&path, target)?;
        // Systems that cannot sync a folder order it by themselves.
        File::open(folder_of(target)).and_then(|folder| folder.sync_all()).ok();
        Ok(bytes)
    }
}

/// Moves a file to a name that must not exist.
fn name_file(path: &Path, target: &Path) -> Result<(), BackupError> {
    match fs::hard_link(path, target) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(BackupError::Exists { path: target.to_owned() }),
        // A file system without hard links. Claiming the name first keeps it at one winner.
        Err(_) => match fs::OpenOptions::new().write(true).create_new(true).open(target) {
            Ok(_) => fs::rename(path, target).map_err(|e| system("naming", target, e)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(BackupError::Exists { path: target.to_owned() })
            }
            Err(error) => Err(system("naming", target, error)),
        },
    }
}

fn absolute(path: &Path) -> Result<PathBuf, BackupError> {
    std::path::absolute(path).map_err(|e| system("resolving", path, e))
}

fn system(doing: &'static str, path: &Path, source: std::io::Error) -> BackupError {
    BackupError::System { doing, path: path.to_owned(), source }
}
