/** @type {import("@edgefaas/sdk").Handler} */
export default function price(event, context) {
  const { pieces } = event.json();
  return { total: pieces * context.config.each };
}
