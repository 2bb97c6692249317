//! Many retained topics and many subscriptions on one broker.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use edgefaas_benches::broker_load::{connect, frame, packet, text};
use edgefaas_benches::process::resident_mb_of;
use edgefaas_benches::samples::median;

const PAYLOAD: [u8; 64] = [b'x'; 64];
/// Filters in one SUBSCRIBE.
const FILTERS: usize = 50;
/// Subscriptions of one client: fewer than brokers allow.
const SUBSCRIPTIONS: usize = 5000;
/// How often a question is asked.
const QUESTIONS: usize = 500;

const PUBLISH: u8 = 3;
const PUBACK: u8 = 4;
const SUBACK: u8 = 9;
const UNSUBACK: u8 = 11;

/// Clients that made so many of both so far.
pub struct Many {
    address: SocketAddr,
    process: u32,
    client: Client,
    subscribers: Vec<Client>,
    made: usize,
}

impl Many {
    /// None so far.
    pub fn start(address: SocketAddr, process: u32) -> anyhow::Result<Self> {
        let client = Client::connect(address, "many")?;
        Ok(Self { address, process, client, subscribers: Vec::new(), made: 0 })
    }

    /// Makes them up to `count`: the bytes of resident memory of each new retained topic and each new subscription.
    pub fn grow(&mut self, count: usize, settle: Duration) -> anyhow::Result<(f64, f64)> {
        let new = count - self.made;
        let resident = |settle| {
            std::thread::sleep(settle);
            Ok::<_, anyhow::Error>(resident_mb_of(self.process)?.0 * 1e6)
        };
        let before = resident(settle)?;
        for from in (self.made..count).step_by(FILTERS) {
            let topics = from..count.min(from + FILTERS);
            let packets: Vec<u8> =
                topics.clone().flat_map(|number| publish(&retained_topic(number), 0x33)).collect();
            self.client.stream.write_all(&packets)?;
            for _ in topics {
                self.client.wait_for(PUBACK)?;
            }
        }
        let between = resident(settle)?;
        for from in (self.made..count).step_by(FILTERS) {
            if from / SUBSCRIPTIONS >= self.subscribers.len() {
                let name = format!("many-{from}");
                self.subscribers.push(Client::connect(self.address, &name)?);
            }
            let filters = from..count.min(from + FILTERS);
            let filters: Vec<u8> =
                filters.flat_map(|number| [text(&subscribed_topic(number)), vec![0]].concat()).collect();
            let subscriber = self.subscribers.last_mut().context("there is one")?;
            subscriber.stream.write_all(&packet(0x82, &[&[0, 1][..], &filters].concat()))?;
            subscriber.wait_for(SUBACK)?;
        }
        let after = resident(settle)?;
        self.made = count;
        Ok(((between - before) / new as f64, (after - between) / new as f64))
    }

    /// The medians of the time for one retained message, and for one delivery, in microseconds.
    pub fn ask(&mut self) -> anyhow::Result<(f64, f64)> {
        let (mut retained, mut published) = (Vec::new(), Vec::new());
        for question in 0..QUESTIONS {
            // A prime, so that they come from everywhere.
            let number = question * 7919 % self.made;
            let topic = text(&retained_topic(number));
            let begun = Instant::now();
            let subscribe = packet(0x82, &[&[0, 1][..], &topic, &[0]].concat());
            self.client.stream.write_all(&subscribe)?;
            self.client.wait_for(PUBLISH)?;
            retained.push(begun.elapsed().as_secs_f64() * 1e6);
            self.client.stream.write_all(&packet(0xa2, &[&[0, 2][..], &topic].concat()))?;
            self.client.wait_for(UNSUBACK)?;

            let begun = Instant::now();
            self.client.stream.write_all(&publish(&subscribed_topic(number), 0x30))?;
            self.subscribers[number / SUBSCRIPTIONS].wait_for(PUBLISH)?;
            published.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        Ok((median(&retained), median(&published)))
    }
}

fn retained_topic(number: usize) -> String {
    format!("site/{}/room/{number}/temperature", number % 100)
}

fn subscribed_topic(number: usize) -> String {
    format!("site/{}/device/{number}/set", number % 100)
}

fn publish(topic: &str, first_byte: u8) -> Vec<u8> {
    let id: &[u8] = if first_byte & 6 == 0 { &[] } else { &[0, 1] };
    packet(first_byte, &[&text(topic)[..], id, &PAYLOAD].concat())
}

struct Client {
    stream: TcpStream,
    inbound: Vec<u8>,
}

impl Client {
    fn connect(address: SocketAddr, client_id: &str) -> anyhow::Result<Self> {
        let stream = connect(address, client_id, true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Self { stream, inbound: Vec::new() })
    }

    /// Takes packets until one of this type has come.
    fn wait_for(&mut self, packet_type: u8) -> anyhow::Result<()> {
        loop {
            while let Some((_, end)) = frame(&self.inbound) {
                let found = self.inbound[0] >> 4;
                self.inbound.drain(..end);
                match found {
                    PUBLISH | PUBACK | SUBACK | UNSUBACK if found == packet_type => return Ok(()),
                    PUBLISH | SUBACK => {}
                    other => bail!("packet type {other} in place of {packet_type}"),
                }
            }
            let mut buffer = [0; 16 * 1024];
            let read = self.stream.read(&mut buffer)?;
            if read == 0 {
                bail!("the broker closed the connection");
            }
            self.inbound.extend_from_slice(&buffer[..read]);
        }
    }
}
