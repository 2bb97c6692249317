// Waits as long as it is told.
export default async function sleep(event) {
  const { ms } = event.json();
  await new Promise((resolve) => setTimeout(resolve, ms));
  return "slept";
}
