//! Checks on a whole frame before the codec sees it: frames that rmqtt-codec 0.3.1 accepts although the standard
//! forbids them, and frames that it refuses although the standard allows them.

use super::DecodeError;
use crate::message::Version;

/// Position of a packet in the read buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub first_byte: u8,
    /// Bytes of the fixed header.
    pub header_bytes: usize,
    /// Bytes of the whole packet.
    pub total_bytes: usize,
}

/// Changes to a frame so that the codec accepts it; the decoder undoes them in the result.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Patched {
    /// A Message Expiry Interval of 0, legal, went in as 1.
    pub expiry_zero: bool,
    /// Clean Start 0 with an empty client identifier, legal in MQTT 5, went in as Clean Start 1.
    pub not_clean_start: bool,
    /// The protocol level of a bridge, which no specification has, went in as that of MQTT 3.1.1.
    pub bridge: bool,
}

/// MQTT 3.1.1 with the bit that marks bridges: an extension of mosquitto that other brokers have, too.
const BRIDGE_LEVEL: u8 = 0x84;

const MESSAGE_EXPIRY: u8 = 0x02;
const TOPIC_ALIAS: u8 = 0x23;
const AUTHENTICATION_METHOD: u8 = 0x15;
const AUTHENTICATION_DATA: u8 = 0x16;
const SUBSCRIPTION_IDENTIFIER: u8 = 0x0b;
const RECEIVE_MAXIMUM: u8 = 0x21;
const USER_PROPERTY: u8 = 0x26;
const MAXIMUM_PACKET_SIZE: u8 = 0x27;

// The properties that a client's packets may have (MQTT 5, table 2-4).
const CONNECT: [u8; 9] = [
    0x11,
    AUTHENTICATION_METHOD,
    AUTHENTICATION_DATA,
    0x17,
    0x19,
    RECEIVE_MAXIMUM,
    0x22,
    USER_PROPERTY,
    MAXIMUM_PACKET_SIZE,
];
const WILL_PROPERTIES: [u8; 7] = [0x01, MESSAGE_EXPIRY, 0x03, 0x08, 0x09, 0x18, USER_PROPERTY];
/// Properties of a PUBLISH. A client must not send a subscription identifier; the decoder reports it.
const PUBLISH: [u8; 8] =
    [0x01, MESSAGE_EXPIRY, 0x03, 0x08, 0x09, SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS, USER_PROPERTY];
const SUBSCRIBE: [u8; 2] = [SUBSCRIPTION_IDENTIFIER, USER_PROPERTY];
const ACKNOWLEDGEMENT: [u8; 2] = [0x1f, USER_PROPERTY];
const DISCONNECT: [u8; 4] = [0x11, 0x1c, 0x1f, USER_PROPERTY];
const AUTH: [u8; 4] = [AUTHENTICATION_METHOD, AUTHENTICATION_DATA, 0x1f, USER_PROPERTY];

/// Finds the next frame. `None` while its fixed header is not complete.
pub(super) fn peek(bytes: &[u8]) -> Result<Option<Frame>, DecodeError> {
    let Some(&first_byte) = bytes.first() else { return Ok(None) };
    let mut remaining = 0;
    for (index, &byte) in bytes[1..].iter().take(4).enumerate() {
        remaining |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            if byte == 0 && index > 0 {
                // MQTT-1.5.5-1
                return Err(DecodeError::malformed(
                    "packet",
                    "its remaining length takes more bytes than needed",
                ));
            }
            let header_bytes = index + 2;
            return Ok(Some(Frame { first_byte, header_bytes, total_bytes: header_bytes + remaining }));
        }
    }
    if bytes.len() > 4 {
        return Err(DecodeError::malformed("packet", "its remaining length takes more than 4 bytes"));
    }
    Ok(None)
}

/// The version CONNECT asks for, from the start of its frame. `None` while there are too few bytes.
pub(super) fn version(frame: Frame, bytes: &[u8]) -> Result<Option<Version>, DecodeError> {
    if frame.first_byte != 0x10 {
        return Err(DecodeError::NotConnect);
    }
    let body = &bytes[frame.header_bytes..bytes.len().min(frame.total_bytes)];
    for name in [&b"\x00\x04MQTT"[..], b"\x00\x06MQIsdp"] {
        let known = body.len().min(name.len());
        if body[..known] != name[..known] {
            continue;
        }
        return match body.get(name.len()) {
            Some(&(4 | BRIDGE_LEVEL)) if name.len() == 6 => Ok(Some(Version::V311)),
            Some(5) if name.len() == 6 => Ok(Some(Version::V5)),
            Some(&level) => Err(DecodeError::UnsupportedVersion { level }),
            None if bytes.len() < frame.total_bytes => Ok(None),
            None => Err(DecodeError::NotConnect),
        };
    }
    Err(DecodeError::NotConnect)
}

