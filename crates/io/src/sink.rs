//! Destinations of bytes: files that appear complete or not at all, standard output, or any writer.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::NamedTempFile;

use crate::error::{IoError, Result};
use crate::format::FileCompression;

/// The destination of records.
pub enum Sink {
    /// A file. It is written next to its final path under a temporary name (`.chronotile-*.part`) and renamed once
    /// complete, so that no reader sees an incomplete file. Devices and pipes are written directly.
    Path(PathBuf),
    /// Standard output.
    Stdout,
    /// Any writer, with a name for messages.
    Stream {
        /// The name in messages.
        name: String,
        /// The writer.
        writer: Box<dyn Write + Send>,
    },
}

impl Sink {
    /// The sink for a command-line argument: `-` is standard output.
    #[must_use]
    pub fn of_argument(argument: &str) -> Self {
        if argument == "-" { Self::Stdout } else { Self::Path(PathBuf::from(argument)) }
    }

    /// The name of the sink in messages.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Path(path) => path.display().to_string(),
            Self::Stdout => "standard output".to_owned(),
            Self::Stream { name, .. } => name.clone(),
        }
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sink({})", self.name())
    }
}

impl From<&Path> for Sink {
    fn from(path: &Path) -> Self {
        Self::Path(path.to_path_buf())
    }
}

/// Keeps the first I/O error below an encoder. Encoders wrap such errors in different ways; this is the original cause.
#[derive(Clone, Default)]
pub(crate) struct Failure(Arc<Mutex<Option<io::Error>>>);

impl Failure {
    fn note(&self, error: &io::Error) {
        // An `io::Error` cannot be cloned, and the encoder gets the original.
        let copy = match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(error.kind(), error.to_string()),
        };
        if let Ok(mut slot) = self.0.lock() {
            slot.get_or_insert(copy);
        }
    }

    /// The recorded error as an [`IoError`].
    pub(crate) fn take(&self, name: &str) -> Option<IoError> {
        let source = self.0.lock().ok()?.take()?;
        Some(match source.kind() {
            io::ErrorKind::BrokenPipe => IoError::BrokenPipe,
            _ => IoError::Write { name: name.to_owned(), source },
        })
    }
}

enum Target {
    Replaced { file: BufWriter<NamedTempFile>, path: PathBuf, overwrite: bool },
    Plain(BufWriter<Box<dyn Write + Send>>),
}

/// An open sink.
pub(crate) struct Out {
    target: Target,
    failure: Failure,
}

const BUFFER_BYTES: usize = 1 << 17;

impl Out {
    pub(crate) fn open(sink: Sink, overwrite: bool) -> Result<Self> {
        let target = match sink {
            Sink::Stdout => Target::Plain(BufWriter::with_capacity(BUFFER_BYTES, Box::new(stdout()?))),
            Sink::Stream { writer, .. } => Target::Plain(BufWriter::with_capacity(BUFFER_BYTES, writer)),
            Sink::Path(path) => open_path(path, overwrite)?,
        };
        Ok(Self { target, failure: Failure::default() })
    }

    pub(crate) fn failure(&self) -> Failure {
        self.failure.clone()
    }

    /// Makes the output durable and renames it to its path.
    pub(crate) fn finish(self, name: &str) -> Result<()> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::BrokenPipe => IoError::BrokenPipe,
            _ => IoError::Write { name: name.to_owned(), source },
        };
        match self.target {
            Target::Plain(mut writer) => writer.flush().map_err(failed),
            Target::Replaced { file, path, overwrite } => {
                let file = file.into_inner().map_err(|e| failed(e.into_error()))?;
                // Before the rename: after a crash, a file with missing content could otherwise be at the path.
                file.as_file().sync_all().map_err(failed)?;
                let placed = if overwrite { file.persist(&path) } else { file.persist_noclobber(&path) };
                placed.map(drop).map_err(|e| IoError::creating(&path, e.error))?;
                sync_folder_of(&path).map_err(failed)
            }
        }
    }
}

