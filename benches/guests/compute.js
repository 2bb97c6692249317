// Computes what its payload names; compute/ has the works of Rust.
const readings = JSON.stringify(
  Array.from({ length: 200 }, (_, at) => ({ sensor: `room-${at % 20}`, celsius: 18 + (at % 70) / 10, at })),
);

const works = {
  // Readings as a message has them: parsed, grouped, written.
  json() {
    const warmest = {};
    for (const { sensor, celsius } of JSON.parse(readings)) {
      warmest[sensor] = Math.max(warmest[sensor] ?? -Infinity, celsius);
    }
    return JSON.stringify(warmest);
  },
  // Arithmetic and array accesses: the primes below 100,000.
  sieve() {
    const composite = new Uint8Array(100_000);
    let primes = 0;
    for (let at = 2; at < composite.length; at += 1) {
      if (composite[at]) continue;
      primes += 1;
      for (let multiple = 2 * at; multiple < composite.length; multiple += at) composite[multiple] = 1;
    }
    return String(primes);
  },
};

export default function compute(event) {
  const text = event.text();
  return works[text]?.() ?? text;
}
