// Intl.NumberFormat and Intl.PluralRules (ECMA-402) for English.
(native) => {
  // A deploy evaluates this file where a property has the name of a class, whether `Intl` is mentioned or not.
  native.demand("intl");
  const { Intl, define, resolve, option, numberOption, numberWithin, optionsObject, matcher } = native.intl;

  // Code and number of minor digits if it is not 2 | symbol in English/narrow symbol | name of one | of many, where that is
  // not the name with an s; = is the same.
  const CURRENCIES = new Map(`AED||UAE dirham
AFN0|/؋|Afghan Afghani
ALL0||Albanian lek|Albanian lekë
AMD|/֏|Armenian dram
ANG||Netherlands Antillean guilder
AOA|/Kz|Angolan kwanza
ARS|/$|Argentine peso
AUD|A$/$|Australian dollar
AWG||Aruban florin|=
AZN|/₼|Azerbaijani manat
BAM|/KM|Bosnia-Herzegovina convertible mark
BBD|/$|Barbadian dollar
BDT|/৳|Bangladeshi taka
BGN||Bulgarian lev|Bulgarian leva
BHD3||Bahraini dinar
BIF0||Burundian franc
BMD|/$|Bermudan dollar
BND|/$|Brunei dollar
BOB|/Bs|Bolivian boliviano
BRL|R$|Brazilian real
BSD|/$|Bahamian dollar
BTN||Bhutanese ngultrum
BWP|/P|Botswanan pula
BYN||Belarusian ruble
BZD|/$|Belize dollar
CAD|CA$/$|Canadian dollar
CDF||Congolese franc
CHF||Swiss franc
CLP0|/$|Chilean peso
CNY|CN¥/¥|Chinese yuan|=
COP0|/$|Colombian peso
CRC|/₡|Costa Rican colón
CUC|/$|Cuban convertible peso
CUP|/$|Cuban peso
CVE||Cape Verdean escudo
CZK|/Kč|Czech koruna
DJF0||Djiboutian franc
DKK|/kr|Danish krone|Danish kroner
DOP|/$|Dominican peso
DZD||Algerian dinar
EGP|/E£|Egyptian pound
ERN||Eritrean nakfa
ETB||Ethiopian birr
EUR|€|euro
FJD|/$|Fijian dollar
FKP|/£|Falkland Islands pound
GBP|£|British pound
GEL|/₾|Georgian lari
GHS|/GH₵|Ghanaian cedi
GIP|/£|Gibraltar pound
GMD||Gambian dalasi
GNF0|/FG|Guinean franc
GTQ|/Q|Guatemalan quetzal
GYD|/$|Guyanaese dollar
HKD|HK$/$|Hong Kong dollar
HNL|/L|Honduran lempira
HRK|/kn|Croatian kuna
HTG||Haitian gourde
HUF0|/Ft|Hungarian forint
IDR0|/Rp|Indonesian rupiah
ILS|₪|Israeli new shekel
INR|₹|Indian rupee
IQD0||Iraqi dinar
IRR0||Iranian rial
ISK0|/kr|Icelandic króna|Icelandic krónur
JMD|/$|Jamaican dollar
JOD3||Jordanian dinar
JPY0|¥|Japanese yen|=
KES||Kenyan shilling
KGS|/⃀|Kyrgyz som
KHR|/៛|Cambodian riel
KMF0|/CF|Comorian franc
KPW0|/₩|North Korean won|=
KRW0|₩|South Korean won|=
KWD3||Kuwaiti dinar
KYD|/$|Cayman Islands dollar
KZT|/₸|Kazakhstani tenge
LAK0|/₭|Laotian kip
LBP0|/L£|Lebanese pound
LKR|/Rs|Sri Lankan rupee
LRD|/$|Liberian dollar
LSL||Lesotho loti
LYD3||Libyan dinar
MAD||Moroccan dirham
MDL||Moldovan leu|Moldovan lei
MGA0|/Ar|Malagasy ariary|Malagasy ariaries
MKD||Macedonian denar|Macedonian denari
MMK0|/K|Myanmar kyat
MNT|/₮|Mongolian tugrik
MOP||Macanese pataca
MRU||Mauritanian ouguiya
MUR|/Rs|Mauritian rupee
MVR||Maldivian rufiyaa
MWK||Malawian kwacha
MXN|MX$/$|Mexican peso
MYR|/RM|Malaysian ringgit
MZN||Mozambican metical
NAD|/$|Namibian dollar
NGN|/₦|Nigerian naira
NIO|/C$|Nicaraguan córdoba
NOK|/kr|Norwegian krone|Norwegian kroner
NPR|/Rs|Nepalese rupee
NZD|NZ$/$|New Zealand dollar
OMR3||Omani rial
PAB||Panamanian balboa
PEN||Peruvian sol|Peruvian soles
PGK||Papua New Guinean kina|=
PHP|₱|Philippine peso
PKR0|/Rs|Pakistani rupee
PLN|/zł|Polish zloty
PYG0|/₲|Paraguayan guarani
QAR||Qatari riyal
RON|/lei|Romanian leu|Romanian lei
RSD||Serbian dinar
RUB|/₽|Russian ruble
RWF0|/RF|Rwandan franc
SAR||Saudi riyal
SBD|/$|Solomon Islands dollar
SCR||Seychellois rupee
SDG||Sudanese pound
SEK|/kr|Swedish krona|Swedish kronor
SGD|/$|Singapore dollar
SHP|/£|St. Helena pound
SLE||Sierra Leonean leone
SLL0||Sierra Leonean leone (1964—2022)|Sierra Leonean leones (1964—2022)
SOS0||Somali shilling
SRD|/$|Surinamese dollar
SSP|/£|South Sudanese pound
STN|/Db|São Tomé & Príncipe dobra
SVC||Salvadoran colón|Salvadoran colones
SYP0|/£|Syrian pound
SZL||Swazi lilangeni|Swazi emalangeni
THB|/฿|Thai baht|=
TJS||Tajikistani somoni
TMT||Turkmenistani manat|=
TND3||Tunisian dinar
TOP|/T$|Tongan paʻanga|=
TRY|/₺|Turkish lira|Turkish Lira
TTD|/$|Trinidad & Tobago dollar
TWD|NT$/$|New Taiwan dollar
TZS||Tanzanian shilling
UAH|/₴|Ukrainian hryvnia
UGX0||Ugandan shilling
USD|$|US dollar
UYU|/$|Uruguayan peso
UZS||Uzbekistani som|=
VES||Venezuelan bolívar
VND0|₫|Vietnamese dong|=
VUV0||Vanuatu vatu
WST||Samoan tala|=
XAF0|FCFA|Central African CFA franc
XCD|EC$/$|East Caribbean dollar
XCG|Cg.|Caribbean guilder
XDR||special drawing rights|=
XOF0|F CFA|West African CFA franc
XPF0|CFPF|CFP franc
XSU||Sucre
YER0||Yemeni rial
ZAR|/R|South African rand|=
ZMW|/ZK|Zambian kwacha
ZWG||Zimbabwean gold|=
ZWL||Zimbabwean dollar (2009–2024)|Zimbabwean dollars (2009–2024)`.split("\n").map((line) => {
    const [head, symbols = "", one, many = ""] = line.split("|");
    const code = head.slice(0, 3);
    const [symbol, narrow] = symbols.split("/");
    const others = many === "=" ? one : many || `${one}s`;
    return [code, { code, symbol: symbol || code, narrow: narrow || symbol || code, minor: Number(head.slice(3) || 2), one, others }];
  }));

  // Unit | one | many | short | short, many | narrow | after "per", where they are not the ones before. From CLDR 48.
  const UNITS = new Map(`acre|acre||ac
bit|bit||bit
byte|byte||byte||B
celsius|degree Celsius|degrees Celsius|°C
centimeter|centimeter||cm
day|day||day|days|d|d
degree|degree||deg||°
fahrenheit|degree Fahrenheit|degrees Fahrenheit|°F||°|°F
fluid-ounce|fluid ounce||fl oz
foot|foot|feet|ft||′
gallon|gallon||gal|||gal US
gigabit|gigabit||Gb
gigabyte|gigabyte||GB
gram|gram||g
hectare|hectare||ha
hour|hour||hr||h|h
inch|inch|inches|in||″
kilobit|kilobit||kb
kilobyte|kilobyte||kB
kilogram|kilogram||kg
kilometer|kilometer||km
liter|liter||L
megabit|megabit||Mb
megabyte|megabyte||MB
meter|meter||m
microsecond|microsecond||μs
mile|mile||mi
mile-scandinavian|mile-scandinavian|miles-scandinavian|smi
milliliter|milliliter||mL
millimeter|millimeter||mm
millisecond|millisecond||ms
minute|minute||min||m|min
month|month||mth|mths|m|m
nanosecond|nanosecond||ns
ounce|ounce||oz
percent|percent|percent|%
petabyte|petabyte||PB
pound|pound||lb||#
second|second||sec||s|s
stone|stone|stones|st
terabit|terabit||Tb
terabyte|terabyte||TB
week|week||wk|wks|w|w
yard|yard||yd
year|year||yr|yrs|y|y`.split("\n").map((line) => {
    const [unit, one, many, short, shorts, narrow, per] = line.split("|");
    return [unit, { one, many: many || `${one}s`, short, shorts: shorts || short, narrow: narrow || short, per: per || short }];
  }));
  const PER = { "mile-per-hour": "mph", "mile-per-gallon": "mpg" };
  const NARROW_PER = { byte: "B", degree: "°", gallon: "gal" };
  // Units that are written without a space in their short form.
  const TIGHT = ["celsius", "fahrenheit", "percent"];
  const COMPACT = [["", ""], ["K", "thousand"], ["M", "million"], ["B", "billion"], ["T", "trillion"]];

  native.intl.currencies = () => [...CURRENCIES.keys()];
  native.intl.units = () => [...UNITS.keys()];

  // More digits than these are beyond all values; a text can name any exponent.
  const MAX_EXPONENT = 10_000;

  // `{ negative, digits, exponent }` is 0.digits × 10^exponent; `special` is "nan" or "infinity".
  function decimal(value) {
    if (typeof value === "object" && value !== null) value = value[Symbol.toPrimitive] ? value[Symbol.toPrimitive]("number") : value.valueOf();
    if (typeof value === "object" && value !== null) value = String(value);
    if (typeof value !== "bigint" && typeof value !== "string") value = Number(value);
    const text = (Object.is(value, -0) ? "-0" : String(value)).trim() || "0";
    const match = /^([+-]?)(\d*)\.?(\d*)(?:e([+-]?\d+))?$/i.exec(text);
    if (!match || !(match[2] || match[3])) {
      const number = Number(text);
      if (Number.isNaN(number)) return { special: "nan", negative: false, digits: "", exponent: 0 };
      if (Math.abs(number) === Infinity) return { special: "infinity", negative: number < 0, digits: "", exponent: 0 };
      return decimal(number);
    }
    const [, sign, whole, part, power = "0"] = match;
    const all = whole + part;
    const digits = all.replace(/^0+/, "");
    const exponent = whole.length - (all.length - digits.length) + Number(power);
    const negative = sign === "-";
    const stripped = digits.replace(/0+$/, "");
    if (stripped === "" || exponent < -MAX_EXPONENT) return { negative, digits: "", exponent: 0 };
    if (exponent > MAX_EXPONENT) return { special: "infinity", negative, digits: "", exponent: 0 };
    return { negative, digits: stripped, exponent };
  }

  // Whether the magnitude is rounded up: `half` is how the rest compares with a half, -1 to 1.
  function roundsUp(mode, negative, half, odd) {
    switch (mode) {
      case "ceil": return !negative;
      case "floor": return negative;
      case "expand": return true;
      case "trunc": return false;
      case "halfCeil": return half > 0 || (half === 0 && !negative);
      case "halfFloor": return half > 0 || (half === 0 && negative);
      case "halfTrunc": return half > 0;
      case "halfEven": return half > 0 || (half === 0 && odd);
      default: return half >= 0;
    }
  }

  // Rounds to `places` digits after the point, in steps of `increment` of the last one.
  function round(number, places, increment, mode) {
    const { negative, digits, exponent } = number;
    const scale = digits.length - exponent;
    if (scale <= places && increment === 1) return number;
    const shift = places - scale;
    const above = BigInt(digits || "0") * 10n ** BigInt(Math.max(shift, 0));
    const below = 10n ** BigInt(Math.max(-shift, 0)) * BigInt(increment);
    let quotient = above / below;
    const rest = above - quotient * below;
    if (rest > 0n) {
      const twice = rest * 2n;
      const half = twice < below ? -1 : twice > below ? 1 : 0;
      if (roundsUp(mode, negative, half, quotient % 2n === 1n)) quotient += 1n;
    }
    const text = String(quotient * BigInt(increment));
    if (text === "0") return { negative, digits: "", exponent: 0 };
    return { negative, digits: text.replace(/0+$/, ""), exponent: text.length - places };
  }

  // `[integer, fraction]` with at least `least` digits in the fraction.
  function split({ digits, exponent }, least) {
    const whole = exponent > 0 ? digits.slice(0, exponent).padEnd(exponent, "0") : "0";
    const part = exponent > 0 ? digits.slice(exponent) : digits && "0".repeat(-exponent) + digits;
    return [whole, part.padEnd(least, "0")];
  }

  // The options of digits, as SetNumberFormatDigitOptions of the specification has them.
  function digitOptions(options, least, most, compact) {
    const found = { minimumIntegerDigits: numberOption(options, "minimumIntegerDigits", 1, 21, 1) };
    let { minimumFractionDigits: mnfd, maximumFractionDigits: mxfd, minimumSignificantDigits: mnsd, maximumSignificantDigits: mxsd } = options;
    const increments = [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 2500, 5000];
    const increment = numberOption(options, "roundingIncrement", 1, 5000, 1);
    if (!increments.includes(increment)) throw new RangeError("roundingIncrement value is out of range.");
    const mode = option(options, "roundingMode", ["ceil", "floor", "expand", "trunc", "halfCeil", "halfFloor", "halfExpand", "halfTrunc", "halfEven"], "halfExpand");
    const priority = option(options, "roundingPriority", ["auto", "morePrecision", "lessPrecision"], "auto");
    const trailing = option(options, "trailingZeroDisplay", ["auto", "stripIfInteger"], "auto");
    if (increment !== 1) most = least;
    const hasSignificant = mnsd !== undefined || mxsd !== undefined;
    const hasFraction = mnfd !== undefined || mxfd !== undefined;
    const needsSignificant = priority !== "auto" || hasSignificant;
    const needsFraction = priority !== "auto" || !(hasSignificant || (!hasFraction && compact));
    if (needsSignificant) {
      if (hasSignificant) {
        mnsd = numberWithin(mnsd, "minimumSignificantDigits", 1, 21, 1);
        mxsd = numberWithin(mxsd, "maximumSignificantDigits", mnsd, 21, 21);
      } else [mnsd, mxsd] = [1, 21];
    }
    if (needsFraction) {
      if (hasFraction) {
        mnfd = numberWithin(mnfd, "minimumFractionDigits", 0, 100, undefined);
        mxfd = numberWithin(mxfd, "maximumFractionDigits", 0, 100, undefined);
        if (mnfd === undefined) mnfd = Math.min(least, mxfd);
        else if (mxfd === undefined) mxfd = Math.max(most, mnfd);
        else if (mnfd > mxfd) throw new RangeError("maximumFractionDigits value is out of range.");
      } else [mnfd, mxfd] = [least, most];
    }
    if (!needsSignificant && !needsFraction) {
      Object.assign(found, { minimumFractionDigits: 0, maximumFractionDigits: 0, minimumSignificantDigits: 1, maximumSignificantDigits: 2, kind: "morePrecision" });
    } else {
      const kind = priority !== "auto" ? priority : hasSignificant ? "significant" : "fraction";
      if (needsFraction) Object.assign(found, { minimumFractionDigits: mnfd, maximumFractionDigits: mxfd });
      if (needsSignificant) Object.assign(found, { minimumSignificantDigits: mnsd, maximumSignificantDigits: mxsd });
      found.kind = kind;
    }
    if (increment !== 1) {
      if (found.kind !== "fraction") throw new TypeError("roundingIncrement goes with fraction digits only");
      if (found.maximumFractionDigits !== found.minimumFractionDigits) throw new RangeError("roundingIncrement needs as many minimum as maximum fraction digits");
    }
    return Object.assign(found, { roundingIncrement: increment, roundingMode: mode, trailingZeroDisplay: trailing });
  }

  // The rounded number with its digits: `{ number, whole, part }`.
  function rounded(options, number) {
    const { kind, maximumFractionDigits: mxfd, maximumSignificantDigits: mxsd, roundingIncrement: increment, roundingMode: mode } = options;
    const significantPlaces = mxsd - (number.digits ? number.exponent : 1);
    const significant = kind === "significant" || (kind === "morePrecision" && significantPlaces >= mxfd)
      || (kind === "lessPrecision" && significantPlaces < mxfd);
    const result = round(number, significant ? significantPlaces : mxfd, significant ? 1 : increment, mode);
    const least = significant
      ? Math.max(0, options.minimumSignificantDigits - (result.digits ? result.exponent : 1))
      : options.minimumFractionDigits;
    let [whole, part] = split(result, least);
    if (options.trailingZeroDisplay === "stripIfInteger" && /^0*$/.test(part)) part = "";
    return { number: result, whole: whole.padStart(options.minimumIntegerDigits, "0"), part };
  }

  // The plural category in English; `whole` and `part` are the digits that are shown.
  function category({ whole, part }, type) {
    const number = whole.replace(/^0+(?=\d)/, "");
    if (type !== "ordinal") return number === "1" && part === "" ? "one" : "other";
    if (!/^0*$/.test(part)) return "other";
    const last = Number(number.slice(-1));
    const teen = number.length > 1 && number.at(-2) === "1";
    return teen ? "other" : { 1: "one", 2: "two", 3: "few" }[last] ?? "other";
  }

  function unitOf(unit) {
    const [of, per] = UNITS.has(unit) ? [unit] : unit.split("-per-");
    if (!UNITS.has(of) || (per !== undefined && !UNITS.has(per)) || unit.split("-per-").length > 2) throw new RangeError(`Invalid unit argument for Intl.NumberFormat() '${unit}'`);
    return [of, per];
  }

  function buildNumberFormat(locales, given) {
    const { locale } = resolve(locales);
    const options = given === undefined ? Object.create(null) : Object(given);
    if (given === null) throw new TypeError("Intl.NumberFormat: the options are null");
    matcher(options);
    option(options, "numberingSystem", undefined, undefined);
    const style = option(options, "style", ["decimal", "percent", "currency", "unit"], "decimal");
    const currency = option(options, "currency", undefined, undefined);
    if (currency !== undefined && !/^[a-z]{3}$/i.test(currency)) throw new RangeError(`Invalid currency code : ${currency}`);
    if (style === "currency" && currency === undefined) throw new TypeError("Currency code is required with currency style.");
    const currencyDisplay = option(options, "currencyDisplay", ["code", "symbol", "narrowSymbol", "name"], "symbol");
    const currencySign = option(options, "currencySign", ["standard", "accounting"], "standard");
    const unit = option(options, "unit", undefined, undefined);
    const unitParts = unit === undefined ? undefined : unitOf(unit);
    if (style === "unit" && unit === undefined) throw new TypeError("Unit is required with unit style.");
    const unitDisplay = option(options, "unitDisplay", ["short", "narrow", "long"], "short");
    const state = { locale, numberingSystem: "latn", style };
    if (style === "currency") Object.assign(state, { currency: currency.toUpperCase(), currencyDisplay, currencySign });
    if (style === "unit") Object.assign(state, { unit, unitParts, unitDisplay });
    const notation = option(options, "notation", ["standard", "scientific", "engineering", "compact"], "standard");
    const minor = CURRENCIES.get(state.currency)?.minor ?? 2;
    const [least, most] = style === "currency" && notation === "standard" ? [minor, minor] : [0, style === "percent" ? 0 : 3];
    const digits = digitOptions(options, least, most, notation === "compact");
    const compactDisplay = option(options, "compactDisplay", ["short", "long"], "short");
    const usual = notation === "compact" ? "min2" : "auto";
    let grouping = options.useGrouping;
    if (grouping === undefined || grouping === "true" || grouping === "false") grouping = usual;
    else if (grouping === true) grouping = "always";
    else if (!grouping) grouping = false;
    else grouping = option(options, "useGrouping", ["min2", "auto", "always"], usual);
    const signDisplay = option(options, "signDisplay", ["auto", "never", "always", "exceptZero", "negative"], "auto");
    return { ...state, digits, useGrouping: grouping, notation, compactDisplay, signDisplay };
  }

  // The power of ten that is taken out of a number: of its notation.
  function powerOf(state, magnitude) {
    switch (state.notation) {
      case "scientific": return magnitude;
      case "engineering": return 3 * Math.floor(magnitude / 3);
      case "compact": return Math.min(Math.max(3 * Math.floor(magnitude / 3), 0), 12);
      default: return 0;
    }
  }

  function scaled(state, number) {
    if (state.notation === "standard" || !number.digits) return [rounded(state.digits, number), 0];
    const by = (power) => rounded(state.digits, { ...number, exponent: number.exponent - power });
    const magnitude = number.exponent - 1;
    const power = powerOf(state, magnitude);
    const first = by(power);
    // It may have been rounded up to the next power.
    if (!first.number.digits || first.number.exponent - 1 === magnitude - power) return [first, power];
    const next = powerOf(state, magnitude + 1);
    return next === power ? [first, power] : [by(next), next];
  }

  function groupsOf(whole, grouping) {
    const least = grouping === "min2" ? 5 : 4;
    if (grouping === false || whole.length < least) return [whole];
    const groups = [];
    for (let end = whole.length; end > 0; end -= 3) groups.unshift(whole.slice(Math.max(end - 3, 0), end));
    return groups;
  }

  // The digits of a number as parts, and what its sign and plural need: `{ parts, zero, compact, shown }`.
  function magnitudeParts(state, number) {
    if (number.special === "nan") return { parts: [{ type: "nan", value: "NaN" }], shown: { whole: "", part: "" }, zero: true };
    if (number.special) return { parts: [{ type: "infinity", value: "∞" }], shown: { whole: "", part: "" }, zero: false };
    const percent = state.style === "percent" && number.digits ? { ...number, exponent: number.exponent + 2 } : number;
    const [shown, power] = scaled(state, percent);
    const parts = [];
    groupsOf(shown.whole, state.useGrouping).forEach((group, index) => {
      if (index) parts.push({ type: "group", value: "," });
      parts.push({ type: "integer", value: group });
    });
    if (shown.part) parts.push({ type: "decimal", value: "." }, { type: "fraction", value: shown.part });
    if (state.notation === "compact" && power) {
      const long = state.compactDisplay === "long";
      if (long) parts.push({ type: "literal", value: " " });
      parts.push({ type: "compact", value: COMPACT[power / 3][long ? 1 : 0] });
    } else if (state.notation === "scientific" || state.notation === "engineering") {
      parts.push({ type: "exponentSeparator", value: "E" });
      if (power < 0) parts.push({ type: "exponentMinusSign", value: "-" });
      parts.push({ type: "exponentInteger", value: String(Math.abs(power)) });
    }
    const zero = !shown.number.digits;
    const compact = state.notation === "compact" && power > 0;
    return { parts, zero, compact, shown: power ? { whole: "2", part: "" } : shown };
  }

  function signOf(signDisplay, negative, zero) {
    switch (signDisplay) {
      case "never": return "";
      case "always": return negative ? "-" : "+";
      case "exceptZero": return zero ? "" : negative ? "-" : "+";
      case "negative": return negative && !zero ? "-" : "";
      default: return negative ? "-" : "";
    }
  }

  const literal = (value) => ({ type: "literal", value });

  // What comes before and after the digits: `[parts, parts]`, without the sign.
  function affixes(state, shown) {
    const many = category(shown) !== "one";
    switch (state.style) {
      case "percent": return [[], [{ type: "percentSign", value: "%" }]];
      case "currency": {
        const { code, symbol, narrow, one, others } = CURRENCIES.get(state.currency) ?? { code: state.currency, symbol: state.currency, narrow: state.currency, one: state.currency, others: state.currency };
        if (state.currencyDisplay === "name") return [[], [literal(" "), { type: "currency", value: many ? others : one }]];
        const value = { code, symbol, narrowSymbol: narrow }[state.currencyDisplay];
        const before = [{ type: "currency", value }];
        if (shown.whole && /[^\p{S}\p{Z}]$/u.test(value)) before.push(literal("\u00a0"));
        return [before, []];
      }
      case "unit": {
        const [of, per] = state.unitParts;
        const unit = UNITS.get(of);
        if (state.unitDisplay === "long") {
          const name = many ? unit.many : unit.one;
          return [[], [literal(" "), { type: "unit", value: per ? `${name} per ${UNITS.get(per).one}` : name }]];
        }
        const narrow = state.unitDisplay === "narrow";
        const name = narrow ? unit.narrow : many ? unit.shorts : unit.short;
        const after = per && ((narrow && NARROW_PER[per]) || UNITS.get(per).per);
        const value = PER[state.unit] ?? (per && of !== "percent" ? `${name}/${after}` : name);
        const tight = narrow || TIGHT.includes(of);
        return [[], tight ? [{ type: "unit", value }] : [literal(" "), { type: "unit", value }]];
      }
      default: return [[], []];
    }
  }

  function allParts(state, value) {
    const number = decimal(value);
    const { parts, zero, compact, shown } = magnitudeParts(state, number);
    const sign = number.special === "nan" && state.signDisplay !== "always" ? "" : signOf(state.signDisplay, number.negative, zero);
    const [before, after] = affixes(state, shown);
    if (sign === "-" && !compact && state.currencySign === "accounting" && state.currencyDisplay !== "name") {
      return [literal("("), ...before, ...parts, ...after, literal(")")];
    }
    const signs = sign ? [{ type: sign === "-" ? "minusSign" : "plusSign", value: sign }] : [];
    return [...signs, ...before, ...parts, ...after];
  }

  const join = (parts) => parts.map((part) => part.value).join("");

  function rangeParts(state, start, end) {
    if (start === undefined || end === undefined) throw new TypeError("formatRange needs a start and an end");
    const [first, last] = [decimal(start), decimal(end)];
    if (first.special === "nan" || last.special === "nan") throw new RangeError("formatRange: the start or the end is not a number");
    const [a, b] = [allParts(state, start), allParts(state, end)];
    const from = (parts, source) => parts.map((part) => ({ ...part, source }));
    if (join(a) === join(b)) return [{ type: "approximatelySign", value: "~", source: "shared" }, ...from(a, "shared")];
    const [, after] = affixes(state, { whole: "2", part: "" });
    const isSuffix = (part) => after.some((other) => other.type === part.type && other.value === part.value);
    const sameUnit = state.style === "unit" && a.slice(-after.length).every(isSuffix) && b.slice(-after.length).every(isSuffix);
    const signed = [a, b].some((parts) => parts.some((part) => part.type === "minusSign" || part.type === "plusSign"));
    if (sameUnit && !signed) {
      return [...from(a.slice(0, -after.length), "startRange"), { ...literal("–"), source: "shared" }, ...from(b.slice(0, -after.length), "endRange"), ...from(after, "shared")];
    }
    const spaced = signed || state.style !== "decimal" || state.notation !== "standard";
    return [...from(a, "startRange"), { ...literal(spaced ? " – " : "–"), source: "shared" }, ...from(b, "endRange")];
  }

  function shownDigits(digits) {
    const { kind, roundingIncrement, roundingMode, trailingZeroDisplay, ...shown } = digits;
    return { shown, rounding: { roundingIncrement, roundingMode, roundingPriority: kind.endsWith("Precision") ? kind : "auto", trailingZeroDisplay } };
  }

  define("NumberFormat", {
    callable: true,
    build: buildNumberFormat,
    members: (of) => ({
      get format() {
        const state = of(this);
        return (state.format ??= (value) => join(allParts(state, value)));
      },
      formatToParts(value) { return allParts(of(this), value); },
      formatRange(start, end) { return join(rangeParts(of(this), start, end)); },
      formatRangeToParts(start, end) { return rangeParts(of(this), start, end); },
      resolvedOptions() {
        const state = of(this);
        const { locale, numberingSystem, style, currency, currencyDisplay, currencySign, unit, unitDisplay, useGrouping, notation, signDisplay } = state;
        const { shown, rounding } = shownDigits(state.digits);
        return {
          locale, numberingSystem, style, ...(currency && { currency, currencyDisplay, currencySign }), ...(unit && style === "unit" && { unit, unitDisplay }),
          ...shown, useGrouping, notation, ...(notation === "compact" && { compactDisplay: state.compactDisplay }), signDisplay, ...rounding,
        };
      },
    }),
  });

  define("PluralRules", {
    build(locales, given) {
      const { locale } = resolve(locales);
      const options = optionsObject(given, "Intl.PluralRules");
      matcher(options);
      const type = option(options, "type", ["cardinal", "ordinal"], "cardinal");
      return { locale, type, digits: digitOptions(options, 0, 3, false) };
    },
    members: (of) => {
      const select = (state, value) => {
        const number = decimal(typeof value === "bigint" || typeof value === "string" ? value : Number(value));
        return number.special ? "other" : category(rounded(state.digits, number), state.type);
      };
      return {
        select(value) { return select(of(this), value); },
        selectRange(start, end) {
          const state = of(this);
          if (start === undefined || end === undefined) throw new TypeError("selectRange needs a start and an end");
          if (Number.isNaN(Number(start)) || Number.isNaN(Number(end))) throw new RangeError("selectRange: the start or the end is not a number");
          return state.type === "cardinal" ? "other" : select(state, end);
        },
        resolvedOptions() {
          const { locale, type, digits } = of(this);
          const { shown, rounding } = shownDigits(digits);
          return { locale, type, ...shown, pluralCategories: type === "ordinal" ? ["few", "one", "two", "other"] : ["one", "other"], ...rounding };
        },
      };
    },
  });
};
