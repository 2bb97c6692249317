import { deploy } from "./app";
import { checkAccessibility, expect, picture, signIn, test } from "./fixtures";

test("the failing function is found, and its log says why", async ({ page, node }) => {
    await deploy(node);
    await node.cli(["invoke", "broken"]).catch(() => undefined);
    await signIn(page, node);
    await page.getByRole("link", { name: "Functions" }).click();
    const broken = page.getByRole("row", { name: /broken/ });
    // One failure is no state of the function.
    await expect(broken.locator("td[data-name=Failed]")).toHaveText("1");
    await expect(broken).toContainText("ready");
    for (let failed = 1; failed < 10; failed += 1) await node.cli(["invoke", "broken"]).catch(() => undefined);
    await expect(broken).toContainText("failing");
    await expect(page.getByRole("row", { name: /greet/ })).toContainText("ready");
    await checkAccessibility(page);
    await picture(page, "functions");
    await page.getByRole("link", { name: "broken" }).click();
    await expect(page.getByRole("log")).toContainText("the sensor gives no value");
    await expect(page.getByText(/in memory, since its start [\d.]+ s ago/)).toBeVisible();
    await expect(page.getByText(/last traced failure was at .*the sensor gives no value/)).toBeVisible();
    await checkAccessibility(page);
    await picture(page, "function");
});

test("a function is invoked with events, and answer, log and trace are shown", async ({ page, node }) => {
    await deploy(node);
    await signIn(page, node);
    await page.goto(`${node.url}/#/functions/greet`);
    await page.getByLabel("Event").selectOption("Direct call");
    await page.getByLabel("Body").fill("ada");
    await page.getByRole("button", { name: "Invoke" }).click();
    const outcome = page.locator(".outcome");
    await expect(outcome).toContainText("answered");
    await expect(outcome).toContainText('"hello": "ada"');
    await expect(outcome).toContainText("info greeting ada");
    await outcome.getByRole("button", { name: /greet/ }).click();
    await expect(outcome).toContainText("isolate made");
    await picture(page, "invoke");
    // The log has the line, too, and at once.
    await expect(page.getByRole("log")).toContainText("greeting ada");
    await page.getByLabel("Event").selectOption("HTTP request");
    await page.getByLabel("Path and query").fill("/greet?bob");
    await page.getByRole("button", { name: "Invoke" }).click();
    await expect(outcome).toContainText("info greeting bob");
    await page.getByLabel("Search in the log").fill("bob");
    await expect(page.getByRole("log")).not.toContainText("greeting ada");
    await expect(page.getByRole("log")).toContainText("greeting bob");
});

const EVENTS = `app = "plant"

[functions.order]
main = "echo.js"
triggers = [{ http = "/orders", methods = ["POST", "PUT"] }]

[functions.item]
main = "echo.js"
triggers = [{ http = "/orders/{id}" }]

[functions.level]
main = "echo.js"
triggers = [{ mqtt = "tanks/+/level", qos = 1 }]

[functions.alarm]
main = "echo.js"
triggers = [{ mqtt = "alarm", order_by = "topic", qos = 1 }, { cron = "*/5 * * * *" }]

[functions.count]
main = "echo.js"
triggers = [{ object = "tank-*", field = "level" }]
`;
const ECHO = `const MEMBERS = ["query", "headers", "topic", "qos", "retain", "properties", "schedule", "scheduledTime", "object", "field"];
export default (event) => {
    const seen = Object.fromEntries(MEMBERS.map((member) => [member, event[member]]));
    seen.text = event.text();
    if (event.kind === "http") seen.headers = Object.fromEntries(new Headers(event.headers));
    if (event.kind === "http") return new Response(JSON.stringify(seen), { status: 201, headers: { "x-order": "seven" } });
    return seen;
};
`;

