// Plays the sensors of every zone. The sun warms a zone and its plants make it humid; an open vent lets the
// outside in, a mister cools and moistens. So the commands of `comfort` have an effect that can be watched.

/** @type {import("@edgefaas/sdk").Handler} */
export default async function simulator(event, context) {
  await Promise.all(context.config.zones.map((zone, index) => simulate(zone, index, context)));
}

async function simulate(zone, index, { config, object, publish }) {
  const state = object(`greenhouse/${zone}`);
  const simulated = state.register("simulated");
  const last = (await simulated.get()) ?? { temperature_c: 23 + index, humidity_pct: 65 };
  const actuators = (await state.register("actuators").get()) ?? {};

  let temperature = last.temperature_c + 0.2 + 0.05 * index + noise(0.1);
  let humidity = last.humidity_pct + 0.2 + noise(0.4);
  if (actuators.vent === "open") {
    temperature += 0.06 * (config.outside_c - temperature);
    humidity += 0.05 * (config.outside_humidity_pct - humidity);
  }
  if (actuators.mist === "on") {
    temperature -= 0.1;
    humidity += 2;
  }

  const reading = { temperature_c: rounded(temperature), humidity_pct: rounded(Math.min(Math.max(humidity, 15), 99)) };
  await simulated.set(reading);
  await publish(`greenhouse/${zone}/climate`, reading);
}

function noise(amplitude) {
  return (Math.random() * 2 - 1) * amplitude;
}

function rounded(value) {
  return Math.round(value * 100) / 100;
}
