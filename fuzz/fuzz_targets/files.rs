//! Gives arbitrary bytes to the readers of files, as if they had come through a pipe. The first byte chooses a format, or none:
//! then the bytes decide.

#![no_main]

use chronotile_io::{Format, ReadOptions, Source, open};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [format, bytes @ ..] = data else { return };
    let format = match format % 4 {
        0 => Some(Format::Csv),
        1 => Some(Format::Tsv),
        2 => Some(Format::Ndjson),
        _ => None,
    };
    let options = ReadOptions { format, batch_rows: 3, sample_rows: 5, ..ReadOptions::default() };
    let source = Source::Stream { name: "bytes".to_owned(), reader: Box::new(std::io::Cursor::new(bytes.to_vec())) };
    let Ok(reader) = open(source, &options) else { return };
    let schema = reader.schema();
    for batch in reader {
        let Ok(batch) = batch else { return };
        assert!(batch.num_rows() > 0 && batch.schema() == schema);
    }
});
