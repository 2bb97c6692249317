const later = (run, ...values) => setTimeout(run, 0, ...values);
module.exports = {
  setTimeout, clearTimeout, setInterval, clearInterval,
  setImmediate: later,
  clearImmediate: clearTimeout,
};
