import type { Env } from "@edgefaas/sdk";
import { Hono } from "hono";

const app = new Hono<{ Bindings: Env }>().basePath("/{{name}}");

app.get("/", (c) => c.text("try /{{name}}/hello/Ada\n"));
app.get("/hello/:who", async (c) => {
  const greeted = c.env.object("{{name}}").counter("greeted");
  await greeted.add();
  return c.json({ hello: c.req.param("who"), number: await greeted.value() });
});

export default app;
