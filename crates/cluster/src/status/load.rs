//! Load of a node.

use bytes::Bytes;
use prost::Message as _;

use super::wire::LoadWire;
use super::{MAX_LOAD_BYTES, StatusError, at_most, check_length};

/// Load of a node, as it reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
        };
        wire.encode_to_vec().into()
    }

    /// Reads the load of a peer.
    ///
    /// # Errors
    /// `StatusError` if it is too long, no protocol buffers, or has shares above the whole.
    pub fn decode(bytes: &[u8]) -> Result<Self, StatusError> {
        check_length(bytes, MAX_LOAD_BYTES)?;
        let wire = LoadWire::decode(bytes)?;
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
            readiness in prop::sample::select(vec![Readiness::Ready, Readiness::Draining, Readiness::Failing])
        ) -> Load {
            Load {
                memory_free_bytes: memory.0.min(memory.1),
                memory_total_bytes: memory.0.max(memory.1),
                permits_free: permits.0.min(permits.1),
                permits_total: permits.0.max(permits.1),
                running, queued, pressure_permille, readiness,
            }
        }
    }

    proptest! {
        #[test]
        fn a_load_comes_out_as_it_went_in(load in loads()) {
            let bytes = load.encode();
            prop_assert!(bytes.len() <= 64, "{}", bytes.len());
            prop_assert_eq!(Load::decode(&bytes), Ok(load));
        }

        #[test]
        fn any_bytes_are_a_load_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
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
        assert!(matches!(Load::decode(&[0; 257]), Err(StatusError::TooLong { bytes: 257, .. })));
        let newer = LoadWire { readiness: 9, ..LoadWire::default() };
        assert_eq!(decode(newer).unwrap().readiness, Readiness::Failing);
    }
}
