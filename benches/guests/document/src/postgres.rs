//! The small document, by PostgreSQL's protocol 3 on a connection of this invocation's own, with a password (SCRAM-SHA-256). From the
//! connection to the row these are five round trips: TCP, start, two of the password, query.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;

use crate::scan::Scan;

/// Where the benchmark's topology has the database, and what it is started with.
pub const SERVER: &str = "10.77.2.1:5432";
const USER: &str = "edgefaas";
const PASSWORD: &[u8] = b"measured";
const QUERY: &str = "select body from documents where id = 'small'";

pub fn name() -> io::Result<String> {
    let mut connection = Connection { stream: TcpStream::connect(SERVER)?, received: BytesMut::new() };
    connection.stream.set_nodelay(true)?;
    connection.send(|out| frontend::startup_message([("user", USER), ("database", "postgres")], out))?;
    let mut scram = ScramSha256::new(PASSWORD, ChannelBinding::unsupported());
    let mut is_open = false;
    let mut scan = Scan::new();
    loop {
        match connection.message()? {
            Message::AuthenticationSasl(_) => {
                connection.send(|out| frontend::sasl_initial_response(SCRAM_SHA_256, scram.message(), out))?;
            }
            Message::AuthenticationSaslContinue(body) => {
                scram.update(body.data())?;
                connection.send(|out| frontend::sasl_response(scram.message(), out))?;
            }
            Message::AuthenticationSaslFinal(body) => scram.finish(body.data())?,
            Message::ReadyForQuery(_) if !is_open => {
                is_open = true;
                connection.send(|out| frontend::query(QUERY, out))?;
            }
            Message::ReadyForQuery(_) => {
                connection.send(|out| {
                    frontend::terminate(out);
                    Ok(())
                })?;
                return scan.found.ok_or_else(|| invalid("the document has no `name`"));
            }
            Message::DataRow(row) => {
                if let Some(Some(range)) = row.ranges().next()? {
                    scan.feed(&row.buffer()[range]);
                }
            }
            Message::ErrorResponse(body) => {
                let text = body.fields().find(|field| Ok(field.type_() == b'M'))?;
                let text = text.map(|field| String::from_utf8_lossy(field.value_bytes()).into_owned());
                return Err(invalid(&text.unwrap_or_default()));
            }
            _ => {}
        }
    }
}

struct Connection {
    stream: TcpStream,
    received: BytesMut,
}

impl Connection {
    /// Sends one message as a whole.
    fn send(&mut self, message: impl FnOnce(&mut BytesMut) -> io::Result<()>) -> io::Result<()> {
        let mut out = BytesMut::new();
        message(&mut out)?;
        self.stream.write_all(&out)
    }

    fn message(&mut self) -> io::Result<Message> {
        loop {
            if let Some(message) = Message::parse(&mut self.received)? {
                return Ok(message);
            }
            let mut part = [0; 4096];
            match self.stream.read(&mut part)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => self.received.extend_from_slice(&part[..read]),
            }
        }
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}
