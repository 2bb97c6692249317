//! libp2p reduced to what a cluster needs: one authenticated connection with one stream, and more
//! beside it, over TCP or QUIC.
//!
//! Knows neither members nor frames' contents. `swarm` builds it, `unencrypted` bounds unauthenticated connections,
//! `behaviour` opens the streams, `side_streams` passes those beside the first one, `frame` reads and writes on it.

pub(crate) mod address;
pub(crate) mod address_slots;
pub(crate) mod behaviour;
pub(crate) mod frame;
pub(crate) mod side_streams;
pub(crate) mod swarm;
pub(crate) mod task_time;
pub(crate) mod unencrypted;
