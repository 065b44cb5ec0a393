//! Chunks of a read: parsed heads are in memory, bodies too unless they are large, when they go to a temporary file.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use chronotile_chunk::{Body, Head};
use chronotile_store::Chunk;

use crate::error::{ArchiveError, Result};
use crate::frame::Frame;

/// A chunk with its parsed head.
pub(crate) struct ParsedChunk {
    /// Head and body are empty once the body is in a file.
    pub chunk: Chunk,
    pub head: Head,
    body: Option<BodyLocation>,
}

/// The location of a body in a file.
struct BodyLocation {
    file: Arc<Spill>,
    offset: u64,
    bytes: usize,
}

impl ParsedChunk {
    pub(crate) fn new(chunk: Chunk, head: Head) -> Self {
        Self { chunk, head, body: None }
    }

    /// Whether the body is in a file.
    pub(crate) fn is_spilled(&self) -> bool {
        self.body.is_some()
    }

    /// The body.
    ///
    /// # Errors
    /// A temporary file that cannot be read.
    pub(crate) fn body(&self, frame: &Frame) -> Result<Bytes> {
        match &self.body {
            None => Ok(self.chunk.body.clone()),
            Some(body) => body.file.read(body.offset, body.bytes).map_err(|e| spill_error(frame, &e)),
        }
    }

    /// Calls `work` with the body after verifying and decompressing it.
    pub(crate) fn with_body<T>(&self, frame: &Frame, work: impl FnOnce(&Body) -> Result<T>) -> Result<T> {
        let bytes = self.body(frame)?;
        let body = Body::open(&self.head, &bytes).map_err(|damage| frame.damaged(&self.chunk.key, damage))?;
        work(&body)
    }
}

/// Stores the bodies of chunks: a limited number of bytes in memory, the rest in a temporary file.
pub(crate) struct BodyStore {
    room: usize,
    file: Option<Arc<Spill>>,
}

impl BodyStore {
    /// A shelf with room for this many bytes in memory.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { room: bytes, file: None }
    }

    /// Bytes of bodies in memory, given the initial `room`.
    pub(crate) fn taken(&self, room: usize) -> usize {
        room - self.room.min(room)
    }

    /// Stores the body of a part, in memory or in the file.
    ///
    /// # Errors
    /// A temporary file that cannot be created or written.
    pub(crate) fn keep(&mut self, frame: &Frame, part: &mut ParsedChunk) -> Result<()> {
        let bytes = part.chunk.body.len();
        if part.is_spilled() {
            return Ok(());
        }
        if let Some(room) = self.room.checked_sub(bytes) {
            self.room = room;
            return Ok(());
        }
        // Once one body does not fit, later ones go to the file too, even if they are small.
        self.room = 0;
        self.spill(part).map_err(|e| spill_error(frame, &e))
    }

    fn spill(&mut self, part: &mut ParsedChunk) -> std::io::Result<()> {
        let file = match &self.file {
            Some(file) => file.clone(),
            None => self.file.insert(Arc::new(Spill::new()?)).clone(),
        };
        let bytes = part.chunk.body.len();
        let offset = file.append(&part.chunk.body)?;
        // Release both: an engine may have put them into one buffer.
        (part.chunk.head, part.chunk.body) = (Bytes::new(), Bytes::new());
        part.body = Some(BodyLocation { file, offset, bytes });
        Ok(())
    }
}

/// An unnamed temporary file, deleted with the last part that refers to it.
struct Spill {
    file: Mutex<File>,
}

impl Spill {
    fn new() -> std::io::Result<Self> {
        // Seeking and reading are two calls on one position, which readers of other parts must not move in between.
        // Each call seeks first, so a poisoned lock leaves nothing inconsistent.
        Ok(Self { file: Mutex::new(tempfile::tempfile()?) })
    }

    fn append(&self, bytes: &[u8]) -> std::io::Result<u64> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let offset = file.seek(SeekFrom::End(0))?;
        file.write_all(bytes)?;
        Ok(offset)
    }

    fn read(&self, offset: u64, bytes: usize) -> std::io::Result<Bytes> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(offset))?;
        let mut read = vec![0; bytes];
        file.read_exact(&mut read)?;
        Ok(read.into())
    }
}

fn spill_error(frame: &Frame, error: &std::io::Error) -> ArchiveError {
    let folder = std::env::temp_dir();
    frame.refuse(format!(
        "the read needs a temporary file in {}, which failed: {error}; free space there, set TMPDIR, or read less at once",
        folder.display()
    ))
}

/// Ranges of `parts` that belong to the same tile.
pub(crate) fn tile_ranges(parts: &[ParsedChunk]) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut start = 0;
    for end in 1..=parts.len() {
        if end == parts.len() || parts[end].chunk.key.tile != parts[start].chunk.key.tile {
            ranges.push(start..end);
            start = end;
        }
    }
    ranges
}
