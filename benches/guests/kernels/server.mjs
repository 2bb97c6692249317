// The same over HTTP in Node.js.
import { createServer } from 'node:http';
import { run } from './kernels.mjs';

const server = createServer((request, response) => {
  let body = '';
  request.on('data', (chunk) => (body += chunk));
  request.on('end', () => {
    const answer = JSON.stringify(run(JSON.parse(body)));
    response.writeHead(200, { 'content-length': Buffer.byteLength(answer) }).end(answer);
  });
});
server.listen(0, '127.0.0.1', () => console.log(`127.0.0.1:${server.address().port}`));
