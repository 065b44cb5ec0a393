//! Sources of bytes: files, standard input or any reader, decompressed from gzip and zstd, with a byte count.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use crate::error::{IoError, Result};
use crate::format::{FileCompression, Format, UnknownFormat};

/// Maximum bytes of text held before conversion; a batch ends early above it.
pub(crate) const PIECE_BYTES_MAX: usize = 64 << 20;

/// The interface that each format implements.
pub(crate) trait BatchSource: Send {
    /// The schema of every batch.
    fn schema(&self) -> SchemaRef;

    /// The next batch; never called again after an error or the end.
    fn next_batch(&mut self) -> Result<Option<RecordBatch>>;
}

/// The source of records.
pub enum Source {
    /// A file.
    Path(PathBuf),
    /// Standard input.
    Stdin,
    /// Any reader, with a name for messages.
    Stream {
        /// The name in messages.
        name: String,
        /// The bytes.
        reader: Box<dyn Read + Send>,
    },
}

impl Source {
    /// The source for a command-line argument: `-` is standard input.
    #[must_use]
    pub fn of_argument(argument: &str) -> Self {
        if argument == "-" { Self::Stdin } else { Self::Path(PathBuf::from(argument)) }
    }

    /// The name of the source in messages.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Path(path) => path.display().to_string(),
            Self::Stdin => "standard input".to_owned(),
            Self::Stream { name, .. } => name.clone(),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({})", self.name())
    }
}

impl From<&Path> for Source {
    fn from(path: &Path) -> Self {
        Self::Path(path.to_path_buf())
    }
}

/// Progress of a reader, for progress bars. Clones share the count, which may be read from another thread.
#[derive(Debug, Clone)]
pub struct Progress {
    read: Arc<AtomicU64>,
    total: Option<u64>,
}

impl Progress {
    /// Number of bytes read so far, before decompression. At most [`total_bytes`](Self::total_bytes); equal to it once
    /// the last batch is returned.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        let read = self.read.load(Ordering::Relaxed);
        self.total.map_or(read, |total| read.min(total))
    }

    /// The size of the input; `None` for standard input and other streams.
    #[must_use]
    pub fn total_bytes(&self) -> Option<u64> {
        self.total
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.read.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn finish(&self) {
        if let Some(total) = self.total {
            self.read.store(total, Ordering::Relaxed);
        }
    }
}

/// Counts the bytes read through it.
pub(crate) struct CountingReader<R> {
    inner: R,
    progress: Progress,
}

impl<R> CountingReader<R> {
    pub(crate) fn new(inner: R, progress: Progress) -> Self {
        Self { inner, progress }
    }
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = self.inner.read(buf)?;
        self.progress.add(bytes as u64);
        Ok(bytes)
    }
}

impl<R: Seek> Seek for CountingReader<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

/// An opened input with its format.
pub(crate) struct Input {
    pub(crate) name: String,
    pub(crate) format: Format,
    pub(crate) head: Vec<u8>,
    pub(crate) bytes: Bytes,
    pub(crate) wrapping: FileCompression,
    pub(crate) progress: Progress,
}

/// The bytes of an input.
pub(crate) enum Bytes {
    /// An uncompressed file, positioned at its start.
    File(File),
    /// A decompressed stream, from its start.
    Stream(Box<dyn Read + Send>),
}

const HEAD_BYTES: usize = 16;

/// Reads up to [`HEAD_BYTES`] bytes, fewer only at the end of the input.
fn take_head(reader: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    reader.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok(head)
}

impl Input {
    pub(crate) fn open(source: Source, given: Option<Format>) -> Result<Self> {
        let name = source.name();
        let by_path = match &source {
            Source::Path(path) => Format::of_path(path).ok(),
            _ => None,
        };
        let (file, raw, total): (_, Box<dyn Read + Send>, _) = match source {
            Source::Path(path) => {
                let (file, total) = open_file(&path)?;
                let copy = file.try_clone().map_err(|e| IoError::opening(&path, e))?;
                (Some(copy), Box::new(file), total)
            }
            Source::Stdin => (None, Box::new(io::stdin()), None),
            Source::Stream { reader, .. } => (None, reader, None),
        };
        let progress = Progress { read: Arc::default(), total };
        let mut raw = CountingReader::new(raw, progress.clone());
        let failed = |layer, e| IoError::reading(&name, layer, e);
        let mut head = take_head(&mut raw).map_err(|e| failed(None, e))?;
        let wrapping = FileCompression::of_magic(&head);
        // A stream cannot be rewound, so the bytes that show the compression are put back in front of the rest.
        let whole = Cursor::new(head.clone()).chain(raw);
        let mut stream: Box<dyn Read + Send> = match wrapping {
            FileCompression::None => Box::new(whole),
            FileCompression::Gzip => {
                // A gzip file may consist of several members, one behind the other.
                Box::new(flate2::read::MultiGzDecoder::new(BufReader::with_capacity(1 << 16, whole)))
            }
            FileCompression::Zstd => Box::new(zstd::Decoder::new(whole).map_err(|e| failed(wrapping.label(), e))?),
        };
        // From here on, `head` and `stream` are those of the decompressed input, whose first bytes show the format.
        if wrapping != FileCompression::None {
            head = take_head(&mut stream).map_err(|e| failed(wrapping.label(), e))?;
            stream = Box::new(Cursor::new(head.clone()).chain(stream));
        }
        let format = decide(&name, given, by_path, &head)?;
        let bytes = match (file, wrapping) {
            // `file` and `stream` share one position. Only a caller that gets the file may seek.
            (Some(file), FileCompression::None)
                if matches!(format, Format::Parquet | Format::Arrow) && total.is_some() =>
            {
                Bytes::File(file)
            }
            _ => Bytes::Stream(stream),
        };
        Ok(Self { name, format, head, bytes, wrapping, progress })
    }

