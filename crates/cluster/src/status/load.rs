//! Load of a node.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use xxhash_rust::xxh3::xxh3_64;

use super::wire::LoadWire;
use crate::occurrences::MAX_ANNOUNCED;

use super::{MAX_LOAD_BYTES, StatusError, at_most, check_length};

/// Maximum number of functions in a load.
pub const MAX_RUNNING_FUNCTIONS: usize = 64;

/// Load of a node, as it reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Load {
    /// Function memory in bytes that is not used.
    pub memory_free_bytes: u64,
    /// All function memory in bytes.
    pub memory_total_bytes: u64,
    /// Isolates that it can start now.
    pub permits_free: u32,
    /// Isolates that it can run at the same time.
    pub permits_total: u32,
    /// Running invocations.
    pub running: u32,
    /// Invocations that wait for an isolate or for memory.
    pub queued: u32,
    /// Share of the last second in which some task waited for a processor, in permille.
    pub pressure_permille: u16,
    /// Does it take work?
    pub readiness: Readiness,
    /// [Digests](function_digest) of functions that have run in the last second or run now, in ascending order: at most
    /// [`MAX_RUNNING_FUNCTIONS`]. Empty from nodes of older versions.
    pub functions: Arc<[u32]>,
    /// The last occurrences of schedules that it has fired, see [`occurrences`](crate::occurrences): at most
    /// [`MAX_ANNOUNCED`].
    pub fired: Arc<[u64]>,
}

/// The digest of a function's name in a load. Two functions of a node almost never have the same one.
pub fn function_digest(name: &str) -> u32 {
    xxh3_64(name.as_bytes()) as u32
}

/// Does a node take work?
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Readiness {
    /// It does.
    #[default]
    Ready,
    /// It finishes its work before a stop.
    Draining,
    /// It cannot run functions.
    Failing,
}

impl Load {
    /// The bytes for [`Handle::set_load`](crate::Handle::set_load).
    pub fn encode(&self) -> Bytes {
        let wire = LoadWire {
            memory_free_bytes: self.memory_free_bytes,
            memory_total_bytes: self.memory_total_bytes,
            permits_free: self.permits_free,
            permits_total: self.permits_total,
            running: self.running,
            queued: self.queued,
            pressure_permille: self.pressure_permille.into(),
            readiness: match self.readiness {
                Readiness::Ready => 0,
                Readiness::Draining => 1,
                Readiness::Failing => 2,
            },
            functions: self.functions.iter().take(MAX_RUNNING_FUNCTIONS).copied().collect(),
            fired: self.fired.iter().take(MAX_ANNOUNCED).copied().collect(),
        };
        wire.encode_to_vec().into()
    }

    /// Reads the load of a peer.
    ///
    /// # Errors
    /// `StatusError` if it is too long, no protocol buffers, has shares above the whole or too many functions.
    pub fn decode(bytes: &[u8]) -> Result<Self, StatusError> {
        check_length(bytes, MAX_LOAD_BYTES)?;
        let wire = LoadWire::decode(bytes)?;
        at_most("functions", wire.functions.len(), MAX_RUNNING_FUNCTIONS)?;
        at_most("fired", wire.fired.len(), MAX_ANNOUNCED)?;
        at_most("pressure_permille", wire.pressure_permille as usize, 1_000)?;
        if wire.memory_free_bytes > wire.memory_total_bytes {
            return Err(StatusError::Invalid { field: "memory_free_bytes" });
        }
        if wire.permits_free > wire.permits_total {
            return Err(StatusError::Invalid { field: "permits_free" });
        }
        Ok(Self {
            memory_free_bytes: wire.memory_free_bytes,
            memory_total_bytes: wire.memory_total_bytes,
            permits_free: wire.permits_free,
            permits_total: wire.permits_total,
            running: wire.running,
            queued: wire.queued,
            pressure_permille: wire.pressure_permille as u16,
            readiness: match wire.readiness {
                0 => Readiness::Ready,
                1 => Readiness::Draining,
                // A state of a newer version is none that takes work from this one.
                _ => Readiness::Failing,
            },
            functions: wire.functions.into(),
            fired: wire.fired.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn loads()(
            memory in any::<(u64, u64)>(), permits in any::<(u32, u32)>(), running in any::<u32>(),
            queued in any::<u32>(), pressure_permille in 0_u16..=1_000,
            readiness in prop::sample::select(vec![Readiness::Ready, Readiness::Draining, Readiness::Failing]),
            functions in prop::collection::vec(any::<u32>(), 0..=MAX_RUNNING_FUNCTIONS),
            fired in prop::collection::vec(any::<u64>(), 0..=MAX_ANNOUNCED)
        ) -> Load {
            Load {
                memory_free_bytes: memory.0.min(memory.1),
                memory_total_bytes: memory.0.max(memory.1),
                permits_free: permits.0.min(permits.1),
                permits_total: permits.0.max(permits.1),
                running, queued, pressure_permille, readiness,
                functions: functions.into(), fired: fired.into(),
            }
        }
    }

    proptest! {
        #[test]
        fn a_load_comes_out_as_it_went_in(load in loads()) {
            let bytes = load.encode();
            let repeated_bytes = 4 * load.functions.len() + 8 * load.fired.len();
            prop_assert!(bytes.len() <= 72 + repeated_bytes, "{}", bytes.len());
            prop_assert_eq!(Load::decode(&bytes), Ok(load));
        }

        #[test]
        fn any_bytes_are_a_load_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            if let Ok(load) = Load::decode(&bytes) {
                prop_assert_eq!(Load::decode(&load.encode()), Ok(load));
            }
        }
    }

    #[test]
    fn impossible_loads_are_refused() {
        let decode = |wire: LoadWire| Load::decode(&wire.encode_to_vec());
        let over = LoadWire { pressure_permille: 1_001, ..LoadWire::default() };
        assert!(matches!(decode(over), Err(StatusError::TooMany { field: "pressure_permille", .. })));
        let free = LoadWire { permits_free: 2, permits_total: 1, ..LoadWire::default() };
        assert_eq!(decode(free), Err(StatusError::Invalid { field: "permits_free" }));
        let free = LoadWire { memory_free_bytes: 2, memory_total_bytes: 1, ..LoadWire::default() };
        assert_eq!(decode(free), Err(StatusError::Invalid { field: "memory_free_bytes" }));
        let many = LoadWire { functions: vec![7; MAX_RUNNING_FUNCTIONS + 1], ..LoadWire::default() };
        assert!(matches!(decode(many), Err(StatusError::TooMany { field: "functions", .. })));
        assert!(matches!(Load::decode(&[0; 513]), Err(StatusError::TooLong { bytes: 513, .. })));
        let newer = LoadWire { readiness: 9, ..LoadWire::default() };
        assert_eq!(decode(newer).unwrap().readiness, Readiness::Failing);
    }
}
