// Compiled, never run. Every `@ts-expect-error` must be one.
import { defineFunction, defineService, isHostError } from "@edgefaas/sdk";
import type { Context, CronEvent, Event, Handler, MqttEvent, Reply, Service } from "@edgefaas/sdk";

function same<T>(_value: T): void {}

export const everyKind: Handler = (event, context) => {
  // @ts-expect-error: only HTTP events have a method
  event.method;
  switch (event.kind) {
    case "http":
      same<Headers>(event.headers);
      same<string | null>(new URLSearchParams(event.query).get("zone"));
      return event.headers.get("accept");
    case "mqtt":
      same<0 | 1 | 2>(event.qos);
      same<Uint8Array | undefined>(event.properties.correlationData);
      // @ts-expect-error: events are read-only
      event.topic = "other";
      return new Map(event.properties.userProperties).get("unit");
    case "cron":
      return new Date(event.scheduledTime).toISOString() + event.schedule;
    case "object":
      same<"local" | "remote">(event.origin);
      same<boolean>(event.deleted);
      same<Promise<void>[]>([context.object().delete("people"), context.object().delete()]);
      // @ts-expect-error: a name is text
      context.object().delete(7);
      if (event.type === "g-counter") same<number>(event.value - event.previous);
      // @ts-expect-error: there is no such type
      if (event.type === "gCounter") return;
      return context.object(event.object).register(event.field).get();
    case "call":
      return event.caller ?? event.bytes();
    case "workflow":
      return { workflow: event.workflow, instance: event.instance, task: event.task };
    default:
      return same<never>(event);
  }
};

export const inferred = defineFunction(async (event, context) => {
  same<Event>(event);
  same<Context>(context);
  same<string>(context.invocationId);
  same<number>(context.deadline - Date.now());
  same<string | undefined>(context.node?.zone);
  same<readonly string[]>(context.node?.labels ?? []);
  same<string | undefined>(context.secrets["key"]);
  // @ts-expect-error: there is no such member
  context.fetch;
  // @ts-expect-error: `function` is read-only
  context.function = "other";
  return new Response(null, { status: 204 });
});

export const typedConfig = defineFunction<MqttEvent, { limit_c: number }>((event, context) => {
  same<number>(context.config.limit_c);
  // @ts-expect-error: the manifest has no such key
  context.config.limit_f;
  return event.topic;
});

export async function capabilities(context: Context): Promise<Reply> {
  await context.publish("a/b");
  await context.publish("a/b", { value: 1 }, { qos: 1, retain: true, userProperties: { unit: "C" } });
  await context.publish("a/b", new Uint8Array(2), { userProperties: [["unit", "C"], ["unit", "F"]] });
  // @ts-expect-error: there is no QoS 3
  await context.publish("a/b", "", { qos: 3 });
  // @ts-expect-error: the option is called `retain`
  await context.publish("a/b", "", { retained: true });
  // @ts-expect-error: a topic is text
  await context.publish(1, "");
  // @ts-expect-error: JSON has no bigint
  await context.publish("a/b", 1n);

  same<number>(await context.call<number>("average", { zone: "north" }));
  // @ts-expect-error: a function's name is text
  await context.call({ name: "average" });

  const counter = context.object("greenhouse/north").counter("readings");
  await counter.add();
  await counter.add(-2);
  // @ts-expect-error: counters take numbers
  await counter.add("2");
  same<number>(await counter.value());
  // @ts-expect-error: a counter is added to, not set
  counter.set(1);

  const register = context.object("greenhouse/north").register<{ celsius: number }>("last");
  await register.set({ celsius: 21 });
  // @ts-expect-error: the register holds something else
  await register.set({ fahrenheit: 70 });
  const last = await register.get();
  // @ts-expect-error: it may never have been set
  last.celsius;
  return last?.celsius;
}

