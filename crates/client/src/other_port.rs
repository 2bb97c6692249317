//! Recognises a port of a node that is not its control API.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::args::Global;
use crate::connection::NodeUrl;

/// Time limit of a question.
const TIME_LIMIT: Duration = Duration::from_secs(1);
/// CONNECT of MQTT 3.1.1 with a clean session and the client identifier `edgefaas` (section 3.1).
const CONNECT: &[u8] = b"\x10\x14\x00\x04MQTT\x04\x02\x00\x0a\x00\x08edgefaas";
/// Type of a CONNACK.
const CONNACK: u8 = 0x20;
/// A path that the control API serves to everyone, and the gateway has nothing at.
const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

/// What is wrong with the port that `--node` names, if it is another port of a node.
pub async fn recognise(global: &Global) -> Option<String> {
    let url = NodeUrl::parse(global.node.as_deref()?).ok().filter(|url| !url.secure)?;
    let hint = "the control API has another port, 7070 by default; the `ready` line and `edgefaas status` of the node show it";
    let answer = ask(&url, REQUEST).await.unwrap_or_default();
    if answer.starts_with(b"HTTP/1.") {
        let is_control = answer.starts_with(b"HTTP/1.1 200");
        return (!is_control).then(|| {
            format!("{url} is a port of HTTP, such as that of the gateway, and not a control API: {hint}")
        });
    }
    let answer = ask(&url, CONNECT).await.unwrap_or_default();
    (answer.first() == Some(&CONNACK))
        .then(|| format!("{url} is a port of MQTT, and not a control API: {hint}"))
}

/// The first bytes of the answer of a program.
async fn ask(url: &NodeUrl, question: &[u8]) -> Option<Vec<u8>> {
    let exchange = async {
        let mut stream = TcpStream::connect((url.host.trim_matches(['[', ']']), url.port)).await?;
        stream.write_all(question).await?;
        let mut answer = [0; 64];
        let mut read = 0;
        // As many bytes as the longest answer needs.
        while read < 12 {
            match stream.read(&mut answer[read..]).await? {
                0 => break,
                count => read += count,
            }
            if answer[0] == CONNACK {
                break;
            }
        }
        std::io::Result::Ok(answer[..read].to_vec())
    };
    tokio::time::timeout(TIME_LIMIT, exchange).await.ok()?.ok()
}
