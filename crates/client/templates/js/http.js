/** @type {import("@edgefaas/sdk").Handler} */
export default async function handle(event, context) {
  const name = event.text() || "world";
  const greeted = context.object("{{name}}").counter("greeted");
  await greeted.add();
  context.log.info(`greeting ${name}`);
  return `${context.config.greeting}, ${name}! You are number ${await greeted.value()}.\n`;
}
