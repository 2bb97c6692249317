// Asks a server for an order and adds up what it costs.
export default async function rest(event) {
  const { url } = event.json();
  const response = await fetch(url);
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  const order = await response.json();
  return String(order.items.reduce((sum, item) => sum + item.price * item.count, 0));
}
