/**
 * What can be sent: text and bytes as they are, anything else as JSON. `null` and `undefined` are empty.
 */
export type Payload = string | number | boolean | object | null | undefined;

/**
 * What a handler may return: an object, array, number or boolean becomes JSON, a string text, bytes bytes;
 * a `Response` is sent as it is, and nothing is nothing (over HTTP status 204).
 */
export type Reply = Payload | Response | void;

/** What all events have. */
export interface EventBody {
  /** The body, payload or data read as JSON, whatever its content type. Throws a `SyntaxError` if it is none. */
  json<T = any>(): T;
  /** The body, payload or data as UTF-8 text. */
  text(): string;
  /** The body, payload or data. */
  bytes(): Uint8Array;
  /** What the event holds, for `JSON.stringify` and logs: its members are getters. */
  toJSON(): Record<string, unknown>;
}

/** A request at the HTTP gateway. */
export interface HttpEvent extends EventBody {
  readonly kind: "http";
  /** In upper case. */
  readonly method: string;
  /** After `/fn/NAME`, or the whole path on a trigger's own path. */
  readonly path: string;
  /** Without `?`; empty if there is none. `new URLSearchParams(event.query)` takes it apart. */
  readonly query: string;
  readonly headers: Headers;
}

/** A message that passed the broker. */
export interface MqttEvent extends EventBody {
  readonly kind: "mqtt";
  readonly topic: string;
  readonly qos: 0 | 1 | 2;
  readonly retain: boolean;
  /** The properties of an MQTT 5 message. */
  readonly properties: MqttProperties;
}

export interface MqttProperties {
  readonly contentType: string | undefined;
  readonly responseTopic: string | undefined;
  readonly correlationData: Uint8Array | undefined;
  /** Names and values in order; names may repeat. */
  readonly userProperties: ReadonlyArray<readonly [name: string, value: string]>;
}

/** A schedule that came due. */
export interface CronEvent extends EventBody {
  readonly kind: "cron";
  /** The cron expression of the manifest. */
  readonly schedule: string;
  /** The same, under its WinterTC name. */
  readonly cron: string;
  /** When it was due, in milliseconds since the Unix epoch. */
  readonly scheduledTime: number;
}

/** A field of an object that changed. */
export interface ObjectEvent extends EventBody {
  readonly kind: "object";
  readonly object: string;
  readonly field: string;
}

/** A call by another function, the command line or an MQTT client. */
export interface CallEvent extends EventBody {
  readonly kind: "call";
  /** The function that called, if one did. */
  readonly caller: string | undefined;
}

/** A step of a workflow. */
export interface WorkflowEvent extends EventBody {
  readonly kind: "workflow";
  readonly workflow: string;
  readonly instance: string;
  readonly task: string;
}

/** What made the function run; `kind` tells which. */
export type Event = HttpEvent | MqttEvent | CronEvent | ObjectEvent | CallEvent | WorkflowEvent;

export interface PublishOptions {
  /** Quality of service; 0 if left out. */
  qos?: 0 | 1 | 2;
  /** Whether the broker keeps the message for later subscribers. */
  retain?: boolean;
  /** MQTT 5: the payload's media type. */
  contentType?: string;
  /** MQTT 5: where an answer is expected. */
  responseTopic?: string;
  /** MQTT 5: what to know the answer by. */
  correlationData?: string | ArrayBuffer | ArrayBufferView;
  /** MQTT 5: names and values. */
  userProperties?: Record<string, string> | Iterable<readonly [name: string, value: string]>;
}

/** Writes to the function's log, as `console` does. */
export interface Log {
  trace(...values: unknown[]): void;
  debug(...values: unknown[]): void;
  info(...values: unknown[]): void;
  warn(...values: unknown[]): void;
  error(...values: unknown[]): void;
}

/** A field that counts up and down; additions on several nodes add up. */
export interface Counter {
  /** Adds a whole number, 1 if left out; negative to subtract. */
  add(amount?: number): Promise<void>;
  /** Its value with what this run has added; 0 if it was never added to. */
  value(): Promise<number>;
}

