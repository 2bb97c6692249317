import type { Page } from "@playwright/test";
import { deploy } from "./app";
import { checkAccessibility, expect, picture, signIn, test } from "./fixtures";
import { connectClient } from "./mqtt";

const WIDTH = 360;
test.use({ viewport: { width: WIDTH, height: 740 } });

const MANIFEST = `app = "plant"
workflows = ["*.yaml"]

[functions.gate]
main = "gate.js"
triggers = [{ mqtt = "in/+", qos = 1 }]

[functions.slow]
main = "gate.js"
triggers = [{ mqtt = "slow/+", qos = 1 }]
retry = { attempts = 5, backoff = "1h" }
`;
const BROKEN = `export default () => {
    throw new Error("the valve is stuck");
};
`;
const WAITS = `document: { dsl: '1.0.3', namespace: plant, name: wait, version: '1.0.0', metadata: { durable: true } }
do:
  - pause: { wait: { hours: 1 } }
`;

/** Each button of the content is within the width of the screen once it is scrolled to, without a scroll sideways of its table. */
async function checkButtons(page: Page, view: string) {
    const tables = await page.locator("main .scroll").evaluateAll((boxes) => boxes.filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.getAttribute("aria-label")));
    expect(tables, `tables of ${view} that scroll sideways`).toEqual([]);
    for (const button of await page.locator("main").getByRole("button").all()) {
        await button.scrollIntoViewIfNeeded();
        const box = await button.boundingBox();
        const name = `${view}: ${await button.textContent()}`;
        expect(box?.x, name).toBeGreaterThanOrEqual(0);
        expect((box?.x ?? 0) + (box?.width ?? 0), name).toBeLessThanOrEqual(WIDTH);
    }
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    expect(overflow, `${view} is wider than the screen`).toBeLessThanOrEqual(0);
}

test("all buttons of all views are on the screen of a phone", async ({ page, node }) => {
    const files = { "edgefaas.toml": MANIFEST, "gate.js": BROKEN, "wait.yaml": WAITS };
    await deploy(node, { ...files, "gate.js": "export default () => 1;" });
    await deploy(node, files);
    await node.cli(["users", "add", "a-user-with-a-rather-long-name", "--role", "operate"], "secret\n");
    await node.cli(["secrets", "set", "--app", "plant", "a_secret_with_a_rather_long_name"], "value\n");
    const client = await connectClient(node, { clientId: "a-sensor-with-a-rather-long-name-of-its-own", clean: false, properties: { sessionExpiryInterval: 3600 } });
    await client.subscribeAsync("greenhouse/+/a-rather-long-level/+", { qos: 1 });
    await client.publishAsync("greenhouse/north/a-rather-long-level/temperature", '{"celsius": 21.5, "sensor": "a-sensor-with-a-rather-long-name"}', { qos: 1, retain: true });
    for (const topic of ["in/a", "in/b", "slow/a"]) await client.publishAsync(topic, "1", { qos: 1 });
    void node.cli(["invoke", "wait", "-d", "{}"]).catch(() => undefined);
    await signIn(page, node);
    const views: [string, string][] = [
        ["overview", "Dead letters"],
        ["messages/topics", "greenhouse"],
        ["messages/watch?filter=greenhouse/%23", "celsius"],
        ["messages/publish", "Payload"],
        ["messages/retained", "a-rather-long-level"],
        ["messages/clients", "a-sensor-with"],
        ["messages/clients/a-sensor-with-a-rather-long-name-of-its-own", "a-rather-long-level"],
        ["messages/queues", "a-rather-long-level"],
        ["functions", "gate"],
        ["functions/gate", "Roll back"],
        ["invocations", "slow"],
        ["invocations/dead", "gate"],
        ["workflows", "waiting"],
        ["workflows/of/wait", "waiting"],
        ["traces", "gate"],
        ["cluster", "Explain"],
        ["settings", "a_secret_with_a_rather_long_name"],
    ];
    for (const [view, text] of views) {
        await page.goto(`${node.url}/#/${view}`);
        await expect(page.locator("main")).toContainText(text);
        await expect(page.locator("[aria-busy]")).toHaveCount(0);
        await checkButtons(page, view);
        await checkAccessibility(page);
        await picture(page, `phone-${view.replace(/\W+/g, "-")}`);
    }
    // A row is still a row.
    const row = page.getByRole("region", { name: "Users" }).getByRole("row", { name: /a-user-with/ });
    await row.getByRole("button", { name: "Remove" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Go back" }).click();
    // Nothing is left out where rows are blocks.
    for (const [view, table, cells] of [
        ["invocations/dead", "Dead invocations", ["Error", "Ended", "Called by"]],
        ["functions", "Functions of plant", ["Calls", "Failed"]],
        ["messages/retained", "Retained messages", ["QoS", "Since"]],
    ] as const) {
        await page.goto(`${node.url}/#/${view}`);
        const first = page.getByRole("region", { name: table }).locator("tbody tr").first();
        for (const cell of cells) await expect(first.locator(`td[data-name="${cell}"]`), `${cell} in ${view}`).toBeVisible();
    }
    await page.goto(`${node.url}/#/invocations/dead`);
    const dead = page.getByRole("region", { name: "Dead invocations" }).locator("tbody tr");
    await expect(dead).toHaveCount(2);
    await dead.first().getByRole("button", { name: "Discard" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Discard" }).click();
    await expect(dead).toHaveCount(1);
    await client.endAsync();
});

test("the menu shows where the reader is", async ({ page, node }) => {
    await signIn(page, node);
    const menu = page.getByRole("navigation", { name: "Views" });
    for (const name of ["Settings", "Overview"]) {
        await page.goto(`${node.url}/#/${name.toLowerCase()}`);
        await expect(page.getByRole("heading", { level: 1 })).toHaveText(name);
        await expect(menu.getByRole("link", { name })).toBeInViewport({ ratio: 0.95 });
    }
    // A page that is opened there, too.
    await page.goto(`${node.url}/#/settings`);
    await page.reload();
    await expect(menu.getByRole("link", { name: "Settings" })).toBeInViewport({ ratio: 0.95 });
});
