/** @type {import("@edgefaas/sdk").Handler<import("@edgefaas/sdk").MqttEvent>} */
export default async function handle(event, context) {
  const [, place] = event.topic.split("/");
  const { celsius } = event.json();
  await context.object("{{name}}").map("latest").register(place).set(celsius);
  if (celsius <= context.config.limit_c) return;
  context.log.warn(`${place}: ${celsius} °C`);
  await context.publish(`{{name}}/${place}/alarm`, { celsius }, { qos: 1 });
}
