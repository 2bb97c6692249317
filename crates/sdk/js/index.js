// The node passes the API to a handler; these helpers only add types.

/** Returns its handler with types: `event` and `context` need no annotation. */
export const defineFunction = (handler) => handler;

/** Returns its object of handlers with types. */
export const defineService = (service) => service;

const CODES = new Set(["NotPermitted", "NotFound", "Invalid", "Overloaded", "Failed"]);

/** Whether a host call was refused or failed; `error.code` has the reason. */
export const isHostError = (error) => error instanceof Error && CODES.has(error.code);
