import { comfort, vapourPressureDeficit } from "./climate.js";

/** @type {import("@edgefaas/sdk").Handler<import("@edgefaas/sdk").MqttEvent>} */
export default async function judge(event, context) {
  const zone = event.topic.split("/")[1];
  const { temperature_c, humidity_pct } = event.json();
  if (!Number.isFinite(temperature_c) || !(humidity_pct >= 0 && humidity_pct <= 100)) {
    throw new TypeError(`zone ${zone} sent no climate: ${event.text().slice(0, 100)}`);
  }

  const vpd_kpa = Math.round(vapourPressureDeficit(temperature_c, humidity_pct) * 1000) / 1000;
  const state = context.object(`greenhouse/${zone}`);
  const latest = { temperature_c, humidity_pct, vpd_kpa, comfort: comfort(vpd_kpa), at: new Date().toISOString() };
  await state.register("latest").set(latest);

  const actuators = state.register("actuators");
  const before = (await actuators.get()) ?? { vent: "closed", mist: "off" };
  const after = commands(before, latest, context.config.target_c);
  for (const [name, command] of Object.entries(after)) {
    if (command === before[name]) continue;
    context.log.info(`${zone}: ${latest.comfort} at ${temperature_c} °C, ${name} ${command}`);
    await context.publish(`greenhouse/${zone}/actuators/${name}`, command, { retain: true });
  }
  await actuators.set(after);
}

// What lies between two thresholds stays as it is, so that nothing is switched to and fro.
function commands({ vent, mist }, { temperature_c, vpd_kpa }, target_c) {
  if (temperature_c > target_c + 1.5 || vpd_kpa < 0.4) vent = "open";
  else if (temperature_c < target_c - 1 && vpd_kpa > 0.5) vent = "closed";
  if (vpd_kpa > 1.6) mist = "on";
  else if (vpd_kpa < 1.2) mist = "off";
  return { vent, mist };
}
