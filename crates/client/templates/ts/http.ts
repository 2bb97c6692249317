import type { Context, Event } from "@edgefaas/sdk";

export default async function handle(event: Event, context: Context<{ greeting: string }>) {
  const name = event.text() || "world";
  const greeted = context.object("{{name}}").counter("greeted");
  await greeted.add();
  context.log.info(`greeting ${name}`);
  return `${context.config.greeting}, ${name}! You are number ${await greeted.value()}.\n`;
}
