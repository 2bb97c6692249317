//! Calls between an entry node and executing nodes, over streams in memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use edgefaas_broker::Hooks;
use edgefaas_cluster::calls::{CallHead, CallLimits, Calls, IncomingCall, serve};
use edgefaas_cluster::placement::PlacedCall;
use edgefaas_cluster::{MemberStream, OpenStream, OpenStreamError};
use edgefaas_isolates::{DirectCall, Event, Reply, Trigger};
use edgefaas_platform::Clock;
use parking_lot::Mutex;
use tokio::io::duplex;
use tokio::runtime::Handle;

use super::*;
use crate::durable::{KeepLimits, Retention};
use crate::invocation::{Invocation, InvocationError, Principal, Timing};
use crate::registry::{LiveFunction, function_of};
use crate::test_node::TestNode;
use crate::trace::{Export, Role, SpanKind, SpanStatus, TraceLimits, TraceSpan, Traces};

/// Places on these nodes in order, then as `last` says.
struct InOrder {
    nodes: Vec<u64>,
    last: Placement,
}

fn node(id: u64) -> RemoteNode {
    RemoteNode { id, name: format!("node-{id}").into() }
}

impl Placer for InOrder {
    fn place(&self, _: &LiveFunction, _: &Invocation, tried: &[NodeFailure]) -> Placement {
        match self.nodes.get(tried.len()) {
            Some(id) => Placement::On(node(*id)),
            None => self.last.clone(),
        }
    }

    fn begin(&self, _: &LiveFunction, _: u64) -> PlacedCall {
        PlacedCall::default()
    }

    fn now_ms(&self) -> u64 {
        0
    }

    fn this_node(&self) -> Option<Arc<ThisNode>> {
        Some(Arc::new(ThisNode { id: 1, name: "entry".into(), zone: None, labels: Vec::new() }))
    }

    fn share(&self, _: u64, _: u64) -> Share {
        Share { memory_bytes: u64::MAX, permits: u32::MAX }
    }
}

/// Calls to other nodes, whose answers `answer` gives, and the nodes that were called.
fn calls<F, A>(answer: F) -> (Calls, Arc<Mutex<Vec<u64>>>)
where
    F: Fn(u64, IncomingCall) -> A + Send + Sync + 'static,
    A: Future<Output = ()> + Send + 'static,
{
    let (answer, called) = (Arc::new(answer), Arc::<Mutex<Vec<u64>>>::default());
    let of_calls = called.clone();
    let open: OpenStream = Arc::new(move |node_id| {
        let (answer, called) = (answer.clone(), called.clone());
        Box::pin(async move {
            let (near, far) = duplex(64 << 10);
            tokio::spawn(serve(far, 1, CallLimits::default(), move |call| {
                called.lock().push(node_id);
                tokio::spawn(answer(node_id, call));
            }));
            Ok(Box::pin(near) as MemberStream)
        })
    });
    (Calls::new(open, CallLimits::default(), Handle::current()), of_calls)
}

fn elsewhere(calls: Calls, nodes: &[u64], last: Placement) -> Elsewhere {
    Elsewhere { placer: Arc::new(InOrder { nodes: nodes.to_vec(), last }), calls }
}

fn function() -> Arc<LiveFunction> {
    function_of("app = \"a\"\n[functions.f]\nmain = \"f.js\"\nplacement = \"near\"\n")
}

fn invocation() -> Invocation {
    let event = Event { trigger: Trigger::Call(DirectCall::default()), body: "body".into() };
    Invocation::new("f".into(), Principal::Operator, event)
}

async fn call(elsewhere: &Elsewhere, invocation: &Invocation, repeat: Repeat) -> Ended {
    let function = function();
    let first = match elsewhere.place(&function, invocation, &[]) {
        Ok(Some(node)) => node,
        other => panic!("it is placed elsewhere: {other:?}"),
    };
    let arrival = Arrival { at: Instant::now(), unix_us: 1_000_000 };
    let deadline = Instant::now() + Duration::from_secs(30);
    elsewhere.call(&function, invocation, first, repeat, deadline, arrival).await
}

