//! Calls and their answers.

use super::*;

#[tokio::test]
async fn the_head_the_body_and_the_answer_arrive_unchanged() {
    let mut pair = pair(CallLimits::default());
    for bytes in [0, 1, 8 << 10, (8 << 10) + 1, 700 << 10] {
        let body = Bytes::from(vec![b'x'; bytes]);
        let call = pair.calls.call(PEER, head(), body.clone(), soon());
        let executing = async {
            let mut call = pair.arrived.recv().await.unwrap();
            assert_eq!(call.peer(), 1);
            let (received, received_body, _) = call.read().await.unwrap();
            assert!((29_000..=30_000).contains(&received.remaining_ms), "{}", received.remaining_ms);
            let expected =
                CallHead { remaining_ms: received.remaining_ms, body_bytes: bytes as u64, ..head() };
            assert_eq!(received, expected);
            assert_eq!(received_body, body);
            call.finish(outcome(b"json"), received_body).await.unwrap();
        };
        let (answer, ()) = tokio::join!(call, executing);
        let answer = answer.unwrap();
        assert_eq!(answer.head, OutcomeHead { body_bytes: bytes as u64, ..outcome(b"json") });
        assert_eq!(answer.body, body);
    }
    assert_eq!(pair.calls.load(PEER).in_flight(), 0);
}

#[tokio::test]
async fn a_large_body_does_not_hold_up_small_calls() {
    let mut pair = pair(CallLimits::default());
    let large = Bytes::from(vec![0; 32 << 20]);
    let large_call = tokio::spawn({
        let (calls, large) = (pair.calls.clone(), large.clone());
        async move { calls.call(PEER, head(), large, soon()).await }
    });
    // Nothing of the large body is read: its window is full.
    let mut large_arrived = pair.arrived.recv().await.unwrap();
    for _ in 0..20 {
        let answer = pair.calls.call(PEER, head(), Bytes::from_static(b"small"), soon());
        let executing = async {
            let mut call = pair.arrived.recv().await.unwrap();
            let (_, body, _) = call.read().await.unwrap();
            call.finish(outcome(b""), body).await.unwrap();
        };
        let (answer, ()) = tokio::join!(answer, executing);
        assert_eq!(answer.unwrap().body, "small");
    }
    let (_, body, _) = large_arrived.read().await.unwrap();
    assert_eq!(body.len(), large.len());
    large_arrived.finish(outcome(b"done"), Bytes::new()).await.unwrap();
    assert_eq!(large_call.await.unwrap().unwrap().head.result, "done");
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_at_the_other_node() {
    let mut pair = pair(CallLimits { calls_per_peer: 1, ..CallLimits::default() });
    for has_started in [false, true] {
        let waiting = tokio::spawn({
            let calls = pair.calls.clone();
            async move { calls.call(PEER, head(), Bytes::new(), soon()).await.map(|_| ()) }
        });
        let mut call = pair.arrived.recv().await.unwrap();
        call.read().await.unwrap();
        if has_started {
            call.started().unwrap();
        }
        waiting.abort();
        assert_eq!(call.cancelled().await, Cancelled::ByCaller);
        assert_eq!(call.finish(outcome(b""), Bytes::new()).await, Err(IncomingError::Cancelled));
        assert!(waiting.await.unwrap_err().is_cancelled());
        assert_eq!(pair.calls.load(PEER).in_flight(), 0);
    }
}

#[tokio::test]
async fn many_calls_run_at_the_same_time() {
    const CALLS: u32 = 200;
    let mut pair = pair(CallLimits::default());
    let calling: Vec<_> = (0..CALLS)
        .map(|number| {
            let calls = pair.calls.clone();
            let call = async move {
                let body = Bytes::copy_from_slice(&number.to_be_bytes());
                calls.call(PEER, head(), body, soon()).await.unwrap().body
            };
            tokio::spawn(call)
        })
        .collect();
    // They are answered in the opposite order.
    let mut arrived = Vec::new();
    for _ in 0..CALLS {
        arrived.push(pair.arrived.recv().await.unwrap());
    }
    for mut call in arrived.into_iter().rev() {
        let (_, body, _) = call.read().await.unwrap();
        call.finish(outcome(b""), body).await.unwrap();
    }
    for (number, call) in calling.into_iter().enumerate() {
        assert_eq!(call.await.unwrap(), (number as u32).to_be_bytes().as_slice());
    }
    pair.opened.recv().await.unwrap();
    assert!(pair.opened.try_recv().is_err(), "one connection serves all calls");
}
