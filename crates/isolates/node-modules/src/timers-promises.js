const wait = (ms, value) => new Promise((resolve) => setTimeout(resolve, ms, value));
module.exports = {
  setTimeout: wait,
  setImmediate: (value) => wait(0, value),
  scheduler: { wait: (ms) => wait(ms) },
};
