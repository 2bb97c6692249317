// Notes in a register, behind a Hono app. Nothing in here is specific to edgefaas but `c.env`.
import { Hono } from "hono";
import { basicAuth } from "hono/basic-auth";
import { getSignedCookie, setSignedCookie } from "hono/cookie";
import { HTTPException } from "hono/http-exception";

const app = new Hono().basePath("/notes");

app.use(async (c, next) => {
  const began = performance.now();
  await next();
  c.header("x-took-ms", (performance.now() - began).toFixed(2));
});
app.use("/admin/*", (c, next) => {
  const { user: username, password } = c.env;
  return basicAuth({ username, password })(c, next);
});

const notes = (c) => c.env.object("notes").register("all");

app.get("/", async (c) => {
  const last = await getSignedCookie(c, c.env.cookie_key, "last");
  return c.html(`<h1>${c.env.title}</h1><p>last seen: ${last || "nothing"}</p>`);
});
app.get("/all", async (c) => {
  const all = (await notes(c).get()) ?? [];
  const word = c.req.query("q");
  return c.json(word ? all.filter((note) => note.text.includes(word)) : all);
});
app.get("/:id{[0-9]+}", async (c) => {
  const note = ((await notes(c).get()) ?? [])[Number(c.req.param("id"))];
  if (!note) throw new HTTPException(404, { message: `there is no note ${c.req.param("id")}` });
  await setSignedCookie(c, "last", c.req.param("id"), c.env.cookie_key, { path: "/notes", httpOnly: true });
  return c.json(note);
});
app.post("/", async (c) => {
  const { text } = await c.req.json();
  const all = (await notes(c).get()) ?? [];
  all.push({ text });
  await notes(c).set(all);
  return c.json({ id: all.length - 1 }, 201);
});
app.post("/upload", async (c) => {
  const { file } = await c.req.parseBody();
  return c.text(`${file.name}: ${file.size} bytes`);
});
app.delete("/admin/all", async (c) => {
  await notes(c).set([]);
  return c.body(null, 204);
});
app.get("/broken", () => {
  throw new Error("on purpose");
});

app.notFound((c) => c.json({ error: `nothing at ${c.req.path}` }, 404));
app.onError((error, c) => {
  if (error instanceof HTTPException) return error.getResponse();
  console.error(error);
  return c.json({ error: error.message }, 500);
});

export default app;
