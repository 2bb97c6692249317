import type { Context, Event } from "@edgefaas/sdk";

export default function price(event: Event, context: Context<{ each: number }>) {
  const { pieces } = event.json<{ pieces: number }>();
  return { total: pieces * context.config.each };
}
