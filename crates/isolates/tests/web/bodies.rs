//! Bodies of requests and responses, blobs and forms.

use bytes::Bytes;
use edgefaas_isolates::{Event, HttpRequest, Trigger};
use serde_json::json;

use super::answer;
use crate::support::{Bench, graph};

#[tokio::test]
async fn bodies_are_read_once_and_cloned() {
    let seen = answer(
        &Bench::new(),
        r#"
        const seen = [];
        const stream = () => new ReadableStream({ pull(c) { c.enqueue(new Uint8Array([104, 105])); c.close(); } });
        for (const make of [() => "hi", () => new Uint8Array([104, 105]), () => new Blob(["hi"]), stream]) {
            const response = new Response(make());
            const copy = response.clone();
            const first = [response.bodyUsed, await response.text(), response.bodyUsed, copy.bodyUsed, await copy.text()];
            const twice = await response.text().catch((error) => error.constructor.name);
            let cloned;
            try { response.clone(); } catch (error) { cloned = error.constructor.name; }
            seen.push([...first, twice, cloned]);
        }
        const empty = new Response();
        seen.push([empty.body, await empty.text(), await empty.text(), empty.bodyUsed]);
        const streamed = new Response("abc");
        const { body } = streamed;
        const reader = body.getReader();
        const locked = await streamed.text().catch((error) => error.constructor.name);
        const { value } = await reader.read();
        seen.push([body === streamed.body, locked, [...value], streamed.bodyUsed, (await reader.read()).done]);
        const json = new Response('\ufeff{"a":1}');
        seen.push([await json.json(), await new Response(null).json().catch((error) => error.name)]);
        const posted = new Request("http://h/", { method: "POST", body: "x" });
        const moved = new Request(posted, { headers: { a: "b" } });
        seen.push([posted.bodyUsed, await moved.text(), moved.headers.get("a"), moved.method, new Request(moved.url).signal.aborted]);
        const blob = await new Response("b", { headers: { "content-type": "a/b" } }).blob();
        seen.push([blob.size, blob.type, await new Response(blob.stream()).text(), (await new Response("xy").arrayBuffer()).byteLength]);
        return seen;"#,
    )
    .await;
    let each = json!([false, "hi", true, false, "hi", "TypeError", "TypeError"]);
    assert_eq!(
        seen,
        json!([
            each,
            each,
            each,
            each,
            [null, "", "", false],
            [true, "TypeError", [97, 98, 99], true, true],
            [{ "a": 1 }, "SyntaxError"],
            [true, "x", "b", "POST", false],
            [1, "a/b", "b", 2],
        ])
    );
}

#[tokio::test]
async fn blobs_and_files() {
    let seen = answer(
        &Bench::new(),
        r#"
        const blob = new Blob(["añb", new Uint8Array([1, 2]).buffer, new Blob(["c"])], { type: "Text/Plain" });
        const part = blob.slice(1, -3, "x/y");
        const file = new File([part], "ä.txt", { lastModified: 5, type: "t/u" });
        const copy = structuredClone({ file, blob });
        return [blob.size, blob.type, part.size, part.type, await part.text(), [...new Uint8Array(await blob.slice(-3).arrayBuffer())],
            file.name, file.lastModified, file instanceof Blob, copy.file.name, await copy.file.text(), copy.blob.size,
            String(file), blob.slice(5, 2).size, [...await blob.slice(0, 1).bytes()]];"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([
            7,
            "text/plain",
            3,
            "x/y",
            "ñb",
            [1, 2, 99],
            "ä.txt",
            5,
            true,
            "ä.txt",
            "ñb",
            7,
            "[object File]",
            0,
            [97]
        ])
    );
}

#[tokio::test]
async fn forms_come_and_go() {
    let bench = Bench::new();
    let seen = answer(
        &bench,
        r#"
        const form = new FormData();
        form.append("a", 1);
        form.append("a", "two\nlines");
        form.append("quo\"te", new Blob(["\r\n--x"], { type: "image/png" }), "f\"\n.png");
        form.set("b", "old");
        form.set("b", "new");
        form.append("gone", "x");
        form.delete("gone");
        const response = new Response(form);
        const copy = await response.formData();
        const file = copy.get("quo\"te");
        const shape = [...copy.keys()];
        const wrong = [];
        for (const [body, type] of [["x", "text/plain"], ["x", undefined], ["--b\r\n", "multipart/form-data; boundary=b"],
            ["x", "multipart/form-data"], ["--b\r\n\r\nx\r\n--b--", "multipart/form-data; boundary=b"]]) {
            const headers = type ? { "content-type": type } : {};
            await new Response(new TextEncoder().encode(body), { headers }).formData().catch((error) => wrong.push(error.message));
        }
        const plain = await new Response(new URLSearchParams("a=1&b=%C3%A4+x")).formData();
        const none = await new Response(new FormData()).formData();
        return [shape, copy.getAll("a"), file.name, file.type, await file.text(), copy.get("b"), copy.has("gone"), wrong, [...plain], [...none]];"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([
            ["a", "a", "quo\"te", "b"],
            ["1", "two\r\nlines"],
            "f\"\n.png",
            "image/png",
            "\r\n--x",
            "new",
            false,
            [
                "formData: the content type is \"text/plain\"; it can be multipart/form-data or application/x-www-form-urlencoded",
                "formData: the content type is missing; it can be multipart/form-data or application/x-www-form-urlencoded",
                "formData: the body is not complete multipart/form-data with the boundary of its content type",
                "formData: the content type names no boundary",
                "formData: a part has no name",
            ],
            [["a", "1"], ["b", "ä x"]],
            [],
        ])
    );

    // As curl writes it.
    let body = "preamble\r\n--X\r\ncontent-disposition: form-data; name=name\r\n\r\nvalue\r\n--X  \r\n\
        Content-Disposition: form-data; name=\"file\"; filename=\"a.bin\"\r\nContent-Type: application/octet-stream\r\n\r\n\
        \u{0}--X\r\n\r\n--X--\r\nepilogue";
    let source = r#"
        export default { async fetch(request) {
            const copy = request.clone();
            const form = await request.formData();
            const file = form.get("file");
            return { name: form.get("name"), file: [file.name, file.size, file.type], length: (await copy.text()).length, used: request.bodyUsed };
        } };"#;
    let program = bench.prepare(&graph("f.js", source)).await.unwrap();
    let request = HttpRequest {
        method: "POST".into(),
        path: "/".into(),
        query: String::new(),
        headers: vec![("content-type".into(), "Multipart/Form-Data; charset=x; boundary=\"X\"".into())],
    };
    let event = Event { trigger: Trigger::Http(request), body: Bytes::from_static(body.as_bytes()) };
    let seen = crate::json(bench.run(&program, event).await.result);
    assert_eq!(
        seen,
        json!({ "name": "value", "file": ["a.bin", 6, "application/octet-stream"], "length": body.len(), "used": true })
    );
}
