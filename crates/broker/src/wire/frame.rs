//! Checks on a whole frame before the codec sees it: what rmqtt-codec 0.3.1 lets pass although the standard forbids
//! it, and what it refuses although the standard allows it.

use super::DecodeError;
use crate::message::Version;

/// Where a packet lies in the read buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub first_byte: u8,
    /// Bytes of the fixed header.
    pub header_bytes: usize,
    /// Bytes of the whole packet.
    pub total_bytes: usize,
}

/// What was changed in a frame so that the codec takes it; the decoder undoes it in the result.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Patched {
    /// A Message Expiry Interval of 0, legal, went in as 1.
    pub expiry_zero: bool,
    /// Clean Start 0 with an empty client identifier, legal in MQTT 5, went in as Clean Start 1.
    pub not_clean_start: bool,
}

const MESSAGE_EXPIRY: u8 = 0x02;
const TOPIC_ALIAS: u8 = 0x23;
const AUTHENTICATION_METHOD: u8 = 0x15;
const AUTHENTICATION_DATA: u8 = 0x16;

/// Finds the next frame. `None` while its fixed header is not complete.
pub(super) fn peek(bytes: &[u8]) -> Result<Option<Frame>, DecodeError> {
    let Some(&first_byte) = bytes.first() else { return Ok(None) };
    let mut remaining = 0;
    for (index, &byte) in bytes[1..].iter().take(4).enumerate() {
        remaining |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
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
            Some(4) if name.len() == 6 => Ok(Some(Version::V311)),
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
        ("SUBSCRIBE", Version::V311) => subscribe_v311(body)?,
        _ => {}
    }
    Ok(Patched::default())
}

/// Where the Message Expiry Interval of an encoded PUBLISH stands, if it has one.
pub(super) fn expiry_position(packet: &mut [u8]) -> Option<usize> {
    let frame = peek(packet).ok()??;
    let mut at = None;
    let mut walk = Walk { bytes: packet, at: frame.header_bytes, packet: "PUBLISH" };
    walk.prefixed().ok()?;
    if frame.first_byte & 0b110 != 0 {
        walk.skip(2).ok()?;
    }
    walk.properties(|identifier, start, _| {
        if identifier == MESSAGE_EXPIRY {
            at = Some(start);
        }
        Ok(())
    })
    .ok()?;
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
    walk.prefixed()?;
    if qos > 0 && walk.u16()? == 0 {
        return Err(DecodeError::malformed("PUBLISH", "its packet identifier is 0"));
    }
    if version == Version::V5 {
        walk.properties(|identifier, _, value| {
            match identifier {
                MESSAGE_EXPIRY if value == [0; 4] => {
                    value[3] = 1;
                    patched.expiry_zero = true;
                }
                TOPIC_ALIAS if value == [0; 2] => return Err(DecodeError::TopicAlias),
                _ => {}
            }
            Ok(())
        })?;
    }
    Ok(patched)
}

fn connect(body: &mut [u8], version: Version) -> Result<Patched, DecodeError> {
    const WILL: u8 = 0x04;
    let mut patched = Patched::default();
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
        walk.properties(|identifier, _, _| {
            method |= identifier == AUTHENTICATION_METHOD;
            data |= identifier == AUTHENTICATION_DATA;
            Ok(())
        })?;
        if data && !method {
            return Err(DecodeError::protocol("CONNECT", "it has authentication data without a method"));
        }
    }
    let client_id_bytes = walk.prefixed()?;
    if client_id_bytes == 0 && flags & 2 == 0 {
        if version == Version::V311 {
            return Err(DecodeError::ClientIdRejected);
        }
        walk.bytes[flags_at] |= 2;
        patched.not_clean_start = true;
    }
    if flags & WILL != 0 {
        if version == Version::V5 {
            walk.properties(|identifier, _, value| {
                if identifier == MESSAGE_EXPIRY && value == [0; 4] {
                    value[3] = 1;
                    patched.expiry_zero = true;
                }
                Ok(())
            })?;
        }
        walk.prefixed()?; // topic
        walk.prefixed()?; // payload
    }
    for flag in [0x80, 0x40] {
        if flags & flag != 0 {
            walk.prefixed()?; // user name, password
        }
    }
    if walk.at < walk.bytes.len() {
        return Err(DecodeError::malformed("CONNECT", "bytes follow its last field"));
    }
    Ok(patched)
}

fn subscribe_v311(body: &mut [u8]) -> Result<(), DecodeError> {
    let mut walk = Walk { bytes: body, at: 0, packet: "SUBSCRIBE" };
    walk.skip(2)?;
    while walk.at < walk.bytes.len() {
        walk.prefixed()?;
        if walk.u8()? > 2 {
            return Err(DecodeError::malformed("SUBSCRIBE", "its requested QoS is not 0, 1 or 2"));
        }
    }
    Ok(())
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

    fn varint(&mut self) -> Result<usize, DecodeError> {
        let mut value = 0;
        for index in 0..4 {
            let byte = self.u8()?;
            value |= usize::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::malformed(self.packet, "a length takes more than 4 bytes"))
    }

    /// Goes through a property section: identifier, position and bytes of each value.
    fn properties(
        &mut self,
        mut visit: impl FnMut(u8, usize, &mut [u8]) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        let length = self.varint()?;
        let end = self.at + length;
        if end > self.bytes.len() {
            return Err(DecodeError::malformed(self.packet, "its properties are longer than the packet"));
        }
        while self.at < end {
            let identifier = self.u8()?;
            let start = self.at;
            match identifier {
                0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28 | 0x29 | 0x2a => self.skip(1)?,
                0x13 | 0x21 | 0x22 | TOPIC_ALIAS => self.skip(2)?,
                MESSAGE_EXPIRY | 0x11 | 0x18 | 0x27 => self.skip(4)?,
                0x0b => self.varint().map(drop)?,
                0x03
                | 0x08
                | 0x09
                | 0x12
                | AUTHENTICATION_METHOD
                | AUTHENTICATION_DATA
                | 0x1a
                | 0x1c
                | 0x1f => {
                    self.prefixed().map(drop)?;
                }
                0x26 => {
                    self.prefixed()?;
                    self.prefixed()?;
                }
                _ => {
                    let problem = format!("property {identifier:#04x} does not exist");
                    return Err(DecodeError::malformed(self.packet, problem));
                }
            }
            if self.at > end {
                return Err(DecodeError::malformed(self.packet, "a property is longer than its section"));
            }
            visit(identifier, start, &mut self.bytes[start..self.at])?;
        }
        Ok(())
    }
}
