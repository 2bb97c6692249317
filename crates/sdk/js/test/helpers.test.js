import assert from "node:assert/strict";
import test from "node:test";

import { defineFunction, defineService, isHostError } from "@edgefaas/sdk";

test("the helpers give back what they get", () => {
  const handler = () => "ok";
  assert.equal(defineFunction(handler), handler);
  const service = { fetch: handler };
  assert.equal(defineService(service), service);
});

test("errors of the node are told from others by their code", () => {
  assert.ok(isHostError(Object.assign(new Error("not permitted"), { code: "NotPermitted" })));
  assert.ok(!isHostError(new Error("x")));
  assert.ok(!isHostError(Object.assign(new Error("x"), { code: "ENOENT" })));
  assert.ok(!isHostError({ code: "NotPermitted" }));
});
