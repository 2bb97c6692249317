//! The request of an HTTP event, `Headers` and URLs, which are read natively.

use bytes::Bytes;
use edgefaas_isolates::{Event, HttpRequest, HttpResponse, Reply, Trigger};
use serde_json::{Value, json};

use super::answer;
use crate::support::{Bench, call, graph};

fn get(path: &str, query: &str, headers: &[(&str, &str)], body: &str) -> Event {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let request = HttpRequest { method: "GET".into(), path: path.into(), query: query.into(), headers };
    Event { trigger: Trigger::Http(request), body: Bytes::copy_from_slice(body.as_bytes()) }
}

/// What `fetch(request, env)` with `body` answers to `event`, as JSON.
async fn answer_to(bench: &Bench, body: &str, event: Event) -> Value {
    let source = format!("export default {{ async fetch(request, env) {{\n{body}\n}} }};");
    let program = bench.prepare(&graph("f.js", &source)).await.unwrap();
    crate::json(bench.run(&program, event).await.result)
}

#[tokio::test]
async fn a_request_is_that_of_the_event() {
    let body = r#"
        const { headers } = request;
        const single = [headers.get("A"), headers.get("missing"), headers.has("b"), headers.has("missing")];
        const changed = new Headers(headers);
        changed.set("a", "9");
        headers.append("c", "d");
        const copy = request.clone();
        const read = [await copy.text(), await request.json(), request.bodyUsed, await request.text().catch((error) => error.name)];
        return [request.method, request.url, single, [...headers], [...changed], read, request instanceof Request, headers === request.headers];"#;
    let headers = [("host", "h:81"), ("a", "1"), ("a", "2"), ("b", "x")];
    let seen = answer_to(&Bench::new(), body, get("/p/q", "x=1", &headers, "{\"k\":1}")).await;
    let all = json!([["a", "1, 2"], ["b", "x"], ["c", "d"], ["host", "h:81"]]);
    let changed = json!([["a", "9"], ["b", "x"], ["host", "h:81"]]);
    let read = json!(["{\"k\":1}", { "k": 1 }, true, "TypeError"]);
    let single = json!(["1, 2", null, true, false]);
    assert_eq!(seen, json!(["GET", "http://h:81/p/q?x=1", single, all, changed, read, true, true]));
}

#[tokio::test]
async fn a_request_without_a_body_can_be_copied() {
    let body = r#"
        const copy = new Request(request, { headers: { a: "b" } });
        return [copy.method, copy.headers.get("a"), request.body, await request.text(), request.bodyUsed];"#;
    let seen = answer_to(&Bench::new(), body, get("/", "", &[], "")).await;
    assert_eq!(seen, json!(["GET", "b", null, "", false]));
}

#[tokio::test]
async fn the_url_of_a_request_is_in_its_standard_form() {
    let bench = Bench::new();
    let source = "export default { fetch: (request) => { try { return request.url; } catch (error) { return String(error); } } };";
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    for (host, path, query, expected) in [
        ("localhost", "/", "", "http://localhost/"),
        ("Example.COM:80", "/a/../b", "q='", "http://example.com/b?q=%27"),
        ("h:081", "/a/%2e%2E/b", "", "http://h:81/b"),
        ("127.0.0.1:8080", "/a%20b", "x=1&y=%C3%A4?", "http://127.0.0.1:8080/a%20b?x=1&y=%C3%A4?"),
        ("127.1", "/.hidden/..a", "", "http://127.0.0.1/.hidden/..a"),
        ("0x7f.1", "/\"", "<", "http://127.0.0.1/%22?%3C"),
        ("1.2.3.04", "/", "", "http://1.2.3.4/"),
        ("[::1]:81", "/\\a", "", "http://[::1]:81//a"),
        ("a..b.xn--n3h", "/", "", "http://a..b.xn--n3h/"),
        (
            "h:99999",
            "/",
            "",
            "TypeError: Invalid URL: \"http://h:99999/\"; it has to be absolute, such as https://example.com/path",
        ),
        (
            "u@h",
            "/",
            "",
            "TypeError: a request's URL has no user name or password; use the header authorization",
        ),
    ] {
        let Ok(Reply::Text(seen)) =
            bench.run(&program, get(path, query, &[("host", host)], "")).await.result
        else {
            panic!("{host}")
        };
        assert_eq!(seen, expected, "{host} {path} {query}");
    }
}

