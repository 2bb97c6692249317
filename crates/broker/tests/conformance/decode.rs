//! Packets of the broker, decoded by the letter of the standard: what a server must not send fails the test.

/// A packet from the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet {
    ConnAck(ConnAck),
    Publish(Publish),
    /// PUBACK, PUBREC, PUBREL or PUBCOMP: packet type 4 to 7.
    Ack {
        kind: u8,
        id: u16,
        reason: u8,
        properties: Properties,
    },
    SubAck {
        id: u16,
        reasons: Vec<u8>,
        properties: Properties,
    },
    UnsubAck {
        id: u16,
        reasons: Vec<u8>,
        properties: Properties,
    },
    PingResp,
    Disconnect {
        reason: u8,
        properties: Properties,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnAck {
    pub session_present: bool,
    pub reason: u8,
    pub properties: Properties,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    pub dup: bool,
    pub qos: u8,
    pub retain: bool,
    pub topic: String,
    /// 0 for QoS 0.
    pub id: u16,
    pub properties: Properties,
    pub payload: Vec<u8>,
}

impl Publish {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.payload).expect("a payload of text")
    }
}

/// Properties in order: identifier and encoded value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Properties(pub Vec<(u8, Vec<u8>)>);

impl Properties {
    pub fn get(&self, identifier: u8) -> Option<&[u8]> {
        self.0.iter().find(|(found, _)| *found == identifier).map(|(_, value)| &value[..])
    }

