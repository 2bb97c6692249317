//! A network of hosts whose frames take their time, get lost or are cut off: network namespaces, and a switch in this
//! process that has one end of every host's interface. It needs no netem, which many kernels lack.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use crate::load::Random;

/// The largest frame: 1,500 bytes and its head.
const FRAME_BYTES: usize = 1600;
/// What a host's interface is called inside of its namespace.
const INTERFACE: &str = "eth0";

/// What happens to every frame.
#[derive(Debug, Clone, Copy)]
pub struct Conditions {
    /// How long it is under way.
    pub delay: Duration,
    /// At most so much longer; frames may overtake each other.
    pub jitter: Duration,
    /// How many of a thousand get lost.
    pub lost_per_mille: u64,
}

/// Hosts on one network.
pub struct Network {
    hosts: Vec<Host>,
    switch: Arc<Switch>,
}

struct Host {
    namespace: String,
    device: Arc<SyncDevice>,
}

struct Switch {
    conditions: Conditions,
    cut: Vec<AtomicBool>,
    random: Mutex<Random>,
    passed: AtomicU64,
    lost: AtomicU64,
}

/// A frame for a host, and when it arrives there.
type Arrival = (Instant, u64, usize, Vec<u8>);

impl Network {
    /// None where the system does not let us.
    pub fn make(count: usize, conditions: Conditions) -> Option<Self> {
        let id = std::process::id() % 100_000;
        let mut hosts = Vec::new();
        for number in 0..count {
            let namespace = format!("ef{id}-{number}");
            let name = format!("eft{id}n{number}");
            let device =
                DeviceBuilder::new().name(&name).layer(Layer::L2).inherit_enable_state().build_sync();
            let device = Arc::new(device.ok()?);
            if !ip(&format!("netns add {namespace}")) {
                return None;
            }
            hosts.push(Host { namespace: namespace.clone(), device });
            for command in [
                format!("link set {name} netns {namespace} name {INTERFACE}"),
                format!("-n {namespace} link set {INTERFACE} address {}", address_text(number)),
                format!("-n {namespace} link set lo up"),
                format!("-n {namespace} addr add {}/24 dev {INTERFACE}", Self::ip_of(number)),
                format!("-n {namespace} link set {INTERFACE} up"),
            ] {
                assert!(ip(&command), "ip {command}");
            }
        }
        let switch = Arc::new(Switch {
            conditions,
            cut: (0..count).map(|_| AtomicBool::new(false)).collect(),
            random: Mutex::new(Random::seeded("EDGEFAAS_NETWORK_SEED")),
            passed: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        let (frames, arriving) = channel();
        for (number, host) in hosts.iter().enumerate() {
            let (switch, device, frames) = (switch.clone(), host.device.clone(), frames.clone());
            // They end when the interface goes away.
            std::thread::spawn(move || switch.take_from(number, &device, &frames));
        }
        let devices: Vec<_> = hosts.iter().map(|host| host.device.clone()).collect();
        let delivering = switch.clone();
        std::thread::spawn(move || delivering.deliver(&arriving, &devices));
        Some(Self { hosts, switch })
    }

    /// The namespace of a host.
    pub fn namespace(&self, number: usize) -> &str {
        &self.hosts[number].namespace
    }

    /// The address of a host.
    pub fn ip_of(number: usize) -> String {
        format!("10.77.0.{}", number + 1)
    }

    /// Cuts a host off, or connects it again.
    pub fn cut(&self, number: usize, off: bool) {
        self.switch.cut[number].store(off, Relaxed);
    }

    /// Frames that arrived, and frames that got lost by chance.
    pub fn frames(&self) -> (u64, u64) {
        (self.switch.passed.load(Relaxed), self.switch.lost.load(Relaxed))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let Self { namespace, .. } = self;
        ip(&format!("-n {namespace} link del {INTERFACE}"));
        ip(&format!("netns del {namespace}"));
    }
}

impl Switch {
    /// Takes what a host sends, and says when it arrives where.
    fn take_from(&self, from: usize, device: &SyncDevice, frames: &Sender<Arrival>) {
        let mut buffer = [0; FRAME_BYTES];
        while let Ok(length) = device.recv(&mut buffer) {
            let Some((to, _)) = buffer[..length].split_first_chunk::<6>() else { continue };
            let is_for = |host: usize| to[0] & 1 == 1 || *to == address(host);
            for host in (0..self.cut.len()).filter(|host| *host != from && is_for(*host)) {
                let (is_lost, extra_us) = {
                    let mut random = self.random.lock().expect("no thread panics with it");
                    let jitter_us = self.conditions.jitter.as_micros() as u64;
                    (random.below(1000) < self.conditions.lost_per_mille, random.below(jitter_us + 1))
                };
                if is_lost {
                    self.lost.fetch_add(1, Relaxed);
                    continue;
                }
                let at = Instant::now() + self.conditions.delay + Duration::from_micros(extra_us);
                let way = (from as u64) << 32 | host as u64;
                if frames.send((at, way, host, buffer[..length].to_vec())).is_err() {
                    return;
                }
            }
        }
    }

    /// Hands frames over when it is time, unless one of the two hosts is cut off then.
    fn deliver(&self, arriving: &Receiver<Arrival>, devices: &[Arc<SyncDevice>]) {
        let mut under_way: BinaryHeap<Reverse<Arrival>> = BinaryHeap::new();
        loop {
            let wait = match under_way.peek() {
                Some(Reverse((at, ..))) => at.saturating_duration_since(Instant::now()),
                None => Duration::from_secs(3600),
            };
            match arriving.recv_timeout(wait) {
                Ok(arrival) => under_way.push(Reverse(arrival)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while let Some(Reverse((at, ..))) = under_way.peek()
                && *at <= Instant::now()
                && let Some(Reverse((_, way, host, frame))) = under_way.pop()
            {
                let is_cut = |host: usize| self.cut[host].load(Relaxed);
                if !is_cut((way >> 32) as usize) && !is_cut(host) {
                    // An interface that is down, or full, loses it.
                    let passed = devices[host].send(&frame).is_ok();
                    self.passed.fetch_add(u64::from(passed), Relaxed);
                }
            }
        }
    }
}

fn address(host: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, host as u8]
}

fn address_text(host: usize) -> String {
    address(host).map(|byte| format!("{byte:02x}")).join(":")
}

fn ip(arguments: &str) -> bool {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}
