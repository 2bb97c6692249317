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

/** A field of an object that changed; `json()` gives all of it at once. */
export interface ObjectEvent<T = any> extends EventBody {
  readonly kind: "object";
  readonly object: string;
  readonly field: string;
  readonly type: FieldType;
  /** Its value before the change; what a field of its type begins with, or `null`, if it was never written. */
  readonly previous: T;
  readonly value: T;
  /** Whether the change was made on this node or on another one. */
  readonly origin: "local" | "remote";
}

/** The types that a field of an object, or an entry of a map, may have. */
export type FieldType =
  | "counter"
  | "register"
  | "g-counter"
  | "bounded-counter"
  | "mv-register"
  | "g-set"
  | "set"
  | "map"
  | "ew-flag"
  | "dw-flag"
  | "list"
  | "text"
  | "json";

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
  /** Subtracts a whole number, 1 if left out. */
  subtract(amount?: number): Promise<void>;
  /** Its value with what this run has added; 0 if it was never added to. */
  value(): Promise<number>;
}

/** A field that only counts up; additions on several nodes add up. */
export interface GCounter {
  /** Adds a whole number from 0, 1 if left out. */
  add(amount?: number): Promise<void>;
  /** Its value with what this run has added; 0 if it was never added to. */
  value(): Promise<number>;
}

/**
 * A field that counts up and down, but never below its floor, whatever nodes do at once: each has a share of what is
 * there and takes from that only. Nodes pass shares on to one another.
 */
export interface BoundedCounter {
  /** Adds a whole number, 1 if left out. */
  add(amount?: number): Promise<void>;
  /** Takes a whole number, 1 if left out; refused if this node's share does not suffice. */
  subtract(amount?: number): Promise<void>;
  /** Its value; its floor if it was never added to. */
  value(): Promise<number>;
  /** What this node may take without asking others. */
  share(): Promise<number>;
}

/** A field that holds a value as JSON; the last write wins. */
export interface Register<T = any> {
  set(value: T): Promise<void>;
  /** Its value, this run's own if it set one; `undefined` if it was never set. */
  get(): Promise<T | undefined>;
}

/** A field that keeps the values of all writes that did not know of one another; a write replaces those it knew of. */
export interface MvRegister<T = any> {
  set(value: T): Promise<void>;
  /** None if it was never set, several after concurrent writes. */
  get(): Promise<T[]>;
}

/** A field that holds elements, which stay for good. Two elements are the same if they are equal as JSON. */
export interface GSet<T = any> {
  add(element: T): Promise<void>;
  has(element: T): Promise<boolean>;
  /** In no order that means anything. */
  values(): Promise<T[]>;
}

/**
 * A field that holds elements that come and go; an `add` that a `delete` did not know of wins. Two elements are the same if
 * they are equal as JSON.
 */
export interface ObjectSet<T = any> {
  add(element: T): Promise<void>;
  /** Nothing happens if it is not there. */
  delete(element: T): Promise<void>;
  has(element: T): Promise<boolean>;
  clear(): Promise<void>;
  /** In no order that means anything. */
  values(): Promise<T[]>;
}

/**
 * A field that is on or off. If it is enabled on one node and disabled on another, neither knowing of the other, the
 * enabling wins in a `flag`, which is an `ewFlag`, and the disabling in a `dwFlag`.
 */
export interface Flag {
  enable(): Promise<void>;
  disable(): Promise<void>;
  /** `false` if it was never switched. */
  value(): Promise<boolean>;
}

/** A field that holds values in an order. Indexes count from 0; one that is not there is refused. */
export interface List<T = any> {
  push(value: T): Promise<void>;
  /** Puts a value before the one at `index`. */
  insert(index: number, value: T): Promise<void>;
  /** Replaces the value at `index`. */
  set(index: number, value: T): Promise<void>;
  delete(index: number): Promise<void>;
  values(): Promise<T[]>;
  length(): Promise<number>;
}

/**
 * A field that holds text, which several may edit at once. Places and lengths count Unicode code points: `[...s].length`,
 * which is less than `s.length` where there are emoji.
 */
export interface Text {
  insert(at: number, text: string): Promise<void>;
  /** Deletes `count` code points, 1 if left out. */
  delete(at: number, count?: number): Promise<void>;
  /** Deletes `count` code points and puts `text` there, if there is any. */
  splice(at: number, count: number, text?: string): Promise<void>;
  /** Empty if nothing was ever inserted. */
  value(): Promise<string>;
}

/**
 * A field that holds a JSON document, which several may edit at once. Pointers are those of RFC 6901, such as
 * `/limits/0/high`; the empty one is the whole document.
 */
export interface JsonDocument<T = any> {
  /** Sets the whole document. */
  set(value: T): Promise<void>;
  /** Sets a part of it. */
  set(pointer: string, value: unknown): Promise<void>;
  /** Removes a part of it. */
  delete(pointer: string): Promise<void>;
  value(): Promise<T>;
}

/** What has fields: an object, and a map in one. A field has the type of its first use. */
export interface Fields {
  counter(name: string): Counter;
  gCounter(name: string): GCounter;
  boundedCounter(name: string): BoundedCounter;
  register<T = any>(name: string): Register<T>;
  mvRegister<T = any>(name: string): MvRegister<T>;
  gSet<T = any>(name: string): GSet<T>;
  set<T = any>(name: string): ObjectSet<T>;
  map<T extends object = Record<string, any>>(name: string): ObjectMap<T>;
  /** The same as `ewFlag`. */
  flag(name: string): Flag;
  /** A flag whose enabling wins. */
  ewFlag(name: string): Flag;
  /** A flag whose disabling wins. */
  dwFlag(name: string): Flag;
  list<T = any>(name: string): List<T>;
  text(name: string): Text;
  json<T = any>(name: string): JsonDocument<T>;
}

/**
 * A field that holds fields of its own by key, at any depth. An entry is there as soon as something is written to it; a
 * change of an entry that a `delete` did not know of wins.
 */
export interface ObjectMap<T extends object = Record<string, any>> extends Fields {
  keys(): Promise<string[]>;
  /** The type of each entry. */
  types(): Promise<Record<string, FieldType>>;
  /** Keys and values. */
  entries(): Promise<[key: string, value: any][]>;
  /** All that is in it, as a plain object. */
  value(): Promise<T>;
  has(key: string): Promise<boolean>;
  /** Removes an entry and all that is in it. */
  delete(key: string): Promise<void>;
  clear(): Promise<void>;
}

/**
 * State that outlives the run and is the same for every function. Writes take effect together when the run
 * succeeds, and not at all if it fails.
 */
export interface StatefulObject extends Fields {
  readonly name: string;
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
  /**
   * A stateful object; it exists as soon as something is written to it. Without an argument it is the function's own, for which
   * it needs no permission; others reach it as `@NAME`.
   */
  object(name?: string): StatefulObject;
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
