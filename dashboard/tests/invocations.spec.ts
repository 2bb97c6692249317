import { deploy } from "./app";
import { checkAccessibility, expect, picture, signIn, test } from "./fixtures";
import { connectClient } from "./mqtt";
import type { Node } from "./node";

const MARKUP = "<script>window.hit = 1</script>";
const MANIFEST = `app = "plant"

[functions.gate]
main = "gate.js"
triggers = [{ mqtt = "in/+", qos = 1 }]
permissions = { publish = ["out"] }
limits = { concurrency = 1 }

[functions.slow]
main = "gate.js"
triggers = [{ mqtt = "slow/+", qos = 1 }]
permissions = { publish = ["out"] }
retry = { attempts = 5, backoff = "1h" }
`;
const SOURCE = `export default async (event, context) => {
    if (BROKEN) {
        // Two that fail in the same millisecond have no order.
        for (const now = Date.now(); Date.now() === now; );
        throw new Error("the valve is stuck ${MARKUP}");
    }
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

/** Publishes messages that end as dead letters, one after another. */
async function makeDead(node: Node, number: number) {
    const client = await connectClient(node);
    for (let at = 0; at < number; at += 1) await client.publishAsync("in/a", String(at), { qos: 1 });
    await client.endAsync();
}

test("dead letters of a function that is gone are found by its name", async ({ page, node }) => {
    await deploy(node, app(true));
    await makeDead(node, 1);
    await signIn(page, node);
    await page.goto(`${node.url}/#/invocations/dead`);
    const list = page.getByRole("region", { name: "Dead invocations" });
    await expect(list.locator("tbody tr")).toHaveCount(1);
    await node.cli(["rm", "plant"]);
    await expect(page.getByRole("option", { name: "slow" })).toHaveCount(0);
    await page.getByLabel("Function").selectOption("gate");
    await expect(page).toHaveURL(/function=gate/);
    await expect(list.locator("tbody tr")).toHaveCount(1);
});

test("all dead letters of a function are retried in their order, and all are discarded", async ({ page, node }) => {
    await deploy(node, app(true));
    await makeDead(node, 12);
    const client = await connectClient(node);
    await client.subscribeAsync("out", { qos: 1 });
    const arrived: string[] = [];
    client.on("message", (_, payload) => arrived.push(payload.toString()));
    await signIn(page, node);
    await page.goto(`${node.url}/#/invocations/dead?function=gate`);
    const list = page.getByRole("region", { name: "Dead invocations" });
    await expect(list.locator("tbody tr")).toHaveCount(12);
    await expect(list.getByRole("columnheader", { name: "Ended" })).toBeVisible();
    await deploy(node, app(false));
    await page.getByRole("button", { name: "Retry all" }).click();
    const retry = page.getByRole("dialog", { name: "Retry 12 dead invocations of gate?" });
    await checkAccessibility(page);
    await retry.getByRole("button", { name: "Retry all" }).click();
    await expect(page.getByRole("status")).toHaveText("12 of 12 retried.");
    await expect.poll(() => arrived).toEqual(Array.from({ length: 12 }, (_, at) => String(at)));
    await expect(page.getByText("No durable invocation of gate has failed for good.")).toBeVisible();
    await expect(page.getByRole("button", { name: "Retry all" })).toBeDisabled();
    await client.endAsync();

    await deploy(node, app(true));
    await makeDead(node, 8);
    await page.goto(`${node.url}/#/invocations/dead`);
    await expect(list.locator("tbody tr")).toHaveCount(8);
    const discardAll = page.getByRole("button", { name: "Discard all" });
    await discardAll.click();
    const discard = page.getByRole("dialog", { name: "Discard 8 dead invocations?" });
    await expect(discard).toBeVisible();
    await page.keyboard.press("Escape");
    await expect(discardAll).toBeFocused();
    await page.keyboard.press("Enter");
    await expect(discard).toBeVisible();
    // Another user is faster with one of them.
    const first = (await list.locator("tbody tr").first().getByRole("link").first().textContent()) ?? "";
    await node.cli(["invocations", "discard", first]);
    await discard.getByRole("button", { name: "Discard all" }).click();
    await expect(page.getByRole("status")).toHaveText("7 of 8 discarded, 1 no longer there.");
    await expect(page.getByText("No durable invocation has failed for good.")).toBeVisible();
    await expect(page.getByRole("button", { name: "Discard all" })).toBeDisabled();
});

test("a retry in the list says as what it runs again, and a function shows its dead letters", async ({ page, node }) => {
    await deploy(node, app(true));
    await makeDead(node, 2);
    await signIn(page, node);
    await page.goto(`${node.url}/#/functions/gate`);
    const dead = page.locator(".figure", { hasText: "Dead letters" });
    await expect(dead).toContainText("2");
    await dead.getByRole("link").click();
    const list = page.getByRole("region", { name: "Dead invocations" });
    const before = (await list.locator("tbody tr").first().getByRole("link").first().textContent()) ?? "";
    await list.getByRole("button", { name: "Retry" }).first().click();
    await expect(page.getByRole("status")).toContainText(`${before} runs again, as `);
    await checkAccessibility(page);
    // It fails again, as another one.
    await expect(list.getByRole("link", { name: before })).toHaveCount(0);
    await expect(list.locator("tbody tr")).toHaveCount(2);
});

test("retries of all end with a full queue, and discards of all when they are stopped", async ({ page, node }) => {
    await deploy(node, app(true));
    await makeDead(node, 9);
    await signIn(page, node);
    await page.goto(`${node.url}/#/invocations/dead`);
    await expect(page.getByRole("region", { name: "Dead invocations" }).locator("tbody tr")).toHaveCount(9);
    let calls = 0;
    await page.route("**/edgefaas.invocations.v1.Invocations/Retry", async (route) => {
        calls += 1;
        if (calls < 3) return route.continue();
        const headers = { "content-type": "application/grpc-web+proto", "grpc-status": "8", "grpc-message": "the queue of gate is full" };
        return route.fulfill({ status: 200, headers });
    });
    await page.getByRole("button", { name: "Retry all" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Retry all" }).click();
    await expect(page.getByRole("alert")).toHaveText("Ended: the queue of gate is full");
    await expect(page.getByRole("status")).toHaveText("2 of 9 retried.");
    expect(calls).toBe(3);

    let goOn = () => {};
    const held = new Promise<void>((resolve) => (goOn = resolve));
    await page.route("**/edgefaas.invocations.v1.Invocations/Discard", async (route) => {
        await held;
        await route.continue();
    });
    await page.getByRole("button", { name: "Discard all" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Discard all" }).click();
    await expect(page.getByRole("status")).toHaveText(/^0 of \d+$/);
    await picture(page, "discard-all");
    await page.getByRole("button", { name: "Stop" }).click();
    goOn();
    // Four calls were under way.
    await expect(page.getByRole("status")).toHaveText(/^Stopped: 4 of \d+ discarded\.$/);
    await checkAccessibility(page);
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
    await expect(list.getByRole("columnheader", { name: "Accepted" })).toBeVisible();
    await checkAccessibility(page);
    await picture(page, "pending");
    await page.getByLabel("Function").selectOption("gate");
    await expect(page.getByText("No durable invocation of gate waits")).toBeVisible();
    await page.getByLabel("Function").selectOption("slow");
    await list.getByRole("button", { name: "Retry" }).click();
    await expect(list).toContainText("3 of 5");
    await list.getByRole("button", { name: "Discard" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Discard" }).click();
    await expect(page.getByText("No durable invocation of slow waits")).toBeVisible();
    await client.endAsync();
});