fn full() -> InvocationError {
    InvocationError::QueueFull { function: "f".into(), capacity: 3 }
}

fn nowhere() -> Placement {
    Placement::Refused(NoNode::NotHere)
}

async fn reply(mut call: IncomingCall, text: &str) {
    let (head, body, _) = call.read().await.unwrap();
    let received = envelope::invocation(head, body, call.peer()).unwrap();
    assert_eq!((&*received.event.body, received.placed_by), (&b"body"[..], Some(1)));
    let timing = Timing { execution: Duration::from_micros(70), ..Timing::default() };
    let (head, body) = outcome::encode(Ok(Reply::Text(text.into())), timing);
    call.finish(head, body).await.unwrap();
}

async fn refuse(call: IncomingCall, error: InvocationError) {
    call.finish(outcome::refusal(&error), Bytes::new()).await.unwrap();
}

#[tokio::test]
async fn the_next_node_runs_what_the_first_one_refuses() {
    let (calls, called) = calls(|node_id, call| async move {
        match node_id {
            2 => refuse(call, full()).await,
            3 => call.refuse(),
            _ => reply(call, "done").await,
        }
    });
    let elsewhere = elsewhere(calls, &[2, 3, 4], nowhere());
    let Ended::There { result, timing, node, .. } = call(&elsewhere, &invocation(), Repeat::Never).await
    else {
        panic!("node 4 runs it")
    };
    assert_eq!(result.unwrap(), Reply::Text("done".into()));
    assert_eq!((&*node, timing.execution), ("node-4", Duration::from_micros(70)));
    assert_eq!(*called.lock(), [2, 3, 4]);
}

#[tokio::test]
async fn the_last_error_is_the_answer_if_all_nodes_refuse() {
    let (calls, _) = calls(|_, call| refuse(call, full()));
    let refused = elsewhere(calls.clone(), &[2, 3], nowhere());
    let Ended::Nowhere(error) = call(&refused, &invocation(), Repeat::Never).await else {
        panic!("no node runs it")
    };
    assert_eq!(error.status(), 429);
    let here = elsewhere(calls, &[2], Placement::Here);
    assert!(matches!(call(&here, &invocation(), Repeat::Never).await, Ended::Here));
    // Nodes that cannot be reached.
    let open: OpenStream =
        Arc::new(|node_id| Box::pin(async move { Err(OpenStreamError::Gone { node_id }) }));
    let calls = Calls::new(open, CallLimits::default(), Handle::current());
    let unreachable = elsewhere(calls, &[2, 3], nowhere());
    let Ended::Nowhere(error) = call(&unreachable, &invocation(), Repeat::Never).await else {
        panic!("no node runs it")
    };
    assert_eq!(error.status(), 503);
    let text = error.to_string();
    assert!(text.contains("node `node-2`") && text.contains("is not connected"), "{text}");
}

#[tokio::test]
async fn an_error_that_no_node_can_avoid_is_final() {
    let too_large =
        || InvocationError::PayloadTooLarge { function: "f".into(), actual_bytes: 2, limit_bytes: 1 };
    let (calls, called) = calls(move |_, call| refuse(call, too_large()));
    let elsewhere = elsewhere(calls, &[2, 3], nowhere());
    let Ended::Nowhere(error) = call(&elsewhere, &invocation(), Repeat::Never).await else {
        panic!("no node runs it")
    };
    assert_eq!((error.status(), &**called.lock()), (413, &[2][..]));
}

#[tokio::test]
async fn an_invocation_that_may_have_run_is_not_placed_again() {
    let (calls, called) = calls(|_, mut call| async move {
        call.read().await.unwrap();
        // It is dropped without an answer.
    });
    let elsewhere = elsewhere(calls, &[2, 3], Placement::Here);
    let Ended::There { result, node, .. } = call(&elsewhere, &invocation(), Repeat::Never).await else {
        panic!("it may have run")
    };
    let error = result.unwrap_err();
    assert_eq!((error.status(), error.title(), &*node), (502, "Node lost", "node-2"));
    assert_eq!(*called.lock(), [2]);
}

