//! Group commit: writes that arrive while the archive is busy are stored together, in one commit.

use std::sync::Arc;

use arrow_array::RecordBatch;
use chronotile_historian::{Historian, NotFinite, PointsOptions, PointsReport};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::failure::{Failure, Result};
use crate::metrics::Metrics;
use chronotile_archive::memory::Charge;

/// Maximum number of rows of one commit.
const ROWS_MAX: usize = 250_000;
/// Maximum number of concurrent commits: one is encoded while another waits for the disk or the cluster.
const COMMITS_MAX: usize = 4;
/// Maximum number of waiting requests.
const QUEUE_MAX: usize = 4_096;

struct Job {
    tables: Vec<RecordBatch>,
    /// The memory of the tables, charged until they are stored.
    charge: Charge,
    done: oneshot::Sender<Result<()>>,
}

/// Stores checked points, and reports once they are durable.
#[derive(Clone)]
pub(crate) struct GroupCommit(mpsc::Sender<Job>);

impl GroupCommit {
    /// Starts the task that commits on a runtime. It ends when its last clone is dropped.
    pub fn start(runtime: &Handle, historian: Arc<Historian>, metrics: Arc<Metrics>) -> Self {
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        runtime.spawn(run(historian, metrics, queue));
        Self(jobs)
    }

    /// Stores points that match their tags. They are durable when this returns. Dropping the future does not cancel the
    /// write. `charge` covers the memory of the tables and is held until they are stored.
    pub async fn store(&self, tables: Vec<RecordBatch>, charge: Charge) -> Result<()> {
        let (done, answer) = oneshot::channel();
        let ended = || Failure::from(chronotile_archive::ArchiveError::Cancelled);
        self.0.send(Job { tables, charge, done }).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}

async fn run(historian: Arc<Historian>, metrics: Arc<Metrics>, mut queue: mpsc::Receiver<Job>) {
    let commits = Arc::new(Semaphore::new(COMMITS_MAX));
    while let Some(first) = queue.recv().await {
        // While all commits are in progress, further requests queue up and join this one.
        let Ok(permit) = commits.clone().acquire_owned().await else { return };
        let rows = |job: &Job| job.tables.iter().map(RecordBatch::num_rows).sum::<usize>();
        let mut total = rows(&first);
        let mut jobs = vec![first];
        while total < ROWS_MAX
            && let Ok(job) = queue.try_recv()
        {
            total += rows(&job);
            jobs.push(job);
        }
        let (historian, metrics) = (historian.clone(), metrics.clone());
        tokio::spawn(async move {
            let held = jobs.into_iter().map(|job| (job.tables, (job.charge, job.done)));
            let (tables, held): (Vec<_>, Vec<_>) = held.unzip();
            let (charges, waiting): (Vec<_>, Vec<_>) = held.into_iter().unzip();
            // Rows were checked on arrival: any NaN or infinity left is to be stored as Bad.
            let options = PointsOptions { not_finite: NotFinite::Bad, ..PointsOptions::default() };
            let stored = historian.write(tables.into_iter().flatten().collect(), &options).await;
            drop((permit, charges));
            metrics.commits.inc();
            send_results(waiting, stored);
        });
    }
}

fn send_results(waiting: Vec<oneshot::Sender<Result<()>>>, stored: chronotile_historian::Result<PointsReport>) {
    // The rows of a commit are stored or refused together, so all its requests get the same answer.
    let failure = stored.err().map(Failure::from);
    for done in waiting {
        let answer = failure.as_ref().map_or(Ok(()), |failure| Err(failure.clone()));
        // Sending fails if the client has disconnected.
        let _ = done.send(answer);
    }
}