#[tokio::test]
async fn a_response_implies_its_content_type() {
    let bench = Bench::new();
    let source = r#"
        export default { fetch(request) {
            switch (new URL(request.url).pathname) {
                case "/text": return new Response("é");
                case "/own": return new Response("x", { headers: { "Content-Type": "a/b", "X-A": " c " } });
                case "/json": return Response.json({ a: 1 }, { status: 201 });
                case "/looked-at": { const response = new Response("x"); response.headers.append("a", "b"); return response; }
                case "/class": return new (class extends Response { get status() { return 299; } })("x");
                case "/empty": return new Response(null, { status: 204 });
            }
        } };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let text = ("content-type".to_owned(), "text/plain;charset=UTF-8".to_owned());
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    for (path, status, headers, body) in [
        ("/text", 200, vec![text.clone()], "é"),
        ("/own", 200, vec![pair("content-type", "a/b"), pair("x-a", "c")], "x"),
        ("/json", 201, vec![pair("content-type", "application/json")], "{\"a\":1}"),
        ("/looked-at", 200, vec![text.clone(), pair("a", "b")], "x"),
        ("/class", 299, vec![text.clone()], "x"),
        ("/empty", 204, vec![], ""),
    ] {
        let Ok(Reply::Http(response)) = bench.run(&program, get(path, "", &[], "")).await.result else {
            panic!("{path}")
        };
        let body = Bytes::copy_from_slice(body.as_bytes());
        assert_eq!(response, HttpResponse { status, headers, body }, "{path}");
    }
}

#[tokio::test]
async fn the_environment_is_an_object() {
    let body = r#"
        const before = ["GREETING" in env, Object.hasOwn(env, "API_KEY"), Object.getPrototypeOf(env) === Object.prototype];
        env.OWN = 1;
        delete env.GREETING;
        const { publish, ...rest } = env;
        return [before, typeof publish, Object.keys(env).includes("OWN"), "GREETING" in env, rest.API_KEY, rest.OWN, env.missing ?? null, `${env}`];"#;
    let seen = answer_to(&Bench::new(), body, get("/", "", &[], "")).await;
    let before = json!([true, true, true]);
    assert_eq!(seen, json!([before, "function", true, false, "s3cret", 1, null, "[object Object]"]));
}

#[tokio::test]
async fn a_router_makes_its_matchers_at_the_deploy() {
    let bench = Bench::new();
    let source = r#"
        let made = 0;
        const router = { name: "Router", add() {}, match(method, path) { made++; return []; } };
        export default { routes: [{}], router, fetch: () => new Response(String(made)) };"#;
    for (source, expected) in [
        (source.to_owned(), "1"),
        (source.replace("return [];", "throw new Error('no');"), "1"),
        (source.replace("routes: [{}]", "routes: []"), "0"),
        (source.replace("name: \"Router\", ", ""), "0"),
    ] {
        let program = bench.prepare(&graph("f.js", &source)).await.unwrap();
        let Ok(Reply::Http(response)) = bench.run(&program, call("")).await.result else { panic!() };
        assert_eq!(&response.body[..], expected.as_bytes(), "{source}");
    }
}

