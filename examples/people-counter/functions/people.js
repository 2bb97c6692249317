/** @type {import("@edgefaas/sdk").Handler<import("@edgefaas/sdk").HttpEvent>} */
export default async function people(event, context) {
  const building = context.object("building");
  return { inside: await building.counter("inside").value(), doors: await building.map("doors").value() };
}
