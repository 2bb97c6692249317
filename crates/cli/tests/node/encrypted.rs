//! Requests over https: whose certificates a node trusts.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::Running;

/// Says its port, then answers every request.
const SERVER: &str = "
import http.server, ssl, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header('content-length', '14')
        self.end_headers()
        self.wfile.write(b'told in secret')
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Answer)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
";

const FUNCTION: &str = "export default async (event) => {
    try { return await (await fetch(event.text())).text(); } catch (error) {
        return `${error.name}: ${error.cause?.message ?? error.message}`;
    }
}";

/// A server that ends with the test.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn start(certificate: &Path, key: &Path) -> Self {
        let mut python = Command::new("python3");
        let python = python.args(["-c", SERVER]).arg(certificate).arg(key);
        let mut process = python.stdout(Stdio::piped()).spawn().expect("python3 runs");
        let mut port = String::new();
        BufReader::new(process.stdout.take().expect("piped")).read_line(&mut port).expect("a line");
        Self { process, port: port.trim().parse().expect("its port") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn https_servers_are_known_by_their_authority_and_their_name() {
    let home = tempfile::tempdir().unwrap();
    let (certificate, key) = (home.path().join("server.pem"), home.path().join("server.key"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let server = Server::start(&certificate, &key);
    let function = home.path().join("ask.js");
    std::fs::write(&function, FUNCTION).unwrap();
    let (by_name, by_address) =
        (format!("https://localhost:{}/", server.port), format!("https://127.0.0.1:{}/", server.port));
    let allow = [format!("http=localhost:{}", server.port), format!("http=127.0.0.1:{}", server.port)];
    let deploy = ["deploy", function.to_str().unwrap(), "--allow", &allow[0], "--allow", &allow[1]];
    let any = ["--http", "127.0.0.1:0", "--control", "127.0.0.1:0", "--mqtt", "127.0.0.1:0"];

    let trusting =
        Running::start_in(&home.path().join("trusting"), &any, &[("SSL_CERT_FILE", certificate.as_path())]);
    trusting.ok(&deploy);
    assert_eq!(trusting.http("POST", "/fn/ask", &by_name).1, "told in secret");
    let wrong_name = trusting.http("POST", "/fn/ask", &by_address).1;
    assert!(wrong_name.starts_with("TypeError") && wrong_name.contains("certificate"), "{wrong_name}");

    let other = Running::start(&home.path().join("other"), &[]);
    other.ok(&deploy);
    let unknown = other.http("POST", "/fn/ask", &by_name).1;
    assert!(unknown.starts_with("TypeError") && unknown.contains("certificate"), "{unknown}");
}
