/** @type {import("@edgefaas/sdk").Handler<import("@edgefaas/sdk").MqttEvent>} */
export default async function count(event, context) {
  const [, door, way] = event.topic.split("/");
  const people = Number(event.text() || 1);
  if (!Number.isInteger(people) || people < 1) {
    throw new TypeError(`door ${door} sent no number of people: ${event.text().slice(0, 100)}`);
  }
  const building = context.object("building");
  await building.counter("inside").add(way === "in" ? people : -people);
  await building.map("doors").map(door).gCounter(way).add(people);
}
