// A process without a system: `versions.node` is undefined, so that packages take their way for browsers.
const nothing = () => process;
const seconds = (since) => {
  const now = performance.now();
  const time = [Math.floor(now / 1e3), Math.floor((now % 1e3) * 1e6)];
  if (!since) return time;
  const [s, ns] = [time[0] - since[0], time[1] - since[1]];
  return ns < 0 ? [s - 1, ns + 1e9] : [s, ns];
};
seconds.bigint = () => BigInt(Math.floor(performance.now() * 1e6));
const process = {
  title: 'edgefaas',
  env: { NODE_ENV: 'production' },
  argv: [],
  argv0: '',
  execArgv: [],
  execPath: '',
  version: '',
  versions: {},
  release: {},
  config: {},
  features: {},
  platform: 'edgefaas',
  arch: 'wasm32',
  pid: 1,
  ppid: 0,
  exitCode: undefined,
  browser: true,
  nextTick: (run, ...values) => queueMicrotask(() => run(...values)),
  hrtime: seconds,
  uptime: () => performance.now() / 1e3,
  cwd: () => '/',
  chdir: () => { throw new Error('process.chdir: a function has no folder'); },
  umask: () => 0,
  exit: () => { throw new Error('process.exit: a function ends when its handler returns'); },
  abort: () => { throw new Error('process.abort: a function ends when its handler returns'); },
  binding: () => { throw new Error('process.binding is not available'); },
  emitWarning: (warning) => console.warn(String(warning)),
  memoryUsage: () => ({ rss: 0, heapTotal: 0, heapUsed: 0, external: 0, arrayBuffers: 0 }),
  on: nothing, addListener: nothing, once: nothing, off: nothing, removeListener: nothing,
  removeAllListeners: nothing, prependListener: nothing, prependOnceListener: nothing,
  emit: () => false,
  listeners: () => [],
  listenerCount: () => 0,
};
module.exports = process;
