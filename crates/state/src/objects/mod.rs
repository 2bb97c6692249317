//! Stateful objects: named bundles of CRDT fields that belong to an app.
//!
//! [`Objects`] is the local replica: it caches fields in memory, and keeps all of them on the disk. All parts of the
//! node read it; only the store's writer changes it, through [`FieldWriter`]. Committed changes go to subscriptions
//! and, in a cluster, to the peers.

mod archive;
mod change;
mod cluster_app;
mod deletions;
pub(crate) mod expiry;
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
pub use archive::{ArchiveError, ArchiveReader, ArchiveWriter, RecordDamage};
pub(crate) use change::FieldChange;
pub use change::PeerDelta;
pub use cluster_app::CLUSTER_APP;
pub use deletions::{Deletions, MAX_LEAD_MS};
pub use expiry::ExpiredObjects;
pub(crate) use expiry::LastChanges;
pub use json::{bytes_of_json, json_of_bytes, json_of_value};
pub use key::{FieldKey, MAX_NAME_BYTES, name_error, object_prefix, own_object};
pub use pending::{Pending, PendingChange, PendingError, PendingFields, PendingLimits, Start, Write};
pub use recovery::{Lacking, Recoveries};
pub use table::{FoldScope, ObjectSummary, Objects, ObjectsReading};
pub use watch::{ChangeNotice, Watch, WatchScope};
pub(crate) use writer::FieldWriter;
pub(crate) use writer::footprint::Footprint;

/// Maximum size of the value of a register and of an element of a set or list, in bytes.
pub const MAX_VALUE_BYTES: usize = 1 << 20;
/// Error for a bounded counter in a map. Nodes grant each other shares of such a counter; removing it from the map
/// would remove granted shares.
pub const NO_BOUNDED_IN_MAP: &str = "a bounded counter cannot be in a map; make it a field of the object";
/// Maximum nesting depth of maps in a field.
pub const MAX_PATH: usize = 16;
/// Maximum number of fields of an object.
pub const MAX_FIELDS_PER_OBJECT: usize = 10_000;
/// Maximum number of fields of an object together with the tombstones of deleted ones.
pub const MAX_RECORDS_PER_OBJECT: usize = 2 * MAX_FIELDS_PER_OBJECT;
