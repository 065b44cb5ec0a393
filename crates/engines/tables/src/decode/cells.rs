//! Where the values lie in an answer: the wire format, without the meaning of any value.

use super::Fault;

/// Place of one value in its frame.
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

    /// A value of exactly `N` bytes. Cells lie within their frame from the moment they are made, so the zeros are never
    /// seen; they spare the loop a way to fail.
    pub(super) fn array<const N: usize>(self, frame: &[u8]) -> [u8; N] {
        frame.get(self.start as usize..).and_then(|rest| rest.first_chunk::<N>()).copied().unwrap_or([0; N])
    }

    pub(super) fn is_null(self) -> bool {
        self.len < 0
    }

    /// Bytes of the value, 0 for a null.
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
    /// A frame of more than 2 GiB, which the protocol does not have.
    pub(super) fn new(frame: &'a [u8]) -> Result<Self, Fault> {
        if i32::try_from(frame.len()).is_err() {
            return Err(Fault::malformed("an answer of more than 2 GiB"));
        }
        Ok(Self { frame, at: 0, end: frame.len() })
    }

    /// Reads within one value. A null has nothing to read.
    pub(super) fn within(frame: &'a [u8], cell: Cell) -> Self {
        let at = cell.start as usize;
        Self { frame, at, end: at + cell.len() }
    }

    pub(super) fn left(&self) -> usize {
        self.end - self.at
    }

    fn take(&mut self, len: usize) -> Result<Cell, Fault> {
        if len > self.left() {
            return Err(Fault::malformed(format!("{len} bytes are announced and {} are left", self.left())));
        }
        // Both fit: the frame is shorter than 2 GiB.
        let cell = Cell { start: self.at as u32, len: len as i32 };
        self.at += len;
        Ok(cell)
    }

    /// A number of four bytes.
    pub(super) fn int(&mut self) -> Result<i32, Fault> {
        let cell = self.take(4)?;
        Ok(i32::from_be_bytes(cell.array(self.frame)))
    }

    /// A value behind its length of four bytes; a negative length is a null.
    pub(super) fn value(&mut self) -> Result<Cell, Fault> {
        match usize::try_from(self.int()?) {
            Ok(len) => self.take(len),
            Err(_) => Ok(NULL),
        }
    }

    /// Number of elements of a collection, each of which takes at least `bytes_min`.
    pub(super) fn count(&mut self, bytes_min: usize) -> Result<usize, Fault> {
        let count = self.int()?;
        match usize::try_from(count) {
            Ok(count) if count <= self.left() / bytes_min => Ok(count),
            _ => Err(Fault::malformed(format!("{count} elements in {} bytes", self.left()))),
        }
    }

    /// A value of a length known beforehand.
    pub(super) fn fixed(&mut self, len: usize) -> Result<Cell, Fault> {
        self.take(len)
    }

    /// A value behind a length of one to nine bytes.
    pub(super) fn short_value(&mut self) -> Result<Cell, Fault> {
        let len = self.unsigned()?;
        self.take(usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// A number of one to nine bytes: as many bytes follow the first one as it has leading ones.
    pub(super) fn unsigned(&mut self) -> Result<u64, Fault> {
        let first = self.take(1)?;
        let [first] = first.array::<1>(self.frame);
        let more = first.leading_ones();
        // The mask of eight ones leaves nothing of the first byte.
        let mut number = u64::from(first) & (0xff_u64 >> more);
        for _ in 0..more {
            let [byte] = self.take(1)?.array::<1>(self.frame);
            number = number << 8 | u64::from(byte);
        }
        Ok(number)
    }

    /// A number of one to nine bytes with its sign in the last bit.
    pub(super) fn signed(&mut self) -> Result<i64, Fault> {
        let number = self.unsigned()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// # Errors
    /// Bytes that nothing accounts for.
    pub(super) fn end(&self) -> Result<(), Fault> {
        match self.left() {
            0 => Ok(()),
            left => Err(Fault::malformed(format!("{left} bytes are left over"))),
        }
    }
}

/// Finds the values of up to `rows` rows: those of column `c` are `cells[c * rows..][..rows]`.
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
