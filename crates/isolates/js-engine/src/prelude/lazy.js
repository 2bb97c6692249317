// Globals that few functions use: what defines them is evaluated when one of them is asked for, or at deploy
// if a module mentions one. Until then they cost neither memory nor time.
(native) => {
  const loaded = new Set();

  native.demand = (group) => {
    if (loaded.has(group)) return;
    loaded.add(group);
    native.evaluate(native, group);
  };

  for (const [group, ...names] of native.groups()) {
    for (const name of names) {
      Object.defineProperty(globalThis, name, {
        get() { native.demand(group); return globalThis[name]; },
        set(value) { native.setGlobal(name, value); },
        configurable: true,
        enumerable: false,
      });
    }
  }

  // Methods that `intl` has. They stay, as a function may have put its own in their place.
  function localized(prototype, name, key) {
    const method = { [name](...values) {
      native.demand("intl");
      return native.intl.methods[key].apply(this, values);
    } }[name];
    Object.defineProperty(prototype, name, { value: method, writable: true, configurable: true, enumerable: false });
  }
  localized(Number.prototype, "toLocaleString", "number");
  localized(BigInt.prototype, "toLocaleString", "bigint");
  localized(Date.prototype, "toLocaleString", "any");
  localized(Date.prototype, "toLocaleDateString", "date");
  localized(Date.prototype, "toLocaleTimeString", "time");
  localized(String.prototype, "localeCompare", "compare");
};
