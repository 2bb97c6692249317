import type { Page } from "@playwright/test";
import { checkAccessibility, expect, picture, signIn, test } from "./fixtures";
import { connectClient } from "./mqtt";
import type { Node } from "./node";

const MARKUP = "<script>window.hit = 1</script><img src=x onerror='window.hit = 2'>";

async function openPage(page: Page, node: Node, name: string) {
    await signIn(page, node);
    await page.goto(`${node.url}/#/messages/${name}`);
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Messages");
}

/** Publishes again and again until `seen` holds: what is published before a page has asked is not counted. */
async function publishUntil(publish: () => Promise<unknown>, seen: () => Promise<void>) {
    await expect(async () => {
        await publish();
        await seen();
    }).toPass();
}

test("topics unfold level by level with their rates, and one is followed", async ({ page, node }) => {
    const client = await connectClient(node);
    await client.publishAsync("greenhouse/north/temperature", '{"celsius": 21.5}', { retain: true });
    await openPage(page, node, "topics");
    const tree = page.locator(".tree");
    const level = (name: string) => tree.locator(".level").filter({ hasText: name });
    await page.getByRole("button", { name: "Unfold greenhouse", exact: true }).click();
    await page.getByRole("button", { name: "Unfold greenhouse/north" }).click();
    await expect(level("temperature")).toContainText('"celsius": 21.5');
    await publishUntil(
        () => client.publishAsync("greenhouse/north/temperature", '{"celsius": 22}'),
        () => expect(level("temperature")).toContainText(/0\.[1-9]\/s|[1-9]\d*(\.\d)?\/s/, { timeout: 300 }),
    );
    await expect(level("temperature")).toContainText('"celsius": 22');
    await checkAccessibility(page);
    await picture(page, "topics");
    await tree.getByRole("link", { name: "temperature" }).click();
    const topic = page.locator(".card.topic");
    await expect(topic.locator("pre")).toContainText('"celsius": 2');
    await client.publishAsync("greenhouse/north/temperature", '{"celsius": 23}');
    await expect(topic.locator("pre")).toContainText('"celsius": 23');
    await topic.getByLabel("Payload as").selectOption("Hexadecimal");
    await expect(topic.locator("pre")).toContainText("000000  7b 22 63");
    await checkAccessibility(page);
    await picture(page, "topic");
    await topic.getByRole("link", { name: "Publish" }).click();
    await expect(page.getByLabel("Topic", { exact: true })).toHaveValue("greenhouse/north/temperature");
    await page.goBack();
    await topic.getByRole("link", { name: "Watch" }).click();
    await expect(page.getByLabel("Topic filter")).toHaveValue("greenhouse/north/temperature");
    await client.endAsync();
});

test("topics with empty levels and filters are found", async ({ page, node }) => {
    const client = await connectClient(node);
    for (const topic of ["/leading/slash", "a//b", "a/c/b"]) await client.publishAsync(topic, "1", { retain: true, qos: 1 });
    await openPage(page, node, "topics");
    await page.getByRole("button", { name: "Unfold a", exact: true }).click();
    await page.getByRole("button", { name: "Unfold a/", exact: true }).click();
    await expect(page.locator(".tree").getByRole("link", { name: "b", exact: true })).toBeVisible();
    await page.getByRole("button", { name: "Unfold (empty)", exact: true }).click();
    await page.getByRole("button", { name: "Unfold /leading", exact: true }).click();
    await expect(page.locator(".tree").getByRole("link", { name: "slash", exact: true })).toBeVisible();
    await page.getByLabel("Search in the topics").fill("/#");
    const found = page.getByRole("region", { name: "Topics found" });
    await expect(found.getByRole("link")).toHaveText(["/leading/slash"]);
    await page.getByLabel("Search in the topics").fill("a/+/b");
    await expect(found.getByRole("link")).toHaveText(["a//b", "a/c/b"]);
    await client.endAsync();
});

