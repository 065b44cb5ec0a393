//! The checkpoint of a scan: a file with its progress, from which another process can resume it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chronotile_cql::scylla::response::PagingState;
use serde::{Deserialize, Serialize};

use crate::error::{Result, TablesError};
use crate::ring::TokenRange;

const FORMAT: &str = "chronotile-scan";
const VERSION: u32 = 1;
/// Interval between syncs of the file. The progress is written to the file before each further batch is delivered, so it survives
/// a killed process; a power failure may lose the records of this interval.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// The progress of reading a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadPosition {
    /// Not started.
    Start,
    /// Read up to a page: the cluster's paging state for the next one.
    At(PagingState),
    /// Read to its end.
    Done,
}

/// Identifies a scan, so that the file of a different scan is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) statement: String,
    /// The values of its markers in hexadecimal; null for a null.
    pub(crate) values: Vec<Option<String>>,
}

#[derive(Serialize, Deserialize)]
struct Document {
    format: String,
    version: u32,
    scan: Identity,
    ranges: Vec<RangeRecord>,
}

#[derive(Serialize, Deserialize)]
struct RangeRecord {
    after: i64,
    through: i64,
    state: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    page: Option<String>,
}

/// Maintains the checkpoint file of one scan.
#[derive(Debug)]
pub(crate) struct Recorder {
    path: PathBuf,
    identity: Identity,
    ranges: Vec<(TokenRange, ReadPosition)>,
    /// Progress that was delivered but not yet acknowledged, oldest first.
    delivered: Vec<(usize, ReadPosition)>,
    synced: Option<Instant>,
}

impl Recorder {
    /// Resumes from the file at `path`, or starts with `fresh` ranges if it does not exist.
    ///
    /// # Errors
    /// [`TablesError::Checkpoint`] for a file that cannot be read or belongs to another scan.
    pub(crate) fn open(path: &Path, identity: Identity, fresh: impl FnOnce() -> Vec<TokenRange>) -> Result<Self> {
        let refuse = |reason: String, source: Option<io::Error>| TablesError::Checkpoint {
            path: path.display().to_string(),
            reason,
            source: source.map(|error| Arc::new(error) as _),
        };
        let ranges = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fresh().into_iter().map(|range| (range, ReadPosition::Start)).collect()
            }
            Err(error) => return Err(refuse(error.to_string(), Some(error))),
            Ok(bytes) => parse(&bytes, &identity).map_err(|reason| refuse(reason, None))?,
        };
        let mut recorder = Self { path: path.to_owned(), identity, ranges, delivered: vec![], synced: None };
        // Detects a path that cannot be written now, not after the first batch.
        recorder.write(true)?;
        Ok(recorder)
    }

    /// All ranges with their progress.
    pub(crate) fn ranges(&self) -> &[(TokenRange, ReadPosition)] {
        &self.ranges
    }

    /// Notes progress that is being delivered.
    pub(crate) fn deliver(&mut self, range: usize, place: ReadPosition) {
        self.delivered.push((range, place));
    }

    /// Writes the progress delivered so far to the file.
    pub(crate) fn acknowledge(&mut self) -> Result<()> {
        if self.delivered.is_empty() {
            return Ok(());
        }
        for (range, place) in std::mem::take(&mut self.delivered) {
            if let Some(record) = self.ranges.get_mut(range) {
                record.1 = place;
            }
        }
        // A rename without a sync survives the end of the process, and costs less for each batch.
        let due = self.synced.is_none_or(|last| last.elapsed() >= SYNC_INTERVAL);
        self.write(due)
    }

    /// Writes and syncs the progress after the last batch.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.acknowledge()?;
        self.write(true)
    }

    fn write(&mut self, sync: bool) -> Result<()> {
        let records = self.ranges.iter().map(|(range, place)| {
            let (state, page) = match place {
                ReadPosition::Start => ("open", None),
                ReadPosition::At(state) => ("begun", Some(hex(state.as_bytes_slice().map_or(&[], |bytes| &bytes[..])))),
                ReadPosition::Done => ("done", None),
            };
            RangeRecord { after: range.start, through: range.end, state: state.to_owned(), page }
        });
        let document = Document {
            format: FORMAT.to_owned(),
            version: VERSION,
            scan: self.identity.clone(),
            ranges: records.collect(),
        };
        self.replace(&document, sync).map_err(|error| TablesError::Checkpoint {
            path: self.path.display().to_string(),
            reason: format!("it cannot be written: {error}"),
            source: Some(Arc::new(error)),
        })?;
        if sync {
            self.synced = Some(Instant::now());
        }
        Ok(())
    }

    /// Writes a temporary file and renames it over the file, so that a complete file exists at any time.
    fn replace(&self, document: &Document, sync: bool) -> io::Result<()> {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        // The process id keeps apart the temporary files of two processes that use one checkpoint.
        name.push(format!(".{}.new", std::process::id()));
        let beside = self.path.with_file_name(name);
        let mut file = File::create(&beside)?;
        file.write_all(&serde_json::to_vec(document)?)?;
        if sync {
            file.sync_data()?;
        }
        drop(file);
        fs::rename(&beside, &self.path)
    }
}

