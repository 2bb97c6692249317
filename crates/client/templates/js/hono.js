import { Hono } from "hono";

/** @type {Hono<{ Bindings: import("@edgefaas/sdk").Env }>} */
const app = new Hono().basePath("/{{name}}");

app.get("/", (c) => c.text("try /{{name}}/hello/Ada\n"));
app.get("/hello/:who", async (c) => {
  const greeted = c.env.object("{{name}}").counter("greeted");
  await greeted.add();
  return c.json({ hello: c.req.param("who"), number: await greeted.value() });
});

export default app;