test("a retained message has the time and the QoS with which it was published", async ({ page, node }) => {
    const client = await connectClient(node);
    await client.publishAsync("tanks/north", '{"level": 7}', { retain: true, qos: 1 });
    await openPage(page, node, "retained");
    const since = await page.getByRole("region", { name: "Retained messages" }).locator("td[data-name=Since]").innerText();
    await page.getByRole("link", { name: "tanks/north" }).click();
    const topic = page.locator(".card.topic");
    await expect(topic.locator("pre")).toContainText('"level": 7');
    const last = topic.locator(".figure", { hasText: "Last" });
    await expect(last).toContainText("QoS 1");
    await expect(last).toContainText(since);
    await expect(topic.locator(".badge", { hasText: "retained" })).toBeVisible();
    await checkAccessibility(page);
    await client.publishAsync("tanks/north", '{"level": 8}', { qos: 2 });
    await expect(topic.locator("pre")).toContainText('"level": 8');
    await expect(last).toContainText("QoS 2");
    await expect(topic.locator(".badge", { hasText: "retained" })).toHaveCount(0);
    await client.endAsync();
});

test("10,000 topics are searched, and shown page by page", async ({ page, node }) => {
    const client = await connectClient(node);
    await openPage(page, node, "topics");
    await expect(page.locator("[aria-busy]")).toHaveCount(0);
    for (let sent = 0; sent < 10_000; sent += 1000) {
        const name = (number: number) => `many/${String(sent + number).padStart(5, "0")}`;
        await Promise.all(Array.from({ length: 1000 }, (_, number) => client.publishAsync(name(number), "1", { qos: 1 })));
    }
    await expect(page.getByText("10,000 topics").first()).toBeVisible();
    await page.getByRole("button", { name: "Unfold many" }).click();
    await expect(page.locator(".tree ul ul > li")).toHaveCount(100);
    await page.getByRole("button", { name: "Show more under many" }).click();
    await expect(page.locator(".tree ul ul > li")).toHaveCount(300);
    await page.getByLabel("Search in the topics").fill("MANY/0");
    const found = page.getByRole("region", { name: "Topics found" });
    await expect(found.getByRole("link").first()).toHaveText("many/00000");
    await expect(found.getByRole("link")).toHaveCount(100);
    await page.getByRole("button", { name: "Next page" }).click();
    await expect(found.getByRole("link").first()).toHaveText("many/00100");
    await page.getByRole("button", { name: "Previous page" }).click();
    await expect(found.getByRole("link").first()).toHaveText("many/00000");
    await page.getByLabel("Search in the topics").fill("many/09999");
    await expect(found.getByRole("link")).toHaveText(["many/09999"]);
    await expect(page.getByRole("navigation", { name: "Pages", exact: true })).toHaveCount(0);
    await client.endAsync();
});

test("a message that is published is seen by those who watch, and its markup stays text", async ({ page, node, context }) => {
    await openPage(page, node, "watch");
    await page.getByLabel("Topic filter").fill("plant/#");
    await page.getByRole("button", { name: "Watch" }).click();
    const log = page.getByRole("log", { name: "Messages" });
    const second = await context.newPage();
    await second.goto(`${node.url}/#/messages/publish`);
    await second.getByLabel("Topic", { exact: true }).fill(`plant/${MARKUP}`);
    await second.getByLabel("Payload").fill(`{"text": "${MARKUP}"}`);
    await second.getByLabel("QoS").selectOption("1: at least once");
    await second.getByLabel("Content type").fill("application/json");
    await publishUntil(
        () => second.getByRole("button", { name: "Publish" }).click(),
        () => expect(second.getByRole("status")).toContainText("it went to 1 subscription,", { timeout: 1000 }),
    );
    await checkAccessibility(second);
    await picture(second, "publish");
    await expect(log).toContainText(`plant/${MARKUP}`);
    await expect(log).toContainText("application/json");
    await expect(log.locator("pre").first()).toContainText(`"text": "${MARKUP}"`);
    expect(await page.evaluate(() => "hit" in window)).toBe(false);
    await page.getByLabel("Payload as").selectOption("Hexadecimal");
    await expect(log.locator("pre").first()).toContainText("000000  7b 22 74 65 78 74");
    await checkAccessibility(page);
    await picture(page, "watch");
    await second.getByLabel("Topic", { exact: true }).fill("plant/#");
    await second.getByRole("button", { name: "Publish" }).click();
    await expect(second.getByRole("alert")).toContainText("wildcards are for subscriptions only");
});

