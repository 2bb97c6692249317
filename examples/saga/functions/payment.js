// Takes the money, or gives it back.
export default async function handler(event, context) {
  const { action, amount } = event.json();
  const taken = context.object("shop").counter("taken");
  await taken.add(action === "refund" ? -amount : amount);
  return { taken: await taken.value() };
}
