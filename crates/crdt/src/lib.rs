//! Delta-state CRDTs: the field types of stateful objects.
//!
//! The crate consists of plain data and pure functions, without I/O, clock or randomness. Time is an argument, so that the
//! same code runs on a node and in a simulation with a seed.
//!
//! A [`Field`] is the state of one field of an object at one replica. A local [`Operation`] changes the field and returns a
//! [`FieldDelta`], the part of the state that changed. A delta is a state itself: it merges with other deltas and into the
//! field of any replica. The merge is associative, commutative and idempotent. A delta may therefore be lost and sent again,
//! arrive twice, late or out of order, or be merged with others before it is sent. Replicas that have seen the same deltas are
//! equal (Almeida, Shoker, Baquero: Delta State Replicated Data Types, 2018).
//!
//! There are two kinds of state. The states of counters and g-sets only grow, so that the larger state is the later one;
//! a register keeps its latest write. MV registers, sets, maps, flags, lists, texts and JSON consist of values with dots and one
//! causal context per field, so that a removed value leaves no tombstone.
//!
//! The caller limits the size of a register's value and the number of fields of an object.
//!
//! ```
//! use edgefaas_crdt::{Field, FieldType, HybridClock, Operation, ReplicaId};
//!
//! let (here, there) = (ReplicaId::new(1, 1), ReplicaId::new(2, 1));
//! let mut clock = HybridClock::default();
//! let mut a = Field::empty(FieldType::Counter);
//! let mut b = a.clone();
//!
//! let up = a.apply_local("visits", Operation::CounterAdd(5), here, clock.tick(1_000))?;
//! let down = b.apply_local("visits", Operation::CounterAdd(-2), there, clock.tick(1_000))?;
//! a.merge(down.clone());
//! b.merge(up);
//! b.merge(down);
//!
//! assert_eq!(a, b);
//! assert_eq!(a.counter("visits")?.value(), 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bounded;
mod causal;
mod chunked;
mod clock;
mod content;
mod content_wire;
mod context;
mod counter;
mod delta;
mod document;
mod dotted;
mod encoding;
mod error;
mod field;
mod gcounter;
mod json;
mod merge;
mod operation;
mod position;
mod register;
mod replica_id;
mod replica_totals;
mod sequence;
mod state;
mod trail;
mod types;
mod update;
mod view;
mod wire;

pub use bounded::{BoundedCounter, BoundedCounterError};
pub use causal::{Flag, GSet, Map, MvRegister, Set};
pub use clock::{Hlc, HybridClock, Timestamp};
pub use counter::{Counter, CounterOverflow};
pub use delta::FieldDelta;
pub use document::{Document, MAX_DOCUMENT_BYTES};
pub use dotted::MAX_MAP_DEPTH;
pub use encoding::{DecodeError, FORMAT_VERSION};
pub use error::{ApplyError, LibraryError, WrongType};
pub use field::Field;
pub use gcounter::{GCounter, GCounterOverflow};
pub use json::MAX_JSON_DEPTH;
pub use merge::Merged;
pub use operation::{Operation, Value};
pub use register::Register;
pub use replica_id::ReplicaId;
pub use state::{FieldState, Origin, StateDelta};
pub use types::{FieldType, UnknownFieldType};