/// Checks a complete frame and adapts it to the codec; `packet` is the frame with its fixed header.
pub(super) fn check(frame: Frame, packet: &mut [u8], version: Version) -> Result<Patched, DecodeError> {
    let flags = frame.first_byte & 0x0f;
    let body = &mut packet[frame.header_bytes..];
    let (name, wanted_flags) = match frame.first_byte >> 4 {
        3 => return publish(flags, body, version),
        1 => ("CONNECT", 0),
        4 => ("PUBACK", 0),
        5 => ("PUBREC", 0),
        6 => ("PUBREL", 2),
        7 => ("PUBCOMP", 0),
        8 => ("SUBSCRIBE", 2),
        10 => ("UNSUBSCRIBE", 2),
        12 => ("PINGREQ", 0),
        14 => ("DISCONNECT", 0),
        15 if version == Version::V5 => ("AUTH", 0),
        2 | 9 | 11 | 13 => return Err(DecodeError::protocol("packet", "its type is for servers only")),
        _ => return Err(DecodeError::malformed("packet", "its type is reserved")),
    };
    if flags != wanted_flags {
        return Err(DecodeError::malformed(
            name,
            format!("its flags are {flags:#x}, not {wanted_flags:#x}"),
        ));
    }
    match (name, version) {
        ("CONNECT", _) => return connect(body, version),
        ("PINGREQ", _) | ("DISCONNECT", Version::V311) if !body.is_empty() => {
            return Err(DecodeError::malformed(name, "it has a body"));
        }
        ("SUBSCRIBE", _) => subscribe(body, version)?,
        ("UNSUBSCRIBE", _) => unsubscribe(body, version)?,
        ("PINGREQ", _) => {}
        (_, Version::V5) => acknowledgement(body, name)?,
        _ => {}
    }
    Ok(Patched::default())
}

/// Position of the Message Expiry Interval in an encoded PUBLISH, if it has one.
pub(super) fn expiry_position(packet: &mut [u8]) -> Option<usize> {
    let frame = peek(packet).ok()??;
    let mut at = None;
    let mut walk = Walk { bytes: packet, at: frame.header_bytes, packet: "PUBLISH" };
    walk.prefixed().ok()?;
    if frame.first_byte & 0b110 != 0 {
        walk.skip(2).ok()?;
    }
    let length = walk.varint().ok()?;
    let end = walk.at + length;
    while walk.at < end {
        let (identifier, start) = walk.property().ok()?;
        if identifier == MESSAGE_EXPIRY {
            at = Some(start);
        }
    }
    at
}

fn publish(flags: u8, body: &mut [u8], version: Version) -> Result<Patched, DecodeError> {
    let qos = (flags >> 1) & 3;
    if qos == 3 {
        return Err(DecodeError::malformed("PUBLISH", "its QoS is 3"));
    }
    if qos == 0 && flags & 8 != 0 {
        return Err(DecodeError::malformed("PUBLISH", "DUP is set with QoS 0"));
    }
    let mut patched = Patched::default();
    let mut walk = Walk { bytes: body, at: 0, packet: "PUBLISH" };
    let topic_bytes = walk.text()?;
    if qos > 0 && walk.u16()? == 0 {
        return Err(DecodeError::malformed("PUBLISH", "its packet identifier is 0"));
    }
    let mut alias = false;
    if version == Version::V5 {
        walk.properties(&PUBLISH, |identifier, value| {
            match identifier {
                MESSAGE_EXPIRY if value == [0; 4] => {
                    value[3] = 1;
                    patched.expiry_zero = true;
                }
                TOPIC_ALIAS if value == [0; 2] => return Err(DecodeError::TopicAlias),
                TOPIC_ALIAS => alias = true,
                _ => {}
            }
            Ok(())
        })?;
        if topic_bytes == 0 && !alias {
            return Err(DecodeError::protocol("PUBLISH", "it has neither a topic nor a topic alias"));
        }
    }
    Ok(patched)
}

