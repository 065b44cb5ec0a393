//! The single writer thread: it groups concurrent requests into one transaction and one disk sync (group commit).

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use chronotile_store::{Commit, DropSlice, Result, StoreError};
use chronotile_types::{DatasetName, SliceId};
use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;
use tokio::sync::oneshot;

use crate::Options;
use crate::failure::{ENGINE, Phase, is_busy, store_error};
use crate::layout::{self, Failure};
use crate::open::{Identity, Role, connect};

/// Jobs in one transaction.
const GROUP_JOBS_MAX: usize = 256;
/// A group takes no further job once it holds this many chunk bytes, so that its transaction fits the page cache.
const GROUP_BYTES_MAX: usize = 16 << 20;
/// Pages in the log from which it is checkpointed, as far as readers allow.
const CHECKPOINT_PAGES: i32 = 4_000;
/// Pages in the log from which the writer waits for readers to release it, so that it cannot grow forever.
const RESTART_PAGES: i32 = 16_000;
/// How long it waits for them, each time.
const RESTART_WAIT: Duration = Duration::from_millis(500);
/// After this long without work the whole log is checkpointed and its file truncated. Longer than the interval of sources that write
/// every few seconds: checkpointing a small log each time would rewrite many pages.
pub(crate) const IDLE: Duration = Duration::from_secs(10);

/// Free pages are kept for later rows up to this fraction of the file, or this number.
const FREE_SHARE: i64 = 4;
const FREE_PAGES_MIN: i64 = 64;
/// Maximum pages returned to the file system after each group that removes rows, so that no writer waits long for it.
const RELEASED_PAGES_MAX: i64 = 512;

/// Requests to the writer thread.
pub(crate) enum WriterRequest {
    Commit(Commit),
    CreateSlice(SliceId),
    DropSlice(SliceId, DropSlice),
}

struct Job {
    dataset: DatasetName,
    work: WriterRequest,
    since: Instant,
    reply: oneshot::Sender<Result<()>>,
}

/// Sends jobs to the writer thread. Dropping it ends the thread after the queued jobs.
#[derive(Debug)]
pub(crate) struct Writer {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// `idle` is how long it waits for work before it empties the log.
    pub(crate) fn start(path: PathBuf, options: Options, idle: Duration) -> Result<Self> {
        // The connection is opened here, not by the thread, so that the caller gets the error.
        let conn = connect(&path, &options, Role::Writer)?;
        let file = Identity::opened(&path)?;
        let (sender, receiver) = channel();
        let mut state = State { path, file, options, idle, conn: Some(conn), logged: false };
        let thread = std::thread::Builder::new()
            .name("chronotile-sqlite".to_owned())
            .spawn(move || state.run(&receiver))
            .map_err(|error| StoreError::Refused { engine: ENGINE, reason: format!("starting a thread: {error}") })?;
        Ok(Self { jobs: Some(sender), thread: Some(thread) })
    }

    /// Runs a job durably, even if the caller stops waiting.
    pub(crate) async fn submit(&self, dataset: &DatasetName, work: WriterRequest) -> Result<()> {
        let gone = || StoreError::Unknown { engine: ENGINE, reason: "the writer thread has ended".to_owned() };
        let (reply, outcome) = oneshot::channel();
        let job = Job { dataset: dataset.clone(), work, since: Instant::now(), reply };
        // The channel has no bound, so sending never blocks the runtime. Each caller waits for its own outcome.
        self.jobs.as_ref().ok_or_else(gone)?.send(job).map_err(|_| gone())?;
        outcome.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The thread ends once the sender is gone: without this step, `join` would wait forever.
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported to every waiting caller as an unknown outcome.
            thread.join().ok();
        }
    }
}

struct State {
    path: PathBuf,
    file: Identity,
    options: Options,
    idle: Duration,
    /// `None` after an error that leaves the connection's state in doubt; the next group opens another.
    conn: Option<Connection>,
    /// Whether the log may hold our writes.
    logged: bool,
}

