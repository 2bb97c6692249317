// The same functions in a Node.js process without edgefaas: what a caller pays whose functions run beside it. Is started with a port; its
// first line says that it listens.
import { readFileSync } from "node:fs";
import { createServer, get } from "node:http";

const functions = {};
for (const [name, file] of Object.entries({
  hello: "hello.js",
  sleep: "sleep.js",
  matrix: "matrix.js",
  equivalences: "equivalences.js",
  post: "post.js",
  terrain: "terrain.js",
  small: "small.js",
})) {
  // The files have no package.json that makes them modules.
  const source = readFileSync(new URL(file, import.meta.url), "utf8");
  const url = `data:text/javascript;base64,${Buffer.from(source).toString("base64")}`;
  functions[name] = (await import(url)).default;
}

const PROPERTY = Buffer.from('"name":"');

// The large document, read piece by piece to its end.
functions.document = () =>
  new Promise((resolve, reject) => {
    get("http://10.77.2.1:7379/GET/large.txt", (answer) => {
      let tail = Buffer.alloc(0);
      let found = null;
      answer.on("data", (piece) => {
        if (found !== null) return;
        const text = Buffer.concat([tail, piece]);
        const at = text.indexOf(PROPERTY);
        const end = at < 0 ? -1 : text.indexOf('"', at + PROPERTY.length);
        if (end >= 0) found = text.toString("utf8", at + PROPERTY.length, end);
        tail = text.subarray(-1024);
      });
      answer.on("end", () => resolve(found));
      answer.on("error", reject);
    }).on("error", reject);
  });

const server = createServer(async (request, response) => {
  const url = new URL(request.url, "http://localhost");
  const run = functions[url.pathname.replace("/fn/", "")];
  let [status, body] = [404, "no such function"];
  if (run) {
    try {
      const result = await run({ query: url.search.slice(1) });
      [status, body] = [200, typeof result === "string" ? result : JSON.stringify(result)];
    } catch (error) {
      [status, body] = [500, String(error)];
    }
  }
  response.writeHead(status, { "content-length": Buffer.byteLength(body) }).end(body);
});
server.listen(Number(process.argv[2]), "127.0.0.1", () => console.log("ready"));