fn connect(body: &mut [u8], version: Version) -> Result<Patched, DecodeError> {
    const WILL: u8 = 0x04;
    let mut patched = Patched::default();
    if let Some(level) = body.get_mut(6).filter(|level| **level == BRIDGE_LEVEL) {
        *level = 4;
        patched.bridge = true;
    }
    let mut walk = Walk { bytes: body, at: 0, packet: "CONNECT" };
    walk.skip(7)?; // name and level, known from `version`
    let flags_at = walk.at;
    let flags = walk.u8()?;
    if flags & 1 != 0 {
        return Err(DecodeError::malformed("CONNECT", "its reserved flag is set"));
    }
    if flags & WILL == 0 && flags & 0x38 != 0 {
        return Err(DecodeError::malformed("CONNECT", "it has a will QoS or will retain without a will"));
    }
    if flags & 0x18 == 0x18 {
        return Err(DecodeError::malformed("CONNECT", "its will QoS is 3"));
    }
    if version == Version::V311 && flags & 0xc0 == 0x40 {
        return Err(DecodeError::malformed("CONNECT", "it has a password without a user name"));
    }
    walk.skip(2)?; // keepalive
    if version == Version::V5 {
        let (mut method, mut data) = (false, false);
        walk.properties(&CONNECT, |identifier, _| {
            method |= identifier == AUTHENTICATION_METHOD;
            data |= identifier == AUTHENTICATION_DATA;
            Ok(())
        })?;
        if data && !method {
            return Err(DecodeError::protocol("CONNECT", "it has authentication data without a method"));
        }
    }
    let client_id_bytes = walk.text()?;
    if client_id_bytes == 0 && flags & 2 == 0 {
        if version == Version::V311 {
            return Err(DecodeError::ClientIdRejected);
        }
        walk.bytes[flags_at] |= 2;
        patched.not_clean_start = true;
    }
    if flags & WILL != 0 {
        if version == Version::V5 {
            walk.properties(&WILL_PROPERTIES, |identifier, value| {
                if identifier == MESSAGE_EXPIRY && value == [0; 4] {
                    value[3] = 1;
                    patched.expiry_zero = true;
                }
                Ok(())
            })?;
        }
        walk.text()?; // topic
        walk.prefixed()?; // payload
    }
    if flags & 0x80 != 0 {
        walk.text()?; // user name
    }
    if flags & 0x40 != 0 {
        walk.prefixed()?; // password
    }
    if walk.at < walk.bytes.len() {
        return Err(DecodeError::malformed("CONNECT", "bytes follow its last field"));
    }
    Ok(patched)
}

fn subscribe(body: &mut [u8], version: Version) -> Result<(), DecodeError> {
    let mut walk = Walk { bytes: body, at: 0, packet: "SUBSCRIBE" };
    walk.skip(2)?;
    if version == Version::V5 {
        walk.properties(&SUBSCRIBE, |identifier, value| match (identifier, value) {
            (SUBSCRIPTION_IDENTIFIER, [0]) => {
                Err(DecodeError::protocol("SUBSCRIBE", "its subscription identifier is 0"))
            }
            _ => Ok(()),
        })?;
    }
    while walk.at < walk.bytes.len() {
        walk.text()?;
        let options = walk.u8()?;
        let reserved = if version == Version::V5 { 0xc0 } else { 0xfc };
        if options & reserved != 0 {
            return Err(DecodeError::malformed("SUBSCRIBE", "reserved bits of its options are set"));
        }
        // MQTT 3.1.1 calls it malformed as well (MQTT-3-8.3-4); it hears no reason anyway.
        if options & 3 == 3 {
            return Err(DecodeError::protocol("SUBSCRIBE", "its requested QoS is 3"));
        }
        if options & 0x30 == 0x30 {
            return Err(DecodeError::protocol("SUBSCRIBE", "its Retain Handling is 3"));
        }
    }
    Ok(())
}

fn unsubscribe(body: &mut [u8], version: Version) -> Result<(), DecodeError> {
    let mut walk = Walk { bytes: body, at: 0, packet: "UNSUBSCRIBE" };
    walk.skip(2)?;
    if version == Version::V5 {
        walk.properties(&[USER_PROPERTY], |_, _| Ok(()))?;
    }
    while walk.at < walk.bytes.len() {
        walk.text()?;
    }
    Ok(())
}

/// PUBACK, PUBREC, PUBREL, PUBCOMP, DISCONNECT and AUTH: reason code and properties may be missing.
fn acknowledgement(body: &mut [u8], packet: &'static str) -> Result<(), DecodeError> {
    let (fixed, allowed): (usize, &[u8]) = match packet {
        "DISCONNECT" => (1, &DISCONNECT),
        "AUTH" => (1, &AUTH),
        _ => (3, &ACKNOWLEDGEMENT),
    };
    if body.len() <= fixed {
        return Ok(());
    }
    let mut walk = Walk { bytes: body, at: fixed, packet };
    walk.properties(allowed, |_, _| Ok(()))
}

