//! The normative statements of MQTT 5.0 and 3.1.1, one by one, over real sockets.
//!
//! `statements.txt` has them all; a test names those it shows with [`covers!`]; `docs/mqtt-conformance.md` is made from
//! both, and `page.rs` fails when it is not what they say. Every packet the broker sends in any of these tests is
//! checked by `decode.rs`, which takes nothing that the standard forbids.

/// Names the statements a test shows: for `docs/mqtt-conformance.md`, and for whoever sees it fail.
macro_rules! covers {
    ($($id:literal),+ $(,)?) => {
        let _covers = crate::page::Covers(&[$($id),+]);
    };
}

mod client;
mod connack;
mod connect;
mod data;
mod decode;
mod disconnect;
mod encode;
mod flow;
mod overload;
mod page;
mod publish;
mod resume;
mod retain;
mod server;
mod sessions;
mod shared;
mod subscribe;
mod topics;
mod v311;
mod will;
