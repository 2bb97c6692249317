//! Lost connections, full members, and members that break the protocol.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::OpenStreamError;

fn is_backing_off(calls: &Calls) -> bool {
    calls.load(PEER).back_off_until_ms() > calls.now_ms()
}

#[tokio::test]
async fn a_lost_connection_says_if_the_call_may_have_run() {
    let mut pair = pair(CallLimits::default());
    for has_started in [false, true] {
        let waiting = tokio::spawn({
            let calls = pair.calls.clone();
            async move { calls.call(PEER, head(), Bytes::new(), soon()).await.map(|_| ()) }
        });
        let mut call = pair.arrived.recv().await.unwrap();
        call.read().await.unwrap();
        if has_started {
            call.started().unwrap();
            // Another answer shows that the first one has arrived.
            let other = pair.calls.call(PEER, head(), Bytes::new(), soon());
            let answering = async {
                let call = pair.arrived.recv().await.unwrap();
                call.finish(outcome(b""), Bytes::new()).await.unwrap();
            };
            assert!(tokio::join!(other, answering).0.is_ok());
        }
        let serving = pair.opened.recv().await.unwrap();
        serving.abort();
        assert_eq!(call.cancelled().await, Cancelled::ConnectionLost);
        let lost = MayHaveRun::ConnectionLost { started: has_started };
        assert_eq!(waiting.await.unwrap(), Err(lost.into()));
        while is_backing_off(&pair.calls) {
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        tokio::time::resume();
    }
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_member_is_tried_again_after_a_pause_that_grows() {
    let open: OpenStream =
        Arc::new(|node_id| Box::pin(async move { Err(OpenStreamError::Gone { node_id }) }));
    let calls = Calls::new(open, CallLimits::default(), Handle::current());
    let mut waits = Vec::new();
    for _ in 0..8 {
        let error = calls.call(PEER, head(), Bytes::new(), soon()).await.unwrap_err();
        assert_eq!(error, NotStarted::Unreachable { reason: "node 7 is not connected".into() }.into());
        let error = calls.call(PEER, head(), Bytes::new(), soon()).await.unwrap_err();
        let CallError::NotStarted(NotStarted::BackingOff { wait }) = error else { panic!("{error}") };
        assert!(is_backing_off(&calls));
        waits.push(wait.as_millis());
        tokio::time::advance(wait).await;
        assert!(!is_backing_off(&calls));
    }
    assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
}

#[tokio::test(start_paused = true)]
async fn a_full_member_refuses_and_is_left_alone_for_a_while() {
    let limits = CallLimits { calls_per_peer: 2, ..CallLimits::default() };
    let mut pair = pair(limits);
    let call = |calls: Calls| async move { calls.call(PEER, head(), Bytes::new(), soon()).await };
    let running = [tokio::spawn(call(pair.calls.clone())), tokio::spawn(call(pair.calls.clone()))];
    let mut held = vec![pair.arrived.recv().await.unwrap(), pair.arrived.recv().await.unwrap()];
    let full = call(pair.calls.clone()).await.unwrap_err();
    assert_eq!(full, NotStarted::TooManyCalls { max: 2 }.into());
    // The callers are gone, but the calls hold their slots: a task of the node still runs.
    running.iter().for_each(tokio::task::JoinHandle::abort);
    held[0].cancelled().await;
    held[1].cancelled().await;
    let refused = call(pair.calls.clone()).await.unwrap_err();
    assert_eq!(refused, NotStarted::Refused.into());
    assert!(is_backing_off(&pair.calls));
    held.clear();
    tokio::time::advance(Duration::from_millis(100)).await;
    let answering = async {
        let call = pair.arrived.recv().await.unwrap();
        call.finish(outcome(b""), Bytes::new()).await.unwrap();
    };
    assert!(tokio::join!(call(pair.calls.clone()), answering).0.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_and_a_deadline_are_told_apart() {
    let mut pair = pair(CallLimits::default());
    let call = pair.calls.call(PEER, head(), Bytes::new(), soon());
    let refusing = async { pair.arrived.recv().await.unwrap().refuse() };
    assert_eq!(tokio::join!(call, refusing).0.unwrap_err(), NotStarted::Refused.into());
    tokio::time::advance(Duration::from_secs(1)).await;
    for has_started in [false, true] {
        let call = pair.calls.call(PEER, head(), Bytes::new(), Instant::now() + Duration::from_secs(3));
        let executing = async {
            let mut call = pair.arrived.recv().await.unwrap();
            let (head, ..) = call.read().await.unwrap();
            assert!(head.remaining_ms <= 3000);
            if has_started {
                call.started().unwrap();
            }
            call.cancelled().await;
        };
        let error = tokio::join!(call, executing).0.unwrap_err();
        assert_eq!(error, MayHaveRun::TimedOut { started: has_started }.into());
    }
    // A call that is dropped without an answer.
    let call = pair.calls.call(PEER, head(), Bytes::new(), soon());
    let dropping = async {
        let mut call = pair.arrived.recv().await.unwrap();
        call.read().await.unwrap();
        call.started().unwrap();
    };
    assert_eq!(tokio::join!(call, dropping).0.unwrap_err(), MayHaveRun::GivenUp.into());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_never_sent_to_its_end_is_given_up() {
    let limits = CallLimits { peer_body_bytes: 3000, ..CallLimits::default() };
    let (near, far) = duplex(64 << 10);
    let (arrival, mut arrived) = mpsc::unbounded_channel();
    let serving = tokio::spawn(serve(far, 1, limits, move |call| drop(arrival.send(call))));
    let (requests, driver) = h2::client::handshake(near).await.unwrap();
    let driving = tokio::spawn(driver);
    let mut streams = Vec::new();
    let mut requests = requests.ready().await.unwrap();
    for _ in 0..2 {
        let request = http::Request::post("http://c/").body(()).unwrap();
        let (response, mut stream) = requests.send_request(request, false).unwrap();
        let announced = CallHead { remaining_ms: 5, body_bytes: 2000, ..head() };
        let (bytes, _) = message::encode(&announced, Bytes::new()).unwrap();
        stream.send_data(bytes, false).unwrap();
        streams.push((response, stream));
    }
    let (mut first, mut second) = (arrived.recv().await.unwrap(), arrived.recv().await.unwrap());
    // The first one reads, and has its share of the budget; the second one finds no room.
    let reading = tokio::spawn(async move { first.read().await.map(|_| ()) });
    tokio::task::yield_now().await;
    assert_eq!(second.read().await.unwrap_err(), IncomingError::NoRoom { max_bytes: 3000 });
    assert_eq!(reading.await.unwrap(), Err(IncomingError::Stalled { after: limits.stall }));
    for (response, _stream) in streams {
        assert_eq!(response.await.unwrap_err().reason(), Some(h2::Reason::REFUSED_STREAM));
    }
    serving.abort();
    driving.abort();
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_nobody_reads_is_given_up() {
    let limits = CallLimits::default();
    let (near, far) = duplex(16 << 10);
    let (arrival, mut arrived) = mpsc::unbounded_channel();
    let _serving = tokio::spawn(serve(far, 1, limits, move |call| drop(arrival.send(call))));
    let (requests, driver) = h2::client::handshake(near).await.unwrap();
    let driving = tokio::spawn(driver);
    let request = http::Request::post("http://c/").body(()).unwrap();
    let mut requests = requests.ready().await.unwrap();
    let (_response, mut stream) = requests.send_request(request, false).unwrap();
    let (bytes, _) = message::encode(&head(), Bytes::new()).unwrap();
    stream.send_data(bytes, true).unwrap();
    let mut call = arrived.recv().await.unwrap();
    call.read().await.unwrap();
    // From now on the peer reads nothing.
    driving.abort();
    let _ = driving.await;
    let ended = call.finish(outcome(b""), Bytes::from(vec![0; 1 << 20])).await;
    assert!(
        matches!(ended, Err(IncomingError::Stalled { .. } | IncomingError::Cancelled)),
        "the answer ends: {ended:?}"
    );
}

#[tokio::test]
async fn garbage_ends_the_connection() {
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff"]
    {
        let (mut near, far) = duplex(64 << 10);
        let serving = serve(far, 1, CallLimits::default(), |_| panic!("this is not a call"));
        let sending = async {
            near.write_all(garbage).await.unwrap();
            near.shutdown().await.unwrap();
            let mut answer = Vec::new();
            let _ = near.read_to_end(&mut answer).await;
        };
        let (served, ()) = tokio::join!(serving, sending);
        assert!(served.is_err());
    }
    // A member that sends nothing is not waited for.
    tokio::time::pause();
    let (_near, far) = duplex(1024);
    serve(far, 1, CallLimits::default(), |_| panic!("this is not a call")).await.unwrap();
}

#[tokio::test]
async fn a_member_that_answers_with_garbage_is_an_error_of_the_call() {
    let calls = calls(CallLimits::default(), |mut far| {
        tokio::spawn(async move {
            far.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let mut request = Vec::new();
            let _ = far.read_to_end(&mut request).await;
        });
    });
    let error = calls.call(PEER, head(), Bytes::new(), soon()).await.unwrap_err();
    assert!(
        matches!(
            error,
            CallError::MayHaveRun(MayHaveRun::ConnectionLost { started: false }) | CallError::NotStarted(_)
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn calls_that_are_too_large_are_not_sent() {
    let pair = pair(CallLimits { body_bytes: 1000, ..CallLimits::default() });
    let body = Bytes::from(vec![0; 1001]);
    let error = pair.calls.call(PEER, head(), body, soon()).await.unwrap_err();
    assert_eq!(error, NotStarted::TooLarge { actual_bytes: 1001, limit_bytes: 1000 }.into());
    let large = CallHead { event: Bytes::from(vec![0; MAX_HEAD_BYTES]), ..head() };
    let error = pair.calls.call(PEER, large, Bytes::new(), soon()).await.unwrap_err();
    assert!(matches!(error, CallError::NotStarted(NotStarted::TooLarge { .. })), "{error:?}");
}