impl State {
    fn run(&mut self, jobs: &Receiver<Job>) {
        while let Ok(first) = self.next(jobs) {
            self.logged = true;
            let removed = self.serve(first, jobs);
            if removed {
                self.give_back();
            }
            self.checkpoint();
        }
    }

    /// Waits for jobs, and empties the log when idle.
    fn next(&mut self, jobs: &Receiver<Job>) -> std::result::Result<Job, RecvError> {
        while self.logged {
            match jobs.recv_timeout(self.idle) {
                Ok(job) => return Ok(job),
                Err(RecvTimeoutError::Disconnected) => return Err(RecvError),
                Err(RecvTimeoutError::Timeout) => self.logged = !self.empty_log(),
            }
        }
        // The log is empty: nothing is left to do before the next job.
        jobs.recv()
    }

    /// Tries to empty the log and returns whether it succeeded. If another process reads or writes, it is tried again later: an idle
    /// process must not block a busy one.
    fn empty_log(&self) -> bool {
        let Some(conn) = &self.conn else { return true };
        // The first does the work without a lock that writers need, so that the second takes no time.
        [CheckpointMode::PASSIVE, CheckpointMode::TRUNCATE]
            .into_iter()
            .all(|mode| conn.wal_checkpoint_v2(Some(c"main"), mode).is_ok())
    }

    /// Whether rows were removed.
    fn serve(&mut self, first: Job, jobs: &Receiver<Job>) -> bool {
        if let Err(error) = self.begin(first.since) {
            // Only the first job is answered: the others may not have waited for their own timeout yet.
            first.reply.send(Err(error)).ok();
            return false;
        }
        // Add the jobs that arrived while this one waited for the lock.
        let group = gather(first, jobs);
        let outcomes = match self.run_group(&group) {
            Ok(outcomes) => outcomes,
            // The commit record may be durable: a job that ran again would meet its own effect and report a lost race.
            Err(StoreError::Unknown { engine, reason }) => {
                group.iter().map(|_| Err(StoreError::Unknown { engine, reason: reason.clone() })).collect()
            }
            Err(_) if group.len() > 1 => group.iter().map(|job| self.run_alone(job)).collect(),
            Err(error) => vec![Err(error)],
        };
        let removed = group.iter().any(|job| job.work.removes());
        for (job, outcome) in group.into_iter().zip(outcomes) {
            // A caller that stopped waiting has no use for the outcome.
            job.reply.send(outcome).ok();
        }
        removed
    }

