// The pictures of the documentation, on demand: `npm run pictures`.
import { mkdir, writeFile } from "node:fs/promises";
import { setTimeout } from "node:timers/promises";
import type { Page } from "@playwright/test";
import { deploy } from "./app";
import { expect, signIn, test } from "./fixtures";
import { connectClient } from "./mqtt";
import type { Node } from "./node";
import { withPalette } from "./palette";

const FOLDER = "../docs/pictures";
const MAX_BYTES = 60_000;
/** Answers with samples, one each 5 seconds, that make a chart. */
const SAMPLES = 16;
/** Time between two messages of a greenhouse. */
const PACE_MS = 150;

const MANIFEST = `app = "greenhouse"
workflows = ["*.yaml"]

[functions.climate]
main = "climate.js"
triggers = [{ mqtt = "greenhouse/+/climate", qos = 1 }]
permissions = { objects = ["beds"], publish = ["greenhouse/alarm"] }

[functions.report]
main = "report.js"
triggers = [{ mqtt = "greenhouse/+/report", qos = 1 }]
secrets = ["mail-key"]
`;
const CLIMATE = `export default async (event, context) => {
    const { celsius } = event.json();
    console.log("measured", celsius, "degrees");
    await context.object("beds").counter("measurements").add(1);
    if (celsius > 30) await context.publish("greenhouse/alarm", "hot: " + celsius);
    return { celsius };
};
`;
const REPORT = `export default (event, { secrets }) => {
    if (!secrets["mail-key"]) throw new Error("the mail service refuses the key");
};
`;
const WATERING = `document: { dsl: '1.0.3', namespace: greenhouse, name: watering, version: '1.0.0', metadata: { durable: true } }
do:
  - measure: { set: { dry: true } }
  - decide:
      switch:
        - dry: { when: '\${ .dry }', then: water }
        - wet: { then: end }
  - water:
      try:
        - open: { set: { open: true } }
        - full:
            listen: { to: { one: { with: { type: mqtt.publish, subject: tank/full } } } }
      catch:
        errors: { with: { status: 503 } }
        do:
          - alarm: { set: { alarm: true } }
  - close: { set: { open: false } }
`;

async function keep(page: Page, name: string) {
    await mkdir(FOLDER, { recursive: true });
    await page.evaluate(() => (document.activeElement as HTMLElement | null)?.blur());
    const picture = await withPalette(page.context(), await page.screenshot());
    expect(picture.length).toBeLessThan(MAX_BYTES);
    await writeFile(`${FOLDER}/${name}.png`, picture);
}

async function goTo(page: Page, node: Node, path: string) {
    await page.goto(`${node.url}/#/${path}`);
    await expect(page.locator("[aria-busy]")).toHaveCount(0);
}

test.use({ viewport: { width: 960, height: 680 } });

test("pictures of the documentation", async ({ page, node }) => {
    test.setTimeout(300_000);
    await deploy(node, { "edgefaas.toml": MANIFEST, "climate.js": CLIMATE, "report.js": REPORT, "wait.yaml": WATERING });
    for (let started = 0; started < 3; started += 1) void node.cli(["invoke", "watering", "-d", "{}"]).catch(() => undefined);
    const client = await connectClient(node, { clientId: "greenhouse-north" });
    await client.subscribeAsync("greenhouse/alarm");
    await client.publishAsync("greenhouse/north/report", "daily", { qos: 1 });
    let answers = 0;
    page.on("response", (response) => {
        if (response.url().endsWith("History/Get")) answers += 1;
    });
    let isOver = false;
    const publish = async () => {
        for (let sent = 1; !isOver; sent += 1) {
            for (const house of ["north", "south", "east"]) {
                const celsius = 24 + 8 * Math.sin(sent / 20);
                const payload = JSON.stringify({ celsius: Number(celsius.toFixed(1)), humidity: 61 });
                await client.publishAsync(`greenhouse/${house}/climate`, payload, { qos: 1, retain: true });
            }
            await setTimeout(PACE_MS);
        }
    };
    const published = publish();
    try {
        await signIn(page, node);
        await expect.poll(() => answers, { timeout: 120_000 }).toBeGreaterThan(SAMPLES);
        await keep(page, "overview");
        await page.setViewportSize({ width: 360, height: 740 });
        await keep(page, "phone");
        await page.setViewportSize({ width: 960, height: 680 });
        await goTo(page, node, "messages");
        await page.getByRole("button", { name: "Unfold greenhouse", exact: true }).click();
        for (const house of ["north", "south"]) await page.getByRole("button", { name: `Unfold greenhouse/${house}` }).click();
        await page.getByRole("link", { name: "climate" }).first().click();
        await expect(page.locator(".card.topic pre")).toContainText("celsius");
        await keep(page, "messages");
        await goTo(page, node, "functions/climate");
        await expect(page.getByRole("log")).toContainText("measured");
        await keep(page, "functions");
        await goTo(page, node, "invocations/dead");
        await page.getByRole("region", { name: "Dead invocations" }).getByRole("link").first().click();
        await expect(page.getByRole("heading", { name: "Event" })).toBeVisible();
        await keep(page, "invocations");
        await page.setViewportSize({ width: 960, height: 960 });
        await goTo(page, node, "workflows/of/watering");
        await expect(page.locator(".graph .count")).toHaveText("3 active");
        await keep(page, "workflows");
    } finally {
        isOver = true;
    }
    await published;
    await client.endAsync();
});
