// The API itself is given to a handler by the node; these helpers only carry types.

/** Gives back the handler it is given, typed: `event` and `context` need no annotation then. */
export const defineFunction = (handler) => handler;

/** Gives back the object of handlers it is given, typed. */
export const defineService = (service) => service;

const CODES = new Set(["NotPermitted", "NotFound", "Invalid", "Overloaded", "Failed"]);

/** Whether the node refused a call of its API, or it failed; `error.code` then says why. */
export const isHostError = (error) => error instanceof Error && CODES.has(error.code);
