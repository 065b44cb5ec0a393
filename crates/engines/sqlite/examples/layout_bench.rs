//! Compares table layouts for chunks: `cargo run --release -p chronotile-sqlite --example layout_bench [folder]`.
//!
//! The same chunks, written in the same interleaved order, in three layouts of one SQLite file each. The figures are in
//! `docs/decisions/002-sqlite-layout.md`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use rusqlite::{Connection, params};

struct Layout {
    name: &'static str,
    create: &'static str,
    /// Whether the rows of `bodies` are read in their own order rather than in that of the keys.
    sorted: bool,
    /// Bodies above this many bytes go to the table `bodies`; `None` where there is none.
    inline_bytes_max: Option<usize>,
}

const LAYOUTS: [Layout; 4] = [
    Layout {
        name: "rowid + unique index",
        create: "CREATE TABLE chunks(cell INTEGER, window INTEGER, id BLOB, rows INTEGER, head BLOB, body BLOB, big INTEGER);
            CREATE UNIQUE INDEX by_key ON chunks(cell, window, id, rows);",
        sorted: false,
        inline_bytes_max: None,
    },
    Layout {
        name: "clustered by key",
        create: "CREATE TABLE chunks(cell INTEGER, window INTEGER, id BLOB, rows INTEGER, head BLOB, body BLOB, big INTEGER,
            PRIMARY KEY(cell, window, id)) WITHOUT ROWID;",
        sorted: false,
        inline_bytes_max: None,
    },
    Layout {
        name: "clustered, large bodies apart",
        create: "CREATE TABLE chunks(cell INTEGER, window INTEGER, id BLOB, rows INTEGER, head BLOB, body BLOB, big INTEGER,
            PRIMARY KEY(cell, window, id)) WITHOUT ROWID;
            CREATE TABLE bodies(big INTEGER PRIMARY KEY, body BLOB);",
        sorted: false,
        inline_bytes_max: Some(4_000),
    },
    Layout {
        name: "clustered keys, all bodies apart",
        create: "CREATE TABLE chunks(cell INTEGER, window INTEGER, id BLOB, rows INTEGER, head BLOB, body BLOB, big INTEGER,
            PRIMARY KEY(cell, window, id)) WITHOUT ROWID;
            CREATE TABLE bodies(big INTEGER PRIMARY KEY, head BLOB, body BLOB);",
        sorted: true,
        inline_bytes_max: Some(0),
    },
];

struct Shape {
    body_bytes: usize,
    cells: i64,
    chunks_per_cell: i64,
}

const SHAPES: [Shape; 3] = [
    Shape { body_bytes: 2_440, cells: 1_000, chunks_per_cell: 150 },
    Shape { body_bytes: 8_000, cells: 1_000, chunks_per_cell: 40 },
    Shape { body_bytes: 256 << 10, cells: 200, chunks_per_cell: 6 },
];
const WINDOWS: i64 = 13;
const CHUNKS_PER_COMMIT: usize = 20;

fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (number ^ (number >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (number >> 32)
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let conn = Connection::open(path)?;
    conn.execute_batch(
        "PRAGMA page_size = 16384; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA mmap_size = 8589934592;
         PRAGMA cache_size = -65536; PRAGMA wal_autocheckpoint = 4000",
    )?;
    Ok(conn)
}

fn write(conn: &Connection, layout: &Layout, shape: &Shape) -> rusqlite::Result<()> {
    let head = vec![7_u8; 60];
    let body: Vec<u8> = (0..shape.body_bytes as u64).map(|at| mixed(at) as u8).collect();
    let order = (0..shape.chunks_per_cell).flat_map(|visit| (0..shape.cells).map(move |cell| (cell, visit)));
    let order: Vec<(i64, i64)> = order.collect();
    for commit in order.chunks(CHUNKS_PER_COMMIT) {
        conn.execute_batch("BEGIN IMMEDIATE")?;
        for (cell, visit) in commit {
            let id = [mixed((*cell << 20 | *visit) as u64).to_be_bytes(), [0; 8]].concat();
            let window = visit * WINDOWS / shape.chunks_per_cell;
            let apart = layout.inline_bytes_max.is_some_and(|max| shape.body_bytes > max);
            let big = match apart {
                true if layout.sorted => {
                    let sql = "INSERT INTO bodies(head, body) VALUES (?1, ?2)";
                    Some(conn.prepare_cached(sql)?.insert(params![head, body])?)
                }
                true => Some(conn.prepare_cached("INSERT INTO bodies(body) VALUES (?1)")?.insert([&body])?),
                false => None,
            };
            conn.prepare_cached("INSERT INTO chunks VALUES (?1, ?2, ?3, 5, ?4, ?5, ?6)")?.execute(params![
                cell,
                window,
                id,
                (!layout.sorted).then_some(&head),
                (!apart).then_some(&body),
                big
            ])?;
        }
        conn.execute_batch("COMMIT")?;
    }
    Ok(())
}

/// Reads twelve cells and returns milliseconds and bytes.
fn read(conn: &Connection, layout: &Layout, first: i64, bodies: bool) -> rusqlite::Result<(f64, usize)> {
    if layout.sorted {
        return read_sorted(conn, first, bodies);
    }
    let start = Instant::now();
    let columns = if bodies { "head, body, big" } else { "head, NULL, NULL" };
    let sql = format!("SELECT cell, window, id, rows, {columns} FROM chunks WHERE cell = ?1 ORDER BY cell, window, id");
    let mut buffer: Vec<u8> = vec![];
    for cell in first..first + 12 {
        let mut statement = conn.prepare_cached(&sql)?;
        let mut rows = statement.query([cell])?;
        while let Some(row) = rows.next()? {
            buffer.extend_from_slice(row.get_ref(4)?.as_blob()?);
            if let Some(body) = row.get_ref(5)?.as_blob_or_null()? {
                buffer.extend_from_slice(body);
            } else if let Some(big) = row.get::<_, Option<i64>>(6)? {
                let mut statement = conn.prepare_cached("SELECT body FROM bodies WHERE big = ?1")?;
                let mut rows = statement.query([big])?;
                if let Some(row) = rows.next()? {
                    buffer.extend_from_slice(row.get_ref(0)?.as_blob()?);
                }
            }
        }
    }
    Ok((start.elapsed().as_secs_f64() * 1e3, buffer.len()))
}

/// The same for keys first, then their rows, neighbours together.
fn read_sorted(conn: &Connection, first: i64, bodies: bool) -> rusqlite::Result<(f64, usize)> {
    let start = Instant::now();
    let mut wanted: Vec<i64> = vec![];
    for cell in first..first + 12 {
        let sql = "SELECT cell, window, id, rows, big FROM chunks WHERE cell = ?1 ORDER BY cell, window, id";
        let mut statement = conn.prepare_cached(sql)?;
        let mut rows = statement.query([cell])?;
        while let Some(row) = rows.next()? {
            wanted.push(row.get(4)?);
        }
    }
    wanted.sort_unstable();
    let mut buffer: Vec<u8> = vec![];
    let body = if bodies { "body" } else { "x''" };
    let sql = format!("SELECT head, {body} FROM bodies WHERE big BETWEEN ?1 AND ?2");
    for run in wanted.chunk_by(|a, b| b - a <= 1) {
        let mut statement = conn.prepare_cached(&sql)?;
        let mut rows = statement.query([run[0], run[run.len() - 1]])?;
        while let Some(row) = rows.next()? {
            buffer.extend_from_slice(row.get_ref(0)?.as_blob()?);
            buffer.extend_from_slice(row.get_ref(1)?.as_blob()?);
        }
    }
    Ok((start.elapsed().as_secs_f64() * 1e3, buffer.len()))
}

/// Makes the system forget the file's pages.
fn forget(path: &Path) -> std::io::Result<()> {
    let of = format!("of={}", path.display());
    let dd =
        std::process::Command::new("dd").args([&of, "oflag=nocache", "conv=notrunc,fdatasync", "count=0"]).output()?;
    if dd.status.success() {
        Ok(())
    } else {
        Err(std::io::Error::other(String::from_utf8_lossy(&dd.stderr).into_owned()))
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn measure(folder: &Path, layout: &Layout, shape: &Shape) -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::Builder::new().prefix("layout-bench-").tempdir_in(folder)?;
    let path = folder.path().join("chunks.db");
    let conn = open(&path)?;
    conn.execute_batch(layout.create)?;
    let start = Instant::now();
    write(&conn, layout, shape)?;
    drop(conn);
    let write_s = start.elapsed().as_secs_f64();
    let file_bytes = std::fs::metadata(&path)?.len() as f64;
    let payload = (shape.body_bytes + 60) as f64 * (shape.cells * shape.chunks_per_cell) as f64;
    let mut times = [vec![], vec![], vec![], vec![]];
    for round in 0..9_u64 {
        let first = (mixed(round) % (shape.cells as u64 - 12)) as i64;
        for (bodies, at) in [(true, 0), (false, 2)] {
            forget(&path)?;
            let conn = open(&path)?;
            times[at].push(read(&conn, layout, first, bodies)?.0);
            for _ in 0..5 {
                times[at + 1].push(read(&conn, layout, first, bodies)?.0);
            }
        }
    }
    let [cold, hot, heads_cold, heads_hot] = times.map(|mut times| median(&mut times));
    println!(
        "| {} | {} | {write_s:.1} | {:.2} | {cold:.1} | {hot:.2} | {heads_cold:.1} | {heads_hot:.2} |",
        shape.body_bytes,
        layout.name,
        file_bytes / payload
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    println!("| body bytes | layout | write s | file/payload | cold ms | hot ms | heads cold ms | heads hot ms |");
    println!("|---|---|---|---|---|---|---|---|");
    for shape in &SHAPES {
        for layout in &LAYOUTS {
            measure(&folder, layout, shape)?;
        }
    }
    Ok(())
}
