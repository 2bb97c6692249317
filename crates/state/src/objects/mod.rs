//! Stateful objects as the node keeps them: named bundles of CRDT fields that belong to an app.
//!
//! [`Objects`] is the local replica: fields in memory as far as there is room, the rest on the disk. Everybody reads it;
//! only the store's one writer changes it, through [`FieldWriter`]. What the writer has committed goes from there to
//! whoever watches the object and, in a cluster, to the peers.

mod archive;
mod change;
mod json;
mod key;
mod pending;
mod record;
mod recovery;
mod share_requests;
mod table;
mod watch;
mod writer;

pub use crate::error::FieldRefused;
pub use archive::{ArchiveError, ArchiveReader, ArchiveWriter};
pub(crate) use change::FieldChange;
pub use json::{bytes_of_json, json_of_bytes, json_of_value};
pub use key::{FieldKey, MAX_NAME_BYTES, name_error, object_prefix, own_object};
pub use pending::{Pending, PendingError, PendingFields};
pub use recovery::Recoveries;
pub use table::{FoldScope, ObjectSummary, Objects, ObjectsReading};
pub use watch::{ChangeNotice, Watch, WatchScope};
pub(crate) use writer::FieldWriter;
pub(crate) use writer::footprint::Footprint;

/// The largest value of a register and the largest element of a set or list, in bytes.
pub const MAX_VALUE_BYTES: usize = 1 << 20;
/// Why there is no bounded counter in a map: its shares are given from node to node, and whoever removes it from the map would
/// take away what others have been given.
pub const NO_BOUNDED_IN_MAP: &str = "a bounded counter cannot be in a map; make it a field of the object";
/// How deep maps may be nested in a field.
pub const MAX_PATH: usize = 16;
/// How many fields an object may have.
pub const MAX_FIELDS_PER_OBJECT: usize = 10_000;
