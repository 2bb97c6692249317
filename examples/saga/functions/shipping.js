// Ships, unless nobody can get there.
export default async function handler(event, context) {
  const { address } = event.json();
  if (/moon/i.test(address)) throw new Error(`nobody ships to ${address}`);
  await context.object("shop").counter("shipped").add(1);
  return { shippedTo: address };
}