export async function fields(context: Context): Promise<void> {
  const room = context.object("room-7");
  await room.counter("people").subtract();
  await room.gCounter("visits").add(2);
  // @ts-expect-error: it only grows
  await room.gCounter("visits").subtract(1);
  same<number>(await room.boundedCounter("tickets").share());
  const owner = room.mvRegister<string>("owner");
  await owner.set("Ada");
  same<string[]>(await owner.get());
  const badges = room.set<{ id: number }>("badges");
  await badges.add({ id: 7 });
  await badges.delete({ id: 7 });
  same<boolean>(await badges.has({ id: 7 }));
  same<{ id: number }[]>(await badges.values());
  // @ts-expect-error: the set holds something else
  await badges.add("7");
  // @ts-expect-error: its elements stay for good
  await room.gSet("seen").delete(1);
  for (const flag of [room.flag("open"), room.ewFlag("open"), room.dwFlag("locked")]) {
    await flag.enable();
    same<boolean>(await flag.value());
    // @ts-expect-error: a flag is enabled or disabled
    await flag.set(true);
  }
  const list = room.list<number>("queue");
  await list.push(1);
  await list.insert(0, 2);
  await list.set(0, 3);
  await list.delete(0);
  same<number[]>(await list.values());
  same<number>(await list.length());
  // @ts-expect-error: an index is a number
  await list.delete("0");
  const note = room.text("note");
  await note.insert(0, "hello");
  await note.splice(0, 1, "J");
  await note.delete(4);
  same<string>(await note.value());
  const plan = room.json<{ limits: number[] }>("plan");
  await plan.set({ limits: [1] });
  await plan.set("/limits/0", 2);
  await plan.delete("/limits/0");
  same<number[]>((await plan.value()).limits);
  // @ts-expect-error: the document has another shape
  await plan.set({ limit: 1 });

  const doors = room.map<{ north: { in: number } }>("doors");
  await doors.map("north").counter("in").add();
  await doors.map("north").map("log").register("last").set("09:15");
  same<number>((await doors.value()).north.in);
  same<string[]>(await doors.keys());
  const types = await doors.types();
  if (types["north"] === "map") await doors.delete("north");
  for (const [key, value] of await doors.entries()) same<string>(key + value);
  same<boolean>(await doors.has("north"));
  await doors.clear();
  // @ts-expect-error: it has no name of its own
  doors.name;
}

export const service = defineService<{ key: string }>({
  async fetch(request, env, ctx) {
    same<Request>(request);
    same<string>(env.key);
    ctx.waitUntil(env.publish("seen", request.url));
    return Response.json({ ok: true });
  },
  message: (message, env) => env.call(message.topic, message.bytes()),
  async scheduled(event) {
    same<CronEvent>(event);
  },
});

// @ts-expect-error: handlers are functions
export const noHandler: Service = { fetch: "GET" };
// @ts-expect-error: there is no such handler
export const unknownHandler: Service = { async mqtt() {} };
// @ts-expect-error: a symbol can't be sent
export const noReply: Handler = () => Symbol("x");

export async function errors(context: Context) {
  try {
    await context.call("average");
  } catch (error) {
    if (isHostError(error)) {
      same<string>(error.message);
      if (error.code === "Overloaded") return "later";
      // @ts-expect-error: there is no such code
      if (error.code === "Busy") return;
    }
    throw error;
  }
}

// What docs/javascript.md promises of the Web APIs.
export async function webApis(request: Request, signal: AbortSignal): Promise<Response> {
  const answer = await fetch(request, { redirect: "manual", signal: AbortSignal.any([signal, AbortSignal.timeout(500)]) });
  const form = await answer.clone().formData();
  const file = form.get("file");
  if (file instanceof File) same<string>(await file.slice(0, 10).text());
  const key = await crypto.subtle.importKey("raw", new Uint8Array(32), { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  same<ArrayBuffer>(await crypto.subtle.sign("HMAC", key, new TextEncoder().encode("x")));
  const lines = new TransformStream<string, string>({ transform: (chunk, controller) => controller.enqueue(`${chunk}\n`) });
  const stream = new ReadableStream<string>({ pull: (controller) => controller.close() });
  for await (const chunk of answer.body ?? []) same<Uint8Array>(chunk);
  return new Response(stream.pipeThrough(lines).pipeThrough(new TextEncoderStream()), { headers: { "content-type": "text/plain" } });
}

// Hono's shape.
const hono = { fetch: (_request: Request, _env?: {} | undefined, _ctx?: { waitUntil(promise: Promise<unknown>): void; passThroughOnException(): void }): Response | Promise<Response> => new Response() };
hono satisfies Service;
