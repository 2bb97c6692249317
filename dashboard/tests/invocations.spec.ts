import { deploy } from "./app";
import { checkAccessibility, expect, picture, signIn, test } from "./fixtures";
import { connectClient } from "./mqtt";

const MARKUP = "<script>window.hit = 1</script>";
const MANIFEST = `app = "plant"

[functions.gate]
main = "gate.js"
triggers = [{ mqtt = "in/+", qos = 1 }]
permissions = { publish = ["out"] }

[functions.slow]
main = "gate.js"
triggers = [{ mqtt = "slow/+", qos = 1 }]
permissions = { publish = ["out"] }
retry = { attempts = 5, backoff = "1h" }
`;
const SOURCE = `export default async (event, context) => {
    if (BROKEN) throw new Error("the valve is stuck ${MARKUP}");
    await context.publish("out", event.text(), { qos: 1 });
};
`;
const app = (broken: boolean) => ({ "edgefaas.toml": MANIFEST, "gate.js": SOURCE.replace("BROKEN", String(broken)) });

test("dead letters are looked at, retried when the cause is mended, and discarded", async ({ page, node }) => {
    await deploy(node, app(true));
    const client = await connectClient(node);
    await client.subscribeAsync("out", { qos: 1 });
    const arrived: string[] = [];
    client.on("message", (_, payload) => arrived.push(payload.toString()));
    await client.publishAsync("in/a", `{"value": "${MARKUP}"}`, { qos: 1, properties: { contentType: "application/json" } });
    await client.publishAsync("in/b", "second", { qos: 1 });
    await signIn(page, node);
    await expect(page.locator(".figure", { hasText: "Dead letters" })).toContainText("2");
    await page.locator(".figure", { hasText: "Dead letters" }).getByRole("link").click();
    const list = page.getByRole("region", { name: "Dead invocations" });
    await expect(list.locator("tbody tr")).toHaveCount(2);
    await expect(list).toContainText(`the valve is stuck ${MARKUP}`);
    await expect(page.getByRole("navigation", { name: "Kinds of invocations" })).toContainText("Dead (2)");
    await checkAccessibility(page);
    await picture(page, "dead");
    await list.getByRole("row", { name: /in\/a/ }).getByRole("link").first().click();
    const event = page.locator(".card", { hasText: "Event" }).last();
    await expect(event.locator("pre")).toContainText(`"value": "${MARKUP}"`);
    await expect(event).toContainText("application/json");
    await event.getByLabel("Payload as").selectOption("Hexadecimal");
    await expect(event.locator("pre")).toContainText("7b 22 76 61 6c");
    await expect(page.locator(".figure", { hasText: "Attempt" })).toContainText("1 of 1");
    expect(await page.evaluate(() => "hit" in window)).toBe(false);
    await checkAccessibility(page);
    await picture(page, "invocation");
    await deploy(node, app(false));
    await page.getByRole("button", { name: "Retry" }).click();
    await expect(page.getByRole("status")).toContainText("It runs again");
    await expect.poll(() => arrived).toEqual([`{"value": "${MARKUP}"}`]);
    await page.getByRole("status").getByRole("link", { name: "trace" }).click();
    await expect(page.locator(".waterfall")).toContainText("gate");
    await page.goto(`${node.url}/#/invocations/dead`);
    await expect(list.locator("tbody tr")).toHaveCount(1);
    await list.getByRole("button", { name: "Discard" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Discard" }).click();
    await expect(page.getByText("No durable invocation has failed for good.")).toBeVisible();
    await client.endAsync();
});

test("an invocation that waits for its next attempt is filtered by its function, and runs now", async ({ page, node }) => {
    await deploy(node, app(true));
    const client = await connectClient(node);
    await client.publishAsync("slow/a", "1", { qos: 1 });
    await signIn(page, node);
    await page.getByRole("link", { name: "Invocations", exact: true }).click();
    const list = page.getByRole("region", { name: "Pending invocations" });
    await expect(list).toContainText("retrying");
    await expect(list).toContainText("2 of 5");
    await checkAccessibility(page);
    await picture(page, "pending");
    await page.getByLabel("Function").selectOption("gate");
    await expect(page.getByText("No durable invocation waits")).toBeVisible();
    await page.getByLabel("Function").selectOption("slow");
    await list.getByRole("button", { name: "Retry" }).click();
    await expect(list).toContainText("3 of 5");
    await list.getByRole("button", { name: "Discard" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Discard" }).click();
    await expect(page.getByText("No durable invocation waits")).toBeVisible();
    await client.endAsync();
});
