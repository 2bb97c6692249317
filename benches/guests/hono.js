// Three routes in the form that workerd and the node both run.
import { Hono } from "hono";

const app = new Hono();
app.get("/", (c) => c.text("hello"));
app.get("/users/:id", (c) => c.json({ id: c.req.param("id"), part: c.req.query("part") ?? null }));
app.post("/users", async (c) => c.json(await c.req.json(), 201));

export default app;
