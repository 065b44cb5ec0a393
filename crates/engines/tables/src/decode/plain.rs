//! Builders of columns without child columns.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use arrow_array::{
    ArrayRef, ArrowPrimitiveType, BinaryArray, BooleanArray, FixedSizeBinaryArray, PrimitiveArray, StringArray,
};
use arrow_buffer::{BooleanBufferBuilder, Buffer, IntervalMonthDayNano, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType};

use super::cells::{Cell, Cursor};
use super::{Builder, Fault};

/// The fault for values that Arrow's own checks refuse.
pub(super) fn refused(error: ArrowError) -> Fault {
    Fault::malformed(error.to_string())
}

fn wrong_length(found: usize, wanted: usize) -> Fault {
    Fault::malformed(format!("a value of {found} bytes, expected {wanted}"))
}

/// Values of `N` bytes each. An empty value, which CQL allows for most types, is read as null.
pub(super) struct Fixed<T: ArrowPrimitiveType, const N: usize, F> {
    data_type: DataType,
    values: Vec<T::Native>,
    nulls: NullBufferBuilder,
    read: F,
}

impl<T: ArrowPrimitiveType, const N: usize, F: Fn([u8; N]) -> T::Native> Fixed<T, N, F> {
    pub(super) fn new(data_type: DataType, rows: usize, read: F) -> Self {
        Self { data_type, values: Vec::with_capacity(rows), nulls: NullBufferBuilder::new(rows), read }
    }
}

