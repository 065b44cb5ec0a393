//! Admission of connections: neither idle connections nor a single address can keep other clients out.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

/// All connections of a service.
#[derive(Debug)]
pub(crate) struct Connections {
    open: Mutex<ConnectionTable>,
    /// Limit for all addresses together.
    count_max: usize,
    /// Limit for one address: three quarters of all.
    share_max: usize,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    next: u64,
    slots: HashMap<u64, Slot>,
    counts: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct Slot {
    origin: IpAddr,
    /// Requests whose responses are not sent yet.
    requests: u32,
    idle_since: Instant,
    close: Arc<Notify>,
}

/// The result of admitting a new connection.
pub(crate) enum Admission {
    /// The connection is admitted. `made_room`: an idle one was closed for it.
    Taken { slot: ConnectionSlot, made_room: bool },
    /// The limit is reached and no connection that could make room is idle.
    Full,
}

impl Connections {
    pub fn new(count_max: usize) -> Arc<Self> {
        let share_max = (count_max - count_max / 4).max(1);
        Arc::new(Self { open: Mutex::default(), count_max, share_max })
    }

    fn open(&self) -> MutexGuard<'_, ConnectionTable> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection from `address`. If its address has used up its share, or the limit for all is reached, the
    /// connection that has been idle longest is closed: one of the same address, or else of the address that has the
    /// most connections.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Admission {
        let origin = origin(address);
        let mut open = self.open();
        let over_share = open.counts.get(&origin).is_some_and(|count| *count >= self.share_max);
        let full = over_share || open.slots.len() >= self.count_max;
        if full && !open.close_idle(over_share.then_some(origin)) {
            return Admission::Full;
        }
        let (number, close) = (open.next, Arc::new(Notify::new()));
        open.next += 1;
        *open.counts.entry(origin).or_default() += 1;
        open.slots.insert(number, Slot { origin, requests: 0, idle_since: Instant::now(), close: close.clone() });
        Admission::Taken { slot: ConnectionSlot { connections: self.clone(), number, close }, made_room: full }
    }
}

impl ConnectionTable {
    fn close_idle(&mut self, of: Option<IpAddr>) -> bool {
        let idle = self.slots.iter().filter(|(_, slot)| slot.requests == 0);
        let idle = idle.filter(|(_, slot)| of.is_none_or(|origin| origin == slot.origin));
        // `min_by_key` with `Reverse` finds the address with the most connections, then the connection that is idle
        // longest.
        let crowd = |slot: &Slot| std::cmp::Reverse(self.counts.get(&slot.origin).copied().unwrap_or(0));
        // Removing the slot here, not when the task ends, frees it at once and lets `ConnectionSlot::request`
        // refuse requests that arrive on the closing connection.
        let victim = idle.min_by_key(|(_, slot)| (crowd(slot), slot.idle_since)).map(|(number, _)| *number);
        let Some(slot) = victim.and_then(|number| self.remove(number)) else { return false };
        // `notify_one` keeps its permit if the task does not wait yet; `notify_waiters` would lose it.
        slot.close.notify_one();
        true
    }

    fn remove(&mut self, number: u64) -> Option<Slot> {
        let slot = self.slots.remove(&number)?;
        if let Some(count) = self.counts.get_mut(&slot.origin) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&slot.origin);
            }
        }
        Some(slot)
    }
}

/// The address by which connections are counted: for IPv6 the /64 network, since one customer usually has all of it.
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let mut parts = address.segments();
            parts[4..].fill(0);
            IpAddr::V6(Ipv6Addr::from(parts))
        }
        address @ IpAddr::V4(_) => address,
    }
}

/// The slot of a connection, until it is dropped or closed to make room.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    connections: Arc<Connections>,
    number: u64,
    close: Arc<Notify>,
}

impl ConnectionSlot {
    /// Marks a request as in progress until the guard is dropped. Returns `None` once the connection is being closed.
    pub fn request(self: &Arc<Self>) -> Option<ActiveRequest> {
        let mut open = self.connections.open();
        open.slots.get_mut(&self.number)?.requests += 1;
        Some(ActiveRequest(self.clone()))
    }

    /// Resolves when the connection must be closed. No request of it is in progress then.
    pub async fn closed(&self) {
        self.close.notified().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        // A slot that `close_idle` has removed is not found again: numbers are never reused.
        self.connections.open().remove(self.number);
    }
}

/// A request that is being served.
#[derive(Debug)]
pub(crate) struct ActiveRequest(Arc<ConnectionSlot>);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        if let Some(slot) = self.0.connections.open().slots.get_mut(&self.0.number) {
            slot.requests -= 1;
            slot.idle_since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(connections: &Arc<Connections>, address: &str) -> Option<Arc<ConnectionSlot>> {
        match connections.admit(address.parse().unwrap()) {
            Admission::Taken { slot, .. } => Some(Arc::new(slot)),
            Admission::Full => None,
        }
    }

    fn is_open(slot: &Arc<ConnectionSlot>) -> bool {
        slot.connections.open().slots.contains_key(&slot.number)
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_makes_room_and_busy_ones_stay() {
        let connections = Connections::new(4);
        let slots: Vec<_> =
            ["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3"].map(|a| taken(&connections, a).unwrap()).into();
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        drop(slots[1].request().unwrap());
        let late = taken(&connections, "10.0.0.4").unwrap();
        assert_eq!(
            slots.iter().map(is_open).collect::<Vec<_>>(),
            [true, true, false, true],
            "of the address with most"
        );
        slots[2].closed().await;
        assert!(slots[2].request().is_none(), "a connection that is closed serves no more requests");
        let busy: Vec<_> = [&slots[0], &slots[1], &slots[3], &late].map(|slot| slot.request().unwrap()).into();
        assert!(taken(&connections, "10.0.0.5").is_none());
        drop(busy);
        assert!(taken(&connections, "10.0.0.5").is_some());
        assert!(!is_open(&slots[0]) || !is_open(&slots[1]) || !is_open(&slots[3]) || !is_open(&late));
    }

    #[test]
    fn one_address_leaves_a_quarter_to_others() {
        let connections = Connections::new(8);
        let slots: Vec<_> = (0..6).map(|_| taken(&connections, "2001:db8::1").unwrap()).collect();
        let busy: Vec<_> = slots.iter().map(|slot| slot.request().unwrap()).collect();
        assert!(taken(&connections, "2001:db8::ffff:2").is_none(), "the same network");
        let others: Vec<_> = (0..2).map(|_| taken(&connections, "10.0.0.1").unwrap()).collect();
        let mapped = taken(&connections, "::ffff:10.0.0.1").unwrap();
        assert_eq!(others.iter().filter(|slot| is_open(slot)).count(), 1, "room is made by an idle one");
        drop((busy, slots, others, mapped));
        assert!(connections.open().slots.is_empty() && connections.open().counts.is_empty());
    }
}
