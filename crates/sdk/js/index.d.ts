/**
 * Values that can be sent: text and bytes unchanged, all others as JSON. `null` and `undefined` are empty.
 */
export type Payload = string | number | boolean | object | null | undefined;

/**
 * Values that a handler may return: an object, array, number or boolean becomes JSON, a string text, bytes bytes;
 * a `Response` is sent unchanged, and no value is an empty reply (over HTTP status 204).
 */
export type Reply = Payload | Response | void;

/** Members of all events. */
export interface EventBody {
  /** The body, payload or data read as JSON, for any content type. Throws a `SyntaxError` if it is not JSON. */
  json<T = any>(): T;
  /** The body, payload or data as UTF-8 text. */
  text(): string;
  /** The body, payload or data. */
  bytes(): Uint8Array;
  /** The event as a plain object, for `JSON.stringify` and logs: its members are getters. */
  toJSON(): Record<string, unknown>;
}

/** A request at the HTTP gateway. */
export interface HttpEvent extends EventBody {
  readonly kind: "http";
  /** In upper case. */
  readonly method: string;
  /** After `/fn/NAME`, or the whole path on a trigger's own path. */
  readonly path: string;
  /** Without `?`; empty if there is none. Parse it with `new URLSearchParams(event.query)`. */
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

/** A field of an object that changed; `json()` gives all of it. */
export interface ObjectEvent<T = any> extends EventBody {
  readonly kind: "object";
  readonly object: string;
  readonly field: string;
  readonly type: FieldType;
  /** Its value before the change; for a new field the initial value of its type, or `null`. */
  readonly previous: T;
  /** Its value after the change; `null` if it was deleted. */
  readonly value: T;
  /** Whether the field was deleted. */
  readonly deleted: boolean;
  /** The origin of the change: this node or another one. */
  readonly origin: "local" | "remote";
}

/** Types of a field of an object, or of an entry of a map. */
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
  /** The calling function; absent for other callers. */
  readonly caller: string | undefined;
}

/** A step of a workflow. */
export interface WorkflowEvent extends EventBody {
  readonly kind: "workflow";
  readonly workflow: string;
  readonly instance: string;
  readonly task: string;
}

/** The input of a function; `kind` names its kind. */
export type Event = HttpEvent | MqttEvent | CronEvent | ObjectEvent | CallEvent | WorkflowEvent;

export interface PublishOptions {
  /** Quality of service; 0 by default. */
  qos?: 0 | 1 | 2;
  /** Whether the broker keeps the message for later subscribers. */
  retain?: boolean;
  /** MQTT 5: the payload's media type. */
  contentType?: string;
  /** MQTT 5: the topic for the answer. */
  responseTopic?: string;
  /** MQTT 5: identifies the answer. */
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
  /** Adds a whole number, 1 by default; negative to subtract. */
  add(amount?: number): Promise<void>;
  /** Subtracts a whole number, 1 by default. */
  subtract(amount?: number): Promise<void>;
  /** Its value with the additions of this invocation; 0 if it was never added to. */
  value(): Promise<number>;
}

/** A field that only counts up; additions on several nodes add up. */
export interface GCounter {
  /** Adds a whole number from 0, 1 by default. */
  add(amount?: number): Promise<void>;
  /** Its value with the additions of this invocation; 0 if it was never added to. */
  value(): Promise<number>;
}

/**
 * A field that counts up and down, but never below 0, also with concurrent changes of several nodes: each node has a
 * share of the value and takes only from it. Nodes pass shares on to one another.
 */
export interface BoundedCounter {
  /** Adds a whole number, 1 by default. */
  add(amount?: number): Promise<void>;
  /** Takes a whole number, 1 by default; refused if this node's share is too small. */
  subtract(amount?: number): Promise<void>;
  /** Its value; 0 if it was never added to. */
  value(): Promise<number>;
  /** This node's share: the amount that it may take. */
  share(): Promise<number>;
}

/** A field that holds a value as JSON; the last write wins. */
export interface Register<T = any> {
  set(value: T): Promise<void>;
  /** Its value, with a write of this invocation; `undefined` if it was never set. */
  get(): Promise<T | undefined>;
}

/** A field that keeps the values of all concurrent writes; a write replaces the values that it has seen. */
export interface MvRegister<T = any> {
  set(value: T): Promise<void>;
  /** None if it was never set, several after concurrent writes. */
  get(): Promise<T[]>;
}

/** A field that holds elements, which are never removed. Two elements are the same if they are equal as JSON. */
export interface GSet<T = any> {
  add(element: T): Promise<void>;
  has(element: T): Promise<boolean>;
  /** The order has no meaning. */
  values(): Promise<T[]>;
}

/**
 * A field that holds elements; an `add` wins over a concurrent `delete`. Two elements are the same if
 * they are equal as JSON.
 */
export interface ObjectSet<T = any> {
  add(element: T): Promise<void>;
  /** No effect if it does not exist. */
  delete(element: T): Promise<void>;
  has(element: T): Promise<boolean>;
  clear(): Promise<void>;
  /** The order has no meaning. */
  values(): Promise<T[]>;
}

/**
 * A field that is on or off. If two nodes enable and disable it concurrently, the enabling wins in a `flag`, which is an
 * `ewFlag`, and the disabling in a `dwFlag`.
 */
export interface Flag {
  enable(): Promise<void>;
  disable(): Promise<void>;
  /** `false` if it was never switched. */
  value(): Promise<boolean>;
}

