//! What a network is made from.

use std::net::Ipv4Addr;

use crate::{CreateNetworkError, Network};

/// Zones, and the hosts in each.
#[derive(Debug, Clone, Default)]
pub struct Topology {
    pub(crate) zones: Vec<String>,
    pub(crate) hosts: Vec<HostPlan>,
    pub(crate) seed: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct HostPlan {
    pub(crate) name: String,
    pub(crate) zone: usize,
    pub(crate) address: Ipv4Addr,
}

impl Topology {
    /// Without zones so far.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a zone with these hosts, whose names are unique in the network. Their addresses are 10.77.ZONE.1 and so on; all are in
    /// one subnet, 10.77.0.0/16.
    ///
    /// # Panics
    ///
    /// With more than 250 zones, or hosts in a zone.
    #[must_use]
    pub fn zone(mut self, name: &str, hosts: &[&str]) -> Self {
        let zone = self.zones.len();
        assert!(zone < 250 && hosts.len() <= 250, "at most 250 zones, and 250 hosts in a zone");
        self.zones.push(name.to_owned());
        self.hosts.extend((1..).zip(hosts).map(|(number, host)| HostPlan {
            name: (*host).to_owned(),
            zone,
            address: Ipv4Addr::new(10, 77, zone as u8, number),
        }));
        self
    }

    /// The seed of losses and jitter; 0 if not set.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Makes the network. All links are perfect until they get other conditions.
    pub fn build(&self) -> Result<Network, CreateNetworkError> {
        Network::new(self)
    }
}
