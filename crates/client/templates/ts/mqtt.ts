import type { Context, MqttEvent } from "@edgefaas/sdk";

interface Reading {
  celsius: number;
}

export default async function handle(event: MqttEvent, context: Context<{ limit_c: number }>) {
  const place = event.topic.split("/")[1] ?? "";
  const { celsius } = event.json<Reading>();
  await context.object("{{name}}").map("latest").register<number>(place).set(celsius);
  if (celsius <= context.config.limit_c) return;
  context.log.warn(`${place}: ${celsius} °C`);
  await context.publish(`{{name}}/${place}/alarm`, { celsius }, { qos: 1 });
}
