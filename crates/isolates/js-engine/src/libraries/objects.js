// The fields of objects beyond counters and registers, and entries of maps, of all types.
(native) => {
  const { parse, stringify } = JSON;
  const { jsonOf, nameOf, wholeNumber } = native;

  const MAX_INDEX = 2 ** 32 - 1;

  // The one JSON text that equal values have (RFC 8785): keys in order, no spaces.
  function ordered(value) {
    if (typeof value !== "object" || value === null) return stringify(value);
    if (Array.isArray(value)) return `[${value.map(ordered).join(",")}]`;
    const keys = Object.keys(value).sort();
    return `{${keys.map((key) => `${stringify(key)}:${ordered(value[key])}`).join(",")}}`;
  }

  function canonical(method, value) {
    const json = jsonOf(method, value);
    return json[0] === "{" || json[0] === "[" ? ordered(parse(json)) : json;
  }

  function index(method, value, what = "an index") {
    if (Number.isInteger(value) && value >= 0 && value <= MAX_INDEX) return value;
    throw new TypeError(`${method}: ${what} is a whole number from 0, not ${native.quote(value)}`);
  }

  function text(method, value, what) {
    if (typeof value === "string") return value;
    throw new TypeError(`${method}: ${what} is text, not ${native.quote(value)}`);
  }

  function pointerText(method, value) {
    if (typeof value === "string" && (value === "" || value[0] === "/")) return value;
    throw new TypeError(`${method}: a pointer is text that begins with "/" or is empty (RFC 6901), not ${native.quote(value)}`);
  }

  class Field {
    #object;
    #name;
    #path;
    #type;
    constructor(object, name, path, type) {
      this.#object = object;
      this.#name = name;
      this.#path = path;
      this.#type = type;
    }
    static change(field, change, ...values) {
      return native.objectChange(field.#object, field.#name, field.#path, change, ...values);
    }
    static read(field, read = field.#type, element = undefined) {
      return native.objectRead(field.#object, field.#name, field.#path, read, field.#type, element);
    }
    static entry(map, key, type) { return native.field(type, map.#object, map.#name, [...map.#path, key]); }
    static type(field) { return field.#type; }
  }
  const { change, read, entry, type: typeOf } = Field;
  // Functions see the methods of the types only.
  for (const name of ["change", "read", "entry", "type"]) delete Field[name];

  class Counter extends Field {
    async add(amount = 1) { return change(this, "counterAdd", wholeNumber("counter.add", amount)); }
    async subtract(amount = 1) { return change(this, "counterAdd", -wholeNumber("counter.subtract", amount)); }
    async value() { return read(this); }
  }

  class Register extends Field {
    async set(value) { return change(this, "registerSet", jsonOf("register.set", value)); }
    async get() { return read(this); }
  }

  class GCounter extends Field {
    async add(amount = 1) {
      if (Number.isSafeInteger(amount) && amount >= 0) return change(this, "gCounterAdd", amount);
      throw new TypeError(`gCounter.add: it only grows, so it takes whole numbers from 0, not ${native.quote(amount)}`);
    }
    async value() { return read(this); }
  }

  class BoundedCounter extends Field {
    async add(amount = 1) { return change(this, "boundedCounterAdd", wholeNumber("boundedCounter.add", amount)); }
    async subtract(amount = 1) {
      return change(this, "boundedCounterAdd", -wholeNumber("boundedCounter.subtract", amount));
    }
    async value() { return read(this); }
    async share() { return read(this, "share"); }
  }

  class MvRegister extends Field {
    async set(value) { return change(this, "mvRegisterSet", jsonOf("mvRegister.set", value)); }
    async get() { return read(this); }
  }

  class GSet extends Field {
    async add(value) { return change(this, "gSetAdd", canonical("gSet.add", value)); }
    async has(value) { return read(this, "contains", canonical("gSet.has", value)); }
    async values() { return read(this); }
  }

  class ORSet extends Field {
    async add(value) { return change(this, "setAdd", canonical("set.add", value)); }
    async delete(value) { return change(this, "setRemove", canonical("set.delete", value)); }
    async has(value) { return read(this, "contains", canonical("set.has", value)); }
    async clear() { return change(this, "setClear"); }
    async values() { return read(this); }
  }

  class Flag extends Field {
    async enable() { return change(this, typeOf(this) === "ew-flag" ? "ewFlagSet" : "dwFlagSet", true); }
    async disable() { return change(this, typeOf(this) === "ew-flag" ? "ewFlagSet" : "dwFlagSet", false); }
    async value() { return read(this); }
  }

  class List extends Field {
    async push(value) { return change(this, "listPush", jsonOf("list.push", value)); }
    async insert(at, value) {
      return change(this, "listInsert", index("list.insert", at), jsonOf("list.insert", value));
    }
    async set(at, value) { return change(this, "listSet", index("list.set", at), jsonOf("list.set", value)); }
    async delete(at) { return change(this, "listRemove", index("list.delete", at)); }
    async values() { return read(this); }
    async length() { return read(this).length; }
  }

  class Text extends Field {
    async insert(at, added) {
      return change(this, "textSplice", index("text.insert", at), 0, text("text.insert", added, "what is inserted"));
    }
    async delete(at, count = 1) {
      return change(this, "textSplice", index("text.delete", at), index("text.delete", count, "a count"), "");
    }
    async splice(at, count, added = "") {
      return change(
        this, "textSplice", index("text.splice", at), index("text.splice", count, "a count"),
        text("text.splice", added, "what is inserted"),
      );
    }
    async value() { return read(this); }
  }

  class Document extends Field {
    // `set(value)` is the whole document.
    async set(pointer, value) {
      if (arguments.length < 2) return change(this, "jsonSet", "", jsonOf("json.set", pointer));
      return change(this, "jsonSet", pointerText("json.set", pointer), jsonOf("json.set", value));
    }
    async delete(pointer) { return change(this, "jsonRemove", pointerText("json.delete", pointer)); }
    async value() { return read(this); }
  }

  // `[key, type, …]` of a map.
  function keysAndTypes(map) {
    const flat = read(map, "keys");
    const pairs = [];
    for (let i = 0; i < flat.length; i += 2) pairs.push([flat[i], flat[i + 1]]);
    return pairs;
  }

  class ORMap extends Field {
    async keys() { return keysAndTypes(this).map(([key]) => key); }
    async types() { return Object.fromEntries(keysAndTypes(this)); }
    async entries() { return Object.entries(read(this)); }
    async value() { return read(this); }
    async has(key) {
      const name = nameOf("map.has", key);
      return keysAndTypes(this).some(([known]) => known === name);
    }
    async delete(key) { return change(this, "mapRemove", nameOf("map.delete", key)); }
    async clear() { return change(this, "mapClear"); }
  }

  // The accessors' names; the type as the node names it, and its class.
  const TYPES = {
    counter: ["counter", Counter],
    register: ["register", Register],
    gCounter: ["g-counter", GCounter],
    boundedCounter: ["bounded-counter", BoundedCounter],
    mvRegister: ["mv-register", MvRegister],
    gSet: ["g-set", GSet],
    set: ["set", ORSet],
    map: ["map", ORMap],
    flag: ["ew-flag", Flag],
    ewFlag: ["ew-flag", Flag],
    dwFlag: ["dw-flag", Flag],
    list: ["list", List],
    text: ["text", Text],
    json: ["json", Document],
  };

  native.field = (accessor, object, name, path) => {
    const [type, Type] = TYPES[accessor];
    return new Type(object, name, path, type);
  };

  for (const type of Object.keys(TYPES)) {
    const accessor = { [type](key) { return entry(this, nameOf(`map.${type}`, key), type); } }[type];
    Object.defineProperty(ORMap.prototype, type, { value: accessor, writable: true, configurable: true });
  }
};
