//! Builders of columns with child columns. Each locates the inner values and passes them to its children.
//!
//! An empty value is read as null: no collection, tuple or vector is encoded so.

use std::sync::Arc;

use arrow_array::{ArrayRef, FixedSizeListArray, ListArray, MapArray, StructArray};
use arrow_buffer::{NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, FieldRef, Fields};

use super::cells::{Cell, Cursor, NULL};
use super::plain::refused;
use super::{BoxedBuilder, Builder, Fault};

/// Offsets of a column's collections in the column of their elements.
struct Offsets {
    offsets: Vec<i32>,
    nulls: NullBufferBuilder,
    elements: usize,
}

impl Offsets {
    fn new(rows: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Self { offsets, nulls: NullBufferBuilder::new(rows), elements: 0 }
    }

    fn push(&mut self, elements: usize, here: bool) -> Result<(), Fault> {
        self.elements += elements;
        let end = i32::try_from(self.elements);
        self.offsets.push(end.map_err(|_| Fault::range("more than 2^31 elements in one page"))?);
        self.nulls.append(here);
        Ok(())
    }

    fn buffer(&mut self) -> OffsetBuffer<i32> {
        // Offsets begin with 0 and never decrease: each is a growing count.
        OffsetBuffer::new(ScalarBuffer::from(std::mem::take(&mut self.offsets)))
    }
}

/// Lists and sets.
pub(super) struct Lists {
    item: FieldRef,
    items: BoxedBuilder,
    offsets: Offsets,
    inner: Vec<Cell>,
}

impl Lists {
    pub(super) fn new(item: FieldRef, items: BoxedBuilder, rows: usize) -> Self {
        Self { item, items, offsets: Offsets::new(rows), inner: vec![] }
    }
}

impl Builder for Lists {
    fn append(&mut self, frame: &[u8], cells: &[Cell]) -> Result<(), Fault> {
        self.inner.clear();
        for cell in cells {
            let mut count = 0;
            if cell.len() != 0 {
                let mut cursor = Cursor::within(frame, *cell);
                // Each element takes at least the four bytes of its length.
                count = cursor.count(4)?;
                for _ in 0..count {
                    self.inner.push(cursor.value()?);
                }
                cursor.end()?;
            }
            self.offsets.push(count, cell.len() != 0)?;
        }
        self.items.append(frame, &self.inner)
    }

    fn finish(mut self: Box<Self>) -> Result<ArrayRef, Fault> {
        let (offsets, nulls) = (self.offsets.buffer(), self.offsets.nulls.finish());
        Ok(Arc::new(ListArray::try_new(self.item, offsets, self.items.finish()?, nulls).map_err(refused)?))
    }
}

/// Maps. A null key is an error: Arrow cannot represent it.
pub(super) struct Maps {
    entries: FieldRef,
    keys: BoxedBuilder,
    values: BoxedBuilder,
    offsets: Offsets,
    inner_keys: Vec<Cell>,
    inner_values: Vec<Cell>,
}

impl Maps {
    pub(super) fn new(entries: FieldRef, keys: BoxedBuilder, values: BoxedBuilder, rows: usize) -> Self {
        Self { entries, keys, values, offsets: Offsets::new(rows), inner_keys: vec![], inner_values: vec![] }
    }
}

impl Builder for Maps {
    fn append(&mut self, frame: &[u8], cells: &[Cell]) -> Result<(), Fault> {
        self.inner_keys.clear();
        self.inner_values.clear();
        for cell in cells {
            let mut count = 0;
            if cell.len() != 0 {
                let mut cursor = Cursor::within(frame, *cell);
                // A key and a value take at least the four bytes of their lengths each.
                count = cursor.count(8)?;
                for _ in 0..count {
                    self.inner_keys.push(cursor.value()?);
                    self.inner_values.push(cursor.value()?);
                }
                cursor.end()?;
            }
            self.offsets.push(count, cell.len() != 0)?;
        }
        self.keys.append(frame, &self.inner_keys)?;
        self.values.append(frame, &self.inner_values)
    }

