import { deploy } from "./app";
import { checkAccessibility, expect, picture, signIn, test } from "./fixtures";

const FLOW = `document: { dsl: '1.0.3', namespace: plant, name: irrigate, version: '1.0.0', metadata: { durable: true } }
do:
  - measure: { set: { dry: true } }
  - decide:
      switch:
        - dry: { when: '\${ .dry }', then: water }
        - wet: { then: end }
  - water:
      try:
        - open: { set: { open: true } }
        - flow:
            listen: { to: { one: { with: { type: mqtt.publish, subject: go } } } }
      catch:
        errors: { with: { status: 503 } }
        do:
          - alarm: { set: { alarm: true } }
  - each:
      for: { each: bed, in: '\${ [1, 2] }' }
      do:
        - close: { set: { closed: true } }
`;
const BREAKS = `document: { dsl: '1.0.3', namespace: plant, name: breaks, version: '1.0.0', metadata: { durable: true } }
do:
  - first: { set: { n: 1 } }
  - burst: { raise: { error: { type: 'https://example.com/burst', status: 500 } } }
`;

test("a workflow is drawn with the instances at its tasks, and all of them are cancelled", async ({ page, node }) => {
    await deploy(node, { "irrigate.yaml": FLOW });
    for (let started = 0; started < 3; started += 1) void node.cli(["invoke", "irrigate", "-d", "{}"]).catch(() => undefined);
    void node.cli(["invoke", "wait", "-d", "{}"]).catch(() => undefined);
    await signIn(page, node);
    await page.getByRole("link", { name: "Workflows" }).click();
    await page.getByRole("link", { name: "irrigate", exact: true }).click();
    const flow = page.getByRole("button", { name: /^flow.* 3 active$/ });
    await expect(flow).toBeVisible();
    await expect(page.locator(".graph .count.active")).toHaveText("3 active");
    await expect(page.locator(".graph svg .edge")).not.toHaveCount(0);
    await checkAccessibility(page);
    await picture(page, "graph");
    const instances = page.getByRole("region", { name: "Instances" });
    await expect(instances.locator("tbody tr")).toHaveCount(3);
    await page.getByRole("button", { name: /^alarm/ }).click();
    await expect(page.getByText("No instance runs, waits or has failed at this task.")).toBeVisible();
    await flow.focus();
    await page.keyboard.press("Enter");
    await expect(flow).toHaveAttribute("aria-pressed", "true");
    await expect(instances.locator("tbody tr")).toHaveCount(3);
    await page.getByText("Tasks as a list").click();
    await expect(page.getByRole("region", { name: "Tasks of irrigate" }).getByRole("row", { name: /flow/ })).toContainText("3");
    await checkAccessibility(page);
    await page.getByRole("button", { name: "Cancel all instances" }).click();
    const dialog = page.getByRole("dialog", { name: "Cancel all 3 instances of irrigate?" });
    await dialog.getByRole("button", { name: "Cancel all instances" }).click();
    await expect(page.locator(".graph .count")).toHaveCount(0);
    // Those of another workflow stay.
    await expect(async () => {
        const list = await node.cli(["workflow", "list"]);
        expect(list).toContain("wait");
        expect(list).not.toMatch(/irrigate.*waiting/);
    }).toPass();
});

test("the trace of an instance that was retried says what each time is", async ({ page, node }) => {
    await deploy(node, { "breaks.yaml": BREAKS });
    await node.cli(["invoke", "breaks", "-d", "{}"]).catch(() => undefined);
    await signIn(page, node);
    await page.goto(`${node.url}/#/workflows/of/breaks`);
    const instances = page.getByRole("region", { name: "Instances" });
    await instances.getByRole("link").first().click();
    const trace = page.locator(".waterfall");
    await expect(trace).toContainText("from the first start to the last end.");
    await expect(trace).not.toContainText("retry");
    await page.getByRole("button", { name: "Retry" }).click();
    await expect(trace.getByRole("button", { name: /burst.*retry, after [\d.]+ m?s/ })).toBeVisible();
    await expect(trace).toContainText("The time of a workflow that was retried is that of its first run");
    await checkAccessibility(page);
    await picture(page, "retried");
    await page.getByRole("button", { name: "Give up" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Give up" }).click();
    await expect(page.getByRole("button", { name: "Retry", exact: true })).toHaveCount(0);
    await expect(page.locator("main")).toContainText("cancelled");
});

test("instances that failed at a task are counted there and found by it", async ({ page, node }) => {
    await deploy(node, { "breaks.yaml": BREAKS });
    for (let started = 0; started < 2; started += 1) await node.cli(["invoke", "breaks", "-d", "{}"]).catch(() => undefined);
    await signIn(page, node);
    await page.goto(`${node.url}/#/workflows/of/breaks`);
    await page.getByRole("button", { name: /^burst.* 2 failed$/ }).click();
    await expect(page.getByRole("heading", { name: "Instances at /do/1/burst" })).toBeVisible();
    const rows = page.getByRole("region", { name: "Instances" }).locator("tbody tr");
    await expect(rows).toHaveCount(2);
    await expect(rows.first()).toContainText("https://example.com/burst");
    await expect(rows.first()).toContainText("/do/1/burst");
    await page.getByRole("button", { name: /^first/ }).click();
    await expect(page.getByText("No instance runs, waits or has failed at this task.")).toBeVisible();
    await page.goto(`${node.url}/#/workflows/of/nosuch`);
    await expect(page.getByRole("alert")).toHaveText("there is no workflow nosuch");
    await expect(page.getByRole("region")).toHaveCount(0);
});

test.describe("on a phone", () => {
    test.use({ viewport: { width: 360, height: 740 } });

    test("a drawing scrolls in its box", async ({ page, node }) => {
        await deploy(node, { "irrigate.yaml": FLOW });
        await signIn(page, node);
        await page.goto(`${node.url}/#/workflows/of/irrigate`);
        await expect(page.locator(".graph svg")).toBeVisible();
        await checkAccessibility(page);
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        expect(overflow).toBeLessThanOrEqual(0);
        await picture(page, "graph-phone");
    });
});
