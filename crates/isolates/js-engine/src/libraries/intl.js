// Intl (ECMA-402) for English: locales, options, and the classes, whose files are evaluated when they are asked for.
(native) => {
  // Other locales fall back to the default one, as resolvedOptions tells.
  const AVAILABLE = ["en", "en-US"];
  const DEFAULT = "en-US";

  const LANGUAGE_ID = /^([a-z]{2,3}|[a-z]{5,8})(?:-([a-z]{4}))?(?:-([a-z]{2}|\d{3}))?((?:-(?:[a-z\d]{5,8}|\d[a-z\d]{3}))*)$/;
  const ALIASES = { iw: "he", in: "id", ji: "yi", jw: "jv", mo: "ro", tl: "fil", no: "nb", sh: "sr-Latn", cmn: "zh" };

  const wrong = (tag) => new RangeError(`Incorrect locale information provided: ${native.quote(tag)}`);
  const title = (text) => text[0].toUpperCase() + text.slice(1);

  // `{ language, script, region, variants, extensions, private }` of a tag in lower case.
  function parts(tag) {
    const lower = tag.toLowerCase();
    const [head, ...privateUse] = lower.split(/-x(?=-|$)/);
    if (privateUse.length > 1 || !/^[a-z\d-]*$/.test(lower)) throw wrong(tag);
    const [id, ...rest] = head.split(/-(?=[a-z\d](?:-|$))/);
    const match = LANGUAGE_ID.exec(id);
    if (!match) throw wrong(tag);
    const [, language, script, region, variants] = match;
    const list = variants ? variants.slice(1).split("-") : [];
    const singletons = rest.map((extension) => extension[0]);
    const repeated = (values) => new Set(values).size !== values.length;
    if (repeated(list) || repeated(singletons)) throw wrong(tag);
    if (rest.some((extension) => !/^[a-z\d](-[a-z\d]{2,8})+$/.test(extension))) throw wrong(tag);
    if (privateUse.length && !/^(-[a-z\d]{1,8})+$/.test(privateUse[0])) throw wrong(tag);
    return { language, script, region, variants: list.sort(), extensions: rest, privateUse: privateUse[0] };
  }

  // Keywords of a `u` extension: `[key, value]`.
  function keywords(extension) {
    const found = [];
    for (const part of extension.split("-").slice(1)) {
      if (part.length === 2) found.push([part, []]);
      else if (found.length) found.at(-1)[1].push(part);
    }
    return found.map(([key, values]) => [key, values.join("-")]);
  }

  function canonicalExtension(extension) {
    if (extension[0] !== "u") return extension;
    const attributes = extension.split("-").slice(1);
    const first = attributes.findIndex((part) => part.length === 2);
    const before = (first < 0 ? attributes : attributes.slice(0, first)).sort();
    const seen = new Map();
    for (const [key, value] of keywords(extension)) if (!seen.has(key)) seen.set(key, value === "true" ? "" : value === "yes" ? "" : value);
    const after = [...seen].sort(([a], [b]) => (a < b ? -1 : 1)).map(([key, value]) => (value ? `${key}-${value}` : key));
    return ["u", ...before, ...after].join("-");
  }

  function canonicalTag(tag) {
    const { language, script, region, variants, extensions, privateUse } = parts(tag);
    const id = [ALIASES[language] ?? language];
    if (script) id.push(title(script));
    if (region) id.push(region.toUpperCase());
    id.push(...variants, ...extensions.map(canonicalExtension).sort((a, b) => (a[0] < b[0] ? -1 : 1)));
    return id.join("-") + (privateUse ? `-x${privateUse}` : "");
  }

  function canonicalLocales(locales) {
    if (locales === undefined) return [];
    if (locales === null) throw new TypeError("the locales are null, not a text or a list of texts");
    const list = typeof locales === "string" || locales instanceof Intl.Locale ? [locales] : Array.from(Object(locales));
    const found = new Set();
    for (const tag of list) {
      if (typeof tag !== "string" && (typeof tag !== "object" || tag === null)) throw new TypeError(`a locale is a text, not ${native.quote(tag)}`);
      found.add(canonicalTag(String(tag)));
    }
    return [...found];
  }

  const withoutExtensions = (tag) => tag.replace(/-[a-z\d]-.*$/, "");

  // The longest available beginning of a tag.
  function available(tag) {
    for (let left = withoutExtensions(tag); left; left = left.slice(0, Math.max(left.lastIndexOf("-"), 0))) {
      if (AVAILABLE.includes(left)) return left;
    }
    return undefined;
  }

  // The locale to use, and the keywords of the tag that asked for it: `{ locale, wanted: { key: value } }`.
  function resolve(locales) {
    for (const tag of canonicalLocales(locales)) {
      const locale = available(tag);
      if (!locale) continue;
      const extension = /-(u(?:-[a-z\d]{2,8})+)/.exec(tag);
      return { locale, wanted: Object.fromEntries(extension ? keywords(extension[1]) : []) };
    }
    return { locale: DEFAULT, wanted: {} };
  }

  // An option as one of `values`, or any text if there are none.
  function option(options, name, values, fallback) {
    const value = options[name];
    if (value === undefined) return fallback;
    const text = String(value);
    if (values && !values.includes(text)) throw new RangeError(`Value ${text} out of range for Intl options property ${name}`);
    return text;
  }

  function numberOption(options, name, least, most, fallback) {
    return numberWithin(options[name], name, least, most, fallback);
  }

  function numberWithin(value, name, least, most, fallback) {
    if (value === undefined) return fallback;
    const number = Number(value);
    if (!(number >= least && number <= most)) throw new RangeError(`${name} value is out of range.`);
    return Math.floor(number);
  }

  // The options as an object; only some classes take what is none.
  function optionsObject(options, name) {
    if (options === undefined) return Object.create(null);
    if (typeof options !== "object" && typeof options !== "function" || options === null) throw new TypeError(`${name}: the options are ${native.quote(options)}, not an object`);
    return options;
  }

  const matcher = (options) => option(options, "localeMatcher", ["lookup", "best fit"], "best fit");

  const Intl = {};
  Object.defineProperty(Intl, Symbol.toStringTag, { value: "Intl", configurable: true });

  const hidden = (object, name, value) => Object.defineProperty(object, name, { value, writable: true, enumerable: false, configurable: true });

  // Defines a class. `build(locales, options)` makes the parts of an instance, `members(of)` its methods, where `of(this)`
  // are the parts. A class that may be called makes an instance without `new` as well.
  function define(name, { callable = false, build, members }) {
    const known = new WeakMap();
    const Class = { [name]: function (locales, options) {
      if (!new.target && !callable) throw new TypeError(`Intl.${name} needs new`);
      const made = new.target ? this : Object.create(Class.prototype);
      known.set(made, build(locales, options));
      return made;
    } }[name];
    Object.defineProperty(Class, "length", { value: 0, configurable: true });
    const of = (value) => {
      const found = known.get(value);
      if (!found) throw new TypeError(`this is no Intl.${name}`);
      return found;
    };
    for (const [key, descriptor] of Object.entries(Object.getOwnPropertyDescriptors(members(of)))) {
      Object.defineProperty(Class.prototype, key, { ...descriptor, enumerable: false });
    }
    Object.defineProperty(Class.prototype, Symbol.toStringTag, { value: `Intl.${name}`, configurable: true });
    Object.defineProperty(Class, "prototype", { writable: false });
    hidden(Class, "supportedLocalesOf", function supportedLocalesOf(locales, options) {
      const tags = canonicalLocales(locales);
      if (options !== undefined) matcher(Object(options));
      return tags.filter(available);
    });
    hidden(Intl, name, Class);
    return Class;
  }

  const FILES = {
    NumberFormat: "intl_number", PluralRules: "intl_number", DateTimeFormat: "intl_date", ListFormat: "intl_text",
    RelativeTimeFormat: "intl_text", Collator: "intl_collator",
  };
  for (const [name, file] of Object.entries(FILES)) {
    Object.defineProperty(Intl, name, {
      get() { native.demand(file); return Intl[name]; },
      set(value) { hidden(Intl, name, value); },
      configurable: true,
      enumerable: false,
    });
  }

  native.intl = { Intl, define, resolve, option, numberOption, numberWithin, optionsObject, matcher, hidden, canonicalLocales };

  const LOCALE_KEYS = { calendar: "ca", collation: "co", hourCycle: "hc", caseFirst: "kf", numeric: "kn", numberingSystem: "nu" };
  define("Locale", {
    build(tag, options = {}) {
      if (typeof tag !== "string" && (typeof tag !== "object" || tag === null)) throw new TypeError("Intl.Locale: the tag is a text or a locale");
      const read = parts(canonicalTag(String(tag)));
      const check = (value, form, name) => {
        if (value === undefined) return undefined;
        if (!form.test(String(value))) throw new RangeError(`Intl.Locale: ${name} is ${native.quote(value)}`);
        return String(value).toLowerCase();
      };
      read.language = check(options.language, /^([a-z]{2,3}|[a-z]{5,8})$/i, "language") ?? read.language;
      read.script = check(options.script, /^[a-z]{4}$/i, "script") ?? read.script;
      read.region = check(options.region, /^([a-z]{2}|\d{3})$/i, "region") ?? read.region;
      const unicode = read.extensions.findIndex((extension) => extension[0] === "u");
      const keys = new Map(unicode < 0 ? [] : keywords(read.extensions[unicode]));
      for (const [name, key] of Object.entries(LOCALE_KEYS)) {
        if (options[name] === undefined) continue;
        const value = check(options[name], name === "numeric" ? /./ : /^[a-z\d]{2,8}(-[a-z\d]{2,8})*$/i, name);
        keys.set(key, name === "numeric" ? (options[name] ? "" : "false") : value);
      }
      const others = read.extensions.filter((extension) => extension[0] !== "u");
      if (keys.size) others.push(["u", ...[...keys].map(([key, value]) => (value ? `${key}-${value}` : key))].join("-"));
      const base = [read.language, read.script && title(read.script), read.region?.toUpperCase(), ...read.variants].filter(Boolean).join("-");
      const tagged = canonicalTag([base, ...others].join("-") + (read.privateUse ? `-x${read.privateUse}` : ""));
      return { ...read, base, tag: tagged, keys };
    },
    members: (of) => ({
      toString() { return of(this).tag; },
      get baseName() { return of(this).base; },
      get language() { return of(this).language; },
      get script() { const { script } = of(this); return script && title(script); },
      get region() { return of(this).region?.toUpperCase(); },
      get calendar() { return of(this).keys.get("ca"); },
      get collation() { return of(this).keys.get("co"); },
      get hourCycle() { return of(this).keys.get("hc"); },
      get caseFirst() { return of(this).keys.get("kf"); },
      get numeric() { const value = of(this).keys.get("kn"); return value !== undefined && value !== "false"; },
      get numberingSystem() { return of(this).keys.get("nu"); },
    }),
  });

  hidden(Intl, "getCanonicalLocales", function getCanonicalLocales(locales) { return canonicalLocales(locales); });
  hidden(Intl, "supportedValuesOf", function supportedValuesOf(key) {
    switch (String(key)) {
      case "calendar": return ["gregory"];
      case "collation": return ["default"];
      case "numberingSystem": return ["latn"];
      case "timeZone": return native.zoneNames();
      case "currency": native.demand("intl_number"); return native.intl.currencies();
      case "unit": native.demand("intl_number"); return native.intl.units();
      default: throw new RangeError(`Invalid key : ${key}`);
    }
  });

  // Methods of other globals. The formatter for the usual arguments is kept.
  const methods = {};
  native.intl.methods = methods;
  function localized(key, file, make, use) {
    let usual;
    methods[key] = function (locales, options) {
      native.demand(file);
      const formatter = locales === undefined && options === undefined ? (usual ??= make(undefined, undefined)) : make(locales, options);
      return use(formatter, this);
    };
  }
  const numeric = (locales, options) => new Intl.NumberFormat(locales, options);
  for (const [key, { valueOf }] of [["number", Number.prototype], ["bigint", BigInt.prototype]]) {
    localized(key, "intl_number", numeric, (formatter, value) => formatter.format(valueOf.call(value)));
  }
  const { getTime } = Date.prototype;
  for (const [required, defaults] of [["any", "all"], ["date", "date"], ["time", "time"]]) {
    const make = (locales, options) => native.intl.dateFormat(locales, options, required, defaults);
    localized(required, "intl_date", make, (formatter, date) => {
      const time = getTime.call(date);
      return Number.isNaN(time) ? "Invalid Date" : formatter(time);
    });
  }
  let compare;
  methods.compare = function (that, locales, options) {
    if (this === undefined || this === null) throw new TypeError("localeCompare needs a text");
    const usual = locales === undefined && options === undefined;
    const order = usual ? (compare ??= new Intl.Collator().compare) : new Intl.Collator(locales, options).compare;
    return order(String(this), String(that));
  };

  native.setGlobal("Intl", Intl);
};
