// Takes pieces out of the stock, or puts them back.
export default async function handler(event, context) {
  const { action, pieces } = event.json();
  const reserved = context.object("shop").counter("reserved");
  await reserved.add(action === "release" ? -pieces : pieces);
  return { reserved: await reserved.value() };
}
