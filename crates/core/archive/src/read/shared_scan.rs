//! A scan whose chunks several reads get, each those of its own windows.

use std::sync::{Mutex, PoisonError};

use chronotile_store::{Chunk, Windows};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::error::{ArchiveError, Result};

/// Groups of chunks that wait for one of the reads.
const WAITING: usize = 2;

/// What a read gets of a scan: chunks, or that there are no more.
type Message = Result<Option<Vec<Chunk>>>;

/// What the first scan of a read returns, drawn from a scan that it shares with others.
pub(crate) struct SharedScan {
    older: bool,
    receiver: Mutex<Option<Receiver<Message>>>,
}

impl SharedScan {
    /// The chunks, with or without those of older versions, unless they were taken before or the scan was begun for others.
    pub(crate) fn take(&self, older: bool) -> Option<BoxStream<'static, Result<Vec<Chunk>>>> {
        if older != self.older {
            return None;
        }
        let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let chunks = stream::try_unfold(receiver, |mut receiver| async move {
            match receiver.recv().await {
                Some(message) => Ok(message?.map(|chunks| (chunks, receiver))),
                // Another read got the error that ended the scan.
                None => Err(ArchiveError::Cancelled),
            }
        });
        Some(chunks.boxed())
    }
}

/// A read that takes part in a scan.
pub(crate) struct Part {
    windows: Windows,
    older: bool,
    sender: Sender<Message>,
}

impl Part {
    /// A read of chunks in these windows, and where it gets them.
    pub(crate) fn new(windows: Windows, older: bool) -> (Self, SharedScan) {
        let (sender, receiver) = channel(WAITING);
        (Self { windows, older, sender }, SharedScan { older, receiver: Mutex::new(Some(receiver)) })
    }

    fn wants(&self, chunk: &Chunk) -> bool {
        self.windows.contains(chunk.key.tile.window) && (self.older || !chunk.key.id.is_older())
    }
}

/// Gives each read its chunks; one that ended gets no more.
pub(crate) async fn hand_out(mut chunks: BoxStream<'static, Result<Vec<Chunk>>>, parts: Vec<Part>) {
    loop {
        let group = match chunks.try_next().await {
            Ok(Some(group)) => group,
            Ok(None) => {
                for part in &parts {
                    let _ = part.sender.send(Ok(None)).await;
                }
                return;
            }
            Err(error) => {
                if let Some(part) = parts.iter().find(|part| !part.sender.is_closed()) {
                    let _ = part.sender.send(Err(error)).await;
                }
                return;
            }
        };
        if parts.iter().all(|part| part.sender.is_closed()) {
            return;
        }
        for part in &parts {
            let own: Vec<Chunk> = group.iter().filter(|chunk| part.wants(chunk)).cloned().collect();
            if !own.is_empty() {
                let _ = part.sender.send(Ok(Some(own))).await;
            }
        }
    }
}
