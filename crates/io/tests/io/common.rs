//! Helpers of the tests.

use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;
use chronotile_io::{Format, IoError, OutFormat, ReadOptions, Sink, Source, WriteOptions, open, writer};

/// The full file where `CHRONOTILE_DATA` names its folder, otherwise the sample in this repository.
pub fn data(file: &str) -> PathBuf {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let full = std::env::var_os("CHRONOTILE_DATA").map(PathBuf::from);
    let folders = full.into_iter().chain([samples.join("made_up"), samples]);
    folders.map(|folder| folder.join(file)).find(|path| path.exists()).unwrap()
}

/// Numbers of a fixed sequence (splitmix64), below `end`.
pub fn numbers(mut state: u64) -> impl FnMut(usize) -> usize {
    move |end| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

pub fn stream(text: impl AsRef<[u8]>) -> Source {
    Source::Stream { name: "input".to_owned(), reader: Box::new(Cursor::new(text.as_ref().to_vec())) }
}

pub fn csv() -> ReadOptions {
    ReadOptions { format: Some(Format::Csv), ..ReadOptions::default() }
}

pub fn ndjson() -> ReadOptions {
    ReadOptions { format: Some(Format::Ndjson), ..ReadOptions::default() }
}

pub fn read_all(source: Source, options: &ReadOptions) -> Result<RecordBatch, IoError> {
    let reader = open(source, options)?;
    let schema = reader.schema();
    let batches = reader.collect::<Result<Vec<_>, _>>()?;
    for batch in &batches {
        assert!(batch.num_rows() > 0 && batch.num_rows() <= options.batch_rows);
    }
    Ok(concat_batches(&schema, &batches).unwrap())
}

pub fn error(source: Source, options: &ReadOptions) -> IoError {
    read_all(source, options).expect_err("the input must be refused")
}

/// A sink whose bytes stay readable.
#[derive(Clone, Default)]
pub struct Shared(pub Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub fn write_all(format: OutFormat, batches: &[RecordBatch], options: &WriteOptions) -> Result<Vec<u8>, IoError> {
    let shared = Shared::default();
    let sink = Sink::Stream { name: "output".to_owned(), writer: Box::new(shared.clone()) };
    let mut out = writer(sink, format, batches[0].schema(), options)?;
    for batch in batches {
        out.write(batch)?;
    }
    let rows = out.finish()?;
    assert_eq!(rows, batches.iter().map(|b| b.num_rows() as u64).sum::<u64>());
    let bytes = shared.0.lock().unwrap().clone();
    Ok(bytes)
}

pub fn text(format: OutFormat, batch: &RecordBatch, options: &WriteOptions) -> String {
    String::from_utf8(write_all(format, std::slice::from_ref(batch), options).unwrap()).unwrap()
}