#[tokio::test]
async fn headers_are_as_the_standard_says() {
    let seen = answer(
        &Bench::new(),
        r#"
        const thrown = (run) => { try { return run(); } catch (error) { return error.message; } };
        const headers = new Headers({ "X-A": " b\t", "set-cookie": "1" });
        headers.append("Set-Cookie", "2");
        headers.append("x-a", "c");
        headers.set("z", "é");
        const all = [[...headers], headers.getSetCookie(), headers.get("X-a")];
        headers.delete("SET-cookie");
        const repeated = new Headers([["a", "1"], ["b", "2"], ["a", "3"], ["c", "4"]]);
        repeated.set("a", "9");
        repeated.delete("b");
        const wrong = [() => headers.get("a b"), () => headers.set("", "x"), () => headers.set("a", "x\r\ny"), () => headers.has("é"),
            () => headers.set("a", "\ud800"), () => headers.append("a", "x\0y"), () => new Headers([["a"]])].map(thrown);
        return [...all, [...headers.keys()], [...repeated], wrong];"#,
    )
    .await;
    let broken = "invalid header value: it has a line break or a NUL";
    let wide =
        "invalid header value: it has a character outside of Latin-1; encodeURIComponent makes it fit";
    assert_eq!(
        seen,
        json!([
            [["set-cookie", "1"], ["set-cookie", "2"], ["x-a", "b, c"], ["z", "é"]],
            ["1", "2"],
            "b, c",
            ["x-a", "z"],
            [["a", "9"], ["c", "4"]],
            [
                "invalid header name: \"a b\"",
                "invalid header name: \"\"",
                broken,
                "invalid header name: \"é\"",
                wide,
                broken,
                "each header must have a name and a value",
            ],
        ])
    );
}

#[tokio::test]
async fn urls_are_as_the_standard_says() {
    let seen = answer(
        &Bench::new(),
        r#"
        const parts = (url) => ["origin", "protocol", "username", "password", "host", "hostname", "port", "pathname", "search", "hash"].map((part) => url[part]);
        const url = new URL("http://us:pw@ex.com:81/p/a?q=1&q=2&r=%20x#h");
        const seen = [parts(url)];
        url.searchParams.append("n", "ä b");
        seen.push(url.href);
        url.search = "?a=1&b=2&a=3";
        const { searchParams } = url;
        seen.push([...searchParams], searchParams.getAll("a"), searchParams.has("a", "3"), searchParams.has("a", "x"), searchParams.size);
        searchParams.delete("a", "3");
        searchParams.set("a", "z");
        searchParams.sort();
        seen.push(url.href);
        url.pathname = "/x y";
        url.port = "80";
        url.hash = "";
        seen.push(`${url}`);
        seen.push(["mailto:a@b", "file:///x/y", "https://u@h/?", "https://h/#", "blob:https://h:1/x"].map((text) => parts(new URL(text)).join("|")));
        const query = new URLSearchParams([["a", "1"], ["b", "%+ä"], ["a", "3"]]);
        query.set("a", "x&y");
        seen.push(`${query}`, [...new URLSearchParams("?x=%zz+%C3&&y")], `${new URLSearchParams({ k: "*-._~" })}`);
        return seen;"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([
            [
                "http://ex.com:81",
                "http:",
                "us",
                "pw",
                "ex.com:81",
                "ex.com",
                "81",
                "/p/a",
                "?q=1&q=2&r=%20x",
                "#h"
            ],
            "http://us:pw@ex.com:81/p/a?q=1&q=2&r=+x&n=%C3%A4+b#h",
            [["a", "1"], ["b", "2"], ["a", "3"]],
            ["1", "3"],
            true,
            false,
            3,
            "http://us:pw@ex.com:81/p/a?a=z&b=2#h",
            "http://us:pw@ex.com/x%20y?a=z&b=2",
            [
                "null|mailto:||||||a@b||",
                "null|file:||||||/x/y||",
                "https://h|https:|u||h|h||/||",
                "https://h|https:|||h|h||/||",
                "https://h:1|blob:||||||https://h:1/x||",
            ],
            "a=x%26y&b=%25%2B%C3%A4",
            [["x", "%zz \u{fffd}"], ["y", ""]],
            "k=*-._%7E",
        ])
    );
}
