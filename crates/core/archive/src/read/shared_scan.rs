//! A scan shared by several reads; each gets the chunks in its own windows.

use std::sync::{Arc, Mutex, PoisonError};

use chronotile_store::{Chunk, Windows};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::error::{ArchiveError, Result};

/// Groups of chunks that may wait for one of the reads.
const WAITING: usize = 2;

/// What a read receives from a scan: chunks, or `None` at the end.
type Message = Result<Option<Vec<Chunk>>>;

/// The first scan of a read, fed from a scan that it shares with others.
pub(crate) struct SharedScan {
    older: bool,
    receiver: Mutex<Option<Receiver<Message>>>,
}

impl SharedScan {
    /// Takes the chunks, which can be taken once; `None` if they are taken already, or if the scan was begun with
    /// another choice of `older`.
    pub(crate) fn take(&self, older: bool) -> Option<BoxStream<'static, Result<Vec<Chunk>>>> {
        if older != self.older {
            return None;
        }
        let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let chunks = stream::try_unfold(receiver, |mut receiver| async move {
            // The end of the scan is a message of its own, so that a channel that closes without it is never taken for
            // the end.
            match receiver.recv().await {
                Some(message) => Ok(message?.map(|chunks| (chunks, receiver))),
                // The task that scans was stopped.
                None => Err(ArchiveError::Cancelled),
            }
        });
        Some(chunks.boxed())
    }
}

/// The sending side for one of the reads that share a scan.
pub(crate) struct Subscriber {
    windows: Windows,
    older: bool,
    sender: Sender<Message>,
}

impl Subscriber {
    /// Connects a read of chunks in these windows: returns the sending and the receiving side.
    pub(crate) fn new(windows: Windows, older: bool) -> (Self, SharedScan) {
        let (sender, receiver) = channel(WAITING);
        (Self { windows, older, sender }, SharedScan { older, receiver: Mutex::new(Some(receiver)) })
    }

    fn wants(&self, chunk: &Chunk) -> bool {
        self.windows.contains(chunk.key.tile.window) && (self.older || !chunk.key.id.is_older())
    }
}

/// Sends each read its chunks; reads that have ended get no more.
pub(crate) async fn hand_out(mut chunks: BoxStream<'static, Result<Vec<Chunk>>>, subscribers: Vec<Subscriber>) {
    loop {
        let group = match chunks.try_next().await {
            Ok(Some(group)) => group,
            Ok(None) => {
                // Sending fails only if the read has ended: it needs nothing more.
                for subscriber in &subscribers {
                    let _ = subscriber.sender.send(Ok(None)).await;
                }
                return;
            }
            Err(error) => {
                let error = Arc::new(error);
                for subscriber in &subscribers {
                    let _ = subscriber.sender.send(Err(ArchiveError::Shared(error.clone()))).await;
                }
                return;
            }
        };
        if subscribers.iter().all(|subscriber| subscriber.sender.is_closed()) {
            return;
        }
        // A full queue holds up all reads, so they have to proceed independently of each other, as the tasks of
        // `read_parts` do.
        for subscriber in &subscribers {
            let own: Vec<Chunk> = group.iter().filter(|chunk| subscriber.wants(chunk)).cloned().collect();
            if !own.is_empty() {
                let _ = subscriber.sender.send(Ok(Some(own))).await;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
mod tests {
    use chronotile_store::StoreError;

    use super::*;

    #[tokio::test]
    async fn every_read_of_a_scan_that_fails_gets_its_error() {
        let (subscribers, scans): (Vec<_>, Vec<_>) = (0..3).map(|_| Subscriber::new(Windows::ALL, true)).unzip();
        let full = || ArchiveError::Store(StoreError::Full { path: "survey.db".into() });
        hand_out(stream::iter([Err(full())]).boxed(), subscribers).await;
        for scan in scans {
            let error = scan.take(true).unwrap().try_next().await.unwrap_err();
            assert_eq!((error.kind(), error.to_string()), (full().kind(), full().to_string()));
        }
    }
}
