/** @type {import("@edgefaas/sdk").Handler<import("@edgefaas/sdk").HttpEvent>} */
export default async function record(event, context) {
  const { by, reading, note, part, settings } = event.json();
  const site = context.object(siteOf(event));

  if (reading !== undefined) await site.list("readings").push({ by, at: new Date().toISOString(), ...reading });
  if (note !== undefined) {
    const notes = site.text("notes");
    // Places count code points, of which an emoji is one.
    await notes.insert([...(await notes.value())].length, `${by}: ${note}\n`);
  }
  if (part !== undefined) await site.set("parts").add(part);
  for (const [name, value] of Object.entries(settings ?? {})) await site.json("settings").set(pointer(name), value);
}

const siteOf = (event) => `site/${event.path.split("/").at(-1)}`;

/** A JSON Pointer (RFC 6901) to a member of the document. */
const pointer = (name) => `/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`;
