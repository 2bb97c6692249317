/** @type {import("@edgefaas/sdk").Handler<import("@edgefaas/sdk").MqttEvent>} */
export default async function measure(event, context) {
  const sensor = event.topic.split("/")[1];
  await context.object("readings").map("temperature").register(sensor).set(Number(event.text()));
}