#[tokio::test]
async fn spans_of_another_node_are_shown_by_the_clock_of_this_one() {
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let span = |started_unix_us| TraceSpan {
        trace: trace.to_owned(),
        id: "01J".into(),
        parent: None,
        kind: SpanKind::Task,
        role: Role::Client,
        export: Export::Wanted,
        name: "f".into(),
        started_unix_us,
        duration_us: 9,
        status: SpanStatus::Ended,
        phases_us: [1, 2, 3, 4],
        input: "in".into(),
        output: "out".into(),
        error: None,
        attributes: Vec::new(),
        node: None,
    };
    // The clock of the other node is years off.
    let arrived = 9_000_000_000_000_000;
    let sent = |is_exporting| {
        let bytes =
            outcome::encode_spans(vec![span(arrived + 5), span(arrived + 8)], arrived, is_exporting);
        outcome::decode_spans(bytes, &format!("00-{trace}-b7ad6b7169203331-01"), &"hall".into(), 100)
    };
    let spans = sent(false);
    assert_eq!(spans.iter().map(|span| span.started_unix_us).collect::<Vec<_>>(), [105, 108]);
    assert_eq!((spans[0].kind, spans[0].phases_us), (SpanKind::Task, [1, 2, 3, 4]));
    assert_eq!((spans[0].node.as_deref(), spans[0].role), (Some("hall"), Role::Client));
    assert_eq!((&*spans[0].trace, spans[0].export), (trace, Export::Wanted));
    assert_eq!(sent(true)[0].export, Export::Elsewhere, "only one node exports a span");
}

/// An executing node without functions, and calls to it.
fn executing(folder: &std::path::Path) -> (TestNode, Calls) {
    let (time, count, bytes) = (Duration::from_secs(60), 10, 10_000);
    let listed = Retention { time, count, bytes };
    let keep = KeepLimits { time, count, bytes, memory_bytes: 10_000, listed, dead: listed };
    let node = TestNode::open(folder, Clock::system(), Hooks::default(), keep);
    let remembered = Remembered::open(node.store.clone(), RememberLimits::default()).unwrap();
    let executor = Arc::new(Executor::new(ExecutorParts {
        invoker: node.invoker.clone(),
        registry: node.registry.clone(),
        publisher: node.publisher.clone(),
        store: node.store.clone(),
        traces: Arc::new(Traces::new(TraceLimits { spans: 0, per_second: 0 }, false)),
        workers: node.workers.clone(),
        clock: Clock::system(),
        remembered: Arc::new(remembered),
        placer: Arc::new(InOrder { nodes: Vec::new(), last: Placement::Here }),
        remove_credentials: Arc::new(|_| {}),
    }));
    let open: OpenStream = Arc::new(move |_| {
        let executor = executor.clone();
        Box::pin(async move {
            let (near, far) = duplex(64 << 10);
            tokio::spawn(serve(far, 1, CallLimits::default(), move |call| executor.handle(call)));
            Ok(Box::pin(near) as MemberStream)
        })
    });
    (node, Calls::new(open, CallLimits::default(), Handle::current()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn calls_that_cannot_be_started_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (_node, calls) = executing(folder.path());
    let entry = ThisNode { id: 1, name: "entry".into(), zone: None, labels: Vec::new() };
    for repeat in [Repeat::Never, Repeat::UntilDone] {
        let head = || envelope::head(&function(), &invocation(), repeat, Some(&entry));
        let answer = async |head: CallHead| {
            let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
            let answer = calls.call(2, head, "body".into(), deadline).await.unwrap();
            assert!(answer.head.is_refused, "another node may run it");
            outcome::decode(answer).unwrap().0.unwrap_err()
        };
        assert_eq!(answer(head()).await.status(), 404);
        let looped = answer(CallHead { hops: MAX_HOPS + 1, ..head() }).await;
        assert_eq!((looped.status(), looped.title()), (508, "Failed on another node"));
    }
}