impl<T: ArrowPrimitiveType, const N: usize, F: Fn([u8; N]) -> T::Native + Send> Builder for Fixed<T, N, F> {
    fn append(&mut self, frame: &[u8], cells: &[Cell]) -> Result<(), Fault> {
        // A block without nulls needs no test of each value.
        if cells.iter().all(|cell| cell.has_len(N)) {
            self.values.extend(cells.iter().map(|cell| (self.read)(cell.array(frame))));
            self.nulls.append_n_non_nulls(cells.len());
            return Ok(());
        }
        for cell in cells {
            let here = cell.has_len(N);
            if !here && cell.len() != 0 {
                return Err(wrong_length(cell.len(), N));
            }
            self.values.push(if here { (self.read)(cell.array(frame)) } else { T::Native::default() });
            self.nulls.append(here);
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<ArrayRef, Fault> {
        primitive::<T>(self.values, self.nulls.finish(), self.data_type)
    }
}

fn primitive<T: ArrowPrimitiveType>(
    values: Vec<T::Native>,
    nulls: Option<arrow_buffer::NullBuffer>,
    data_type: DataType,
) -> Result<ArrayRef, Fault> {
    let array = PrimitiveArray::<T>::try_new(ScalarBuffer::from(values), nulls).map_err(refused)?;
    Ok(Arc::new(array.with_data_type(data_type)))
}

/// Values of variable length that become numbers.
pub(super) struct Variable<T: ArrowPrimitiveType, F> {
    data_type: DataType,
    values: Vec<T::Native>,
    nulls: NullBufferBuilder,
    filler: T::Native,
    read: F,
}

impl<T: ArrowPrimitiveType, F: Fn(&[u8]) -> Result<T::Native, Fault>> Variable<T, F> {
    pub(super) fn new(data_type: DataType, rows: usize, filler: T::Native, read: F) -> Self {
        Self { data_type, values: Vec::with_capacity(rows), nulls: NullBufferBuilder::new(rows), filler, read }
    }
}

impl<T: ArrowPrimitiveType, F: Fn(&[u8]) -> Result<T::Native, Fault> + Send> Builder for Variable<T, F> {
    fn append(&mut self, frame: &[u8], cells: &[Cell]) -> Result<(), Fault> {
        for cell in cells {
            let bytes = cell.bytes(frame).filter(|bytes| !bytes.is_empty());
            self.values.push(bytes.map_or(Ok(self.filler), &self.read)?);
            self.nulls.append(bytes.is_some());
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<ArrayRef, Fault> {
        primitive::<T>(self.values, self.nulls.finish(), self.data_type)
    }
}

/// Months, days and nanoseconds, each an integer of one to nine bytes.
pub(super) fn duration(bytes: &[u8]) -> Result<IntervalMonthDayNano, Fault> {
    let mut cursor = Cursor::new(bytes)?;
    let mut part = || cursor.signed();
    let (months, days, nanoseconds) = (part()?, part()?, part()?);
    cursor.end()?;
    match (i32::try_from(months), i32::try_from(days)) {
        (Ok(months), Ok(days)) => Ok(IntervalMonthDayNano::new(months, days, nanoseconds)),
        _ => Err(Fault::malformed(format!("a duration of {months} months and {days} days"))),
    }
}

/// Appends a duration in CQL's notation: one sign, then the parts that are not zero.
pub(super) fn write_duration(bytes: &[u8], text: &mut Vec<u8>) -> Result<(), Fault> {
    let IntervalMonthDayNano { months, days, nanoseconds } = duration(bytes)?;
    if months < 0 || days < 0 || nanoseconds < 0 {
        text.push(b'-');
    }
    let parts = [
        (u64::from(months.unsigned_abs()), "mo"),
        (u64::from(days.unsigned_abs()), "d"),
        (nanoseconds.unsigned_abs(), "ns"),
    ];
    let none = parts.iter().all(|(number, _)| *number == 0);
    for (number, unit) in parts {
        if number != 0 || (none && unit == "ns") {
            // Writing to a vector does not fail.
            let _ = write!(text, "{number}{unit}");
        }
    }
    Ok(())
}

/// Booleans.
pub(super) struct Booleans {
    values: BooleanBufferBuilder,
    nulls: NullBufferBuilder,
}

impl Booleans {
    pub(super) fn new(rows: usize) -> Self {
        Self { values: BooleanBufferBuilder::new(rows), nulls: NullBufferBuilder::new(rows) }
    }
}

impl Builder for Booleans {
    fn append(&mut self, frame: &[u8], cells: &[Cell]) -> Result<(), Fault> {
        for cell in cells {
            if cell.len() > 1 {
                return Err(wrong_length(cell.len(), 1));
            }
            let here = cell.len() == 1;
            self.values.append(here && cell.array(frame) != [0]);
            self.nulls.append(here);
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<ArrayRef, Fault> {
        Ok(Arc::new(BooleanArray::new(self.values.finish(), self.nulls.finish())))
    }
}

/// UUIDs, 16 bytes each.
pub(super) struct Uuids {
    values: Vec<u8>,
    nulls: NullBufferBuilder,
}

impl Uuids {
    pub(super) fn new(rows: usize) -> Self {
        Self { values: Vec::with_capacity(rows * 16), nulls: NullBufferBuilder::new(rows) }
    }
}

impl Builder for Uuids {
    fn append(&mut self, frame: &[u8], cells: &[Cell]) -> Result<(), Fault> {
        for cell in cells {
            let here = cell.has_len(16);
            if !here && cell.len() != 0 {
                return Err(wrong_length(cell.len(), 16));
            }
            self.values.extend_from_slice(&if here { cell.array::<16>(frame) } else { [0; 16] });
            self.nulls.append(here);
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<ArrayRef, Fault> {
        let values = Buffer::from_vec(self.values);
        Ok(Arc::new(FixedSizeBinaryArray::try_new(16, values, self.nulls.finish()).map_err(refused)?))
    }
}

/// Offsets and bytes of a text or binary column.
struct VarBuffers {
    offsets: Vec<i32>,
    bytes: Vec<u8>,
    nulls: NullBufferBuilder,
}

impl VarBuffers {
    fn new(rows: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Self { offsets, bytes: vec![], nulls: NullBufferBuilder::new(rows) }
    }

    fn end_value(&mut self, here: bool) -> Result<(), Fault> {
        let end = i32::try_from(self.bytes.len());
        self.offsets.push(end.map_err(|_| Fault::range("more than 2 GiB in one page: ask for fewer rows per page"))?);
        self.nulls.append(here);
        Ok(())
    }

    fn take_offsets(&mut self) -> OffsetBuffer<i32> {
        // Offsets begin with 0 and never decrease: each is the length of a growing buffer.
        OffsetBuffer::new(ScalarBuffer::from(std::mem::take(&mut self.offsets)))
    }
}

/// Text that `write` produces from a value's bytes.
pub(super) struct Text<F> {
    buffers: VarBuffers,
    empty_is_null: bool,
    write: F,
}

impl<F: Fn(&[u8], &mut Vec<u8>) -> Result<(), Fault>> Text<F> {
    pub(super) fn new(rows: usize, empty_is_null: bool, write: F) -> Self {
        Self { buffers: VarBuffers::new(rows), empty_is_null, write }
    }
}

impl<F: Fn(&[u8], &mut Vec<u8>) -> Result<(), Fault> + Send> Builder for Text<F> {
    fn append(&mut self, frame: &[u8], cells: &[Cell]) -> Result<(), Fault> {
        self.buffers.bytes.reserve(cells.iter().map(|cell| cell.len()).sum());
        for cell in cells {
            let bytes = cell.bytes(frame).filter(|bytes| !self.empty_is_null || !bytes.is_empty());
            if let Some(bytes) = bytes {
                (self.write)(bytes, &mut self.buffers.bytes)?;
            }
            self.buffers.end_value(bytes.is_some())?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<ArrayRef, Fault> {
        let offsets = self.buffers.take_offsets();
        let values = Buffer::from_vec(self.buffers.bytes);
        // Checks at once that the whole column is UTF-8.
        let array = StringArray::try_new(offsets, values, self.buffers.nulls.finish());
        Ok(Arc::new(array.map_err(|_| Fault::malformed("text that is not UTF-8"))?))
    }
}

pub(super) fn write_text(bytes: &[u8], text: &mut Vec<u8>) -> Result<(), Fault> {
    text.extend_from_slice(bytes);
    Ok(())
}

pub(super) fn write_address(bytes: &[u8], text: &mut Vec<u8>) -> Result<(), Fault> {
    let address = if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        IpAddr::V4(Ipv4Addr::from(four))
    } else if let Ok(sixteen) = <[u8; 16]>::try_from(bytes) {
        IpAddr::V6(Ipv6Addr::from(sixteen))
    } else {
        return Err(Fault::malformed(format!("an address of {} bytes", bytes.len())));
    };
    // Writing to a vector does not fail.
    let _ = write!(text, "{address}");
    Ok(())
}

pub(super) fn write_uuid(bytes: &[u8], text: &mut Vec<u8>) -> Result<(), Fault> {
    if bytes.len() != 16 {
        return Err(wrong_length(bytes.len(), 16));
    }
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (place, byte) in bytes.iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            text.push(b'-');
        }
        text.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    Ok(())
}

/// Binary values.
pub(super) struct Binary {
    buffers: VarBuffers,
}

impl Binary {
    pub(super) fn new(rows: usize) -> Self {
        Self { buffers: VarBuffers::new(rows) }
    }
}

impl Builder for Binary {
    fn append(&mut self, frame: &[u8], cells: &[Cell]) -> Result<(), Fault> {
        self.buffers.bytes.reserve(cells.iter().map(|cell| cell.len()).sum());
        for cell in cells {
            self.buffers.bytes.extend_from_slice(cell.bytes(frame).unwrap_or_default());
            self.buffers.end_value(!cell.is_null())?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<ArrayRef, Fault> {
        let offsets = self.buffers.take_offsets();
        let values = Buffer::from_vec(self.buffers.bytes);
        Ok(Arc::new(BinaryArray::try_new(offsets, values, self.buffers.nulls.finish()).map_err(refused)?))
    }
}