/** A field that holds a value as JSON; the last write wins. */
export interface Register<T = any> {
  set(value: T): Promise<void>;
  /** Its value, this run's own if it set one; `undefined` if it was never set. */
  get(): Promise<T | undefined>;
}

/**
 * State that outlives the run and is the same for every function. Writes take effect together when the run
 * succeeds, and not at all if it fails.
 */
export interface StatefulObject {
  readonly name: string;
  counter(field: string): Counter;
  register<T = any>(field: string): Register<T>;
}

/** What a function may do. All of it is limited to what the manifest's `permissions` name. */
export interface Capabilities {
  /** Publishes a message when the run succeeds; if it fails, the message is not sent. */
  publish(topic: string, payload?: Payload, options?: PublishOptions): Promise<void>;
  /**
   * Calls another function and gives what it returned: the value of JSON, a string, a `Uint8Array`, a `Response`
   * or `undefined`. Calls that are started together run side by side.
   */
  call<T = any>(name: string, data?: Payload): Promise<T>;
  /** A stateful object; it exists as soon as something is written to it. */
  object(name: string): StatefulObject;
  /**
   * A file of the app that `assets` of the manifest names, by its path in the app folder. It is not read or copied: all
   * runs share it, and what a run writes into it is gone with the run. Throws if there is no such file.
   */
  asset(name: string): Uint8Array<ArrayBuffer>;
}

/** The run that an event is handled in. */
export interface Context<Config extends object = Record<string, any>> extends Capabilities {
  readonly invocationId: string;
  /** The function's name in the manifest. */
  readonly function: string;
  /** When the node ends the run, in milliseconds since the Unix epoch. */
  readonly deadline: number;
  /** The `config` values of the manifest. */
  readonly config: Readonly<Config>;
  /** The secrets that the manifest names and that are set. */
  readonly secrets: Readonly<Record<string, string | undefined>>;
  readonly log: Log;
  /** Keeps the run going until the promise is settled, though the handler has returned. */
  waitUntil(promise: Promise<unknown>): void;
  /** Does nothing; it is there for code that was written for other platforms. */
  passThroughOnException(): void;
}

/** `config` values and secrets by name, and the capabilities. */
export type Env<Values extends object = Record<string, any>> = Readonly<Values> & Capabilities;

/** `export default async function handler(event, context)`. */
export type Handler<E extends Event = Event, Config extends object = Record<string, any>> = (
  event: E,
  context: Context<Config>,
) => Reply | Promise<Reply>;

/** `export default { fetch, message, scheduled }`, with at least one of them. */
export interface Service<Values extends object = Record<string, any>> {
  /** HTTP requests; direct calls and steps of workflows come as a POST of their data. */
  fetch?(request: Request, env: Env<Values>, ctx: Context): Reply | Promise<Reply>;
  /** MQTT messages. */
  message?(message: MqttEvent, env: Env<Values>, ctx: Context): Reply | Promise<Reply>;
  /** Cron triggers. */
  scheduled?(event: CronEvent, env: Env<Values>, ctx: Context): Reply | Promise<Reply>;
}

/** Why the node refused a call of its API. */
export type HostErrorCode =
  /** The manifest's permissions do not name it. */
  | "NotPermitted"
  /** There is no such function or the like. */
  | "NotFound"
  /** The arguments are no good: a bad topic, a payload over its limit, a field of another type. */
  | "Invalid"
  /** It is good but there is no room now; try later. */
  | "Overloaded"
  /** It was carried out and failed. */
  | "Failed";

/** What `publish`, `call` and objects reject with. A failed `fetch` is a `TypeError` with such a `code`. */
export interface HostError extends Error {
  readonly code: HostErrorCode;
}

/** Gives back the handler it is given, typed: `event` and `context` need no annotation then. */
export function defineFunction<E extends Event = Event, Config extends object = Record<string, any>>(
  handler: Handler<E, Config>,
): Handler<E, Config>;

/** Gives back the object of handlers it is given, typed. */
export function defineService<Values extends object = Record<string, any>>(
  service: Service<Values>,
): Service<Values>;

/** Whether the node refused a call of its API, or it failed; `error.code` then says why. */
export function isHostError(error: unknown): error is HostError;
