import { Agent, request as http, type RequestOptions } from "node:http";
import { connect } from "node:http2";
import { deploy } from "./app";
import { expect, test } from "./fixtures";

interface Answer {
    status: number;
    headers: Record<string, string | string[] | undefined>;
    body: Buffer;
}

/** A request by a program that sets any header, which a page cannot. */
function send(url: string, options: RequestOptions, body = ""): Promise<Answer> {
    return new Promise((resolve, reject) => {
        const sent = http(url, options, (response) => {
            const chunks: Buffer[] = [];
            response.on("data", (chunk) => chunks.push(chunk));
            response.on("end", () => resolve({ status: response.statusCode ?? 0, headers: response.headers, body: Buffer.concat(chunks) }));
        });
        sent.on("error", reject);
        sent.end(body);
    });
}

test("files have a tag, a policy, and a compressed form", async ({ node }) => {
    for (const path of ["/", "/app.js", "/style.css", "/icon.svg"]) {
        const plain = await send(node.url + path, {});
        expect(plain.status).toBe(200);
        expect(plain.headers["content-encoding"]).toBeUndefined();
        expect(plain.headers["content-security-policy"]).toMatch(/^default-src 'none'; script-src 'self'; .*frame-ancestors 'none'$/);
        expect(plain.headers["content-security-policy"]).not.toContain("unsafe");
        expect(plain.headers["x-content-type-options"]).toBe("nosniff");
        const compressed = await send(node.url + path, { headers: { "accept-encoding": "gzip, br" } });
        expect(compressed.headers["content-encoding"]).toBe("gzip");
        expect(compressed.body.length).toBeLessThan(150_000);
        const known = await send(node.url + path, { headers: { "if-none-match": String(plain.headers.etag) } });
        expect([known.status, known.body.length]).toEqual([304, 0]);
    }
    const other = await send(`${node.url}/index.html`, {});
    expect([other.status, other.headers["x-content-type-options"]]).toEqual([401, "nosniff"]);
    for (const [path, status] of Object.entries({ "/metrics": 200, "/readyz": 200 })) {
        const answer = await send(node.url + path, { headers: { authorization: `Bearer ${node.token}` } });
        expect([path, answer.status, answer.headers["x-content-type-options"]]).toEqual([path, status, "nosniff"]);
    }
    expect((await send(`${node.url}/`, { method: "POST" })).status).toBe(401);
});

test("a session is of use to pages of this port only", async ({ node }) => {
    const own = { origin: node.url, "content-type": "application/json" };
    const signIn = JSON.stringify({ token: node.token });
    for (const headers of [{}, { ...own, origin: "https://evil.example" }, { ...own, host: "evil.example" }]) {
        const refused = await send(`${node.url}/session`, { method: "POST", headers: { "content-type": "application/json", ...headers } }, signIn);
        expect(refused.status).toBe(403);
        expect(refused.headers["set-cookie"]).toBeUndefined();
    }
    const signedIn = await send(`${node.url}/session`, { method: "POST", headers: own }, signIn);
    expect(signedIn.status).toBe(200);
    const cookie = String(signedIn.headers["set-cookie"]).split(";")[0] ?? "";
    const path = `${node.url}/edgefaas.control.v1.Control/Status`;
    const call = (headers: Record<string, string>) =>
        send(path, { method: "POST", headers: { "content-type": "application/grpc-web+proto", cookie, ...headers } }, "\0\0\0\0\0");
    const status = async (headers: Record<string, string>) => {
        const answer = await call(headers);
        return answer.headers["grpc-status"] ?? (answer.body.toString("latin1").includes("grpc-status:0") ? "0" : "none");
    };
    expect(await status({ origin: node.url })).toBe("0");
    expect(await status({})).toBe("7");
    expect(await status({ origin: "https://evil.example" })).toBe("7");
    expect(await status({ origin: node.url, host: "evil.example" })).toBe("7");
    expect(await status({ origin: node.url, "sec-fetch-site": "cross-site" })).toBe("7");
    expect(await status({ origin: node.url, cookie: `${cookie}x` })).toBe("16");
    // Without a session a program needs the token.
    expect(await status({ cookie: "", authorization: `Bearer ${node.token}` })).toBe("0");
    expect(await status({ cookie: "" })).toBe("16");
    const metrics = await send(`${node.url}/metrics`, { headers: { cookie } });
    expect(metrics.status).toBe(200);
});

