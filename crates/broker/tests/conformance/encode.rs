//! Packets for the broker, legal or not: every field can be set.

/// A packet of these parts, its length as short as it can be.
pub fn packet(first_byte: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    [&[first_byte][..], &varint(body.len()), &body].concat()
}

pub fn varint(number: usize) -> Vec<u8> {
    let mut left = number;
    let mut bytes = Vec::new();
    loop {
        let more = left > 127;
        bytes.push((left % 128) as u8 | if more { 128 } else { 0 });
        left /= 128;
        if !more {
            return bytes;
        }
    }
}

/// A string or binary data with its length.
pub fn text(text: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = text.as_ref();
    let length = u16::try_from(bytes.len()).expect("up to 65,535 bytes");
    [&length.to_be_bytes()[..], bytes].concat()
}

/// A property section: its length and its properties.
pub fn section(properties: &[Vec<u8>]) -> Vec<u8> {
    let bytes = properties.concat();
    [varint(bytes.len()), bytes].concat()
}

pub fn p8(identifier: u8, value: u8) -> Vec<u8> {
    vec![identifier, value]
}

pub fn p16(identifier: u8, value: u16) -> Vec<u8> {
    [&[identifier][..], &value.to_be_bytes()].concat()
}

pub fn p32(identifier: u8, value: u32) -> Vec<u8> {
    [&[identifier][..], &value.to_be_bytes()].concat()
}

pub fn pvar(identifier: u8, value: usize) -> Vec<u8> {
    [vec![identifier], varint(value)].concat()
}

pub fn ptext(identifier: u8, value: impl AsRef<[u8]>) -> Vec<u8> {
    [vec![identifier], text(value)].concat()
}

