// Intl.DateTimeFormat (ECMA-402) for English and the Gregorian calendar.
(native) => {
  // A deploy evaluates this file where a property has the name of a class, whether `Intl` is mentioned or not.
  native.demand("intl");
  const { define, resolve, option, numberOption, matcher } = native.intl;

  const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
  const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
  const ERAS = { long: ["Anno Domini", "Before Christ"], short: ["AD", "BC"], narrow: ["A", "B"] };
  const TEXT = ["narrow", "short", "long"];
  const NUMBER = ["2-digit", "numeric"];
  // The options that choose what is shown, in the order of resolvedOptions.
  const FIELDS = {
    weekday: TEXT, era: TEXT, year: NUMBER, month: [...NUMBER, ...TEXT], day: NUMBER, dayPeriod: TEXT, hour: NUMBER, minute: NUMBER,
    second: NUMBER, fractionalSecondDigits: undefined,
    timeZoneName: ["short", "long", "shortOffset", "longOffset", "shortGeneric", "longGeneric"],
  };
  const DATE = ["weekday", "year", "month", "day"];
  const TIME = ["dayPeriod", "hour", "minute", "second", "fractionalSecondDigits"];
  const STYLES = ["full", "long", "medium", "short"];
  const DATE_STYLES = {
    full: { weekday: "long", month: "long", day: "numeric", year: "numeric" }, long: { month: "long", day: "numeric", year: "numeric" },
    medium: { month: "short", day: "numeric", year: "numeric" }, short: { month: "numeric", day: "numeric", year: "2-digit" },
  };
  const TIME_STYLES = {
    full: { hour: "numeric", minute: "2-digit", second: "2-digit", timeZoneName: "long" },
    long: { hour: "numeric", minute: "2-digit", second: "2-digit", timeZoneName: "short" },
    medium: { hour: "numeric", minute: "2-digit", second: "2-digit" }, short: { hour: "numeric", minute: "2-digit" },
  };
  const MAX_TIME = 8.64e15;

  const two = (number) => String(number).padStart(2, "0");

  // --- time zones ---

  const zones = new Map();
  const UTC_NAMES = /^(etc\/)?(utc|uct|universal|zulu|gmt)$/i;

  // `{ name, changes }`, where the changes are times in seconds, offsets in seconds and whether it is daylight time.
  function zoneOf(name) {
    const key = name.toLowerCase();
    let zone = zones.get(key);
    if (zone) return zone;
    const offset = /^([+-])(\d\d):?(\d\d)?$/.exec(name);
    if (offset && Number(offset[2]) < 24 && Number(offset[3] ?? 0) < 60) {
      const seconds = Number(`${offset[1]}1`) * (offset[2] * 3600 + (offset[3] ?? 0) * 60);
      zone = { name: `${seconds < 0 ? "-" : "+"}${offset[2]}:${offset[3] ?? "00"}`, changes: [-Infinity, seconds, 0] };
    } else if (/^utc$/i.test(name)) {
      zone = { name: "UTC", changes: [-Infinity, 0, 0] };
    } else {
      const found = native.zone(name);
      if (!found) throw new RangeError(`Invalid time zone specified: ${name}`);
      zone = { name: UTC_NAMES.test(found[0]) ? "UTC" : found[0], changes: found[1] };
    }
    zones.set(key, zone);
    return zone;
  }

  // Where in the changes the one before `seconds` is.
  function changeAt({ changes }, seconds) {
    let low = 0;
    let high = changes.length / 3;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (changes[middle * 3] <= seconds) low = middle;
      else high = middle;
    }
    return low * 3;
  }

  function offsetText(seconds, long) {
    if (seconds === 0) return "GMT";
    const [size, sign] = [Math.abs(seconds), seconds < 0 ? "-" : "+"];
    const [hours, minutes, rest] = [Math.floor(size / 3600), Math.floor(size / 60) % 60, size % 60];
    const tail = rest ? `:${two(minutes)}:${two(rest)}` : long || minutes ? `:${two(minutes)}` : "";
    return `GMT${sign}${long ? two(hours) : hours}${tail}`;
  }

  function zoneName(zone, style, seconds) {
    const at = changeAt(zone, seconds);
    const { changes } = zone;
    const [offset, flag] = [changes[at + 1], changes[at + 2]];
    // Ireland's winter time is the one with the flag, and yet its summer time is the later one.
    const near = at > 0 ? at - 3 : Math.min(at + 3, changes.length - 3);
    const daylight = changes[near + 2] === flag ? flag : Number(offset > changes[near + 1]);
    if (style === "longOffset") return offsetText(offset, true);
    if (style === "shortOffset") return offsetText(offset, false);
    if (zone.name === "UTC") return style === "short" ? "UTC" : style === "long" ? "Coordinated Universal Time" : "GMT";
    native.demand("intl_zones");
    const names = native.intl.zoneNames.get(zone.name);
    const name = style === "long" || style === "short" ? names?.[style][daylight] : names?.[style];
    return name && !(name === "GMT" && offset) ? name : offsetText(offset, style.startsWith("long"));
  }

  // The fields of a time in a zone.
  function local(zone, time) {
    const seconds = Math.floor(time / 1000);
    const offset = zone.changes[changeAt(zone, seconds) + 1];
    const date = new Date(time + offset * 1000);
    return {
      seconds, year: date.getUTCFullYear(), month: date.getUTCMonth(), day: date.getUTCDate(), weekday: date.getUTCDay(),
      hour: date.getUTCHours(), minute: date.getUTCMinutes(), second: date.getUTCSeconds(), ms: date.getUTCMilliseconds(),
    };
  }

  // --- patterns: lists of literals and of `[field, style]` ---

  const isText = (style) => TEXT.includes(style);

  function datePattern({ weekday, era, year, month, day }) {
    const [y, M, d, E, G] = [["year", year], ["month", month], ["day", day], ["weekday", weekday], ["era", era]];
    const pattern = [];
    const add = (separator, field) => {
      if (field[1] === undefined) return;
      if (pattern.length) pattern.push(separator);
      pattern.push(field);
    };
    const weekdayLast = day === undefined && month !== undefined;
    if (month === undefined) {
      for (const field of [d, E, y, G]) add(" ", field);
    } else {
      const text = isText(month);
      if (!weekdayLast) add("", E);
      add(", ", M);
      add(text ? " " : "/", d);
      add(!text ? "/" : day === undefined ? " " : ", ", y);
      add(" ", G);
      if (weekdayLast) add(" ", E);
    }
    return pattern;
  }

  function timePattern({ hour, minute, second, fractionalSecondDigits, dayPeriod }, twelve) {
    const pattern = [];
    const add = (field) => {
      if (field[1] === undefined) return;
      if (pattern.length) pattern.push(":");
      pattern.push(field);
    };
    if (hour !== undefined) add(["hour", twelve ? hour : "2-digit"]);
    const alone = hour === undefined && (minute === undefined || second === undefined);
    add(["minute", minute && (alone ? "numeric" : "2-digit")]);
    add(["second", second && (alone ? "numeric" : "2-digit")]);
    if (fractionalSecondDigits !== undefined) {
      if (pattern.length) pattern.push(".");
      pattern.push(["fractionalSecond", fractionalSecondDigits]);
    }
    if (hour !== undefined && twelve) pattern.push(" ", ["dayPeriod", dayPeriod ?? "ampm"]);
    else if (hour === undefined && dayPeriod) pattern.push(...(pattern.length ? [" "] : []), ["dayPeriod", dayPeriod]);
    return pattern;
  }

  // Date and time, with what stands between them.
  function wholePattern(fields, twelve, joined) {
    const [date, time] = [datePattern(fields), timePattern(fields, twelve)];
    if (fields.timeZoneName !== undefined) time.push(...(time.length ? [" "] : []), ["timeZoneName", fields.timeZoneName]);
    if (!date.length || !time.length) return { pattern: [...date, ...time], date, time };
    const onlyWeekday = date.length === 1 && fields.weekday !== undefined;
    const separator = joined ?? (fields.month === "long" ? " at " : onlyWeekday ? " " : ", ");
    return { pattern: [...date, separator, ...time], date, time, separator };
  }

  const PERIODS = { am: "AM", pm: "PM", noon: { narrow: "n", short: "noon", long: "noon" } };
  function dayPeriodOf({ hour, minute, second, ms }, style, fields) {
    if (style === "ampm") return hour < 12 ? PERIODS.am : PERIODS.pm;
    const onTheHour = (fields.minute === undefined || minute === 0) && (fields.second === undefined || second === 0)
      && (fields.fractionalSecondDigits === undefined || ms === 0);
    if (hour === 12 && onTheHour) return PERIODS.noon[style];
    if (hour >= 21) return "at night";
    if (hour >= 18) return "in the evening";
    return hour >= 12 ? "in the afternoon" : "in the morning";
  }

  function hourOf(hour, hourCycle) {
    switch (hourCycle) {
      case "h11": return hour % 12;
      case "h12": return hour % 12 || 12;
      case "h24": return hour || 24;
      default: return hour;
    }
  }

  const numeric = (number, style) => (style === "2-digit" ? two(number % 100) : String(number));
  const shortened = (name, style) => (style === "long" ? name : name.slice(0, style === "short" ? 3 : 1));

  function fieldText(state, now, field, style) {
    switch (field) {
      case "weekday": return shortened(DAYS[now.weekday], style);
      case "era": return ERAS[style][now.year > 0 ? 0 : 1];
      case "year": return numeric(now.year > 0 ? now.year : 1 - now.year, style);
      case "month": return isText(style) ? shortened(MONTHS[now.month], style) : numeric(now.month + 1, style);
      case "day": return numeric(now.day, style);
      case "hour": return numeric(hourOf(now.hour, state.hourCycle), style);
      case "minute": return numeric(now.minute, style);
      case "second": return numeric(now.second, style);
      case "fractionalSecond": return String(now.ms).padStart(3, "0").slice(0, style);
      case "dayPeriod": return dayPeriodOf(now, style, state.shown);
      default: return zoneName(state.zone, style, now.seconds);
    }
  }

  function partsOf(state, now, pattern) {
    return pattern.map((part) => (typeof part === "string"
      ? { type: "literal", value: part }
      : { type: part[0], value: fieldText(state, now, part[0], part[1]) }));
  }

  const join = (parts) => parts.map((part) => part.value).join("");

  // --- options ---

  // What is shown if the options name nothing: `required` and `defaults` are those of the specification.
  function build(locales, given, required = "any", defaults = "date") {
    const { locale, wanted } = resolve(locales);
    if (given === null) throw new TypeError("Intl.DateTimeFormat: the options are null");
    const options = given === undefined ? Object.create(null) : Object(given);
    matcher(options);
    option(options, "calendar", undefined, undefined);
    option(options, "numberingSystem", undefined, undefined);
    const hour12 = options.hour12 === undefined ? undefined : Boolean(options.hour12);
    let hourCycle = option(options, "hourCycle", ["h11", "h12", "h23", "h24"], undefined);
    if (hour12 !== undefined) hourCycle = hour12 ? "h12" : "h23";
    hourCycle ??= ["h11", "h12", "h23", "h24"].includes(wanted.hc) ? wanted.hc : "h12";
    const zone = zoneOf(options.timeZone === undefined ? "UTC" : String(options.timeZone));
    const asked = {};
    for (const [field, values] of Object.entries(FIELDS)) {
      const value = field === "fractionalSecondDigits" ? numberOption(options, field, 1, 3, undefined) : option(options, field, values, undefined);
      if (value !== undefined) asked[field] = value;
    }
    option(options, "formatMatcher", ["basic", "best fit"], "best fit");
    const dateStyle = option(options, "dateStyle", STYLES, undefined);
    const timeStyle = option(options, "timeStyle", STYLES, undefined);
    let joined;
    if (dateStyle !== undefined || timeStyle !== undefined) {
      const [other] = Object.keys(asked);
      if (other) throw new TypeError(`Can't set option ${other} when ${dateStyle ? "dateStyle" : "timeStyle"} is used`);
      if (required === "date" && timeStyle !== undefined) throw new TypeError("Invalid option : timeStyle");
      if (required === "time" && dateStyle !== undefined) throw new TypeError("Invalid option : dateStyle");
      Object.assign(asked, DATE_STYLES[dateStyle], TIME_STYLES[timeStyle]);
      joined = dateStyle === "full" || dateStyle === "long" ? " at " : ", ";
    } else {
      const names = (fields) => fields.some((field) => asked[field] !== undefined);
      const nothing = !((required !== "time" && names(DATE)) || (required !== "date" && names(TIME)));
      if (nothing && defaults !== "time") Object.assign(asked, { year: "numeric", month: "numeric", day: "numeric" });
      if (nothing && defaults !== "date") Object.assign(asked, { hour: "numeric", minute: "2-digit", second: "2-digit" });
      // A fraction needs its seconds if there are minutes.
      if (asked.fractionalSecondDigits !== undefined && asked.minute !== undefined) asked.second ??= "numeric";
    }
    const twelve = hourCycle === "h11" || hourCycle === "h12";
    const { pattern, date, time, separator } = wholePattern(asked, twelve, joined);
    const used = Object.fromEntries(pattern.filter((part) => typeof part !== "string"));
    const shown = {};
    for (const field of Object.keys(FIELDS)) {
      const value = field === "fractionalSecondDigits" ? used.fractionalSecond : used[field];
      if (value !== undefined && value !== "ampm") shown[field] = value;
    }
    return { locale, zone, hourCycle: asked.hour === undefined ? undefined : hourCycle, shown, dateStyle, timeStyle, pattern, date, time, separator };
  }

  function timeOf(value) {
    const time = value === undefined ? Date.now() : Number(value);
    if (!(Math.abs(time) <= MAX_TIME)) throw new RangeError("Invalid time value");
    return Math.trunc(time);
  }

  const format = (state, time) => join(partsOf(state, local(state.zone, time), state.pattern));

  // --- ranges ---

  const BETWEEN = "\u2009–\u2009";

  function rangeParts(state, start, end) {
    if (start === undefined || end === undefined) throw new TypeError("formatRange needs a start and an end");
    const [first, last] = [timeOf(start), timeOf(end)].map((time) => local(state.zone, time));
    const parts = (now, pattern, source) => partsOf(state, now, pattern).map((part) => ({ ...part, source }));
    const both = (a, b) => [...parts(first, a, "startRange"), { type: "literal", value: BETWEEN, source: "shared" }, ...parts(last, b, "endRange")];
    if (join(partsOf(state, first, state.pattern)) === join(partsOf(state, last, state.pattern))) return parts(first, state.pattern, "shared");
    const sameYear = first.year === last.year;
    const sameMonth = sameYear && first.month === last.month;
    const sameDay = sameMonth && first.day === last.day;
    const { date, time, shown } = state;
    if (time.length && date.length && !sameDay) return both(state.pattern, state.pattern);
    if (time.length) {
      const before = date.length ? parts(first, [...date, ", "], "shared") : [];
      const isPeriod = (part) => part[0] === "dayPeriod" && part[1] === "ampm";
      const at = time.findIndex(isPeriod);
      const zoneAt = time.findIndex((part) => part[0] === "timeZoneName");
      const core = zoneAt < 0 ? time : time.slice(0, zoneAt - 1);
      const zone = zoneAt < 0 ? [] : time.slice(zoneAt - 1);
      const shared = at > 0 && (first.hour < 12) === (last.hour < 12);
      return [...before, ...both(shared ? core.slice(0, at - 1) : core, core), ...parts(last, zone, "shared")];
    }
    if (isText(shown.month) && shown.year !== undefined && sameYear) {
      const yearAt = date.findIndex((part) => part[0] === "year") - 1;
      const [head, tail] = [date.slice(0, yearAt), date.slice(yearAt)];
      const dayAt = head.findIndex((part) => part[0] === "day");
      const onlyDay = sameMonth && dayAt > 0 && shown.weekday === undefined;
      return [...both(head, onlyDay ? head.slice(dayAt) : head), ...parts(last, tail, "shared")];
    }
    if (isText(shown.month) && shown.year === undefined && sameMonth && shown.weekday === undefined) {
      return both(date, date.filter((part) => part[0] === "day"));
    }
    return both(date, date);
  }

  define("DateTimeFormat", {
    callable: true,
    build: (locales, options) => build(locales, options),
    members: (of) => ({
      get format() {
        const state = of(this);
        return (state.bound ??= (value) => format(state, timeOf(value)));
      },
      formatToParts(value) {
        const state = of(this);
        return partsOf(state, local(state.zone, timeOf(value)), state.pattern);
      },
      formatRange(start, end) { return join(rangeParts(of(this), start, end)); },
      formatRangeToParts(start, end) { return rangeParts(of(this), start, end); },
      resolvedOptions() {
        const { locale, zone, hourCycle, shown, dateStyle, timeStyle } = of(this);
        return {
          locale, calendar: "gregory", numberingSystem: "latn", timeZone: zone.name,
          ...(hourCycle && { hourCycle, hour12: hourCycle === "h11" || hourCycle === "h12" }),
          ...(dateStyle || timeStyle ? { ...(dateStyle && { dateStyle }), ...(timeStyle && { timeStyle }) } : shown),
        };
      },
    }),
  });

  // For Date.prototype.toLocaleString and the like.
  native.intl.dateFormat = (locales, options, required, defaults) => {
    const state = build(locales, options, required, defaults);
    return (time) => format(state, time);
  };
};
