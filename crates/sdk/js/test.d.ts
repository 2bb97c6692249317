import type { Payload } from "@edgefaas/sdk";

/** A message that passed the broker since the test began. */
export interface TestMessage {
  readonly topic: string;
  readonly qos: 0 | 1 | 2;
  readonly retain: boolean;
  json<T = any>(): T;
  text(): string;
  bytes(): Uint8Array;
}

/** An object of the app, as the node has it. Changes of running invocations are not visible. */
export interface TestObject {
  readonly name: string;
  /** The value of a field as JSON; `undefined` if there is none. */
  get<T = any>(field: string): Promise<T | undefined>;
  /** All fields by name. */
  value<T extends object = Record<string, any>>(): Promise<T>;
}

/** The node of a test, with the app. */
export interface TestContext {
  /** Publishes a message as an MQTT client. Functions that it triggers are started when this returns. */
  publish(topic: string, payload?: Payload, options?: { qos?: 0 | 1 | 2; retain?: boolean }): Promise<void>;
  /**
   * Waits for a message of a topic filter and gives it; one that came since the test began counts, and each message is given once. Fails
   * the test after `within` milliseconds, 5000 by default. `where` refuses messages.
   */
  expectMessage(
    filter: string,
    options?: { within?: number; where?: (message: TestMessage) => boolean | Promise<boolean> },
  ): Promise<TestMessage>;
  /** Fails the test if a message of a topic filter came, or comes within `within` milliseconds, 200 by default. */
  expectNoMessage(filter: string, options?: { within?: number }): Promise<void>;
  /** Calls a function, or runs a workflow to its end, and gives its result. Throws if it fails; `error.status` has the status code. */
  call<T = any>(name: string, data?: Payload): Promise<T>;
  /**
   * Advances the time of the node: "10m", "1h 30m", or a number of milliseconds. Timers of workflows, retries of durable functions,
   * schedules and the `ttl` of objects that come due happen in the order of their times, and have been done when this returns:
   * functions that they start have run, workflows wait again or have ended. `Date` of functions and of the test follows. Fails the test
   * if the node is still at work `within` milliseconds after something came due, 5000 by default.
   */
  advance(duration: string | number, options?: { within?: number }): Promise<void>;
  /**
   * Runs a function as its schedule would, now; by themselves schedules fire only as `advance` reaches their times. `schedule` is the function's first one by
   * default, `at` the due time in milliseconds since the Unix epoch.
   */
  fire<T = any>(name: string, options?: { schedule?: string; at?: number }): Promise<T>;
  /** Sends a request to the gateway; `path` starts with `/`. Redirections are not followed. */
  fetch(path: string, init?: RequestInit): Promise<Response>;
  /** The token of the gateway, for triggers with `auth`. */
  readonly token: string;
  object(name: string): TestObject;
  /** Waits until no function runs or waits to run; fails the test after `within` milliseconds, 5000 by default. */
  idle(options?: { within?: number }): Promise<void>;
  /** Aborted when the test ends. */
  readonly signal: AbortSignal;
}

export interface TestOptions {
  /** In milliseconds; 10,000 by default, at most 300,000. */
  timeout?: number;
}

type Body = (t: TestContext) => unknown;

interface Test {
  (name: string, body: Body): void;
  (name: string, options: TestOptions, body: Body): void;
  /** Does not run the test, and says so. */
  skip: { (name: string, body?: Body): void; (name: string, options: TestOptions, body?: Body): void };
  /** Runs only such tests of the file. */
  only: { (name: string, body: Body): void; (name: string, options: TestOptions, body: Body): void };
}

/** Registers a test; `edgefaas test` runs it. */
export const test: Test;

interface Assert {
  (value: unknown, message?: string | Error): asserts value;
  ok(value: unknown, message?: string | Error): asserts value;
  /** As `Object.is`. */
  equal<T>(actual: unknown, expected: T, message?: string | Error): asserts actual is T;
  notEqual(actual: unknown, unwanted: unknown, message?: string | Error): void;
  /** Equal in all members, with the same prototypes. */
  deepEqual<T>(actual: unknown, expected: T, message?: string | Error): asserts actual is T;
  match(text: string, pattern: RegExp, message?: string | Error): void;
  /** `expected` is a class of errors, or a pattern of the message. */
  throws(call: () => unknown, expected?: RegExp | (new (...args: any[]) => unknown), message?: string | Error): void;
  rejects(
    promise: Promise<unknown> | (() => Promise<unknown>),
    expected?: RegExp | (new (...args: any[]) => unknown),
    message?: string | Error,
  ): Promise<void>;
  fail(message?: string | Error): never;
}

export const assert: Assert;

/** The error of a failed assertion. */
export class AssertionError extends Error {}