test("the form of invoke has all of an event, as the triggers of the function say", async ({ page, node }) => {
    await deploy(node, { "edgefaas.toml": EVENTS, "echo.js": ECHO });
    await signIn(page, node);
    const open = (name: string) => page.goto(`${node.url}/#/functions/${name}`);
    const invoke = page.getByRole("button", { name: "Invoke" });
    const outcome = page.locator(".outcome");

    await open("order");
    await expect(page.getByLabel("Event")).toHaveValue("http");
    await expect(page.getByLabel("Method")).toHaveValue("POST");
    await expect(page.getByLabel("Path and query")).toHaveValue("/orders");
    await page.getByLabel("Headers").fill("x-tenant: north\nno header");
    await invoke.click();
    await expect(page.getByRole("alert")).toHaveText("line 2 of the headers is not name: value");
    await page.getByLabel("Body").fill("seven");
    await page.getByLabel("Event").selectOption("Schedule");
    await expect(page.getByRole("alert")).toHaveCount(0);
    await page.getByLabel("Event").selectOption("HTTP request");
    await expect(page.getByLabel("Body")).toHaveValue("seven");
    await page.getByLabel("Headers").fill("x-tenant: north\n\naccept: text/plain; q=1");
    await page.getByLabel("Path and query").fill("/orders?a=1?b");
    await invoke.click();
    await expect(page.getByRole("alert")).toHaveCount(0);
    await expect(outcome).toContainText("status 201");
    await expect(outcome).toContainText("x-order: seven");
    await expect(outcome).toContainText('"north"');
    await expect(outcome).toContainText('"a=1?b"');
    await expect(outcome).toContainText("seven");
    await checkAccessibility(page);
    await picture(page, "invoke-http");
    await page.getByLabel("Event").selectOption("Direct call");
    await expect(outcome).toHaveCount(0);

    await open("item");
    await expect(page.getByLabel("Path and query")).toHaveValue("");
    await expect(page.getByLabel("Path and query")).toHaveAttribute("placeholder", "/orders/{id}");

    await open("level");
    await expect(page.getByLabel("Event")).toHaveValue("mqtt");
    await expect(page.getByLabel("Topic")).toHaveValue("");
    await expect(page.getByLabel("Topic")).toHaveAttribute("placeholder", "tanks/+/level");
    await expect(page.getByLabel("QoS")).toHaveValue("1");
    await page.getByLabel("Topic").fill("tanks/north/level");
    await page.getByLabel("QoS").selectOption("2: exactly once");
    await page.getByLabel("As a retained message").check();
    await page.getByLabel("Content type").fill("text/csv");
    await page.getByLabel("Body").fill("7;8");
    await invoke.click();
    await expect(outcome).toContainText('"topic": "tanks/north/level"');
    await expect(outcome).toContainText('"qos": 2');
    await expect(outcome).toContainText('"retain": true');
    await expect(outcome).toContainText("text/csv");
    await expect(outcome).toContainText("7;8");
    await checkAccessibility(page);

    await open("alarm");
    await expect(page.getByLabel("Topic")).toHaveValue("alarm");
    await page.getByLabel("Event").selectOption("Schedule");
    await expect(page.locator('input[name="schedule"]')).toHaveValue("*/5 * * * *");
    await page.getByLabel("Scheduled time").fill("2030-01-02T03:04:05");
    await invoke.click();
    await expect(outcome).toContainText(/1893553445000|2030-01-02T03:04:05/);
    await checkAccessibility(page);

    await open("count");
    await expect(page.getByLabel("Event")).toHaveValue("object");
    const object = page.getByRole("textbox", { name: "Object" });
    await expect(object).toHaveAttribute("placeholder", "tank-*");
    await expect(page.getByLabel("Field")).toHaveValue("level");
    await object.fill("tank-north");
    await page.getByLabel("New value, as JSON").fill("7");
    await invoke.click();
    await expect(outcome).toContainText('"object": "tank-north"');
});

