/** @type {import("@edgefaas/sdk").Handler<import("@edgefaas/sdk").HttpEvent>} */
export default async function report(event, context) {
  const site = context.object(`site/${event.path.split("/").at(-1)}`);
  return {
    readings: await site.list("readings").values(),
    notes: await site.text("notes").value(),
    parts: await site.set("parts").values(),
    settings: await site.json("settings").value(),
  };
}
