import type { Context, CronEvent } from "@edgefaas/sdk";

export default async function handle(event: CronEvent, context: Context) {
  const runs = context.object("{{name}}").counter("runs");
  await runs.add();
  const due = new Date(event.scheduledTime).toISOString();
  context.log.info(`run ${await runs.value()} was due at ${due}`);
  await context.publish("{{name}}/tick", { due });
}
