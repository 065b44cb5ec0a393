//! Request bodies: received piece by piece, each charged to the memory of the service before it is kept.

use std::io::Read;

use axum::body::{Body, HttpBody};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::time::Instant;

use chronotile_types::ErrorKind;

use crate::app::App;
use crate::browsers;
use crate::endpoints::Endpoint;
use crate::failure::{Failure, Result};
use crate::work;
use chronotile_archive::memory::{ChargedVec, Memory};

/// Size of the pieces in which a body is decompressed.
const PIECE_BYTES: usize = 64 << 10;

fn too_large(bytes_max: usize) -> Failure {
    Failure::too_large(format!("the body has more than {bytes_max} bytes: send it in pieces"))
}

/// Refuses a body that cannot be used, before receiving any of it.
pub(crate) fn check(app: &App, endpoint: &Endpoint, parts: &Parts, body: &Body) -> Result<()> {
    if endpoint.takes.is_none() {
        let message = format!("{} {} takes no body: send the request without", endpoint.method, endpoint.path);
        return Err(Failure::invalid(message));
    }
    let bytes_max = app.settings.limits.body_bytes;
    // The lower bound is the declared Content-Length. A chunked body declares none; `taken_in` limits it as it arrives.
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large(bytes_max));
    }
    // A page of another site has no token, so the content type needs no check where tokens are required.
    if app.access.is_required() { Ok(()) } else { browsers::check_type(parts, endpoint) }
}

/// Receives a body without decompressing it.
pub(crate) async fn taken_in(app: &App, mut body: Body) -> Result<Bytes> {
    let limits = app.settings.limits;
    // One deadline for the whole body, since a time limit for each piece would let a client hold memory by sending a
    // byte at a time.
    let deadline = Instant::now() + limits.client_time;
    let slow = |_| {
        let seconds = limits.client_time.as_secs();
        let message = format!("the body did not arrive within {seconds} s: send it faster, or in pieces");
        Failure::new(ErrorKind::SlowClient, message)
    };
    let mut taken = ChargedVec::new(&app.memory);
    while let Some(frame) = tokio::time::timeout_at(deadline, body.frame()).await.map_err(slow)? {
        let frame = frame.map_err(|error| Failure::invalid(format!("the body was truncated: {error}")))?;
        // Trailers are ignored.
        let Ok(piece) = frame.into_data() else { continue };
        if taken.len() + piece.len() > limits.body_bytes {
            return Err(too_large(limits.body_bytes));
        }
        taken.extend(&piece)?;
    }
    app.metrics.bytes_in.inc_by(taken.len() as u64);
    Ok(taken.freeze())
}

/// Factor by which the bytes of a gzip count as work. A gzip expands at most 1,032 times, so one of less than 1 KiB,
/// which is decompressed on the calling thread, expands to 1 MiB at most.
const GZIP_WORK: usize = 32;

/// The content encoding of the body in lower case, since it is case-insensitive.
fn encoding(headers: &HeaderMap) -> Option<String> {
    let given = headers.get(header::CONTENT_ENCODING)?;
    Some(given.to_str().unwrap_or("?").to_ascii_lowercase())
}

/// The bytes by which a body counts as work: more than its length if it is compressed.
pub(crate) fn work_bytes(headers: &HeaderMap, body: &Bytes) -> usize {
    let packed = encoding(headers).is_some_and(|encoding| encoding != "identity");
    if packed { body.len() * GZIP_WORK } else { body.len() }
}

/// The decompressed body.
pub(crate) async fn unpacked(app: &App, headers: &HeaderMap, body: Bytes) -> Result<Bytes> {
    match encoding(headers).as_deref() {
        // Only remote write uses snappy, and always; its parser decompresses the body itself.
        None | Some("identity" | "snappy") => Ok(body),
        Some("gzip" | "x-gzip") => {
            let (memory, bytes_max) = (app.memory.clone(), app.settings.limits.body_bytes);
            work::apart(work_bytes(headers, &body), move || gunzipped(&body, bytes_max, &memory)).await?
        }
        Some(other) => {
            let message = format!("the body is compressed as {other:?}: use gzip, or send it uncompressed");
            Err(Failure::new(ErrorKind::UnsupportedEncoding, message))
        }
    }
}

fn gunzipped(body: &[u8], bytes_max: usize, memory: &Memory) -> Result<Bytes> {
    // A gzip may consist of several members; a plain `GzDecoder` would silently end after the first.
    let mut source = flate2::read::MultiGzDecoder::new(body);
    let (mut out, mut piece) = (ChargedVec::new(memory), vec![0; PIECE_BYTES]);
    loop {
        let count = source.read(&mut piece);
        let count = count.map_err(|error| Failure::invalid(format!("the body is not valid gzip: {error}")))?;
        if count == 0 {
            return Ok(out.freeze());
        }
        if out.len() + count > bytes_max {
            return Err(too_large(bytes_max));
        }
        out.extend(&piece[..count])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    #[test]
    fn names_of_encodings_have_no_case() {
        let body = Bytes::from_static(b"0123456789");
        let counted = |name: &str| {
            let headers = HeaderMap::from_iter([(header::CONTENT_ENCODING, name.parse().unwrap())]);
            (encoding(&headers).unwrap(), work_bytes(&headers, &body))
        };
        assert_eq!(counted("GZip"), ("gzip".to_owned(), 10 * GZIP_WORK));
        assert_eq!(counted("Identity"), ("identity".to_owned(), 10));
        assert_eq!(work_bytes(&HeaderMap::new(), &body), 10);
    }

    #[test]
    fn what_a_body_unpacks_to_is_paid_for_and_bounded() {
        let memory = Memory::new(4 << 20);
        let packed = gzip(&vec![b'a'; 1 << 20]);
        let whole = gunzipped(&packed, 1 << 20, &memory).unwrap();
        assert_eq!((whole.len(), memory.bytes()), (1 << 20, 1 << 20));
        drop(whole);
        assert_eq!(gunzipped(&packed, (1 << 20) - 1, &memory).unwrap_err().kind, ErrorKind::TooLarge);
        assert_eq!(memory.bytes(), 0);
        let _others = memory.charge(3 << 20).unwrap();
        let failure = gunzipped(&packed[..], 1 << 20, &memory).unwrap_err();
        assert_eq!((failure.status().as_u16(), failure.retry_after_s), (503, Some(1)));
        assert_eq!(memory.bytes(), 3 << 20);
        assert_eq!(gunzipped(b"no gzip", 10, &memory).unwrap_err().kind, ErrorKind::InvalidRequest);
    }
}
