/** @type {import("@edgefaas/sdk").Handler<import("@edgefaas/sdk").HttpEvent>} */
export default async function average(event, context) {
  const readings = Object.values((await context.object("readings").map("temperature").value()) ?? {});
  const sum = readings.reduce((sum, reading) => sum + reading, 0);
  return { sensors: readings.length, average: readings.length ? sum / readings.length : null };
}
