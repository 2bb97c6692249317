// Six programs that compute, for the isolates of a node and for Node.js; src/kernels.rs has the same for Rust. Each answers with a
// text by which the languages can be compared.

// Numerical Recipes' generator.
function* numbers(count) {
  let last = 1;
  for (let at = 0; at < count; at += 1) {
    last = (Math.imul(last, 1664525) + 1013904223) >>> 0;
    yield last;
  }
}

const SIZE = 100;
const square = (value) => Array.from({ length: SIZE }, (_, row) => Array.from({ length: SIZE }, (_, column) => value(row, column)));
const left = square((row, column) => ((row * 7 + column * 3) % 10) + 0.5);
const right = square((row, column) => ((row * 5 + column * 11) % 13) - 0.25);

// The product of two matrices.
function matrix() {
  let trace = 0;
  for (let row = 0; row < SIZE; row += 1) {
    const line = left[row];
    for (let column = 0; column < SIZE; column += 1) {
      let sum = 0;
      for (let at = 0; at < SIZE; at += 1) sum += line[at] * right[at][column];
      trace += sum * (row === column ? 8 : 1);
    }
  }
  return String(trace * 8);
}

const RECORDS = 900;
const document = JSON.stringify(
  Array.from({ length: RECORDS }, (_, at) => ({
    at: 1700000000 + at * 60,
    celsius: 18.25 + (at % 70) / 10,
    id: `sensor-${at % 20}`,
    ok: at % 7 !== 0,
    room: `hall ${at % 11}, "north"`,
    tags: ['a', 'bc', null],
  })),
);

// 100 kB parsed, and written again.
function json() {
  const records = JSON.parse(document);
  const text = JSON.stringify(records);
  return `${text.length} ${text === document} ${records[RECORDS - 1].id}`;
}

const lines = Array.from(
  { length: 500 },
  (_, at) => `2026-11-${10 + (at % 20)}T0${at % 10}:30:00 INFO pump-${at % 9}-a${at} temperature=${(at % 400) / 4 - 20} state=${at % 2 ? 'on' : 'off'}`,
);

// Three expressions over 500 lines.
function expressions() {
  let days = 0;
  let characters = 0;
  let words = 0;
  for (const line of lines) {
    const date = /^(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d)/.exec(line);
    if (date) days += Number(date[3]);
    const temperature = /temperature=(-?\d+(?:\.\d+)?)/.exec(line);
    if (temperature) characters += temperature[1].length;
    for (const word of line.matchAll(/\b[a-z]+(?:-[a-z0-9]+)*\b/g)) words += word[0].length;
  }
  return `${days} ${characters} ${words}`;
}

// A text of 10,000 lines built, split, and read by character.
function strings() {
  let text = '';
  for (let at = 0; at < 10000; at += 1) text += `line ${at} of many\n`;
  let sum = 0;
  for (const line of text.split('\n')) {
    if (line.endsWith('7 of many')) sum += line.length;
  }
  for (let at = 0; at < text.length; at += 1) sum = (sum * 31 + text.charCodeAt(at)) % 1000003;
  return String(sum);
}

const ROUNDS = 64;
const primes = [];
for (let candidate = 2; primes.length < ROUNDS; candidate += 1) {
  if (primes.every((prime) => candidate % prime !== 0)) primes.push(candidate);
}
const fraction = (value) => ((value - Math.floor(value)) * 2 ** 32) >>> 0;
const constants = Uint32Array.from(primes, (prime) => fraction(Math.cbrt(prime)));
const initial = Uint32Array.from(primes.slice(0, 8), (prime) => fraction(Math.sqrt(prime)));
const message = Uint8Array.from({ length: 16384 }, (_, at) => (at * 7) & 0xff);

// SHA-256 of 16 KiB.
function sha256() {
  const blocks = Math.ceil((message.length + 9) / 64);
  const padded = new Uint8Array(blocks * 64);
  padded.set(message);
  padded[message.length] = 0x80;
  new DataView(padded.buffer).setUint32(padded.length - 4, message.length * 8);
  const state = Uint32Array.from(initial);
  const words = new Uint32Array(ROUNDS);
  for (let block = 0; block < blocks; block += 1) {
    for (let at = 0; at < 16; at += 1) {
      const byte = block * 64 + at * 4;
      words[at] = (padded[byte] << 24) | (padded[byte + 1] << 16) | (padded[byte + 2] << 8) | padded[byte + 3];
    }
    for (let at = 16; at < ROUNDS; at += 1) {
      const x = words[at - 15];
      const y = words[at - 2];
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      words[at] = words[at - 16] + s0 + words[at - 7] + s1;
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let at = 0; at < ROUNDS; at += 1) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const one = (h + s1 + ((e & f) ^ (~e & g)) + constants[at] + words[at]) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const two = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + one) | 0;
      d = c;
      c = b;
      b = a;
      a = (one + two) | 0;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
  }
  return Array.from(state, (word) => word.toString(16).padStart(8, '0')).join('');
}

const unsorted = [...numbers(20000)];
const texts = unsorted.slice(0, 3000).map((number) => `item ${number % 100000}`);
const objects = unsorted.slice(3000, 6000).map((number, id) => ({ id, score: number % 1000 }));

// 20,000 numbers, 3,000 texts and 3,000 objects.
function sort() {
  const sortedNumbers = unsorted.slice().sort((one, other) => one - other);
  const sortedTexts = texts.slice().sort();
  const sortedObjects = objects.slice().sort((one, other) => one.score - other.score);
  return `${sortedNumbers[10000]} ${sortedTexts[1500]} ${sortedObjects[1500].id}`;
}

export const kernels = { matrix, json, expressions, strings, sha256, sort };

// The answer of a kernel, which runs so often for it.
export function run({ kernel, times }) {
  let answer = '';
  for (let turn = 0; turn < times; turn += 1) answer = kernels[kernel]();
  return { answer };
}
