// Intl.Collator (ECMA-402) for English: the order of CLDR root for Latin, Greek and Cyrillic, marks and punctuation.
// Other letters follow by their number.
(native) => {
  // A deploy evaluates this file where a property has the name of a class, whether `Intl` is mentioned or not.
  native.demand("intl");
  const { define, resolve, option, optionsObject, matcher } = native.intl;

  // Small letters and others by their primary weight; after \x01 is one that differs in its secondary weight only.
  const ORDER = "\t\n\u000b\f\r\u2028\u2029 _-‐‒–—―⁓,;⁏:!¡?¿‽.·⁕⁖⁘⁙⁚⁛⁜⁝⁞'\x01‘\x01’\x01‚\x01‛‹›\"\x01“\x01”\x01„\x01‟«»()[]{}⁅⁆‖§¶⁋@*⁎⁑/\\&⁊#%‰‱†‡•‣‧⁃⁌⁍′‵‸※‿⁔⁀⁐⁁⁂`^͵ˇ°©®϶+±÷×<=>¬|¦~⁒⁄¤¢$£¥₠₡₢₣₤₥₦₩₪₫€₭₮₯₰₱₲₳₴₵₶₷₸₹₺₻₼₽₾₿⃀⃁0123456789abƀƃcȼƈd\x01đ\x01ðƌȡeɇǝfƒgǥƣh\x01ħƕiıjȷɉkƙl\x01łƚȴƛmnƞȵŋo\x01øȣp₧ƥqɋĸrɍsȿƪtŧƫƭȶuvwxyɏƴȝzƶȥɀƹƺþƿƻƨƽƅɂǀǁǂǃαβγδεϝͷϛζͱηθιϳκϗλμνξοπϻϟϙρϼσ\x01ςͼͻͽτυφχψωϡͳϸϣϥϧϩϫϭϯабвгдђеєжзѕиіјклљмнњопрстћуфхцчџшщъыьэюя";
  const EXPANSIONS = { ß: "ss", æ: "ae", œ: "oe", ƍ: "zw", ƾ: "ts", ȸ: "db", ȹ: "qp" };

  // Symbols that the table lacks are before currencies and digits, letters after all of it.
  const SYMBOLS = 0x1000;
  const CURRENCIES = 0x200000;
  const LETTERS = 0x210000;

  const WEIGHTS = new Map();
  {
    let rank = 0;
    let beyond = 0;
    let secondary = 0;
    let same = false;
    for (const character of ORDER) {
      if (character === "\x01") {
        same = true;
        continue;
      }
      if (/\p{Sc}/u.test(character)) beyond = CURRENCIES;
      if (same) secondary += 1;
      else [rank, secondary] = [rank + 1, 0];
      same = false;
      WEIGHTS.set(character, [beyond + rank, secondary]);
    }
  }

  // Marks in the order of their secondary weights, after those of the table.
  const MARKS = 0x100;
  const IGNORED = /^[\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]$/;

  function weightOf(character) {
    const known = WEIGHTS.get(character);
    if (known) return known;
    const code = character.codePointAt(0);
    const found = [(/\p{L}|\p{N}/u.test(character) ? LETTERS : SYMBOLS) + code, 0];
    if (WEIGHTS.size < 4096) WEIGHTS.set(character, found);
    return found;
  }

  const isDigit = (code) => code >= 48 && code <= 57;

  // Weights of a text: a list for each level, and whether it has any mark or capital.
  function weigh(text, state) {
    const [primary, secondary, tertiary] = [[], [], []];
    const push = (first, second, third) => {
      primary.push(first);
      secondary.push(second);
      tertiary.push(third);
    };
    const plain = /^[\x20-\x7e]*$/.test(text) ? text : text.normalize("NFD");
    let at = 0;
    while (at < plain.length) {
      const code = plain.codePointAt(at);
      const character = String.fromCodePoint(code);
      const length = character.length;
      if (state.numeric && isDigit(code)) {
        let end = at + 1;
        while (end < plain.length && isDigit(plain.charCodeAt(end))) end++;
        const digits = plain.slice(at, end).replace(/^0+(?=\d)/, "");
        // Longer numbers are larger ones; their digits decide among those of a length.
        push(weightOf("0")[0], 0, 0);
        primary.push(digits.length);
        for (const digit of digits) primary.push(digit.charCodeAt(0));
        at = end;
        continue;
      }
      at += length;
      if (code > 0x7f || code < 0x20) {
        if (IGNORED.test(character)) continue;
        if (/\p{M}/u.test(character)) {
          if (secondary.length) secondary.push(MARKS + code);
          continue;
        }
      }
      if (state.ignorePunctuation && /[\p{P}\s]/u.test(character)) continue;
      const small = code > 0x7f || (code >= 65 && code <= 90) ? character.toLowerCase() : character;
      const third = small === character ? 0 : 1;
      const expansion = code > 0x7f ? EXPANSIONS[small] : undefined;
      if (expansion) {
        for (const part of expansion) push(weightOf(part)[0], 1, third);
        continue;
      }
      const whole = small.length > length ? small[0] : small;
      const [first, second] = weightOf(whole);
      push(first, second, third);
    }
    return [primary, secondary, tertiary];
  }

  function compareLists(a, b) {
    const length = Math.min(a.length, b.length);
    for (let index = 0; index < length; index++) if (a[index] !== b[index]) return a[index] < b[index] ? -1 : 1;
    return Math.sign(a.length - b.length);
  }

  const LETTERS_AND_DIGITS = /^[a-z\d]*$/;

  function compare(state, a, b) {
    if (a === b) return 0;
    // The order of small letters and digits is that of their codes.
    if (!state.numeric && LETTERS_AND_DIGITS.test(a) && LETTERS_AND_DIGITS.test(b)) return a < b ? -1 : 1;
    const [first, second] = [weigh(a, state), weigh(b, state)];
    const { sensitivity } = state;
    let order = compareLists(first[0], second[0]);
    if (order === 0 && (sensitivity === "accent" || sensitivity === "variant")) order = compareLists(first[1], second[1]);
    if (order === 0 && (sensitivity === "case" || sensitivity === "variant")) {
      order = compareLists(first[2], second[2]);
      if (state.caseFirst === "upper") order = -order;
    }
    return order;
  }

  define("Collator", {
    callable: true,
    build(locales, given) {
      const { locale, wanted } = resolve(locales);
      if (given === null) throw new TypeError("Intl.Collator: the options are null");
      const options = given === undefined ? optionsObject(undefined) : Object(given);
      const usage = option(options, "usage", ["sort", "search"], "sort");
      matcher(options);
      option(options, "collation", undefined, undefined);
      const fromTag = wanted.kn === undefined ? false : wanted.kn !== "false";
      const numeric = options.numeric === undefined ? fromTag : Boolean(options.numeric);
      const caseFirst = option(options, "caseFirst", ["upper", "lower", "false"], ["upper", "lower"].includes(wanted.kf) ? wanted.kf : "false");
      const sensitivity = option(options, "sensitivity", ["base", "accent", "case", "variant"], "variant");
      const ignorePunctuation = options.ignorePunctuation === undefined ? false : Boolean(options.ignorePunctuation);
      return { locale, usage, sensitivity, ignorePunctuation, collation: "default", numeric, caseFirst };
    },
    members: (of) => ({
      get compare() {
        const state = of(this);
        return (state.bound ??= (a, b) => compare(state, String(a), String(b)));
      },
      resolvedOptions() {
        const { bound, ...shown } = of(this);
        return shown;
      },
    }),
  });
};
