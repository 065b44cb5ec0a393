//! Times of the engine on survey-shaped data: `cargo run --release -p chronotile-sqlite --example scan_bench [folder]`.
//!
//! 1,000 cells x 150 visits, each visit writing 20 chunks of about 2.5 KB into neighbouring cells, interleaved over
//! the sky and over 13 windows. Then commits are timed alone and from eight tasks, and scans of 12 cells x 13 windows.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use chronotile_sqlite::{Options, SqliteStore, Synchronous};
use chronotile_store::{Cells, Chunk, ChunkKey, Commit, DatasetRef, Scan, Store};
use chronotile_types::{Cell, ChunkId, DatasetName, SliceId, Tile, Window};
use futures::stream::{StreamExt, TryStreamExt};

type Failed = Box<dyn std::error::Error>;
type Result<T> = std::result::Result<T, Failed>;

const CELLS: i64 = 1_000;
const VISITS: i32 = 150;
const WINDOWS: i32 = 13;
const CHUNKS_PER_COMMIT: i64 = 20;
const HEAD_BYTES: usize = 60;
const BODY_BYTES: usize = 2_440;

fn dataset() -> Result<DatasetRef> {
    Ok(DatasetRef::of_chunks(DatasetName::new("sources")?))
}

/// Numbers without pattern, the same in every run.
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (number ^ (number >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (number >> 32)
}

fn chunk(slices: bool, cell: i64, visit: i32) -> Chunk {
    let window = visit * WINDOWS / VISITS;
    let seed = mixed((cell as u64) << 32 | visit as u64);
    let noise: Vec<u8> =
        (0..(HEAD_BYTES + BODY_BYTES) as u64 / 8 + 1).flat_map(|at| mixed(seed + at).to_le_bytes()).collect();
    let noise = Bytes::from(noise);
    let tile = Tile { cell: Cell(cell), window: Window(window) };
    let id = ChunkId(u128::from(seed) << 64 | u128::from(mixed(seed)));
    Chunk {
        key: ChunkKey { slice: SliceId(if slices { window } else { 0 }), tile, id },
        rows: 5,
        head: noise.slice(..HEAD_BYTES),
        body: noise.slice(HEAD_BYTES..HEAD_BYTES + BODY_BYTES),
    }
}

fn visit_commits(slices: bool, visit: i32) -> Vec<Commit> {
    let commit = |first: i64| {
        let put = (first..first + CHUNKS_PER_COMMIT).map(|cell| chunk(slices, cell, visit)).collect();
        Commit { put, ..Commit::default() }
    };
    (0..CELLS / CHUNKS_PER_COMMIT).map(|step| commit(step * CHUNKS_PER_COMMIT)).collect()
}

fn spread(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!(
        "{what}: median {:.3} ms, 5% {:.3}, 95% {:.3}, max {:.3} (n = {})",
        at(0.5),
        at(0.05),
        at(0.95),
        at(1.0),
        times.len()
    );
}

async fn fill(store: &Arc<dyn Store>, slices: bool) -> Result<()> {
    for slice in 0..if slices { WINDOWS } else { 1 } {
        store.create_slice(&dataset()?, SliceId(slice)).await?;
    }
    let name = dataset()?;
    let start = Instant::now();
    for visit in 0..VISITS {
        let commits = futures::stream::iter(visit_commits(slices, visit)).map(Ok::<_, Failed>);
        commits.try_for_each_concurrent(8, |commit| async { Ok(store.commit(&name, commit).await?) }).await?;
    }
    let chunks = CELLS * i64::from(VISITS);
    println!("filled with {chunks} chunks in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

async fn time_commits(store: &Arc<dyn Store>, slices: bool) -> Result<()> {
    let name = dataset()?;
    let mut times = vec![];
    // The last visit again: the chunks are replaced. New ones follow.
    for commit in visit_commits(slices, VISITS - 1).into_iter().cycle().take(200) {
        let start = Instant::now();
        store.commit(&name, commit).await?;
        times.push(start.elapsed());
    }
    spread("commit of 20 chunks replaced", times);
    let fresh = |task: i64, number: i64| {
        let put = (0..CHUNKS_PER_COMMIT)
            .map(|at| chunk(slices, (mixed((task * 1_000 + number) as u64) % 900) as i64 + at, VISITS - 1));
        let put = put.map(|mut chunk| {
            chunk.key.id = ChunkId(chunk.key.id.0 ^ ((task * 1_000 + number + 1) as u128));
            chunk.key.tile.cell.0 += CELLS;
            chunk
        });
        Commit { put: put.collect(), ..Commit::default() }
    };
    let mut times = vec![];
    for number in 0..200 {
        let start = Instant::now();
        store.commit(&name, fresh(0, number)).await?;
        times.push(start.elapsed());
    }
    spread("commit of 20 chunks new", times);
    let start = Instant::now();
    let tasks = (1..=8).map(|task| {
        let (store, name) = (store.clone(), name.clone());
        let commits: Vec<_> = (0..100).map(|number| fresh(task, number)).collect();
        tokio::spawn(async move {
            for commit in commits {
                store.commit(&name, commit).await?;
            }
            Ok::<_, chronotile_store::StoreError>(())
        })
    });
    for outcome in futures::future::join_all(tasks.collect::<Vec<_>>()).await {
        outcome??;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("8 tasks: {:.0} commits/s, {:.0} chunks/s", 800.0 / seconds, 16_000.0 / seconds);
    Ok(())
}

async fn scan(store: &Arc<dyn Store>, scan: Scan) -> Result<(usize, usize)> {
    let groups = store.scan(&dataset()?, scan).await?;
    let size =
        |chunks: Vec<Chunk>| chunks.iter().fold((0, 0), |(n, bytes), c| (n + 1, bytes + c.head.len() + c.body.len()));
    let sum = groups.try_fold((0, 0), |sum, group| async move {
        let (chunks, bytes) = size(group);
        Ok((sum.0 + chunks, sum.1 + bytes))
    });
    Ok(sum.await?)
}

fn footprint(slices: bool, first: i64, runs: i64, bodies: bool) -> Scan {
    // Twelve cells. In one run, visits wrote them together, as those of one field are; in more, apart.
    let length = 12 / runs;
    let range = |run: i64| (Cell(first + run * 30), Cell(first + run * 30 + length - 1));
    Scan {
        slices: (0..if slices { WINDOWS } else { 1 }).map(SliceId).collect(),
        cells: Cells::Ranges((0..runs).map(range).collect()),
        windows: (Window(0), Window(WINDOWS - 1)).into(),
        bodies,
        older: true,
    }
}

async fn time_scans(store: &Arc<dyn Store>, slices: bool) -> Result<()> {
    for (what, runs, bodies) in
        [("1 run", 1, true), ("4 runs", 4, true), ("12 single cells", 12, true), ("1 run, heads", 1, false)]
    {
        let mut times = vec![];
        let mut size = (0, 0);
        for round in 0..200 {
            let wanted = footprint(slices, (mixed(round % 20) % 600) as i64, runs, bodies);
            let start = Instant::now();
            size = scan(store, wanted).await?;
            times.push(start.elapsed());
        }
        spread(&format!("scan of {} chunks, {} bytes ({what})", size.0, size.1), times.split_off(20));
    }
    let start = Instant::now();
    let all = Scan { cells: Cells::All, ..footprint(slices, 0, 4, true) };
    let (chunks, bytes) = scan(store, all).await?;
    let seconds = start.elapsed().as_secs_f64();
    println!("whole scan: {chunks} chunks, {:.0} MB/s", bytes as f64 / 1e6 / seconds);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let folder = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    for slices in [true, false] {
        let file = tempfile::Builder::new().prefix("scan-bench-").tempdir_in(&folder)?;
        let path = file.path().join("archive.db");
        let open = |synchronous| SqliteStore::open(&path, Options { synchronous, ..Options::default() });
        println!("{}", if slices { "-- one window a slice --" } else { "-- all windows in one slice --" });
        fill(&(Arc::new(open(Synchronous::Full)?) as Arc<dyn Store>), slices).await?;
        println!("file: {:.1} MB", std::fs::metadata(&path)?.len() as f64 / 1e6);
        let store: Arc<dyn Store> = Arc::new(open(Synchronous::Full)?);
        time_scans(&store, slices).await?;
        time_commits(&store, slices).await?;
    }
    Ok(())
}
