/** @type {import("@edgefaas/sdk").Handler<import("@edgefaas/sdk").HttpEvent>} */
export default function convert(event) {
  const celsius = Number(new URLSearchParams(event.query).get("celsius") ?? 0);
  return { celsius, fahrenheit: celsius * 1.8 + 32 };
}
