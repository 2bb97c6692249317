//! Frameworks from npm, unmodified, on a node.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{PATIENCE, Running, repository, skipped};

/// The folder of a package, where the tests' packages are installed.
fn package(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("EDGEFAAS_TEST_NODE_PATH")?;
    Some(Path::new(&path).join(name)).filter(|package| package.join("package.json").exists())
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-r").arg(from).arg(to).status().unwrap();
    assert!(copied.success(), "{} cannot be copied", from.display());
}

/// An HTTP answer as it comes.
fn request(node: &Running, method: &str, path: &str, headers: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(&node.http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}");
    write!(stream, "{head}content-length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_hono_example_runs() {
    let Some(hono) = package("hono") else { return skipped("the npm package hono") };
    let home = tempfile::tempdir().unwrap();
    let app = home.path().join("app");
    copy(&repository().join("examples/hono"), &app);
    std::fs::create_dir_all(app.join("node_modules")).unwrap();
    if !app.join("node_modules/hono").exists() {
        copy(&hono, &app.join("node_modules/hono"));
    }
    let node = Running::start(&home.path().join("data"), &[]);
    node.ok(&["deploy", app.to_str().unwrap()]);
    let get = |path: &str, headers: &str| request(&node, "GET", path, headers, "");
    let answered = |answer: &str, status: &str, body: &str| {
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.ends_with(body), "{answer}");
    };

    let made =
        request(&node, "POST", "/notes", "content-type: application/json\r\n", r#"{"text":"buy lamps"}"#);
    answered(&made, "201", r#"{"id":0}"#);
    assert!(made.contains("\r\nx-took-ms: "), "middleware ran: {made}");
    let again = request(&node, "POST", "/notes", "", r#"{"text":"grüße"}"#);
    answered(&again, "201", r#"{"id":1}"#);
    answered(&get("/notes/all?q=gr%C3%BC", ""), "200", r#"[{"text":"grüße"}]"#);
    answered(&get("/notes/7", ""), "404", "there is no note 7");
    answered(&get("/notes/nowhere", ""), "404", r#"{"error":"nothing at /notes/nowhere"}"#);
    answered(&get("/notes/broken", ""), "500", r#"{"error":"on purpose"}"#);

    let read = get("/notes/0", "");
    answered(&read, "200", r#"{"text":"buy lamps"}"#);
    let cookie = read.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
    assert!(cookie.ends_with("; Path=/notes; HttpOnly"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    let page = get("/notes", &format!("cookie: {cookie}\r\n"));
    answered(&page, "200", "<h1>Notes</h1><p>last seen: 0</p>");
    assert!(page.contains("\r\ncontent-type: text/html; charset=UTF-8\r\n"), "{page}");
    let forged = cookie.replacen("last=0", "last=1", 1);
    answered(&get("/notes", &format!("cookie: {forged}\r\n")), "200", "last seen: nothing</p>");

    let form =
        "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\r\nabc\r\n--b--\r\n";
    let upload =
        request(&node, "POST", "/notes/upload", "content-type: multipart/form-data; boundary=b\r\n", form);
    answered(&upload, "200", "a.txt: 3 bytes");

    let refused = request(&node, "DELETE", "/notes/admin/all", "", "");
    answered(&refused, "401", "Unauthorized");
    assert!(refused.contains("\r\nwww-authenticate: Basic realm="), "{refused}");
    // ada:wrong and ada:lovelace
    let wrong = request(&node, "DELETE", "/notes/admin/all", "authorization: Basic YWRhOndyb25n\r\n", "");
    answered(&wrong, "401", "Unauthorized");
    let right =
        request(&node, "DELETE", "/notes/admin/all", "authorization: Basic YWRhOmxvdmVsYWNl\r\n", "");
    answered(&right, "204", "\r\n\r\n");
    answered(&get("/notes/all", ""), "200", "[]");
}

const BEARER: &str = r#"
import { Hono } from "hono";
import { bearerAuth } from "hono/bearer-auth";
import { cors } from "hono/cors";
import { jwt, sign } from "hono/jwt";
import { stream, streamText } from "hono/streaming";
const app = new Hono();
app.use("*", cors());
app.use("/token/*", bearerAuth({ token: "opensesame" }));
app.get("/token/name/:name", (c) => c.json({ name: c.req.param("name"), via: c.req.header("user-agent") ?? null }));
app.use("/jwt/*", jwt({ secret: "key", alg: "HS256" }));
app.get("/jwt/who", (c) => c.json(c.get("jwtPayload").sub));
app.get("/sign", async (c) => c.text(await sign({ sub: "ada" }, "key", "HS256")));
app.get("/stream", (c) => streamText(c, async (out) => { for (const part of ["a", "b", "c"]) { await out.writeln(part); await out.sleep(1); } }));
app.get("/raw", (c) => stream(c, async (out) => { await out.write(new Uint8Array([104, 105])); }));
export default app;
"#;

#[test]
fn honos_tokens_and_streams_work() {
    let Some(hono) = package("hono") else { return skipped("the npm package hono") };
    let home = tempfile::tempdir().unwrap();
    let app = home.path().join("app");
    std::fs::create_dir_all(app.join("node_modules")).unwrap();
    copy(&hono, &app.join("node_modules/hono"));
    std::fs::write(app.join("app.js"), BEARER).unwrap();
    let manifest =
        "app = \"api\"\n[functions.api]\nmain = \"app.js\"\ntriggers = [{ http = \"/{*path}\" }]\n";
    std::fs::write(app.join("edgefaas.toml"), manifest).unwrap();
    let node = Running::start(&home.path().join("data"), &[]);
    node.ok(&["deploy", app.to_str().unwrap()]);
    let get = |path: &str, headers: &str| request(&node, "GET", path, headers, "");
    let body = |answer: String| answer.split_once("\r\n\r\n").unwrap().1.to_owned();

    assert!(get("/token/name/ada", "").starts_with("HTTP/1.1 401"));
    let named = get("/token/name/ada", "authorization: Bearer opensesame\r\nuser-agent: test\r\n");
    assert!(named.ends_with(r#"{"name":"ada","via":"test"}"#), "{named}");
    assert!(named.contains("\r\naccess-control-allow-origin: *\r\n"), "{named}");
    let token = body(get("/sign", ""));
    assert_eq!(body(get("/jwt/who", &format!("authorization: Bearer {token}\r\n"))), "\"ada\"");
    assert!(get("/jwt/who", &format!("authorization: Bearer {token}x\r\n")).starts_with("HTTP/1.1 401"));
    assert_eq!(body(get("/stream", "")), "a\nb\nc\n");
    assert_eq!(body(get("/raw", "")), "hi");
    assert!(get("/nowhere", "").ends_with("404 Not Found"));
}