    /// Of a property of 1, 2 or 4 bytes.
    pub fn number(&self, identifier: u8) -> Option<u32> {
        self.get(identifier)
            .map(|value| value.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
    }

    /// Of a string or binary property.
    pub fn bytes(&self, identifier: u8) -> Option<&[u8]> {
        self.get(identifier).map(|value| &value[2..])
    }

    /// User properties, in order.
    pub fn user(&self) -> Vec<(String, String)> {
        let pairs = self.0.iter().filter(|(identifier, _)| *identifier == 0x26);
        let pair = |(_, value): &(u8, Vec<u8>)| {
            let mut cursor = Cursor { bytes: value };
            (cursor.text(), cursor.text())
        };
        pairs.map(pair).collect()
    }

    /// Subscription identifiers, sorted.
    pub fn subscriptions(&self) -> Vec<u32> {
        let found = self.0.iter().filter(|(identifier, _)| *identifier == 0x0b);
        let mut found: Vec<u32> = found.map(|(_, value)| Cursor { bytes: value }.varint()).collect();
        found.sort_unstable();
        found
    }
}

/// Decodes one whole packet. `level` is that of the connection.
pub fn decode(first_byte: u8, body: &[u8], level: u8) -> Packet {
    let mut cursor = Cursor { bytes: body };
    let flags = first_byte & 15;
    let kind = first_byte >> 4;
    if kind != 3 {
        assert_eq!(flags, if kind == 6 { 2 } else { 0 }, "reserved flags of packet type {kind}");
    }
    let v5 = level == 5;
    let packet = match kind {
        2 => {
            let flags = cursor.u8();
            assert_eq!(flags & !1, 0, "reserved bits of the CONNACK flags");
            let (session_present, reason) = (flags == 1, cursor.u8());
            let properties = if v5 { cursor.properties(2) } else { Properties::default() };
            assert!(!(session_present && reason != 0), "Session Present 1 in a refusal");
            if v5 {
                assert!(CONNACK_REASONS.contains(&reason), "{reason:#x} is no reason of CONNACK");
            } else {
                assert!(reason <= 5, "{reason} is not a return code of CONNACK");
            }
            Packet::ConnAck(ConnAck { session_present, reason, properties })
        }
        3 => publish(flags, &mut cursor, v5),
        4..=7 => ack(kind, &mut cursor, v5),
        9 => {
            let id = cursor.id();
            let properties = if v5 { cursor.properties(9) } else { Properties::default() };
            let reasons = cursor.rest().to_vec();
            let known: &[u8] = if v5 { SUBACK_REASONS } else { &[0, 1, 2, 0x80] };
            assert!(reasons.iter().all(|reason| known.contains(reason)), "SUBACK with {reasons:x?}");
            Packet::SubAck { id, reasons, properties }
        }
        11 => {
            let id = cursor.id();
            let properties = if v5 { cursor.properties(11) } else { Properties::default() };
            let reasons = cursor.rest().to_vec();
            let known: &[u8] = if v5 { &[0, 0x11, 0x80, 0x83, 0x87, 0x8f, 0x91] } else { &[] };
            assert!(reasons.iter().all(|reason| known.contains(reason)), "UNSUBACK with {reasons:x?}");
            Packet::UnsubAck { id, reasons, properties }
        }
        13 => Packet::PingResp,
        14 => {
            assert!(v5, "a server of MQTT 3.1.1 sends no DISCONNECT");
            let reason = if cursor.bytes.is_empty() { 0 } else { cursor.u8() };
            let properties =
                if cursor.bytes.is_empty() { Properties::default() } else { cursor.properties(14) };
            assert!(
                DISCONNECT_REASONS.contains(&reason),
                "{reason:#x} is no reason of a server's DISCONNECT"
            );
            Packet::Disconnect { reason, properties }
        }
        _ => panic!("a server does not send packet type {kind}"),
    };
    assert!(cursor.bytes.is_empty(), "bytes after the end of {packet:?}");
    packet
}

/// The number of a variable byte integer that has just been read, and that it was not longer than needed.
pub fn checked_varint(bytes: &[u8]) -> u32 {
    let number = bytes.iter().rev().fold(0, |number, byte| number << 7 | u32::from(byte & 127));
    assert!(bytes.len() == 1 || bytes.last() != Some(&0), "{bytes:x?} is longer than needed");
    number
}

const CONNACK_REASONS: &[u8] = &[
    0, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x8c, 0x90, 0x95, 0x97, 0x99,
    0x9a, 0x9b, 0x9c, 0x9d, 0x9f,
];
const SUBACK_REASONS: &[u8] = &[0, 1, 2, 0x80, 0x83, 0x87, 0x8f, 0x91, 0x97, 0x9e, 0xa1, 0xa2];
const DISCONNECT_REASONS: &[u8] = &[
    0, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8b, 0x8d, 0x8e, 0x8f, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97,
    0x98, 0x99, 0x9a, 0x9b, 0x9c, 0x9d, 0x9e, 0x9f, 0xa0, 0xa1, 0xa2,
];
const PUBACK_REASONS: &[u8] = &[0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99];

fn publish(flags: u8, cursor: &mut Cursor<'_>, v5: bool) -> Packet {
    let (dup, qos, retain) = (flags & 8 != 0, flags >> 1 & 3, flags & 1 != 0);
    assert!(qos < 3, "QoS 3");
    assert!(!(dup && qos == 0), "DUP with QoS 0");
    let topic = cursor.text();
    assert!(!topic.contains(['+', '#']), "the topic {topic} has a wildcard");
    let id = if qos > 0 { cursor.id() } else { 0 };
    let properties = if v5 { cursor.properties(3) } else { Properties::default() };
    let payload = cursor.rest().to_vec();
    Packet::Publish(Publish { dup, qos, retain, topic, id, properties, payload })
}

fn ack(kind: u8, cursor: &mut Cursor<'_>, v5: bool) -> Packet {
    let id = cursor.id();
    let (mut reason, mut properties) = (0, Properties::default());
    if v5 && !cursor.bytes.is_empty() {
        reason = cursor.u8();
        if !cursor.bytes.is_empty() {
            properties = cursor.properties(kind);
        }
    }
    let known = if kind < 6 { PUBACK_REASONS } else { &[0, 0x92] };
    assert!(known.contains(&reason), "{reason:#x} is no reason of packet type {kind}");
    Packet::Ack { kind, id, reason, properties }
}

/// Which properties a server may send in which packet, and whether more than once.
fn allowed(identifier: u8, kind: u8) -> Option<bool> {
    let once = match kind {
        2 => matches!(
            identifier,
            0x11 | 0x12 | 0x13 | 0x15 | 0x16 | 0x1a | 0x1c | 0x1f | 0x21 | 0x22 | 0x24 | 0x25 | 0x27..=0x2a
        ),
        3 if identifier == 0x0b => return Some(true),
        3 => matches!(identifier, 0x01 | 0x02 | 0x03 | 0x08 | 0x09 | 0x23),
        // Session Expiry Interval is for clients only.
        14 => matches!(identifier, 0x1c | 0x1f),
        _ => identifier == 0x1f,
    };
    if identifier == 0x26 { Some(true) } else { once.then_some(false) }
}

struct Cursor<'a> {
    bytes: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) =
            self.bytes.split_at_checked(bytes).expect("the packet is as long as its fields");
        self.bytes = rest;
        taken
    }

    fn rest(&mut self) -> &'a [u8] {
        self.take(self.bytes.len())
    }

    fn u8(&mut self) -> u8 {
        self.take(1)[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().expect("2 bytes"))
    }

    fn id(&mut self) -> u16 {
        let id = self.u16();
        assert_ne!(id, 0, "a packet identifier of 0");
        id
    }

    fn varint(&mut self) -> u32 {
        let length =
            self.bytes.iter().take(4).position(|byte| byte & 128 == 0).expect("4 bytes at most") + 1;
        checked_varint(self.take(length))
    }

    fn text(&mut self) -> String {
        let length = self.u16();
        let text = std::str::from_utf8(self.take(length.into())).expect("UTF-8");
        assert!(!text.contains('\0'), "U+0000 in {text:?}");
        text.to_owned()
    }

    fn properties(&mut self, kind: u8) -> Properties {
        let length = self.varint() as usize;
        let mut section = Cursor { bytes: self.take(length) };
        let mut found: Vec<(u8, Vec<u8>)> = Vec::new();
        while !section.bytes.is_empty() {
            let identifier = section.u8();
            let start = section.bytes;
            match identifier {
                0x01 | 0x24 | 0x25 | 0x28 | 0x29 | 0x2a => assert!(section.u8() <= 1, "a flag over 1"),
                0x13 | 0x22 => drop(section.u16()),
                0x21 | 0x23 => assert_ne!(section.u16(), 0, "property {identifier:#x} of 0"),
                0x02 | 0x11 => drop(section.take(4)),
                0x27 => assert_ne!(section.take(4), [0; 4], "a maximum packet size of 0"),
                0x0b => assert_ne!(section.varint(), 0, "a subscription identifier of 0"),
                0x09 | 0x16 => {
                    let length = section.u16();
                    section.take(length.into());
                }
                0x03 | 0x08 | 0x12 | 0x15 | 0x1a | 0x1c | 0x1f => drop(section.text()),
                0x26 => drop((section.text(), section.text())),
                _ => panic!("property {identifier:#x} does not exist"),
            }
            let many = allowed(identifier, kind)
                .unwrap_or_else(|| panic!("property {identifier:#x} in packet type {kind}"));
            let again = found.iter().any(|(before, _)| *before == identifier);
            assert!(many || !again, "property {identifier:#x} twice");
            let value = &start[..start.len() - section.bytes.len()];
            found.push((identifier, value.to_vec()));
        }
        Properties(found)
    }
}
