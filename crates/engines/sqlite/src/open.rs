//! Opening and creating the archive file without touching anything that is not an archive.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use chronotile_store::StoreError;
use rusqlite::{Connection, OpenFlags};

use crate::failure::{ENGINE, Phase, store_error};
use crate::layout::{APPLICATION_ID, CREATE, FORMAT, PAGE_BYTES};
use crate::{Options, Synchronous};

/// Bytes of a SQLite file header.
const HEADER_BYTES: usize = 100;
/// Virtual address space for reading pages without copying them; SQLite cuts it to its own limit of 2 GiB.
const MMAP_BYTES: i64 = 8 << 30;
/// The write-ahead log file is truncated to this many bytes when it restarts.
const WAL_BYTES_KEPT: i64 = 64 << 20;

/// The role of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Writer,
    Reader,
}

/// Checks the file; creates a missing one if asked to.
pub(crate) fn prepare(path: &Path, options: &Options) -> Result<(), StoreError> {
    for tries_left in (0..20).rev() {
        match inspect(path)? {
            FileState::Archive => return check_writable(path, options),
            FileState::Missing if options.create && !options.read_only => {
                create(path)?;
            }
            FileState::Missing => {
                let reason = missing_reason(path);
                return Err(StoreError::NotFound { path: path.to_owned(), reason });
            }
            // Another process may be between claiming the name and filling it, or in the middle of a checkpoint.
            FileState::Empty | FileState::Cut { .. } if tries_left > 0 => std::thread::sleep(Duration::from_millis(10)),
            FileState::Empty => {
                let reason = "it is an empty file; delete it to create an archive there".to_owned();
                return Err(StoreError::NotAnArchive { path: path.to_owned(), reason });
            }
            FileState::Cut { bytes, bytes_expected } => {
                let reason = format!("it has {bytes} bytes of {bytes_expected}");
                return Err(StoreError::Corrupt { path: path.display().to_string(), reason });
            }
        }
    }
    let reason = "it appears and disappears: is another program deleting it?".to_owned();
    Err(StoreError::NotFound { path: path.to_owned(), reason })
}

enum FileState {
    Missing,
    Empty,
    /// The header is an archive's, but the file is shorter than the header says and has no log to complete it.
    Cut {
        bytes: u64,
        bytes_expected: u64,
    },
    Archive,
}

/// Reads the header without SQLite, which would leave files beside a database that is not ours.
fn inspect(path: &Path) -> Result<FileState, StoreError> {
    let not_an_archive = |reason: &str| StoreError::NotAnArchive { path: path.to_owned(), reason: reason.to_owned() };
    // Check the file type before opening: opening a pipe would wait for its other end.
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(FileState::Missing);
        }
        Err(error) => return Err(refused("reading", path, &error)),
    };
    if metadata.is_dir() {
        return Err(not_an_archive("it is a folder; name a file in it"));
    }
    if !metadata.is_file() {
        return Err(not_an_archive("it is not a regular file"));
    }
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(FileState::Missing),
        Err(error) => return Err(refused("opening", path, &error)),
    };
    let mut header = Vec::with_capacity(HEADER_BYTES);
    let read = file.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut header);
    read.map_err(|error| refused("reading", path, &error))?;
    if header.is_empty() {
        return Ok(FileState::Empty);
    }
    if !header.starts_with(b"SQLite format 3\0") {
        return Err(not_an_archive("it is not a SQLite file"));
    }
    if header.len() < HEADER_BYTES {
        return Ok(FileState::Cut { bytes: header.len() as u64, bytes_expected: u64::from(PAGE_BYTES) });
    }
    if word(&header, 68) != APPLICATION_ID {
        return Err(not_an_archive("it is a SQLite database of another program"));
    }
    check_format(path, word(&header, 60))?;
    let bytes_expected = u64::from(word(&header, 28)) * u64::from(PAGE_BYTES);
    let bytes = file.metadata().map_err(|error| refused("reading", path, &error))?.len();
    let has_log = fs::metadata(beside(path, "-wal")).is_ok_and(|log| log.len() > 0);
    if bytes < bytes_expected && !has_log {
        return Ok(FileState::Cut { bytes, bytes_expected });
    }
    Ok(FileState::Archive)
}