fn parse(bytes: &[u8], identity: &Identity) -> std::result::Result<Vec<(TokenRange, ReadPosition)>, String> {
    let document: Document =
        serde_json::from_slice(bytes).map_err(|error| format!("it is not the checkpoint of a scan: {error}"))?;
    if document.format != FORMAT || document.version != VERSION {
        return Err(format!("it is {} version {}, not {FORMAT} version {VERSION}", document.format, document.version));
    }
    if document.scan != *identity {
        return Err(format!(
            "it belongs to another scan ({}): give another path, or delete it to start over",
            document.scan.statement
        ));
    }
    let place = |record: RangeRecord| {
        let place = match (record.state.as_str(), record.page) {
            ("open", None) => ReadPosition::Start,
            ("begun", Some(page)) => ReadPosition::At(PagingState::new_from_raw_bytes(unhex(&page)?)),
            ("done", None) => ReadPosition::Done,
            _ => return None,
        };
        Some((TokenRange { start: record.after, end: record.through }, place))
    };
    let ranges = document.ranges.into_iter().map(place).collect::<Option<Vec<_>>>();
    let ranges = ranges.ok_or("the state of a range is unknown")?;
    // The ranges must cover all tokens, or rows would never be read.
    let whole = ranges.first().is_some_and(|(range, _)| range.start == i64::MIN)
        && ranges.last().is_some_and(|(range, _)| range.end == i64::MAX)
        && ranges.windows(2).all(|pair| pair[0].0.end == pair[1].0.start && pair[0].0.start < pair[0].0.end);
    if whole { Ok(ranges) } else { Err("its ranges do not cover all tokens".to_owned()) }
}

/// Hexadecimal digits, two per byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let byte = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    digits.chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(statement: &str) -> Identity {
        Identity { statement: statement.to_owned(), values: vec![Some("00ff".to_owned()), None] }
    }

    fn halves() -> Vec<TokenRange> {
        vec![TokenRange { start: i64::MIN, end: 0 }, TokenRange { start: 0, end: i64::MAX }]
    }

    fn at(bytes: &[u8]) -> ReadPosition {
        ReadPosition::At(PagingState::new_from_raw_bytes(bytes))
    }

    #[test]
    fn only_what_was_acknowledged_is_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scan.json");
        let places = || {
            let again = Recorder::open(&path, identity("s"), || panic!("the file is there")).unwrap();
            again.ranges().iter().map(|(_, place)| place.clone()).collect::<Vec<_>>()
        };
        let mut recorder = Recorder::open(&path, identity("s"), halves).unwrap();
        recorder.deliver(1, at(&[1, 0xab]));
        assert_eq!(places(), [ReadPosition::Start, ReadPosition::Start]);
        recorder.acknowledge().unwrap();
        assert_eq!(places(), [ReadPosition::Start, at(&[1, 0xab])]);
        recorder.deliver(0, ReadPosition::Done);
        recorder.deliver(1, at(&[2]));
        recorder.deliver(1, ReadPosition::Done);
        recorder.finish().unwrap();
        assert_eq!(places(), [ReadPosition::Done, ReadPosition::Done]);
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn files_that_cannot_be_trusted_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scan.json");
        Recorder::open(&path, identity("s"), halves).unwrap();
        let reason = |statement: &str| match Recorder::open(&path, identity(statement), || panic!("the file is there"))
            .unwrap_err()
        {
            TablesError::Checkpoint { reason, .. } => reason,
            other => panic!("{other}"),
        };
        assert!(reason("other").contains("belongs to another scan (s)"));
        let whole = fs::read_to_string(&path).unwrap();
        for (from, to, part) in [
            ("\"through\":0", "\"through\":-1", "do not cover"),
            ("\"open\"", "\"begun\"", "the state of a range is unknown"),
            ("\"version\":1", "\"version\":2", "version 2"),
            ("{", "[", "not the checkpoint"),
        ] {
            assert!(whole.contains(from));
            fs::write(&path, whole.replacen(from, to, 1)).unwrap();
            assert!(reason("s").contains(part), "{}", reason("s"));
        }
        let missing = folder.path().join("no folder").join("scan.json");
        assert!(matches!(
            Recorder::open(&missing, identity("s"), halves),
            Err(TablesError::Checkpoint { source: Some(_), .. })
        ));
    }
}
