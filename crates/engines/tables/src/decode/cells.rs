//! Locates the values in a result: the framing of the wire format, independent of the values' types.

use super::Fault;

/// Position of one value in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    start: u32,
    /// Bytes of the value; negative for a null.
    len: i32,
}

/// No value.
pub(super) const NULL: Cell = Cell { start: 0, len: -1 };

impl Cell {
    /// The value's bytes, or None for a null.
    pub(super) fn bytes(self, frame: &[u8]) -> Option<&[u8]> {
        let len = usize::try_from(self.len).ok()?;
        frame.get(self.start as usize..)?.get(..len)
    }

    /// A value of exactly `N` bytes. Every cell was checked to be within its frame when it was created, so the default of zeros is
    /// never returned; it keeps the callers' loops free of errors.
    pub(super) fn array<const N: usize>(self, frame: &[u8]) -> [u8; N] {
        frame.get(self.start as usize..).and_then(|rest| rest.first_chunk::<N>()).copied().unwrap_or([0; N])
    }

    pub(super) fn is_null(self) -> bool {
        self.len < 0
    }

    /// Length of the value in bytes, 0 for a null.
    pub(super) fn len(self) -> usize {
        usize::try_from(self.len).unwrap_or(0)
    }

    pub(super) fn has_len(self, len: usize) -> bool {
        i64::from(self.len) == len as i64
    }
}

/// Reads a frame, or one value of it, from front to back.
pub(super) struct Cursor<'a> {
    frame: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Cursor<'a> {
    /// # Errors
    /// A frame of more than 2 GiB, which the protocol does not allow.
    pub(super) fn new(frame: &'a [u8]) -> Result<Self, Fault> {
        if i32::try_from(frame.len()).is_err() {
            return Err(Fault::malformed("an answer of more than 2 GiB"));
        }
        Ok(Self { frame, at: 0, end: frame.len() })
    }

    /// Reads within one value. A null is empty.
    pub(super) fn within(frame: &'a [u8], cell: Cell) -> Self {
        let at = cell.start as usize;
        Self { frame, at, end: at + cell.len() }
    }

    pub(super) fn left(&self) -> usize {
        self.end - self.at
    }

    fn take(&mut self, len: usize) -> Result<Cell, Fault> {
        if len > self.left() {
            return Err(Fault::malformed(format!("{len} bytes are declared, but {} are left", self.left())));
        }
        // The casts are lossless: the frame is shorter than 2 GiB.
        let cell = Cell { start: self.at as u32, len: len as i32 };
        self.at += len;
        Ok(cell)
    }

    /// An integer of four bytes.
    pub(super) fn int(&mut self) -> Result<i32, Fault> {
        let cell = self.take(4)?;
        Ok(i32::from_be_bytes(cell.array(self.frame)))
    }

    /// A value with a length prefix of four bytes; a negative length is a null.
    pub(super) fn value(&mut self) -> Result<Cell, Fault> {
        match usize::try_from(self.int()?) {
            Ok(len) => self.take(len),
            Err(_) => Ok(NULL),
        }
    }

    /// Number of elements of a collection, each at least `bytes_min` long.
    pub(super) fn count(&mut self, bytes_min: usize) -> Result<usize, Fault> {
        let count = self.int()?;
        match usize::try_from(count) {
            Ok(count) if count <= self.left() / bytes_min => Ok(count),
            _ => Err(Fault::malformed(format!("{count} elements in {} bytes", self.left()))),
        }
    }

    /// A value of known length.
    pub(super) fn fixed(&mut self, len: usize) -> Result<Cell, Fault> {
        self.take(len)
    }

    /// A value with a length prefix of one to nine bytes.
    pub(super) fn short_value(&mut self) -> Result<Cell, Fault> {
        let len = self.unsigned()?;
        self.take(usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// An integer of one to nine bytes: the leading ones of the first byte count the bytes that follow it.
    pub(super) fn unsigned(&mut self) -> Result<u64, Fault> {
        let first = self.take(1)?;
        let [first] = first.array::<1>(self.frame);
        let more = first.leading_ones();
        // With eight leading ones, the mask clears the first byte.
        let mut number = u64::from(first) & (0xff_u64 >> more);
        for _ in 0..more {
            let [byte] = self.take(1)?.array::<1>(self.frame);
            number = number << 8 | u64::from(byte);
        }
        Ok(number)
    }

    /// A zigzag-coded integer of one to nine bytes.
    pub(super) fn signed(&mut self) -> Result<i64, Fault> {
        let number = self.unsigned()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// # Errors
    /// Bytes are left over.
    pub(super) fn end(&self) -> Result<(), Fault> {
        match self.left() {
            0 => Ok(()),
            left => Err(Fault::malformed(format!("{left} bytes are left over"))),
        }
    }
}

/// Locates the values of up to `rows` rows: those of column `c` become `cells[c * rows..][..rows]`.
pub(super) fn index(
    cursor: &mut Cursor<'_>,
    columns: usize,
    rows: usize,
    cells: &mut Vec<Cell>,
) -> Result<(), (usize, Fault)> {
    cells.clear();
    cells.resize(columns * rows, NULL);
    for row in 0..rows {
        for column in 0..columns {
            cells[column * rows + row] = cursor.value().map_err(|fault| (column, fault))?;
        }
    }
    Ok(())
}