    fn finish(mut self: Box<Self>) -> Result<ArrayRef, Fault> {
        let (offsets, nulls) = (self.offsets.buffer(), self.offsets.nulls.finish());
        let DataType::Struct(fields) = self.entries.data_type().clone() else {
            return Err(Fault::malformed("a map without keys and values"));
        };
        let keys = self.keys.finish()?;
        if keys.null_count() > 0 {
            return Err(Fault::range("a map has a null or empty key, which Arrow's maps cannot hold"));
        }
        let entries = StructArray::try_new(fields, vec![keys, self.values.finish()?], None).map_err(refused)?;
        Ok(Arc::new(MapArray::try_new(self.entries, offsets, entries, nulls, false).map_err(refused)?))
    }
}

/// Tuples and user-defined types. Fields missing at the end of a value are null: it was written before they were added.
pub(super) struct Structs {
    fields: Fields,
    children: Vec<BoxedBuilder>,
    nulls: NullBufferBuilder,
    inner: Vec<Vec<Cell>>,
}

impl Structs {
    pub(super) fn new(fields: Fields, children: Vec<BoxedBuilder>, rows: usize) -> Self {
        let inner = children.iter().map(|_| vec![]).collect();
        Self { fields, children, nulls: NullBufferBuilder::new(rows), inner }
    }
}

impl Builder for Structs {
    fn append(&mut self, frame: &[u8], cells: &[Cell]) -> Result<(), Fault> {
        self.inner.iter_mut().for_each(Vec::clear);
        for cell in cells {
            // A null or empty value has no bytes, so every child gets a null.
            let mut cursor = Cursor::within(frame, *cell);
            for values in &mut self.inner {
                values.push(if cursor.left() == 0 { NULL } else { cursor.value()? });
            }
            cursor.end()?;
            self.nulls.append(cell.len() != 0);
        }
        for (child, values) in self.children.iter_mut().zip(&self.inner) {
            child.append(frame, values)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<ArrayRef, Fault> {
        let columns = self.children.into_iter().map(|child| child.finish()).collect::<Result<Vec<_>, _>>()?;
        Ok(Arc::new(StructArray::try_new(self.fields, columns, self.nulls.finish()).map_err(refused)?))
    }
}

/// Vectors of `width` elements. Elements of a type with a fixed length have no length prefixes.
pub(super) struct Vectors {
    item: FieldRef,
    items: BoxedBuilder,
    width: usize,
    element_bytes: Option<usize>,
    nulls: NullBufferBuilder,
    inner: Vec<Cell>,
}

impl Vectors {
    pub(super) fn new(
        item: FieldRef,
        items: BoxedBuilder,
        width: usize,
        element_bytes: Option<usize>,
        rows: usize,
    ) -> Self {
        Self { item, items, width, element_bytes, nulls: NullBufferBuilder::new(rows), inner: vec![] }
    }
}

impl Builder for Vectors {
    fn append(&mut self, frame: &[u8], cells: &[Cell]) -> Result<(), Fault> {
        for cell in cells {
            self.inner.clear();
            if cell.len() == 0 {
                // Arrow's fixed-size lists have no offsets: a null vector, too, takes `width` elements.
                self.inner.resize(self.width, NULL);
            } else {
                let mut cursor = Cursor::within(frame, *cell);
                for _ in 0..self.width {
                    let element = match self.element_bytes {
                        Some(bytes) => cursor.fixed(bytes)?,
                        None => cursor.short_value()?,
                    };
                    self.inner.push(element);
                }
                cursor.end()?;
            }
            self.nulls.append(cell.len() != 0);
            self.items.append(frame, &self.inner)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<ArrayRef, Fault> {
        // A CQL vector has at most 8,192 elements.
        let width = self.width as i32;
        let array = FixedSizeListArray::try_new(self.item, width, self.items.finish()?, self.nulls.finish());
        Ok(Arc::new(array.map_err(refused)?))
    }
}
