//! A client that sends any bytes and checks what it gets.

use std::collections::VecDeque;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::decode::{ConnAck, Packet, Properties, Publish, checked_varint, decode};
use crate::encode::{Connect, Message, ack, disconnect, subscribe, unsubscribe};
use crate::server::{Server, soon};

pub struct Client {
    stream: TcpStream,
    level: u8,
    /// Messages that came while something else was waited for.
    inbox: VecDeque<Publish>,
    next_id: u16,
    /// What CONNACK said.
    pub connack: ConnAck,
    /// Bytes of the last packet, with its header.
    pub last_bytes: usize,
}

impl Client {
    /// A connection without CONNECT.
    pub async fn open(address: SocketAddr, level: u8) -> Client {
        let stream = soon("connecting", TcpStream::connect(address)).await.expect("connects");
        stream.set_nodelay(true).expect("nodelay");
        let connack = ConnAck { session_present: false, reason: 0, properties: Properties::default() };
        Client { stream, level, inbox: VecDeque::new(), next_id: 0, connack, last_bytes: 0 }
    }

    /// Connects, and is accepted.
    pub async fn connect(server: &Server, connect: Connect) -> Client {
        let client = Client::try_connect(server, connect).await;
        assert_eq!(client.connack.reason, 0, "accepted: {:?}", client.connack);
        client
    }

    /// Connects, accepted or not.
    pub async fn try_connect(server: &Server, connect: Connect) -> Client {
        let mut client = Client::open(server.address, connect.level).await;
        client.send(&connect.bytes()).await;
        match client.receive().await {
            Packet::ConnAck(connack) => client.connack = connack,
            other => panic!("{other:?} is not a CONNACK"),
        }
        client
    }

    /// A client of the level with a session of its own for as long as it is connected.
    pub async fn new(server: &Server, level: u8, client_id: &str) -> Client {
        Client::connect(server, Connect::new(level, client_id)).await
    }

    pub async fn v5(server: &Server, client_id: &str) -> Client {
        Client::new(server, 5, client_id).await
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        soon("sending", self.stream.write_all(bytes)).await.expect("sends");
    }

    /// Sends what the broker may refuse to read to its end.
    pub async fn try_send(&mut self, bytes: &[u8]) {
        let _ = soon("sending", self.stream.write_all(bytes)).await;
    }

    /// The next packet.
    pub async fn receive(&mut self) -> Packet {
        soon("a packet from the broker", self.next())
            .await
            .expect("a packet, not the end of the connection")
    }

    async fn next(&mut self) -> Option<Packet> {
        let first_byte = self.stream.read_u8().await.ok()?;
        let mut length = Vec::new();
        while length.last().is_none_or(|byte| byte & 128 != 0) {
            length.push(self.stream.read_u8().await.ok()?);
            assert!(length.len() <= 4, "a length of more than 4 bytes");
        }
        let mut body = vec![0; checked_varint(&length) as usize];
        self.stream.read_exact(&mut body).await.ok()?;
        self.last_bytes = 1 + length.len() + body.len();
        Some(decode(first_byte, &body, self.level))
    }

    /// The next packet that is not a PUBLISH; messages before it are kept.
    async fn reply(&mut self) -> Packet {
        loop {
            match self.receive().await {
                Packet::Publish(publish) => self.inbox.push_back(publish),
                reply => return reply,
            }
        }
    }

    /// The next message, whether it came already or not; nothing else may come before it.
    pub async fn message(&mut self) -> Publish {
        if let Some(publish) = self.inbox.pop_front() {
            return publish;
        }
        match self.receive().await {
            Packet::Publish(publish) => publish,
            other => panic!("{other:?} instead of a message"),
        }
    }

    /// A message that came while something else was waited for.
    pub fn taken(&mut self) -> Option<Publish> {
        self.inbox.pop_front()
    }

    /// The payload of the next message, which is acknowledged.
    pub async fn text(&mut self) -> String {
        let message = self.message().await;
        self.finish(&message).await;
        message.text().to_owned()
    }

    /// Acknowledges a message as its QoS says.
    pub async fn finish(&mut self, message: &Publish) {
        match message.qos {
            0 => {}
            1 => self.send(&ack(4, message.id, 0)).await,
            _ => {
                self.send(&ack(5, message.id, 0)).await;
                assert_eq!(self.acked(6, message.id).await, 0, "PUBREL");
                self.send(&ack(7, message.id, 0)).await;
            }
        }
    }

    /// Takes PUBACK, PUBREC, PUBREL or PUBCOMP (packet type 4 to 7) and gives its reason.
    pub async fn acked(&mut self, kind: u8, id: u16) -> u8 {
        match self.reply().await {
            Packet::Ack { kind: got, id: of, reason, .. } => {
                assert_eq!((got, of), (kind, id), "packet type and identifier");
                reason
            }
            other => panic!("{other:?} instead of packet type {kind}"),
        }
    }