test("a list that is watched is held, and keeps the last 200 messages", async ({ page, node }) => {
    const client = await connectClient(node);
    await client.publishAsync("count/retained", "from before", { retain: true, qos: 1 });
    await openPage(page, node, "watch?filter=count/%23");
    const log = page.getByRole("log", { name: "Messages" });
    await expect(log).toContainText("from before");
    await expect(log).toContainText("retained");
    const publish = (from: number, to: number) =>
        Promise.all(Array.from({ length: to - from }, (_, number) => client.publishAsync("count/up", `number ${from + number}.`, { qos: 1 })));
    await publish(0, 10);
    await expect(log).toContainText("number 9.");
    await page.getByRole("button", { name: "Pause" }).click();
    await publish(10, 20);
    await expect(page.getByText("(held)")).toBeVisible();
    await expect(log).not.toContainText("number 10.");
    await page.getByRole("button", { name: "Pause" }).click();
    await expect(log).toContainText("number 19.");
    await publish(20, 300);
    await expect(log).toContainText("number 299.");
    expect(await log.locator("article").count()).toBeLessThanOrEqual(200);
    await page.getByRole("button", { name: "Clear" }).click();
    await expect(log.locator("article")).toHaveCount(0);
    await client.endAsync();
});

test("retained messages are filtered and removed", async ({ page, node }) => {
    const client = await connectClient(node);
    for (const topic of ["a/one", "a/two", "b/three", `b/${MARKUP}`]) {
        await client.publishAsync(topic, `last of ${topic}`, { retain: true, qos: 1 });
    }
    await openPage(page, node, "retained");
    const list = page.getByRole("region", { name: "Retained messages" });
    const rows = list.locator("tbody tr");
    await expect(rows).toHaveCount(4);
    await expect(list).toContainText(`last of b/${MARKUP}`);
    expect(await page.evaluate(() => "hit" in window)).toBe(false);
    await checkAccessibility(page);
    await picture(page, "retained");
    await page.getByLabel("Topic filter").fill("a/+");
    await expect(rows).toHaveCount(2);
    await page.getByLabel("Search in the topics").fill("TWO");
    await expect(rows).toHaveCount(1);
    await rows.getByRole("button", { name: "Remove" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
    await expect(page.getByText("No retained message has such a topic.")).toBeVisible();
    await page.getByLabel("Search in the topics").fill("");
    await page.getByLabel("Topic filter").fill("");
    await expect(rows).toHaveCount(3);
    await client.endAsync();
});

test("clients are found, looked at, dropped and forgotten", async ({ page, node }) => {
    const client = await connectClient(node, { clientId: `sensor ${MARKUP}`, clean: false, properties: { sessionExpiryInterval: 3600 } });
    await client.subscribeAsync("commands/+", { qos: 1 });
    const other = await connectClient(node, { clientId: "another" });
    await openPage(page, node, "clients");
    const list = page.getByRole("region", { name: "Clients" });
    await expect(list.locator("tbody tr")).toHaveCount(2);
    await page.getByLabel("Search in the clients").fill("SENSOR");
    await expect(list.locator("tbody tr")).toHaveCount(1);
    await expect(list).toContainText("connected");
    await checkAccessibility(page);
    await picture(page, "clients");
    await list.getByRole("link").click();
    await expect(page.getByRole("region", { name: "Subscriptions" })).toContainText("commands/+");
    await expect(page.locator(".pairs")).toContainText("MQTT 5 over tcp");
    expect(await page.evaluate(() => "hit" in window)).toBe(false);
    await checkAccessibility(page);
    await picture(page, "client");
    // The reason code of an administrative action.
    const told = new Promise((resolve) => client.once("disconnect", (packet) => resolve(packet.reasonCode)));
    await page.getByRole("button", { name: "Drop", exact: true }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Drop" }).click();
    expect(await told).toBe(0x98);
    await expect(page.locator(".figures")).toContainText("away");
    // What comes now waits for it.
    await other.publishAsync("commands/open", "now", { qos: 1 });
    await expect(page.locator(".figure", { hasText: "Waiting" })).toContainText("1");
    await page.getByRole("button", { name: "Forget" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Forget" }).click();
    await expect(list).toContainText("another");
    await expect(list).not.toContainText("sensor");
    await page.getByLabel("Connected only").check();
    await expect(list.locator("tbody tr")).toHaveCount(1);
    await other.endAsync();
});

test("subscriptions of the control API are among the clients on demand only", async ({ page, node, context }) => {
    const client = await connectClient(node, { clientId: "sensor" });
    await openPage(page, node, "watch?filter=tanks/%23");
    await expect(page.getByText("No message yet.")).toBeVisible();
    const second = await context.newPage();
    await second.goto(`${node.url}/#/messages/clients`);
    const rows = second.getByRole("region", { name: "Clients" }).locator("tbody tr");
    await expect(second.getByText("Subscriptions of the control API (1)")).toBeVisible();
    await expect(rows).toHaveCount(1);
    await expect(second.getByText("1 connected of 1")).toBeVisible();
    await second.getByLabel("Subscriptions of the control API").check();
    await expect(rows).toHaveCount(2);
    await expect(second.getByText("1 connected of 2")).toBeVisible();
    await expect(rows.filter({ hasText: "$control/" })).toContainText("control API");
    await checkAccessibility(second);
    await client.endAsync();
});

test("queues show what waits for subscribers", async ({ page, node }) => {
    const client = await connectClient(node);
    await client.subscribeAsync("queue/#");
    await client.publishAsync("queue/one", "1", { qos: 1 });
    await openPage(page, node, "queues");
    await expect(page.getByRole("row", { name: /queue/ })).toContainText("1");
    await checkAccessibility(page);
    await picture(page, "queues");
    await client.endAsync();
});

test("a watch that is left ends its subscription", async ({ page, node }) => {
    const client = await connectClient(node);
    await signIn(page, node);
    // A session may have four.
    for (let number = 0; number < 8; number++) {
        await page.goto(`${node.url}/#/messages/watch?filter=quiet%2F${number}`);
        const log = page.getByRole("log", { name: "Messages" });
        await expect(page.getByRole("heading", { name: `Messages of quiet/${number}` })).toBeVisible();
        await publishUntil(
            () => client.publishAsync(`quiet/${number}`, "here", { qos: 1 }),
            () => expect(log).toContainText("here", { timeout: 500 }),
        );
    }
    await expect(page.getByRole("alert")).toHaveCount(0);
    await client.endAsync();
});

test("JSON keeps its digits, and searches and titles are those of the address", async ({ page, node }) => {
    const client = await connectClient(node);
    const payload = '{"v":12345678901234567,"f":0.1000000000000000055,"a":1.10,"a":[],"t":"x\\"{,"}';
    await client.publishAsync("raw/digits", payload, { retain: true, qos: 1 });
    await openPage(page, node, "topics");
    await page.getByLabel("Search in the topics").fill("raw");
    await page.getByRole("link", { name: "raw/digits" }).click();
    await expect(page.locator(".topic pre.value")).toHaveText(
        '{\n  "v": 12345678901234567,\n  "f": 0.1000000000000000055,\n  "a": 1.10,\n  "a": [],\n  "t": "x\\"{,"\n}',
    );
    await expect(page).toHaveTitle("raw/digits - Messages - edgefaas");
    await page.reload();
    await expect(page.getByLabel("Search in the topics")).toHaveValue("raw");
    await expect(page.getByRole("region", { name: "Topics found" }).getByRole("link")).toHaveText(["raw/digits"]);
    await page.goto(`${node.url}/#/messages/clients?search=no-such`);
    await expect(page.getByText("No such client.")).toBeVisible();
    await expect(page).toHaveTitle("clients - Messages - edgefaas");
    await client.endAsync();
});
