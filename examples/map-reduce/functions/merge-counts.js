// Adds counts up, the most frequent word first.
export default function handler(event) {
  const sums = {};
  for (const counts of event.json()) {
    for (const [word, count] of Object.entries(counts)) sums[word] = (sums[word] ?? 0) + count;
  }
  return Object.entries(sums).sort(([a, m], [b, n]) => n - m || (a < b ? -1 : 1)).map(([word, count]) => ({ word, count }));
}