    /// A seekable file: the input itself, or a copy of the stream in an unnamed temporary file.
    ///
    /// # Errors
    /// [`IoError::SpoolTooLarge`] if the copy would exceed `bytes_max` bytes or half of the free space.
    pub(crate) fn into_file(self, bytes_max: u64) -> Result<File> {
        let mut stream = match self.bytes {
            Bytes::File(mut file) => {
                file.rewind().map_err(|e| IoError::reading(&self.name, None, e))?;
                return Ok(file);
            }
            Bytes::Stream(stream) => stream,
        };
        let spool = "a temporary copy of the input";
        let spool_failed = |source| IoError::Write { name: spool.to_owned(), source };
        let mut file = tempfile::tempfile().map_err(spool_failed)?;
        let space = rustix::fs::fstatvfs(&file).map_err(|e| spool_failed(e.into()))?;
        let bytes_max = bytes_max.min(space.f_bavail.saturating_mul(space.f_frsize) / 2);
        let mut buffer = vec![0; 1 << 18];
        let mut copied = 0;
        loop {
            let read = match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(IoError::reading(&self.name, self.wrapping.label(), e)),
            };
            copied += read as u64;
            if copied > bytes_max {
                return Err(IoError::SpoolTooLarge { name: self.name, bytes_max, folder: std::env::temp_dir() });
            }
            io::Write::write_all(&mut file, &buffer[..read]).map_err(spool_failed)?;
        }
        file.rewind().map_err(spool_failed)?;
        Ok(file)
    }

    pub(crate) fn into_stream(self) -> Result<Box<dyn Read + Send>> {
        match self.bytes {
            Bytes::Stream(stream) => Ok(stream),
            Bytes::File(mut file) => {
                file.rewind().map_err(|e| IoError::reading(&self.name, None, e))?;
                Ok(Box::new(CountingReader::new(BufReader::with_capacity(1 << 18, file), self.progress)))
            }
        }
    }
}

/// Opens a file; the size is `None` for devices and pipes.
fn open_file(path: &Path) -> Result<(File, Option<u64>)> {
    let file = File::open(path).map_err(|e| IoError::opening(path, e))?;
    let meta = file.metadata().map_err(|e| IoError::opening(path, e))?;
    if meta.is_dir() {
        return Err(IoError::IsFolder { path: path.to_path_buf(), example: "*.csv" });
    }
    Ok((file, meta.is_file().then_some(meta.len())))
}

/// Chooses the format: the given one, unless the first bytes contradict it; else that of the first bytes; else that of
/// the extension.
fn decide(name: &str, given: Option<Format>, by_path: Option<Format>, head: &[u8]) -> Result<Format> {
    let verified = Format::of_magic(head);
    let wrong = |expected, reason: String| Err(IoError::WrongFormat { name: name.to_owned(), expected, reason });
    if head.starts_with(b"FEA1") {
        return wrong(Format::Arrow, "it is Feather version 1; write it again as version 2".to_owned());
    }
    match (given, verified, by_path) {
        (Some(given), Some(verified), _) if given != verified => {
            wrong(given, format!("its first bytes are those of {verified}"))
        }
        (Some(format), _, _) | (None, Some(format), _) | (None, None, Some(format)) => {
            if verified.is_none()
                && !head.is_empty()
                && matches!(format, Format::Parquet | Format::Arrow)
                && !is_old_stream(format, head)
            {
                return wrong(format, "its first bytes do not match; give its actual format".to_owned());
            }
            Ok(format)
        }
        (None, None, None) if head.is_empty() => Err(IoError::Empty {
            name: name.to_owned(),
            format: "record".to_owned(),
            needs: "at least a header or one record",
        }),
        (None, None, None) => Err(UnknownFormat { name: name.to_owned() }.into()),
    }
}

/// Arrow streams from before release 0.15 start with the length of the schema, without a marker.
fn is_old_stream(format: Format, head: &[u8]) -> bool {
    // The length is in little-endian order and below 64 KiB, so its upper half is zero.
    format == Format::Arrow && head.len() >= 8 && head[2..4] == [0, 0] && head[..2] != [0, 0]
}

/// A 128-bit BLAKE3 hash of a file's bytes, without decompression. It identifies the content of resumable ingests.
/// Memory is constant. Standard input has no hash, because it cannot be read twice.
///
/// # Errors
/// [`IoError::NotFound`], [`IoError::IsFolder`], [`IoError::Denied`] or [`IoError::Read`].
pub fn content_hash(path: &Path) -> Result<[u8; 16]> {
    let (mut file, _) = open_file(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => {
                hasher.update(&buffer[..read]);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(IoError::opening(path, e)),
        }
    }
    let mut hash = [0; 16];
    hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    Ok(hash)
}