    /// Publishes and goes through the exchange; gives the reason of PUBACK or PUBREC.
    pub async fn publish(&mut self, message: Message) -> u8 {
        let mut message = message;
        if message.qos > 0 && message.id == 0 {
            message.id = self.id();
        }
        self.send(&message.bytes(self.level)).await;
        match message.qos {
            0 => {
                // It has passed when what is sent after it is answered.
                self.ping().await;
                0
            }
            1 => self.acked(4, message.id).await,
            _ => {
                let reason = self.acked(5, message.id).await;
                if reason < 0x80 {
                    self.send(&ack(6, message.id, 0)).await;
                    assert_eq!(self.acked(7, message.id).await, 0, "PUBCOMP");
                }
                reason
            }
        }
    }

    /// Publishes text at QoS 1.
    pub async fn say(&mut self, topic: &str, payload: &str) {
        let reason = self.publish(Message::new(topic, payload).qos(1, 0)).await;
        assert!(matches!(reason, 0 | 0x10), "PUBACK with {reason:#x}");
    }

    /// Subscribes to one filter; it is granted.
    pub async fn subscribe(&mut self, filter: &str, options: u8) {
        let reasons = self.subscribe_to(&[], &[(filter, options)]).await;
        assert_eq!(reasons, [options & 3], "the QoS is granted");
    }

    /// Subscribes and gives the reasons of SUBACK.
    pub async fn subscribe_to(&mut self, properties: &[Vec<u8>], filters: &[(&str, u8)]) -> Vec<u8> {
        let sent = self.id();
        self.send(&subscribe(self.level, sent, properties, filters)).await;
        match self.reply().await {
            Packet::SubAck { id, reasons, .. } => {
                assert_eq!((id, reasons.len()), (sent, filters.len()), "identifier and number of reasons");
                reasons
            }
            other => panic!("{other:?} instead of SUBACK"),
        }
    }

    /// Unsubscribes and gives the reasons of UNSUBACK.
    pub async fn unsubscribe(&mut self, filters: &[&str]) -> Vec<u8> {
        let sent = self.id();
        self.send(&unsubscribe(self.level, sent, filters)).await;
        match self.reply().await {
            Packet::UnsubAck { id, reasons, .. } => {
                assert_eq!(id, sent, "identifier");
                reasons
            }
            other => panic!("{other:?} instead of UNSUBACK"),
        }
    }

    /// Waits until the broker has handled everything sent before.
    pub async fn ping(&mut self) {
        self.send(&[0xc0, 0]).await;
        assert_eq!(self.reply().await, Packet::PingResp);
    }

    /// Nothing is on its way to this client: not before an answer, and not after it.
    pub async fn quiet(&mut self) {
        for _ in 0..2 {
            self.ping().await;
        }
        assert_eq!(self.inbox, [], "nothing but answers");
    }

    /// Takes everything until the broker closes the connection.
    pub async fn until_closed(&mut self) -> Vec<Packet> {
        let mut packets: Vec<Packet> = self.inbox.drain(..).map(Packet::Publish).collect();
        soon("the broker closes the connection", async {
            while let Some(packet) = self.next().await {
                packets.push(packet);
            }
        })
        .await;
        packets
    }

    /// Takes everything until the end; the last packet is a DISCONNECT, whose reason it gives (MQTT 3.1.1: 0, and
    /// there is none).
    pub async fn disconnected(&mut self) -> u8 {
        let mut packets = self.until_closed().await;
        let last = packets.pop();
        let farewells = packets.iter().filter(|packet| matches!(packet, Packet::Disconnect { .. })).count();
        assert_eq!(farewells, 0, "DISCONNECT is the last packet");
        match last {
            Some(Packet::Disconnect { reason, .. }) => reason,
            _ if self.level == 4 => 0,
            other => panic!("{other:?} instead of DISCONNECT"),
        }
    }

    /// DISCONNECT in good order, until the broker has closed.
    pub async fn leave(mut self) {
        self.send(&[0xe0, 0]).await;
        assert_eq!(self.until_closed().await, [], "nothing after DISCONNECT");
    }

    /// DISCONNECT with a reason and properties, until the broker has closed; gives what came before.
    pub async fn leave_with(mut self, reason: u8, properties: &[Vec<u8>]) -> Vec<Packet> {
        self.send(&disconnect(reason, properties)).await;
        self.until_closed().await
    }

    /// A packet identifier that was not used before.
    pub fn id(&mut self) -> u16 {
        self.next_id += 1;
        self.next_id
    }
}

/// Sends first bytes and gives all that comes until the broker closes.
pub async fn first(server: &Server, level: u8, bytes: &[u8]) -> Vec<Packet> {
    let mut client = Client::open(server.address, level).await;
    client.try_send(bytes).await;
    client.until_closed().await
}

/// Sends bytes after an accepted CONNECT and gives the reason of the DISCONNECT that ends the connection.
pub async fn refused(server: &Server, level: u8, bytes: &[u8]) -> u8 {
    let mut client = Client::new(server, level, "refused").await;
    client.try_send(bytes).await;
    client.disconnected().await
}
