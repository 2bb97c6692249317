/** @type {import("@edgefaas/sdk").Handler<import("@edgefaas/sdk").ObjectEvent<number>>} */
export default async function crowd(event, context) {
  const { limit } = context.config;
  // Several changes in quick succession are one event, so that the limit is passed once, however far the total jumps.
  const before = (event.previous ?? 0) >= limit;
  const now = event.value >= limit;
  if (before === now) return;
  context.log.info(`${event.value} inside, ${now ? "over" : "under"} the limit of ${limit} (${event.origin})`);
  await context.publish("building/crowded", { crowded: now, inside: event.value }, { retain: true });
}