/** A field that holds values in an order. Indexes count from 0; one out of range is refused. */
export interface List<T = any> {
  push(value: T): Promise<void>;
  /** Inserts a value before the one at `index`. */
  insert(index: number, value: T): Promise<void>;
  /** Replaces the value at `index`. */
  set(index: number, value: T): Promise<void>;
  delete(index: number): Promise<void>;
  values(): Promise<T[]>;
  length(): Promise<number>;
}

/**
 * A field that holds text, which several nodes may edit concurrently. Positions and lengths count Unicode code points: `[...s].length`,
 * which is less than `s.length` for emoji.
 */
export interface Text {
  insert(at: number, text: string): Promise<void>;
  /** Deletes `count` code points, 1 by default. */
  delete(at: number, count?: number): Promise<void>;
  /** Deletes `count` code points and puts `text` there, if there is any. */
  splice(at: number, count: number, text?: string): Promise<void>;
  /** Empty if nothing was ever inserted. */
  value(): Promise<string>;
}

/**
 * A field that holds a JSON document, which several nodes may edit concurrently. Pointers are those of RFC 6901, such as
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

/** A holder of fields: an object, or a map in one. A field has the type of its first use. */
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
 * A field that holds fields of its own by key, at any depth. The first write creates an entry; a
 * change of an entry wins over a concurrent `delete`.
 */
export interface ObjectMap<T extends object = Record<string, any>> extends Fields {
  keys(): Promise<string[]>;
  /** The type of each entry. */
  types(): Promise<Record<string, FieldType>>;
  /** Keys and values. */
  entries(): Promise<[key: string, value: any][]>;
  /** All entries, as a plain object. */
  value(): Promise<T>;
  has(key: string): Promise<boolean>;
  /** Removes an entry with its content. */
  delete(key: string): Promise<void>;
  clear(): Promise<void>;
}

/**
 * State that outlives the invocation and that all functions of the app share. Writes take effect together when the
 * invocation succeeds, and not at all if it fails.
 */
export interface StatefulObject extends Fields {
  readonly name: string;
  /**
   * Deletes a field with all that this node has seen of it, or, without an argument, all fields of the object. The next write
   * makes a new field, which may have another type; in a cluster the type stays reserved until all members know of the
   * deletion. A field that does not exist is no error.
   */
  delete(field?: string): Promise<void>;
}

/** Host calls of a function, within the manifest's `permissions`. */
export interface Capabilities {
  /** Publishes a message when the invocation succeeds; if it fails, the message is not sent. */
  publish(topic: string, payload?: Payload, options?: PublishOptions): Promise<void>;
  /**
   * Calls another function and gives its result: the value of JSON, a string, a `Uint8Array`, a `Response`
   * or `undefined`. Calls that are started together run concurrently.
   */
  call<T = any>(name: string, data?: Payload): Promise<T>;
  /**
   * A stateful object; the first write creates it. Without an argument it is the function's own object, for which
   * it needs no permission; other functions use it as `@NAME`.
   */
  object(name?: string): StatefulObject;
  /**
   * A file of the app that `assets` of the manifest names, by its path in the app folder. It is not read or copied: all
   * isolates share it, and writes of an invocation end with it. Throws if there is no such file.
   */
  asset(name: string): Uint8Array<ArrayBuffer>;
}

/** A node of a cluster. */
export interface ClusterNode {
  /** Its name, which the header `Invocation-Node` has too. */
  readonly name: string;
  /** Its zone, if it is known. */
  readonly zone?: string;
  readonly labels: readonly string[];
}

/** The invocation for an event. */
export interface Context<Config extends object = Record<string, any>> extends Capabilities {
  readonly invocationId: string;
  /** The function's name in the manifest. */
  readonly function: string;
  /** When the node ends the invocation, in milliseconds since the Unix epoch. */
  readonly deadline: number;
  /** The `config` values of the manifest. */
  readonly config: Readonly<Config>;
  /** The node that runs this invocation; undefined if it is in no cluster. */
  readonly node: ClusterNode | undefined;
  /** The secrets that the manifest names and that are set. */
  readonly secrets: Readonly<Record<string, string | undefined>>;
  readonly log: Log;
  /** Continues the invocation until the promise is settled, after the handler has returned. */
  waitUntil(promise: Promise<unknown>): void;
  /** Does nothing; for code that was written for other platforms. */
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

/** Reason why the node refused a host call. */
export type HostErrorCode =
  /** The manifest's permissions do not allow it. */
  | "NotPermitted"
  /** No such function or other target. */
  | "NotFound"
  /** Invalid arguments: a wrong topic, a payload over its limit, a field of another type. */
  | "Invalid"
  /** The node has no room now; try later. */
  | "Overloaded"
  /** The operation ran and failed. */
  | "Failed";

/** The error of `publish`, `call` and objects. A failed `fetch` is a `TypeError` with such a `code`. */
export interface HostError extends Error {
  readonly code: HostErrorCode;
}

/** Returns its handler with types: `event` and `context` need no annotation. */
export function defineFunction<E extends Event = Event, Config extends object = Record<string, any>>(
  handler: Handler<E, Config>,
): Handler<E, Config>;

/** Returns its object of handlers with types. */
export function defineService<Values extends object = Record<string, any>>(
  service: Service<Values>,
): Service<Values>;

/** Whether a host call was refused or failed; `error.code` has the reason. */
export function isHostError(error: unknown): error is HostError;
