// Intl.ListFormat and Intl.RelativeTimeFormat (ECMA-402) for English.
(native) => {
  // A deploy evaluates this file where a property has the name of a class, whether `Intl` is mentioned or not.
  native.demand("intl");
  const { Intl, define, resolve, option, optionsObject, matcher } = native.intl;

  const WORDS = { conjunction: { long: "and", short: "&", narrow: "" }, disjunction: { long: "or", short: "or", narrow: "or" } };

  function listParts({ type, style }, list) {
    const values = [];
    for (const value of list ?? []) {
      if (typeof value !== "string") throw new TypeError(`a list has texts, not ${native.quote(value)}`);
      values.push(value);
    }
    const word = WORDS[type]?.[style] ?? "";
    const comma = type === "unit" && style === "narrow" ? " " : ", ";
    const last = values.length - 1;
    const parts = [];
    values.forEach((value, index) => {
      if (index) {
        const before = index < last ? comma : !word ? comma : values.length > 2 ? `, ${word} ` : ` ${word} `;
        parts.push({ type: "literal", value: before });
      }
      parts.push({ type: "element", value });
    });
    return parts;
  }
  const join = (parts) => parts.map((part) => part.value).join("");

  define("ListFormat", {
    build(locales, given) {
      const { locale } = resolve(locales);
      const options = optionsObject(given, "Intl.ListFormat");
      matcher(options);
      const type = option(options, "type", ["conjunction", "disjunction", "unit"], "conjunction");
      return { locale, type, style: option(options, "style", ["long", "short", "narrow"], "long") };
    },
    members: (of) => ({
      format(list) { return join(listParts(of(this), list)); },
      formatToParts(list) { return listParts(of(this), list); },
      resolvedOptions() { return { ...of(this) }; },
    }),
  });

  // Unit: short forms of one and of many, narrow form, and the words for the last, this and next one.
  const SHORT = {
    second: ["sec.", "sec.", "s"], minute: ["min.", "min.", "m"], hour: ["hr.", "hr.", "h"], day: ["day", "days", "d"],
    week: ["wk.", "wk.", "w"], month: ["mo.", "mo.", "mo"], quarter: ["qtr.", "qtrs.", "q"], year: ["yr.", "yr.", "y"],
  };
  const UNITS = Object.keys(SHORT);

  function wordFor(unit, style, value) {
    const short = SHORT[unit][0];
    const name = style === "long" || unit === "day" ? unit : short;
    switch (unit) {
      case "second": return Object.is(value, 0) || Object.is(value, -0) ? "now" : undefined;
      case "minute": case "hour": return Number(value) === 0 ? `this ${unit}` : undefined;
      case "day": return { "-1": "yesterday", 0: "today", 1: "tomorrow" }[value];
      default: return { "-1": `last ${name}`, 0: `this ${name}`, 1: `next ${name}` }[value];
    }
  }

  function relativeParts({ style, numeric, numbers, plurals }, value, unit) {
    value = Number(value);
    unit = String(unit).replace(/s$/, "");
    if (!UNITS.includes(unit)) throw new RangeError(`Invalid unit argument for format() '${unit}'`);
    if (!Number.isFinite(value)) throw new RangeError("Invalid number value");
    const word = numeric === "auto" ? wordFor(unit, style, value) : undefined;
    if (word !== undefined) return [{ type: "literal", value: word }];
    const past = value < 0 || Object.is(value, -0);
    const size = Math.abs(value);
    const many = plurals.select(size) !== "one";
    const [one, others, narrow] = SHORT[unit];
    const name = style === "long" ? `${unit}${many ? "s" : ""}` : style === "short" ? (many ? others : one) : narrow;
    const between = style === "narrow" ? "" : " ";
    const parts = numbers.formatToParts(size).map((part) => ({ ...part, unit }));
    if (!past) parts.unshift({ type: "literal", value: "in " });
    return [...parts, { type: "literal", value: `${between}${name}${past ? " ago" : ""}` }];
  }

  define("RelativeTimeFormat", {
    build(locales, given) {
      const { locale } = resolve(locales);
      const options = optionsObject(given === null ? undefined : given, "Intl.RelativeTimeFormat");
      if (given === null) throw new TypeError("Intl.RelativeTimeFormat: the options are null");
      matcher(options);
      option(options, "numberingSystem", undefined, undefined);
      const style = option(options, "style", ["long", "short", "narrow"], "long");
      const numeric = option(options, "numeric", ["always", "auto"], "always");
      return { locale, style, numeric, numbers: new Intl.NumberFormat(locale), plurals: new Intl.PluralRules(locale) };
    },
    members: (of) => ({
      format(value, unit) { return join(relativeParts(of(this), value, unit)); },
      formatToParts(value, unit) { return relativeParts(of(this), value, unit); },
      resolvedOptions() {
        const { locale, style, numeric } = of(this);
        return { locale, style, numeric, numberingSystem: "latn" };
      },
    }),
  });
};