fn check_format(path: &Path, found: u32) -> Result<(), StoreError> {
    match found {
        FORMAT => Ok(()),
        0 => {
            let reason = "it has no format version".to_owned();
            Err(StoreError::NotAnArchive { path: path.to_owned(), reason })
        }
        _ => Err(StoreError::NewerFormat { path: path.to_owned(), found, known: FORMAT }),
    }
}

fn word(header: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

fn missing_reason(path: &Path) -> String {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            format!("the folder {} does not exist", folder.display())
        }
        _ => "the file does not exist".to_owned(),
    }
}

fn check_writable(path: &Path, options: &Options) -> Result<(), StoreError> {
    if options.read_only {
        return Ok(());
    }
    match OpenOptions::new().write(true).open(path) {
        Ok(_) => Ok(()),
        Err(error) if is_denied(&error) => Err(StoreError::ReadOnly {
            path: path.display().to_string(),
            reason: format!("{error}; open it as read-only or change its permissions"),
        }),
        Err(error) => Err(refused("opening", path, &error)),
    }
}

/// Creates a complete archive under a temporary name and then renames it, so that no process finds a partial one. The loser of a
/// race opens the winner's archive.
fn create(path: &Path) -> Result<(), StoreError> {
    let folder = folder_of(path);
    if !folder.is_dir() {
        return Err(StoreError::NotFound { path: path.to_owned(), reason: missing_reason(path) });
    }
    let draft = tempfile::Builder::new()
        .prefix(".chronotile-")
        .suffix(".new")
        .tempfile_in(&folder)
        .map_err(|error| create_error(path, &error))?
        .into_temp_path();
    write_empty_archive(&draft).map_err(|error| store_error(path, Phase::Before, 0, error))?;
    // A hard link fails if the name exists. A rename would replace the archive of another process.
    match fs::hard_link(&draft, path) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
        Err(_) => {
            // A file system without hard links. Claiming the name first keeps it at one winner.
            match OpenOptions::new().write(true).create_new(true).open(path) {
                Ok(_) => fs::rename(&draft, path).map_err(|error| create_error(path, &error))?,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
                Err(error) => return Err(create_error(path, &error)),
            }
        }
    }
    // The new name must survive a power cut like everything acknowledged later. Systems that cannot sync a folder
    // order it by themselves.
    File::open(&folder).and_then(|folder| folder.sync_all()).ok();
    Ok(())
}

fn write_empty_archive(draft: &Path) -> rusqlite::Result<()> {
    let conn = Connection::open_with_flags(draft, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    // The page size and the vacuum mode can be set only before the first table exists; the user version appears
    // together with the tables.
    conn.execute_batch(&format!(
        "PRAGMA page_size = {PAGE_BYTES}; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA synchronous = FULL;
         PRAGMA application_id = {APPLICATION_ID};
         BEGIN IMMEDIATE; PRAGMA user_version = {FORMAT}; {CREATE} COMMIT;"
    ))?;
    let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    debug_assert_eq!(mode, "wal");
    // Closing folds the log into the file, so that the archive is one file when it gets its name.
    conn.close().map_err(|(_, error)| error)
}

fn create_error(path: &Path, error: &std::io::Error) -> StoreError {
    let place = path.display().to_string();
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StoreError::Full { path: place },
        _ if is_denied(error) => StoreError::ReadOnly { path: place, reason: format!("creating the archive: {error}") },
        _ => refused("creating", path, error),
    }
}

