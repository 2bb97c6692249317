// Counts the words of a text. It does not know whether a workflow or a message calls it.
export default async function handler(event, context) {
  const { id, text } = event.json();
  const counts = {};
  for (const word of text.toLowerCase().match(/\p{L}+/gu) ?? []) counts[word] = (counts[word] ?? 0) + 1;
  if (event.kind !== "mqtt") return counts;
  await context.publish("words/counted", JSON.stringify({ id, counts }));
}