/// Reads fields one after another.
struct Walk<'a> {
    bytes: &'a mut [u8],
    at: usize,
    packet: &'static str,
}

impl Walk<'_> {
    fn skip(&mut self, bytes: usize) -> Result<(), DecodeError> {
        if self.bytes.len() - self.at < bytes {
            return Err(DecodeError::malformed(self.packet, "it ends within a field"));
        }
        self.at += bytes;
        Ok(())
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.skip(1)?;
        Ok(self.bytes[self.at - 1])
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.skip(2)?;
        Ok(u16::from_be_bytes([self.bytes[self.at - 2], self.bytes[self.at - 1]]))
    }

    /// Skips a field with a two-byte length and says how long it is.
    fn prefixed(&mut self) -> Result<usize, DecodeError> {
        let length = usize::from(self.u16()?);
        self.skip(length)?;
        Ok(length)
    }

    /// Skips a string and says how long it is. It has no null character (MQTT-1.5.4-2).
    fn text(&mut self) -> Result<usize, DecodeError> {
        let length = self.prefixed()?;
        if self.bytes[self.at - length..self.at].contains(&0) {
            return Err(DecodeError::malformed(self.packet, "a string has a null character"));
        }
        Ok(length)
    }

    fn varint(&mut self) -> Result<usize, DecodeError> {
        let mut value = 0;
        for index in 0..4 {
            let byte = self.u8()?;
            value |= usize::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                if byte == 0 && index > 0 {
                    // MQTT-1.5.5-1
                    return Err(DecodeError::malformed(
                        self.packet,
                        "a number takes more bytes than needed",
                    ));
                }
                return Ok(value);
            }
        }
        Err(DecodeError::malformed(self.packet, "a number takes more than 4 bytes"))
    }

    /// Goes through a property section: those of `allowed`, each once, except for user properties.
    fn properties(
        &mut self,
        allowed: &[u8],
        mut visit: impl FnMut(u8, &mut [u8]) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        let length = self.varint()?;
        let end = self.at + length;
        if end > self.bytes.len() {
            return Err(DecodeError::malformed(self.packet, "its properties are longer than the packet"));
        }
        let mut seen = 0u64;
        while self.at < end {
            let (identifier, start) = self.property()?;
            if self.at > end {
                return Err(DecodeError::malformed(self.packet, "a property is longer than its section"));
            }
            if !allowed.contains(&identifier) {
                let problem = format!("property {identifier:#04x} does not belong there");
                return Err(DecodeError::malformed(self.packet, problem));
            }
            // Identifiers of properties are below 64.
            let bit = 1u64 << (identifier & 63);
            if identifier != USER_PROPERTY && seen & bit != 0 {
                let problem = format!("property {identifier:#04x} is there more than once");
                return Err(DecodeError::protocol(self.packet, problem));
            }
            seen |= bit;
            let value = &mut self.bytes[start..self.at];
            let wrong = match identifier {
                0x01 | 0x17 | 0x19 => value[0] > 1,
                RECEIVE_MAXIMUM | MAXIMUM_PACKET_SIZE => value.iter().all(|byte| *byte == 0),
                _ => false,
            };
            if wrong {
                let problem = format!("property {identifier:#04x} has a value that is not allowed");
                return Err(DecodeError::protocol(self.packet, problem));
            }
            visit(identifier, value)?;
        }
        Ok(())
    }

    /// Skips a property: its identifier, and where its value begins.
    fn property(&mut self) -> Result<(u8, usize), DecodeError> {
        let identifier = self.u8()?;
        let start = self.at;
        match identifier {
            0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28 | 0x29 | 0x2a => self.skip(1)?,
            0x13 | RECEIVE_MAXIMUM | 0x22 | TOPIC_ALIAS => self.skip(2)?,
            MESSAGE_EXPIRY | 0x11 | 0x18 | MAXIMUM_PACKET_SIZE => self.skip(4)?,
            SUBSCRIPTION_IDENTIFIER => self.varint().map(drop)?,
            0x09 | AUTHENTICATION_DATA => self.prefixed().map(drop)?,
            0x03 | 0x08 | 0x12 | AUTHENTICATION_METHOD | 0x1a | 0x1c | 0x1f => self.text().map(drop)?,
            USER_PROPERTY => {
                self.text()?;
                self.text()?;
            }
            _ => {
                let problem = format!("property {identifier:#04x} does not exist");
                return Err(DecodeError::malformed(self.packet, problem));
            }
        }
        Ok((identifier, start))
    }
}