    /// Returns pages at the end of the file to the file system if many are free. Optional work: it is skipped while another process
    /// writes, and archives of earlier releases keep their pages.
    fn give_back(&mut self) {
        let Some(conn) = &self.conn else { return };
        let count = |pragma: &str| conn.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0)).unwrap_or(0);
        let (free, pages) = (count("freelist_count"), count("page_count"));
        if free < FREE_PAGES_MIN || free < pages / FREE_SHARE {
            return;
        }
        // Each step of the statement moves one page; in an archive without page pointers there is none.
        let moved = conn.prepare(&format!("PRAGMA incremental_vacuum({RELEASED_PAGES_MAX})")).and_then(|mut vacuum| {
            let mut rows = vacuum.query([])?;
            while rows.next()?.is_some() {}
            Ok(())
        });
        // A failed statement may leave its transaction open, which the next group must not continue.
        if moved.is_err() && !conn.is_autocommit() {
            self.conn = None;
        }
    }

    /// After a failure of the engine that undid the group, each job gets a transaction and an outcome of its own.
    fn run_alone(&mut self, job: &Job) -> Result<()> {
        self.begin(Instant::now())?;
        let mut outcomes = self.run_group(std::slice::from_ref(job))?;
        outcomes.pop().unwrap_or(Ok(()))
    }

    /// Takes the write lock, waiting for other processes up to the timeout.
    fn begin(&mut self, since: Instant) -> Result<()> {
        let timeout = Duration::from_secs(self.options.busy_timeout_s);
        let mut pause = Duration::from_micros(200);
        loop {
            let conn = match self.conn.take() {
                Some(conn) => conn,
                None => {
                    // A new connection must not open another file that has taken the path.
                    self.file.check(&self.path)?;
                    connect(&self.path, &self.options, Role::Writer)?
                }
            };
            // IMMEDIATE takes the write lock at once: a transaction that took the lock at its first write could fail in
            // the middle as busy.
            let begun = conn.prepare_cached("BEGIN IMMEDIATE").and_then(|mut begin| begin.execute([]));
            self.conn = Some(conn);
            match begun {
                Ok(_) => return Ok(()),
                Err(error) if is_busy(&error) && since.elapsed() < timeout => {
                    std::thread::sleep(pause.mul_f64(0.5 + jitter()));
                    pause = (pause * 2).min(Duration::from_millis(10));
                }
                Err(error) => {
                    let waited_s = since.elapsed().as_secs();
                    self.conn = None;
                    return Err(store_error(&self.path, Phase::Before, waited_s, error));
                }
            }
        }
    }

    /// Runs jobs in the open transaction and commits. A job whose condition fails undoes only itself; a failure of the
    /// engine undoes all and is returned.
    fn run_group(&mut self, group: &[Job]) -> Result<Vec<Result<()>>> {
        // The connection is put back only in a known state: every other path drops it, and with it the transaction.
        let Some(conn) = self.conn.take() else {
            return Err(StoreError::Refused { engine: ENGINE, reason: "no connection".to_owned() });
        };
        let waited_s = self.options.busy_timeout_s;
        // The first failure of the engine ends the loop. A condition that fails is the outcome of its job.
        let outcomes = group.iter().map(|job| run_job(&conn, job)).collect::<rusqlite::Result<Vec<_>>>();
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => {
                // After some errors SQLite has rolled back by itself: then no transaction is open.
                if conn.is_autocommit() || conn.execute_batch("ROLLBACK").is_ok() {
                    self.conn = Some(conn);
                }
                return Err(store_error(&self.path, Phase::Before, waited_s, error));
            }
        };
        // A commit to a file that its path no longer names would be acknowledged and lost.
        if let Err(moved) = self.file.check(&self.path) {
            if conn.is_autocommit() || conn.execute_batch("ROLLBACK").is_ok() {
                self.conn = Some(conn);
            }
            return Err(moved);
        }
        match conn.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([])) {
            Ok(_) => {
                self.conn = Some(conn);
                Ok(outcomes)
            }
            // The connection is dropped: whatever it still holds of the transaction must not be seen again.
            Err(error) => Err(store_error(&self.path, Phase::Commit, waited_s, error)),
        }
    }

    /// Checkpoints the log. A failure does not affect the writes, which are durable in the log; the rest is checkpointed next time.
    fn checkpoint(&mut self) {
        let Some(conn) = &self.conn else { return };
        let checkpoint = |mode| conn.wal_checkpoint_v2(Some(c"main"), mode).unwrap_or((0, 0)).0;
        // NOOP only reports how many pages the log has.
        let pages = checkpoint(CheckpointMode::NOOP);
        if pages >= RESTART_PAGES {
            // Only this call waits inside SQLite. For other writers, `begin` waits, with jitter.
            conn.busy_timeout(RESTART_WAIT).ok();
            checkpoint(CheckpointMode::RESTART);
            conn.busy_timeout(Duration::ZERO).ok();
        } else if pages >= CHECKPOINT_PAGES {
            checkpoint(CheckpointMode::PASSIVE);
        }
    }
}

fn gather(first: Job, jobs: &Receiver<Job>) -> Vec<Job> {
    let mut bytes = first.work.bytes();
    let mut group = vec![first];
    while group.len() < GROUP_JOBS_MAX && bytes < GROUP_BYTES_MAX {
        let Ok(job) = jobs.try_recv() else { break };
        bytes += job.work.bytes();
        group.push(job);
    }
    group
}

