//! Calls over a stream in memory.

mod bad_days;
mod exchange;
mod heads;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{DuplexStream, duplex};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::*;
use crate::{MemberStream, OpenStream};

const PEER: u64 = 7;

/// A head of which every field is set.
fn head() -> CallHead {
    CallHead {
        id: "01J0000000000000000000000A".into(),
        function: "resize".into(),
        app: "photos".into(),
        principal: Bytes::from_static(b"principal"),
        event: Bytes::from_static(b"event"),
        remaining_ms: 0,
        trace_parent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
        parent: Some("01J0000000000000000000000B".into()),
        attempt: 1,
        depth: 2,
        hops: 1,
        is_repeated: true,
        entry_node: 3,
        entry_zone: "hall".into(),
        root: Some("01JBENCH000000000000000000".into()),
        body_bytes: 0,
    }
}

fn outcome(result: &'static [u8]) -> OutcomeHead {
    OutcomeHead { result: Bytes::from_static(result), queue_us: 5, ..OutcomeHead::default() }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

/// Two members: calls of the first arrive at the second.
struct Pair {
    calls: Calls,
    /// Calls that have arrived.
    arrived: mpsc::UnboundedReceiver<IncomingCall>,
    /// Ends of the streams that were opened.
    opened: mpsc::UnboundedReceiver<tokio::task::JoinHandle<Result<(), h2::Error>>>,
}

/// Calls whose streams go to `accept`.
fn calls(limits: CallLimits, accept: impl Fn(DuplexStream) + Send + Sync + 'static) -> Calls {
    let accept = Arc::new(accept);
    let open: OpenStream = Arc::new(move |node_id| {
        assert_eq!(node_id, PEER);
        let accept = accept.clone();
        Box::pin(async move {
            let (near, far) = duplex(64 << 10);
            accept(far);
            Ok(Box::pin(near) as MemberStream)
        })
    });
    Calls::new(open, limits, Handle::current())
}

fn pair(limits: CallLimits) -> Pair {
    let (arrival, arrived) = mpsc::unbounded_channel();
    let (opening, opened) = mpsc::unbounded_channel();
    let calls = calls(limits, move |far| {
        let arrival = arrival.clone();
        let serving = tokio::spawn(serve(far, 1, limits, move |call| drop(arrival.send(call))));
        drop(opening.send(serving));
    });
    Pair { calls, arrived, opened }
}
