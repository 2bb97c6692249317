// A greeting by Node.js itself. Its first line says where it listens.
import { createServer } from "node:http";

const headers = { "content-type": "text/plain; charset=utf-8", "content-length": 5 };
const server = createServer((_, response) => {
  response.writeHead(200, headers).end("hello");
});
server.listen(0, "127.0.0.1", () => console.log(`127.0.0.1:${server.address().port}`));