/// The outer error is the engine's, the inner one the job's own.
fn run_job(conn: &Connection, job: &Job) -> rusqlite::Result<Result<()>> {
    conn.prepare_cached("SAVEPOINT job")?.execute([])?;
    let done = match &job.work {
        WriterRequest::Commit(commit) => layout::apply(conn, &job.dataset, commit),
        WriterRequest::CreateSlice(slice) => layout::create_slice(conn, &job.dataset, *slice).map_err(Failure::from),
        WriterRequest::DropSlice(slice, when) => layout::drop_slice(conn, &job.dataset, *slice, when),
    };
    let outcome = match done {
        Ok(()) => Ok(()),
        Err(Failure::Engine(error)) => return Err(error),
        Err(Failure::Condition(error)) => {
            // ROLLBACK TO keeps the savepoint open: the RELEASE below ends it in both cases.
            conn.prepare_cached("ROLLBACK TO job")?.execute([])?;
            Err(error)
        }
    };
    conn.prepare_cached("RELEASE job")?.execute([])?;
    Ok(outcome)
}

impl WriterRequest {
    fn removes(&self) -> bool {
        match self {
            Self::Commit(commit) => !commit.remove.is_empty(),
            Self::CreateSlice(_) => false,
            Self::DropSlice(..) => true,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Commit(commit) => commit.put.iter().map(|chunk| chunk.head.len() + chunk.body.len()).sum(),
            Self::CreateSlice(_) | Self::DropSlice(..) => 0,
        }
    }
}

/// Jitter from 0 to 1 that differs between processes, so that processes waiting for one lock do not retry in step.
fn jitter() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::{beside, prepare};

    #[tokio::test]
    async fn the_log_is_emptied_once_nobody_writes_or_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("archive.db");
        let options = Options::default();
        prepare(&path, &options).unwrap();
        let writer = Writer::start(path.clone(), options, Duration::from_millis(20)).unwrap();
        let log_bytes = || std::fs::metadata(beside(&path, "-wal")).unwrap().len();
        let reader = Connection::open(&path).unwrap();
        for round in 0..2 {
            reader.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema").unwrap();
            let name = DatasetName::new("detections").unwrap();
            writer.submit(&name, WriterRequest::CreateSlice(SliceId(round))).await.unwrap();
            std::thread::sleep(Duration::from_millis(200));
            assert!(log_bytes() > 0, "a reader needs it");
            reader.execute_batch("COMMIT").unwrap();
            let since = Instant::now();
            while log_bytes() > 0 {
                assert!(since.elapsed() < Duration::from_secs(30), "the log has {} bytes", log_bytes());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn a_commit_of_a_group_with_an_unknown_outcome_is_unknown_to_all_its_jobs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("archive.db");
        let options = Options::default();
        prepare(&path, &options).unwrap();
        let conn = connect(&path, &options, Role::Writer).unwrap();
        // A deferred constraint fails at COMMIT, after all jobs have run.
        conn.execute_batch(
            "PRAGMA foreign_keys = ON;
             CREATE TEMP TABLE parent (id PRIMARY KEY);
             CREATE TEMP TABLE child (id REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
             CREATE TEMP TRIGGER orphan AFTER INSERT ON main.slices BEGIN INSERT INTO child VALUES (1); END;",
        )
        .unwrap();
        let file = Identity::opened(&path).unwrap();
        let mut state = State { path: path.clone(), file, options, idle: IDLE, conn: Some(conn), logged: false };
        let (sender, receiver) = channel();
        let name = DatasetName::new("detections").unwrap();
        let outcomes = [0, 1].map(|slice| {
            let (reply, outcome) = oneshot::channel();
            let work = WriterRequest::CreateSlice(SliceId(slice));
            sender.send(Job { dataset: name.clone(), work, since: Instant::now(), reply }).unwrap();
            outcome
        });
        state.serve(receiver.recv().unwrap(), &receiver);
        for outcome in outcomes {
            let outcome = outcome.blocking_recv().unwrap();
            assert!(matches!(outcome, Err(StoreError::Unknown { .. })), "{outcome:?}");
        }
        let stored = Connection::open(&path).unwrap().query_row("SELECT count(*) FROM slices", [], |row| row.get(0));
        assert_eq!(stored, Ok(0), "no job ran again");
    }
}