pub fn puser(name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Vec<u8> {
    [vec![0x26], text(name), text(value)].concat()
}

/// CONNECT; by default with Clean Start, a keepalive of 60 s, and nothing else.
#[derive(Debug, Clone)]
pub struct Connect {
    pub level: u8,
    pub client_id: String,
    pub clean: bool,
    pub keepalive: u16,
    pub properties: Vec<Vec<u8>>,
    pub will: Option<Will>,
    pub username: Option<Vec<u8>>,
    pub password: Option<Vec<u8>>,
}

#[derive(Debug, Clone)]
pub struct Will {
    pub topic: Vec<u8>,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    pub properties: Vec<Vec<u8>>,
}

impl Connect {
    pub fn new(level: u8, client_id: &str) -> Connect {
        Connect {
            level,
            client_id: client_id.to_owned(),
            clean: true,
            keepalive: 60,
            properties: Vec::new(),
            will: None,
            username: None,
            password: None,
        }
    }

    pub fn v5(client_id: &str) -> Connect {
        Connect::new(5, client_id)
    }

    pub fn v4(client_id: &str) -> Connect {
        Connect::new(4, client_id)
    }

    /// Without Clean Start.
    pub fn resume(mut self) -> Connect {
        self.clean = false;
        self
    }

    /// A session that outlives its connection for a long time: Session Expiry Interval, or CleanSession 0.
    pub fn lasting(self) -> Connect {
        match self.level {
            5 => self.expiry(3600),
            _ => self.resume(),
        }
    }

    /// Session Expiry Interval.
    pub fn expiry(self, seconds: u32) -> Connect {
        self.with(p32(0x11, seconds))
    }

    pub fn keepalive(mut self, seconds: u16) -> Connect {
        self.keepalive = seconds;
        self
    }

    pub fn with(mut self, property: Vec<u8>) -> Connect {
        self.properties.push(property);
        self
    }

    pub fn will(mut self, will: Will) -> Connect {
        self.will = Some(will);
        self
    }

    pub fn flags(&self) -> u8 {
        let will =
            self.will.as_ref().map_or(0, |will| 4 | (will.qos << 3) | if will.retain { 32 } else { 0 });
        let present = |there: bool, flag: u8| if there { flag } else { 0 };
        present(self.clean, 2)
            | will
            | present(self.username.is_some(), 128)
            | present(self.password.is_some(), 64)
    }

    pub fn payload(&self) -> Vec<u8> {
        let mut payload = text(&self.client_id);
        if let Some(will) = &self.will {
            if self.level == 5 {
                payload.extend(section(&will.properties));
            }
            payload.extend([text(&will.topic), text(&will.payload)].concat());
        }
        for field in [&self.username, &self.password].into_iter().flatten() {
            payload.extend(text(field));
        }
        payload
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.bytes_with(self.flags(), &self.payload())
    }

    /// With other flags or another payload than what is set asks for.
    pub fn bytes_with(&self, flags: u8, payload: &[u8]) -> Vec<u8> {
        let properties = if self.level == 5 { section(&self.properties) } else { Vec::new() };
        let header = [self.level, flags];
        packet(0x10, &[&text("MQTT"), &header, &self.keepalive.to_be_bytes(), &properties, payload])
    }
}

impl Will {
    pub fn new(topic: &str, payload: &str) -> Will {
        let (topic, payload) = (topic.as_bytes().to_vec(), payload.as_bytes().to_vec());
        Will { topic, payload, qos: 1, retain: false, properties: Vec::new() }
    }

    pub fn qos(mut self, qos: u8) -> Will {
        self.qos = qos;
        self
    }

    pub fn retain(mut self) -> Will {
        self.retain = true;
        self
    }

    pub fn with(mut self, property: Vec<u8>) -> Will {
        self.properties.push(property);
        self
    }

    /// Will Delay Interval.
    pub fn delay(self, seconds: u32) -> Will {
        self.with(p32(0x18, seconds))
    }
}

/// PUBLISH.
#[derive(Debug, Clone)]
pub struct Message {
    pub topic: Vec<u8>,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub id: u16,
    pub dup: bool,
    pub retain: bool,
    pub properties: Vec<Vec<u8>>,
}

impl Message {
    pub fn new(topic: &str, payload: impl AsRef<[u8]>) -> Message {
        Message {
            topic: topic.as_bytes().to_vec(),
            payload: payload.as_ref().to_vec(),
            qos: 0,
            id: 0,
            dup: false,
            retain: false,
            properties: Vec::new(),
        }
    }

    pub fn qos(mut self, qos: u8, id: u16) -> Message {
        (self.qos, self.id) = (qos, id);
        self
    }

    pub fn retain(mut self) -> Message {
        self.retain = true;
        self
    }

    pub fn dup(mut self) -> Message {
        self.dup = true;
        self
    }

    pub fn with(mut self, property: Vec<u8>) -> Message {
        self.properties.push(property);
        self
    }

    pub fn bytes(&self, level: u8) -> Vec<u8> {
        let flags = if self.dup { 8 } else { 0 } | (self.qos << 1) | u8::from(self.retain);
        let id = self.id.to_be_bytes();
        let id = if self.qos > 0 { &id[..] } else { &[] };
        let properties = if level == 5 { section(&self.properties) } else { Vec::new() };
        packet(0x30 | flags, &[&text(&self.topic), id, &properties, &self.payload])
    }
}

/// SUBSCRIBE with filters and their options.
pub fn subscribe(level: u8, id: u16, properties: &[Vec<u8>], filters: &[(&str, u8)]) -> Vec<u8> {
    let properties = if level == 5 { section(properties) } else { Vec::new() };
    let filters = filters.iter().map(|(filter, options)| [text(filter), vec![*options]].concat());
    packet(0x82, &[&id.to_be_bytes(), &properties, &filters.collect::<Vec<_>>().concat()])
}

pub fn unsubscribe(level: u8, id: u16, filters: &[&str]) -> Vec<u8> {
    let properties = if level == 5 { vec![0] } else { Vec::new() };
    let filters: Vec<Vec<u8>> = filters.iter().map(text).collect();
    packet(0xa2, &[&id.to_be_bytes(), &properties, &filters.concat()])
}

/// PUBACK, PUBREC, PUBREL or PUBCOMP (packet type 4 to 7), in its short form for reason 0.
pub fn ack(kind: u8, id: u16, reason: u8) -> Vec<u8> {
    let first_byte = kind << 4 | if kind == 6 { 2 } else { 0 };
    let reason = [reason];
    packet(first_byte, &[&id.to_be_bytes(), if reason == [0] { &[] } else { &reason }])
}

/// DISCONNECT of MQTT 5 with a reason and properties.
pub fn disconnect(reason: u8, properties: &[Vec<u8>]) -> Vec<u8> {
    packet(0xe0, &[&[reason], &section(properties)])
}