test("a session works over HTTP/2, as it does over TLS", async ({ node }) => {
    const client = connect(node.url);
    const post = (path: string, headers: Record<string, string>, body: string) =>
        new Promise<{ status: number; cookie: string; grpc: string; text: string }>((resolve, reject) => {
            const stream = client.request({ ":method": "POST", ":path": path, ...headers });
            let answer = { status: 0, cookie: "", grpc: "", text: "" };
            stream.on("response", (got) => {
                const cookie = String(got["set-cookie"] ?? "").split(";")[0] ?? "";
                answer = { status: Number(got[":status"]), cookie, grpc: String(got["grpc-status"] ?? ""), text: "" };
            });
            stream.on("data", (chunk) => (answer.text += chunk.toString("latin1")));
            stream.on("end", () => resolve(answer));
            stream.on("error", reject);
            stream.end(body);
        });
    const json = { "content-type": "application/json" };
    const token = JSON.stringify({ token: node.token });
    expect((await post("/session", { ...json, origin: "http://evil.example" }, token)).status).toBe(403);
    const { status, cookie } = await post("/session", { ...json, origin: node.url }, token);
    expect(status).toBe(200);
    const web = { "content-type": "application/grpc-web+proto", cookie };
    const path = "/edgefaas.control.v1.Control/Status";
    expect((await post(path, { ...web, origin: node.url }, "\0\0\0\0\0")).text).toContain("grpc-status:0");
    expect((await post(path, { ...web, origin: "http://evil.example" }, "\0\0\0\0\0")).grpc).toBe("7");
    expect((await post(path, web, "\0\0\0\0\0")).grpc).toBe("7");
    client.close();
});

test("functions do not see the session", async ({ node }) => {
    const manifest = `app = "plant"\n\n[functions.echo]\nmain = "echo.js"\ntriggers = [{ http = "/echo", methods = ["GET"] }]\n`;
    await deploy(node, { "edgefaas.toml": manifest, "echo.js": "export default (event) => ({ cookie: event.headers.get?.(\"cookie\") ?? event.headers.cookie });\n" });
    const headers = { origin: node.url, "content-type": "application/json" };
    const signedIn = await send(`${node.url}/session`, { method: "POST", headers }, JSON.stringify({ token: node.token }));
    const cookie = String(signedIn.headers["set-cookie"]).split(";")[0] ?? "";
    const seen = await send(`${node.http}/echo`, { headers: { cookie: `a=1; ${cookie}` } });
    expect(seen.body.toString()).toContain("a=1");
    expect(seen.body.toString()).not.toContain("edgefaas-");
});

test("one user does not take all connections", async ({ node }) => {
    await node.cli(["users", "add", "bob", "--role", "look"], "bob's\n");
    const own = { origin: node.url, "content-type": "application/json" };
    const signedIn = await send(`${node.url}/session`, { method: "POST", headers: own }, JSON.stringify({ user: "bob", password: "bob's" }));
    const cookie = String(signedIn.headers["set-cookie"]).split(";")[0] ?? "";
    const headers = { origin: node.url, "content-type": "application/grpc-web+proto", cookie };
    // `follow`, which is field 2.
    const body = "\0\0\0\0\x02\x10\x01";
    const agent = new Agent({ maxSockets: 200 });
    const streams = Array.from({ length: 130 }, () => {
        const sent = http(`${node.url}/edgefaas.control.v1.Control/Logs`, { method: "POST", headers, agent });
        const status = new Promise<string>((resolve) => {
            sent.on("response", (response) => resolve(String(response.headers["grpc-status"] ?? "open")));
            sent.on("error", () => resolve("closed"));
        });
        sent.end(body, "latin1");
        return { sent, status };
    });
    const found = await Promise.all(streams.map(({ status }) => status));
    const open = found.filter((status) => status === "open").length;
    expect(open).toBeGreaterThan(0);
    expect(open).toBeLessThanOrEqual(24);
    expect((await send(`${node.url}/healthz`, {})).status).toBe(200);
    expect(await node.cli(["users", "list"])).toContain("bob");
    for (const { sent } of streams) sent.destroy();
});

test("bad sign-ins are refused with a reason", async ({ node }) => {
    const headers = { origin: node.url, "content-type": "application/json" };
    for (const [body, status] of [
        ["", 400],
        ["{}", 400],
        ["[1]", 400],
        ['{"user": 1, "password": 2}', 400],
        ['{"token": "x"}', 401],
        ['{"user": "nobody", "password": "x"}', 401],
        [`{"token": "${"x".repeat(9000)}"}`, 413],
    ] as const) {
        const answer = await send(`${node.url}/session`, { method: "POST", headers }, body);
        expect(answer.status, body.slice(0, 40)).toBe(status);
        expect(JSON.parse(answer.body.toString()).detail).not.toBe("");
    }
});
