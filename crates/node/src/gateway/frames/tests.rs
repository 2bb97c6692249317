use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const CONTINUATION: u8 = 0;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const FINAL: u8 = 0x80;

/// A masked frame, as clients send them.
fn frame(first: u8, mask: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut frame = BytesMut::new();
    put_frame(&mut frame, OpCode::Data(Data::Binary), payload);
    frame[0] = first;
    frame[1] |= 0x80;
    let mut masked = payload.to_vec();
    masked.iter_mut().zip(mask.into_iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    let head = frame.len() - payload.len();
    [&frame[..head], &mask, &masked].concat()
}

proptest! {
    #[test]
    fn the_decoder_returns_the_sent_payloads_for_any_split_of_the_input(
        messages in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..300), any::<[u8; 4]>(), any::<bool>()), 0..8),
        cuts in prop::collection::vec(1_usize..80, 1..20),
    ) {
        let (mut sent, mut expected, mut in_message) = (Vec::new(), Vec::new(), false);
        for (payload, mask, is_final) in &messages {
            let kind = if in_message { CONTINUATION } else { BINARY };
            sent.extend(frame(kind | if *is_final { FINAL } else { 0 }, *mask, payload));
            // Pings may arrive between the frames of a message.
            sent.extend(frame(FINAL | PING, *mask, b"p"));
            expected.extend_from_slice(payload);
            in_message = !is_final;
        }
        let (mut decoder, mut input, mut got, mut pings) = (Decoder::default(), BytesMut::new(), Vec::new(), 0);
        let (mut rest, mut cuts) = (&sent[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let cut = rest.len().min(*cuts.next().unwrap());
            input.extend_from_slice(&rest[..cut]);
            rest = &rest[cut..];
            loop {
                match decoder.next(&mut input) {
                    Step::NeedsInput => break,
                    Step::Payload(bytes) => got.extend_from_slice(&input.split_to(bytes)),
                    Step::Ping(payload) => { prop_assert_eq!(&payload[..], b"p"); pings += 1; }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
        prop_assert_eq!(got, expected);
        prop_assert_eq!(pings, messages.len());
    }

    #[test]
    fn the_decoder_ends_without_a_panic_for_any_input(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (mut decoder, mut input) = (Decoder::default(), BytesMut::from(&bytes[..]));
        for _ in 0..=bytes.len() {
            match decoder.next(&mut input) {
                Step::Payload(bytes) => input.advance(bytes),
                Step::Ping(_) | Step::Pong => {}
                Step::NeedsInput | Step::Close(_) | Step::Violation(..) => return Ok(()),
            }
        }
        prop_assert!(false, "the decoder does not end");
    }
}

#[tokio::test]
async fn the_stream_answers_a_ping_and_a_close_with_unmasked_frames() {
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let mut stream = PacketStream::new(server);
    let sent = [
        frame(FINAL | BINARY, [1, 2, 3, 4], b"ab"),
        frame(FINAL | PING, [5, 6, 7, 8], b"p"),
        frame(FINAL | CLOSE, [9; 4], b"\x03\xe9bye"),
    ];
    client.write_all(&sent.concat()).await.unwrap();
    let mut received = Vec::new();
    stream.write_all(&[7; 126]).await.unwrap();
    stream.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"ab");
    stream.shutdown().await.unwrap();
    drop(stream);
    let mut answered = Vec::new();
    client.read_to_end(&mut answered).await.unwrap();
    let data = [b"\x82\x7e\0\x7e".as_slice(), &[7; 126]].concat();
    assert_eq!(answered, [&data[..], b"\x8a\x01p", b"\x88\x02\x03\xe9"].concat());
}

#[test]
fn valid_close_statuses_are_accepted() {
    for status in [1000_u16, 1001, 1003, 1007, 1011, 3000, 4999] {
        let close = frame(FINAL | CLOSE, [0; 4], &status.to_be_bytes());
        let found = Decoder::default().next(&mut BytesMut::from(&close[..]));
        assert_eq!(found, Step::Close(Bytes::copy_from_slice(&status.to_be_bytes())));
    }
}

#[test]
fn each_protocol_violation_has_its_close_status() {
    for (bytes, status) in [
        (&b"\x82\x01x"[..], CloseCode::Protocol),
        (b"\xc2\x80\0\0\0\0", CloseCode::Protocol),
        (b"\x80\x80\0\0\0\0", CloseCode::Protocol),
        (b"\x02\x80\0\0\0\0\x82\x80\0\0\0\0", CloseCode::Protocol),
        (b"\x09\x80\0\0\0\0", CloseCode::Protocol),
        (b"\x89\xfe\0\x7e\0\0\0\0", CloseCode::Protocol),
        (b"\x88\x81\0\0\0\0x", CloseCode::Protocol),
        (b"\x83\x80\0\0\0\0", CloseCode::Protocol),
        (b"\x82\xff\x80\0\0\0\0\0\0\0\0\0\0\0", CloseCode::Protocol),
        (b"\x81\x80\0\0\0\0", CloseCode::Unsupported),
        (b"\x88\x82\0\0\0\0\x03\xe7", CloseCode::Protocol), // 999
        (b"\x88\x82\0\0\0\0\x03\xec", CloseCode::Protocol), // 1004
        (b"\x88\x82\0\0\0\0\x03\xed", CloseCode::Protocol), // 1005
        (b"\x88\x82\0\0\0\0\x03\xee", CloseCode::Protocol), // 1006
        (b"\x88\x82\0\0\0\0\x13\x88", CloseCode::Protocol), // 5000
        (b"\x88\x83\0\0\0\0\x03\xe8\xff", CloseCode::Invalid),
    ] {
        let found = Decoder::default().next(&mut BytesMut::from(bytes));
        assert!(matches!(found, Step::Violation(found, _) if found == status), "{bytes:?}: {found:?}");
    }
}

/// A stack of 64 KiB is enough for any number of empty frames, in one message or in many.
#[test]
fn empty_frames_use_no_stack() {
    let messages = frame(FINAL | BINARY, [1, 2, 3, 4], b"").repeat(100_000);
    let pieces =
        [frame(BINARY, [1, 2, 3, 4], b""), frame(CONTINUATION, [1, 2, 3, 4], b"").repeat(100_000)].concat();
    for sent in [messages, pieces] {
        let run = move || {
            let (mut decoder, mut input) = (Decoder::default(), BytesMut::from(&sent[..]));
            assert_eq!(decoder.next(&mut input), Step::NeedsInput);
            assert!(input.is_empty());
        };
        std::thread::Builder::new().stack_size(64 << 10).spawn(run).unwrap().join().unwrap();
    }
}
