//! Connections between simulated nodes.

use std::collections::HashMap;
use std::time::Duration;

use crate::replication::NodeId;

/// Properties of the simulated network.
#[derive(Debug, Clone)]
pub struct Network {
    /// The minimum latency of a frame.
    pub latency_min: Duration,
    /// The maximum latency of a frame. Frames of a connection stay in order, unless they are reordered.
    pub latency_max: Duration,
    /// Rate at which a node receives from one other node, in bytes per second, unless the node has its own rate.
    pub bytes_per_second: u64,
    /// Size of the sender's outbox for one connection, in bytes.
    pub outbox_bytes: usize,
    /// Time until nodes connect again.
    pub reconnect: Duration,
    /// The share of frames that get lost although the connection stays; no real transport does that.
    pub lose: f64,
    /// The share of frames that come twice.
    pub duplicate: f64,
    /// The share of frames that overtake or are overtaken.
    pub reorder: f64,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            latency_min: Duration::from_millis(1),
            latency_max: Duration::from_millis(5),
            bytes_per_second: 10_000_000,
            outbox_bytes: 1024 * 1024,
            reconnect: Duration::from_millis(500),
            lose: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
        }
    }
}

/// Numbers from a seed.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator that gives the same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        crate::replication::mix(self.0)
    }

    /// 32 bytes.
    pub(crate) fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&self.next().to_le_bytes()));
        bytes
    }

    /// A number below `limit`; 0 if that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next().checked_rem(limit).unwrap_or_default()
    }

    /// A number from 0 up to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True in such a share of calls.
    pub fn chance(&mut self, share: f64) -> bool {
        ((self.next() >> 11) as f64) < share * (1_u64 << 53) as f64
    }
}

/// All connections.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) network: Network,
    /// The parts of a split network; nodes without one are in part 0.
    pub(super) parts: HashMap<NodeId, u32>,
    /// Nodes that receive at a speed of their own.
    pub(super) bandwidth: HashMap<NodeId, u64>,
    /// The number of each connection, by its lower and higher node.
    connections: HashMap<(NodeId, NodeId), u64>,
    last_connection: u64,
    directions: HashMap<(NodeId, NodeId), Direction>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Direction {
    /// The time at which the outbox is empty.
    empty_at: Duration,
    last_arrival: Duration,
    /// Time until which the direction is full: it refused a frame and has not had room since.
    refused_until: Option<Duration>,
}

impl Links {
    pub(super) fn new(network: Network) -> Self {
        Self {
            network,
            parts: HashMap::new(),
            bandwidth: HashMap::new(),
            connections: HashMap::new(),
            last_connection: 0,
            directions: HashMap::new(),
        }
    }

    pub(super) fn reachable(&self, a: NodeId, b: NodeId) -> bool {
        self.parts.get(&a).copied().unwrap_or_default() == self.parts.get(&b).copied().unwrap_or_default()
    }

    pub(super) fn connection(&self, a: NodeId, b: NodeId) -> Option<u64> {
        self.connections.get(&(a.min(b), a.max(b))).copied()
    }

    /// True if there is a connection now that was not there before.
    pub(super) fn connect(&mut self, a: NodeId, b: NodeId) -> bool {
        if !self.reachable(a, b) || self.connection(a, b).is_some() {
            return false;
        }
        self.last_connection += 1;
        self.connections.insert((a.min(b), a.max(b)), self.last_connection);
        self.directions.remove(&(a, b));
        self.directions.remove(&(b, a));
        true
    }

    /// True if there was a connection.
    pub(super) fn disconnect(&mut self, a: NodeId, b: NodeId) -> bool {
        self.connections.remove(&(a.min(b), a.max(b))).is_some()
    }

    pub(super) fn latency(&self, random: &mut Random) -> Duration {
        let spread = self.network.latency_max.saturating_sub(self.network.latency_min);
        let micros = random.below(spread.as_micros().min(u128::from(u64::MAX)) as u64 + 1);
        self.network.latency_min + Duration::from_micros(micros)
    }

    /// The outbox has room again after a refusal.
    pub(super) fn has_room(&mut self, from: NodeId, to: NodeId, now: Duration) -> bool {
        let direction = self.directions.entry((from, to)).or_default();
        direction.refused_until.take_if(|until| *until <= now).is_some()
    }

    /// Times at which the frame arrives: one, two or none. If the outbox has no room, the error is the time at which it
    /// will have room; `None` if an earlier refusal has reported that time.
    pub(super) fn transmit(
        &mut self,
        from: NodeId,
        to: NodeId,
        bytes: usize,
        now: Duration,
        random: &mut Random,
    ) -> Result<Vec<Duration>, Option<Duration>> {
        let speed = self.bandwidth.get(&to).copied().unwrap_or(self.network.bytes_per_second).max(1);
        let latency = self.latency(random);
        let direction = self.directions.entry((from, to)).or_default();
        if direction.refused_until.is_some() {
            return Err(None);
        }
        let waiting = direction.empty_at.saturating_sub(now);
        let waiting_bytes = (waiting.as_secs_f64() * speed as f64) as usize;
        if waiting_bytes > 0 && waiting_bytes + bytes > self.network.outbox_bytes {
            let until = now + waiting / 2 + Duration::from_micros(1);
            direction.refused_until = Some(until);
            return Err(Some(until));
        }
        let seconds = bytes as f64 / speed as f64;
        direction.empty_at = direction.empty_at.max(now) + Duration::from_secs_f64(seconds);
        let mut arrival = (direction.empty_at + latency).max(direction.last_arrival);
        if random.chance(self.network.reorder) {
            arrival += self.network.latency_max * 3;
        } else {
            direction.last_arrival = arrival;
        }
        if random.chance(self.network.lose) {
            return Ok(Vec::new());
        }
        let again = random.chance(self.network.duplicate).then(|| arrival + self.network.latency_max);
        Ok(std::iter::once(arrival).chain(again).collect())
    }
}