test("markup of a function and of a payload stays text", async ({ page, node }) => {
    await deploy(node);
    await signIn(page, node);
    await page.goto(`${node.url}/#/functions/markup`);
    await page.getByLabel("Body").fill("<b id=answer>bold</b>");
    await page.getByRole("button", { name: "Invoke" }).click();
    await expect(page.locator(".outcome")).toContainText("<b id=answer>bold</b>");
    await expect(page.getByRole("log")).toContainText("<script>window.hit = 1</script>");
    await expect(page.locator("#answer")).toHaveCount(0);
    expect(await page.evaluate(() => "hit" in window)).toBe(false);
});

test("revisions are compared, and an app is rolled back to an earlier one", async ({ page, node }) => {
    await deploy(node);
    await deploy(node, { "broken.js": "export default () => 'mended <b>now</b>';\n" });
    await signIn(page, node);
    await page.goto(`${node.url}/#/functions/broken`);
    await page.getByRole("button", { name: "Show the difference" }).click();
    const file = page.getByRole("region", { name: "broken.js" });
    await expect(file.locator(".removed").first()).toHaveText(/^-export default \(\) => \{/);
    await expect(file.locator(".added")).toHaveText(/^\+export default \(\) => 'mended <b>now<\/b>';/);
    await checkAccessibility(page);
    await picture(page, "difference");
    await page.getByRole("button", { name: "Roll back" }).click();
    // What rolling back does: the other way round.
    const dialog = page.getByRole("dialog");
    await expect(dialog.locator(".removed")).toHaveText(/^-export default \(\) => 'mended/);
    await expect(dialog.locator(".added").first()).toHaveText(/^\+export default \(\) => \{/);
    await checkAccessibility(page);
    await picture(page, "rollback");
    await dialog.getByRole("button", { name: "Roll back" }).click();
    await expect(page.getByRole("dialog")).toHaveCount(0);
    await expect(async () => {
        await expect(node.cli(["invoke", "broken"])).rejects.toThrow(/gives no value/);
    }).toPass();
});

test.describe("a user who may only look", () => {
    // gRPC-Web refuses with status 200.
    test("finds no buttons, and is refused by the node itself", async ({ page, node }) => {
        await deploy(node);
        await node.cli(["users", "add", "bob", "--role", "look"], "bob's\n");
        await page.goto(node.url);
        await page.getByLabel("User").fill("bob");
        await page.getByLabel("Password").fill("bob's");
        await page.getByRole("button", { name: "Sign in" }).click();
        await page.getByRole("link", { name: "Functions" }).click();
        await page.getByRole("link", { name: "greet" }).click();
        await expect(page.getByRole("log")).toBeVisible();
        await expect(page.getByRole("button", { name: "Invoke" })).toHaveCount(0);
        await page.getByRole("link", { name: "Messages" }).click();
        await expect(page.getByRole("link", { name: "Watch" })).toBeVisible();
        await expect(page.getByRole("link", { name: "Publish" })).toHaveCount(0);
        await page.goto(`${node.url}/#/messages/publish`);
        await expect(page.getByText("This page needs the role operate. You have the role look")).toBeVisible();
        const call = (path: string) =>
            page.evaluate(async (path) => {
                const frame = new Uint8Array(5);
                const headers = { "content-type": "application/grpc-web+proto" };
                const response = await fetch(path, { method: "POST", headers, body: frame });
                return response.headers.get("grpc-status");
            }, path);
        expect(await call("/edgefaas.control.v1.Control/Invoke")).toBe("7");
        expect(await call("/edgefaas.control.v1.Control/Deploy")).toBe("7");
        expect(await call("/edgefaas.objects.v1.Objects/Update")).toBe("7");
        expect(await call("/edgefaas.messages.v1.Messages/Publish")).toBe("7");
        expect(await call("/edgefaas.invocations.v1.Invocations/Retry")).toBe("7");
        // The same form of call with a method that the role permits.
        expect(await call("/edgefaas.control.v1.Control/Status")).not.toBe("7");
        await node.cli(["users", "role", "bob", "operate"]);
        expect(await call("/edgefaas.objects.v1.Objects/Update")).not.toBe("7");
    });
});