fn is_denied(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

fn refused(doing: &str, path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Refused { engine: ENGINE, reason: format!("{doing} {}: {error}", path.display()) }
}

pub(crate) fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// A file that SQLite keeps beside the archive.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The identity of an archive file, whatever its path names later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    #[cfg(unix)]
    fn of(path: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let file = fs::metadata(path)?;
        Ok(Self { device: file.dev(), inode: file.ino() })
    }

    /// Other systems do not allow an open file to be removed.
    #[cfg(not(unix))]
    fn of(_: &Path) -> std::io::Result<Self> {
        Ok(Self { device: 0, inode: 0 })
    }

    /// The identity of an archive that has just been opened.
    pub(crate) fn opened(path: &Path) -> Result<Self, StoreError> {
        Self::of(path).map_err(|error| StoreError::NotFound { path: path.to_owned(), reason: error.to_string() })
    }

    /// Tells whether the path still names this file.
    pub(crate) fn check(self, path: &Path) -> Result<(), StoreError> {
        let moved = |reason| StoreError::Moved { path: path.display().to_string(), reason };
        match Self::of(path) {
            Ok(now) if now == self => Ok(()),
            Ok(_) => Err(moved("was replaced by another file")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(moved("was renamed or deleted")),
            Err(error) => Err(StoreError::Refused { engine: ENGINE, reason: format!("{}: {error}", path.display()) }),
        }
    }
}

/// Opens a connection to an archive that [`prepare`] has checked.
pub(crate) fn connect(path: &Path, options: &Options, role: Role) -> Result<Connection, StoreError> {
    let fail = |error| store_error(path, Phase::Before, options.busy_timeout_s, error);
    if !options.read_only {
        // A reader may be the last to close and must then be able to fold the log into the file, so it is opened for
        // writing and held to reading by a pragma.
        let conn = open_connection(path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(fail)?;
        configure(&conn, options, role).map_err(fail)?;
        return Ok(conn);
    }
    let opened = open_connection(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
        .and_then(|conn| configure(&conn, options, Role::Reader).map(|()| conn));
    let has_log = fs::metadata(beside(path, "-wal")).is_ok_and(|log| log.len() > 0);
    match opened {
        Ok(conn) => Ok(conn),
        Err(error) if has_log || !cannot_share(&error) => Err(fail(error)),
        // The folder is not writable (SQLite could not create its shared-memory file) and no log is pending, so the file cannot
        // change under the reader.
        Err(_) => {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
            let conn = open_connection(&immutable_uri(path), flags).map_err(fail)?;
            configure(&conn, options, Role::Reader).map_err(fail)?;
            Ok(conn)
        }
    }
}

fn open_connection(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    // Each connection is used by one thread at a time, so SQLite's own mutexes are not needed.
    Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)
}

fn cannot_share(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::CannotOpen | rusqlite::ErrorCode::ReadOnly))
}

fn immutable_uri(path: &Path) -> PathBuf {
    // The percent sign comes first: otherwise it would change the other escapes.
    let escaped = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    PathBuf::from(format!("file:{escaped}?immutable=1"))
}

fn configure(conn: &Connection, options: &Options, role: Role) -> rusqlite::Result<()> {
    // Most statements name a table of one slice, so scans of many slices need many statements.
    conn.set_prepared_statement_cache_capacity(512);
    let synchronous = match options.synchronous {
        Synchronous::Full => "FULL",
        Synchronous::Normal => "NORMAL",
    };
    // The first read may recover the log of a killed process and wait for other processes that do the same.
    conn.busy_timeout(Duration::from_secs(options.busy_timeout_s.max(1)))?;
    let cache_kib = if role == Role::Writer { 65_536 } else { 16_384 };
    conn.execute_batch(&format!(
        "PRAGMA cache_size = -{cache_kib}; PRAGMA mmap_size = {MMAP_BYTES}; PRAGMA temp_store = MEMORY;
         PRAGMA synchronous = {synchronous}; PRAGMA trusted_schema = OFF;"
    ))?;
    // Read now, so that an unusable file, log or folder fails the open and not a later call.
    conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0))?;
    match role {
        Role::Reader => conn.execute_batch("PRAGMA query_only = ON"),
        Role::Writer => {
            // The writer waits and checkpoints by itself.
            conn.busy_timeout(Duration::ZERO)?;
            conn.execute_batch(&format!(
                "PRAGMA wal_autocheckpoint = 0; PRAGMA journal_size_limit = {WAL_BYTES_KEPT};"
            ))?;
            if let Some(pages_max) = options.pages_max {
                conn.execute_batch(&format!("PRAGMA max_page_count = {pages_max}"))?;
            }
            Ok(())
        }
    }
}
