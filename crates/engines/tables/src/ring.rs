//! Token ranges and the nodes that hold their rows.

use std::sync::Arc;

use chronotile_cql::scylla::cluster::{ClusterState, NodeRef};
use chronotile_cql::scylla::frame::response::result::TableSpec;
use chronotile_cql::scylla::policies::load_balancing::{FallbackPlan, LoadBalancingPolicy, RoutingInfo};
use chronotile_cql::scylla::routing::{Shard, Token};

/// The tokens after `start` up to and including `end`. No row has the token `i64::MIN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenRange {
    pub(crate) start: i64,
    pub(crate) end: i64,
}

/// Divides all tokens into at least `count` ranges of about equal length. No range crosses a token of `ring`, so all its rows
/// have the same replicas.
pub(crate) fn split(ring: &[i64], count: usize) -> Vec<TokenRange> {
    // A range that ends at `i64::MIN` would be empty. The one that wraps around the ring is read as two ranges.
    let mut ends: Vec<i64> = ring.iter().copied().filter(|token| *token != i64::MIN).collect();
    ends.push(i64::MAX);
    ends.sort_unstable();
    ends.dedup();
    let piece = u64::MAX / count.max(1) as u64;
    let mut ranges = vec![];
    let mut start = i64::MIN;
    for end in ends {
        let (first, width) = (i128::from(start), end.abs_diff(start));
        let pieces = width.div_ceil(piece.max(1)).max(1);
        for part in 1..=pieces {
            // The offset is at most `width`, so the sum is at most `end`.
            let offset = u128::from(width) * u128::from(part) / u128::from(pieces);
            let last = (first + offset as i128) as i64;
            ranges.push(TokenRange { start, end: last });
            start = last;
        }
    }
    ranges
}

/// Routes requests of one token range to its replicas; the session's policy orders them and adds fallbacks.
///
/// A statement over a range has no partition key from which the driver could compute a token, so the last token of the range is
/// used.
#[derive(Debug)]
pub(crate) struct RangePolicy {
    pub(crate) inner: Arc<dyn LoadBalancingPolicy>,
    pub(crate) table: TableSpec<'static>,
    pub(crate) token: Token,
}

impl RangePolicy {
    fn with_token<'a>(&'a self, request: &RoutingInfo<'a>) -> RoutingInfo<'a> {
        let mut request = request.clone();
        request.token = Some(self.token);
        request.table = Some(&self.table);
        request
    }
}

impl LoadBalancingPolicy for RangePolicy {
    fn pick<'a>(&'a self, request: &'a RoutingInfo, cluster: &'a ClusterState) -> Option<(NodeRef<'a>, Option<Shard>)> {
        let request = self.with_token(request);
        // The inner plan borrows the local copy of the request, so the node is looked up again in the cluster.
        let (host, shard) = self.inner.pick(&request, cluster).map(|(node, shard)| (node.host_id, shard))?;
        cluster.get_node_by_host_id(host).map(|node| (node, shard))
    }

    fn fallback<'a>(&'a self, request: &'a RoutingInfo, cluster: &'a ClusterState) -> FallbackPlan<'a> {
        let request = self.with_token(request);
        let hosts: Vec<_> = self.inner.fallback(&request, cluster).map(|(node, shard)| (node.host_id, shard)).collect();
        let found = move |(host, shard)| cluster.get_node_by_host_id(host).map(|node| (node, shard));
        Box::new(hosts.into_iter().filter_map(found))
    }

    fn name(&self) -> String {
        "RangePolicy".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_cover_every_token_once_and_never_cross_a_node_s_border(
            ring in proptest::collection::vec(any::<i64>(), 0..40),
            count in 1_usize..300,
        ) {
            let ranges = split(&ring, count);
            prop_assert!(ranges.len() >= count);
            prop_assert!(ranges.len() <= count + ring.len() + 1);
            prop_assert_eq!(ranges[0].start, i64::MIN);
            prop_assert_eq!(ranges[ranges.len() - 1].end, i64::MAX);
            for range in &ranges {
                prop_assert!(range.start < range.end);
                prop_assert!(!ring.iter().any(|token| range.start < *token && *token < range.end));
            }
            for pair in ranges.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
            }
        }
    }

    #[test]
    fn one_range_is_the_whole_ring() {
        assert_eq!(split(&[], 1), [TokenRange { start: i64::MIN, end: i64::MAX }]);
        assert_eq!(split(&[i64::MIN, i64::MAX], 1).len(), 1);
    }
}