/// Makes a rename within the folder of `path` durable.
fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::File::open(folder)?.sync_all()
}

/// Standard output as a file: the standard library's handle would silently discard output to a closed descriptor.
fn stdout() -> Result<fs::File> {
    let own = io::stdout().as_fd().try_clone_to_owned();
    own.map(fs::File::from).map_err(|source| IoError::Write { name: Sink::Stdout.name(), source })
}

fn open_path(path: PathBuf, overwrite: bool) -> Result<Target> {
    let mut path = path;
    match fs::metadata(&path) {
        Ok(meta) if meta.is_dir() => return Err(IoError::IsFolder { path, example: "rows.csv" }),
        Ok(meta) if !meta.is_file() => {
            let device = OpenOptions::new().write(true).open(&path).map_err(|e| IoError::creating(&path, e))?;
            return Ok(Target::Plain(BufWriter::with_capacity(BUFFER_BYTES, Box::new(device))));
        }
        Ok(_) if !overwrite => return Err(IoError::Exists { path }),
        // Follow a symbolic link, so that its target is replaced and the link stays.
        Ok(_) => path = fs::canonicalize(&path).map_err(|e| IoError::creating(&path, e))?,
        // Usually there is no file yet. Any other error occurs again, with its cause, when the file is created or
        // renamed.
        Err(_) => {}
    }
    // The temporary file is in the folder of the path, because a rename does not work across file systems.
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".chronotile-").suffix(".part");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The default mode of new files, reduced by the umask; temporary files are otherwise private.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let file = builder.tempfile_in(&folder).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => IoError::NoFolder { folder: folder.clone() },
        _ => IoError::creating(&path, e),
    })?;
    Ok(Target::Replaced { file: BufWriter::with_capacity(BUFFER_BYTES, file), path, overwrite })
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.target {
            Target::Replaced { file, .. } => file.write(bytes),
            Target::Plain(writer) => writer.write(bytes),
        };
        written.inspect_err(|e| self.failure.note(e))
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = match &mut self.target {
            Target::Replaced { file, .. } => file.flush(),
            Target::Plain(writer) => writer.flush(),
        };
        flushed.inspect_err(|e| self.failure.note(e))
    }
}

/// An open sink, with the compression that the file name requests.
pub(crate) enum CompressedSink {
    Plain(Out),
    Gzip(GzEncoder<Out>),
    Zstd(zstd::Encoder<'static, Out>),
}

impl CompressedSink {
    pub(crate) fn new(out: Out, wrapping: FileCompression) -> io::Result<Self> {
        Ok(match wrapping {
            FileCompression::None => Self::Plain(out),
            FileCompression::Gzip => Self::Gzip(GzEncoder::new(out, Compression::default())),
            FileCompression::Zstd => Self::Zstd(zstd::Encoder::new(out, zstd::DEFAULT_COMPRESSION_LEVEL)?),
        })
    }

    /// Ends the compressed stream.
    pub(crate) fn finish(self) -> io::Result<Out> {
        match self {
            Self::Plain(out) => Ok(out),
            Self::Gzip(encoder) => encoder.finish(),
            Self::Zstd(encoder) => encoder.finish(),
        }
    }

    /// Flushes buffered bytes to a waiting reader; compressed streams are flushed only at their end.
    pub(crate) fn hand_over(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(out) if matches!(out.target, Target::Plain(_)) => out.flush(),
            _ => Ok(()),
        }
    }
}

impl Write for CompressedSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(out) => out.write(bytes),
            Self::Gzip(encoder) => encoder.write(bytes),
            Self::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Gzip(encoder) => encoder.flush(),
            Self::Zstd(encoder) => encoder.flush(),
        }
    }
}

/// The compression that the name of a sink requests.
pub(crate) fn wrapping_of(sink: &Sink) -> FileCompression {
    match sink {
        Sink::Path(path) => FileCompression::of_path(path),
        _ => FileCompression::None,
    }
}
