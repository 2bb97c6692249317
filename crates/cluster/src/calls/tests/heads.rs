//! Heads of hostile members.

use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::calls::message::Head;

#[test]
fn a_head_is_checked() {
    assert_eq!(head().check(), Ok(()));
    let long = "x".repeat(256);
    let bad = [
        ("id", CallHead { id: String::new(), ..head() }),
        ("id", CallHead { id: "a b".into(), ..head() }),
        ("id", CallHead { id: "x".repeat(129), ..head() }),
        ("function", CallHead { function: long.clone(), ..head() }),
        ("function", CallHead { function: "a\nb".into(), ..head() }),
        ("app", CallHead { app: String::new(), ..head() }),
        ("principal", CallHead { principal: vec![0; 65 << 10].into(), ..head() }),
        ("trace_parent", CallHead { trace_parent: Some("00-\u{e9}".into()), ..head() }),
        ("parent", CallHead { parent: Some(String::new()), ..head() }),
        ("attempt", CallHead { attempt: 0, ..head() }),
        ("depth", CallHead { depth: 256, ..head() }),
        ("hops", CallHead { hops: 0, ..head() }),
        ("root", CallHead { root: Some("a b".into()), ..head() }),
        ("entry_zone", CallHead { entry_zone: long, ..head() }),
    ];
    for (field, head) in bad {
        assert_eq!(head.check(), Err(HeadError::Field { field }));
    }
    let spans = Bytes::from(vec![0; (64 << 10) + 1]);
    let outcome = OutcomeHead { spans, ..OutcomeHead::default() };
    assert_eq!(outcome.check(), Err(HeadError::Field { field: "spans" }));
}

/// The reader's answer to these bytes, in pieces of this size.
async fn read(bytes: Vec<u8>, piece_bytes: usize) -> Result<(CallHead, Bytes), IncomingError> {
    let (near, far) = duplex(1 << 20);
    let (arrival, mut arrived) = mpsc::unbounded_channel();
    let limits = CallLimits { body_bytes: 10_000, stall: Duration::from_secs(1), ..CallLimits::default() };
    let serving = tokio::spawn(serve(far, 1, limits, move |call| drop(arrival.send(call))));
    let (requests, driver) = h2::client::handshake(near).await.unwrap();
    let driving = tokio::spawn(driver);
    let request = http::Request::post("http://c/").body(()).unwrap();
    let mut requests = requests.ready().await.unwrap();
    let (_response, mut stream) = requests.send_request(request, false).unwrap();
    let mut bytes = Bytes::from(bytes);
    while !bytes.is_empty() {
        let piece = bytes.split_to(piece_bytes.min(bytes.len()));
        stream.send_data(piece, false).unwrap();
    }
    stream.send_data(Bytes::new(), true).unwrap();
    let mut call = arrived.recv().await.unwrap();
    let read = call.read().await.map(|(head, body, _)| (head, body));
    serving.abort();
    driving.abort();
    read
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_are_a_call_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..600), piece in 1_usize..200) {
        let _ = runtime().block_on(read(bytes, piece));
    }

    #[test]
    fn a_call_is_read_whatever_its_pieces_are(body in prop::collection::vec(any::<u8>(), 0..9000), piece in 50_usize..5000) {
        let sent = CallHead { body_bytes: body.len() as u64, ..head() };
        let mut bytes = (sent.encoded_len() as u32).to_be_bytes().to_vec();
        sent.encode(&mut bytes).unwrap();
        bytes.extend_from_slice(&body);
        let (head, read_body) = runtime().block_on(read(bytes.clone(), piece)).unwrap();
        prop_assert_eq!(head, sent);
        prop_assert_eq!(&read_body[..], &body[..]);
        // One byte more or less.
        bytes.push(0);
        prop_assert_eq!(
            runtime().block_on(read(bytes.clone(), piece)).unwrap_err(),
            IncomingError::Head(HeadError::TooMuchData)
        );
        bytes.truncate(bytes.len() - 2);
        let error = runtime().block_on(read(bytes, piece)).unwrap_err();
        prop_assert!(matches!(error, IncomingError::Head(HeadError::Incomplete | HeadError::Undecodable)), "{error:?}");
    }
}

#[tokio::test]
async fn long_heads_and_bodies_are_refused_unread() {
    let length = (MAX_HEAD_BYTES as u32 + 1).to_be_bytes().to_vec();
    let error = read(length, 100).await.unwrap_err();
    assert_eq!(error, HeadError::TooLong { actual_bytes: MAX_HEAD_BYTES + 1 }.into());
    let large = CallHead { body_bytes: u64::MAX, ..head() };
    let (bytes, _) = message::encode(&large, Bytes::new()).unwrap();
    let error = read(bytes.to_vec(), 100).await.unwrap_err();
    assert_eq!(error, HeadError::BodyTooLarge { actual_bytes: u64::MAX, limit_bytes: 10_000 }.into());
}
