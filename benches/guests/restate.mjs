// A chain of three durable steps for Restate, beside the workflow of the benchmarks. The first argument is a path in the folder of the
// SDK's node_modules.
import { createServer } from 'node:http2';
import { createRequire } from 'node:module';

// Of Node.js 22; the SDK uses it.
Promise.withResolvers ??= function withResolvers() {
  const parts = {};
  parts.promise = new this((resolve, reject) => Object.assign(parts, { resolve, reject }));
  return parts;
};
const restate = createRequire(process.argv[2])('@restatedev/restate-sdk');

const step = (data) => ({ ...data, x: (data.x ?? 0) + 1 });

const chain = restate.service({
  name: 'chain',
  handlers: {
    async run(context, input) {
      const one = await context.run('step1', () => step(input));
      const two = await context.run('step2', () => step(one));
      return context.run('step3', () => step(two));
    },
  },
});

const server = createServer(restate.createEndpointHandler({ services: [chain] }));
server.listen(0, '127.0.0.1', () => console.log(`127.0.0.1:${server.address().port}`));
