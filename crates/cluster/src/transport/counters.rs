//! Figures of the transport since its start.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Refusal;

/// Figures since the start; they only grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters {
    /// Peers that this node refused, by reason; every reason has an entry.
    pub refused: Vec<(Refusal, u64)>,
    /// Refusals of this node by peers, by the reason that they gave.
    pub refused_by_peers: Vec<(Refusal, u64)>,
    /// Connections that could not be made.
    pub dials_failed: u64,
    /// Connections that came in and did not get as far as a peer id: port scanners, other protocols.
    pub strangers: u64,
    /// Streams of members that were reset because too many waited for the node.
    pub streams_refused: u64,
    /// Certificates issued for tokens.
    pub joins: u64,
    /// Tries to join that were refused.
    pub joins_refused: u64,
}

impl Counters {
    /// Number of peers that this node refused for a reason.
    pub fn refused(&self, reason: Refusal) -> u64 {
        count(&self.refused, reason)
    }

    /// Number of refusals of this node by peers for a reason.
    pub fn refused_by_peers(&self, reason: Refusal) -> u64 {
        count(&self.refused_by_peers, reason)
    }
}

/// The counters themselves.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    refused: [AtomicU64; Refusal::ALL.len()],
    refused_by_peers: [AtomicU64; Refusal::ALL.len()],
    pub(crate) dials_failed: AtomicU64,
    pub(crate) strangers: AtomicU64,
    pub(crate) streams_refused: AtomicU64,
    pub(crate) joins: AtomicU64,
    pub(crate) joins_refused: AtomicU64,
}

impl Cells {
    pub(crate) fn refuse(&self, reason: Refusal) {
        self.refused.get(reason.index()).map(add);
    }

    pub(crate) fn refused_by_peer(&self, reason: Refusal) {
        self.refused_by_peers.get(reason.index()).map(add);
    }

    /// `crowded` were refused before they were connections.
    pub(crate) fn read(&self, crowded: u64) -> Counters {
        let by_reason = |cells: &[AtomicU64]| -> Vec<(Refusal, u64)> {
            Refusal::ALL.into_iter().zip(cells.iter().map(|cell| cell.load(Ordering::Relaxed))).collect()
        };
        let mut refused = by_reason(&self.refused);
        if let Some((_, count)) = refused.iter_mut().find(|(reason, _)| *reason == Refusal::Crowded) {
            *count += crowded;
        }
        Counters {
            refused,
            refused_by_peers: by_reason(&self.refused_by_peers),
            dials_failed: self.dials_failed.load(Ordering::Relaxed),
            strangers: self.strangers.load(Ordering::Relaxed),
            streams_refused: self.streams_refused.load(Ordering::Relaxed),
            joins: self.joins.load(Ordering::Relaxed),
            joins_refused: self.joins_refused.load(Ordering::Relaxed),
        }
    }
}

/// Counts one.
pub(crate) fn add(cell: &AtomicU64) {
    cell.fetch_add(1, Ordering::Relaxed);
}

fn count(counts: &[(Refusal, u64)], reason: Refusal) -> u64 {
    counts.iter().find(|(known, _)| *known == reason).map_or(0, |(_, count)| *count)
}
