// TextDecoder's encodings beside UTF-8 (encoding standard): UTF-16 and windows-1252, which is also what "latin1" means.
(native) => {
  const LABELS = {
    "utf-16le": ["utf-16le", "utf-16", "ucs-2", "unicode", "csunicode", "iso-10646-ucs-2", "unicodefeff"],
    "utf-16be": ["utf-16be", "unicodefffe"],
    "windows-1252": [
      "windows-1252", "latin1", "iso-8859-1", "iso8859-1", "iso88591", "iso_8859-1", "iso_8859-1:1987", "ascii", "us-ascii", "ansi_x3.4-1968", "cp1252",
      "cp819", "csisolatin1", "ibm819", "iso-ir-100", "l1", "x-cp1252",
    ],
  };
  // The characters of the bytes 0x80 to 0x9f; the others are those of the same number.
  const C1 = "\u20ac\x81\u201a\u0192\u201e\u2026\u2020\u2021\u02c6\u2030\u0160\u2039\u0152\x8d\u017d\x8f\x90\u2018\u2019\u201c\u201d\u2022\u2013\u2014\u02dc\u2122\u0161\u203a\u0153\x9d\u017e\u0178";
  // What a call of String.fromCharCode takes.
  const PART = 4096;

  function textOf(codes) {
    let text = "";
    for (let at = 0; at < codes.length; at += PART) text += String.fromCharCode.apply(undefined, codes.subarray(at, at + PART));
    return text;
  }

  const single = (bytes) => textOf(bytes).replace(/[\x80-\x9f]/g, (character) => C1[character.charCodeAt(0) - 0x80]);

  // Keeps a byte or half of a pair for the next call.
  function utf16(bigEndian, fatal) {
    let rest = new Uint8Array(0);
    const wrong = () => new TypeError("the bytes are not valid UTF-16");
    return (bytes, stream) => {
      const all = rest.length ? native.join([rest, bytes]) : bytes;
      const view = new DataView(all.buffer, all.byteOffset, all.byteLength);
      const units = new Uint16Array(all.length >> 1);
      for (let index = 0; index < units.length; index++) units[index] = view.getUint16(index * 2, !bigEndian);
      const cut = stream && units.length > 0 && (units.at(-1) & 0xfc00) === 0xd800 ? 1 : 0;
      const used = units.length - cut;
      rest = stream ? all.slice(used * 2) : new Uint8Array(0);
      const text = textOf(units.subarray(0, used));
      const odd = !stream && all.length % 2 === 1;
      if (fatal && (odd || !text.isWellFormed())) throw wrong();
      return text.toWellFormed() + (odd ? "\ufffd" : "");
    };
  }

  // `{ encoding, decode(bytes, stream) }`. Undefined if there is no such encoding.
  native.otherEncoding = (label, fatal) => {
    const name = label.trim().toLowerCase();
    const encoding = Object.keys(LABELS).find((known) => LABELS[known].includes(name));
    if (encoding === undefined) return undefined;
    return { encoding, decode: encoding === "windows-1252" ? single : utf16(encoding === "utf-16be", fatal) };
  };
};
