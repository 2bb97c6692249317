/** @type {import("@edgefaas/sdk").Handler<import("@edgefaas/sdk").CronEvent>} */
export default async function handle(event, context) {
  const runs = context.object("{{name}}").counter("runs");
  await runs.add();
  const due = new Date(event.scheduledTime).toISOString();
  context.log.info(`run ${await runs.value()} was due at ${due}`);
  await context.publish("{{name}}/tick", { due });
}
