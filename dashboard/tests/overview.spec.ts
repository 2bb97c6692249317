import { deploy } from "./app";
import { checkAccessibility, expect, picture, signIn, test } from "./fixtures";

test("warnings say what to do and lead to the function, and charts and events come", async ({ page, node }) => {
    // A secret that is not set is a warning.
    const manifest = `app = "plant"\n\n[functions.greet]\nmain = "greet.js"\nsecrets = ["key"]\npermissions = { objects = ["counts"] }\n`;
    await deploy(node, { "edgefaas.toml": manifest });
    await node.cli(["invoke", "greet", "-d", "ada"]).catch(() => undefined);
    await signIn(page, node);
    const warnings = page.locator(".card.warnings");
    await expect(warnings).toContainText("greet");
    await expect(warnings).toContainText("edgefaas secrets set");
    await expect(warnings).toContainText(/since \d/);
    const events = page.getByRole("list", { name: "Recent events" });
    await expect(events).toContainText("start");
    await expect(events).toContainText("plant");
    await expect(events).toContainText("warning");
    await expect(events).not.toContainText("secret-missing");
    const chart = page.locator(".chart").first();
    await expect(chart.locator("canvas")).toBeVisible();
    await expect(page.getByRole("row", { name: /of the node/ })).toContainText("MiB");
    await expect(page.locator(".chart")).not.toHaveCount(0);
    await checkAccessibility(page);
    await picture(page, "overview");
    await page.getByRole("button", { name: "Last week" }).click();
    await expect(page.getByRole("button", { name: "Last week" })).toHaveAttribute("aria-pressed", "true");
    await warnings.getByRole("link", { name: "greet" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Functions");
});

test("a missing secret leads to the form of its app, which takes deployed apps only", async ({ page, node }) => {
    const manifest = `app = "plant"\n\n[functions.greet]\nmain = "greet.js"\nsecrets = ["key"]\n`;
    await deploy(node, { "edgefaas.toml": manifest });
    await signIn(page, node);
    const warnings = page.locator(".card.warnings");
    await expect(warnings).toContainText("Concerns: function or workflow greet");
    const link = warnings.getByRole("link", { name: "Set secrets" });
    await expect(link).toHaveAttribute("href", "#/settings?app=plant&secret=key");
    await link.click();
    await expect(page.getByLabel("App")).toHaveValue("plant");
    await expect(page.getByLabel("Name", { exact: true })).toHaveValue("key");
    await expect(page.getByLabel("Value")).toBeFocused();
    await page.getByLabel("App").fill("plants");
    await page.getByLabel("Value").fill("right");
    await page.getByRole("button", { name: "Set secret" }).click();
    await expect(page.getByRole("alert")).toHaveText("no app plants is deployed here; these are: plant");
    await page.getByLabel("App").fill("plant");
    await page.getByRole("button", { name: "Set secret" }).click();
    await expect(page.getByRole("region", { name: "Secrets" })).toContainText("key");
    await expect(page.getByRole("status")).toHaveText("The secret key of plant is set.");
    await expect(page.getByRole("alert")).toHaveCount(0);
});

test("only new samples are asked for", async ({ page, node }) => {
    const sizes: number[] = [];
    page.on("request", (request) => {
        if (request.url().endsWith("History/Get")) sizes.push(request.postDataBuffer()?.length ?? 0);
    });
    await signIn(page, node);
    await expect(page.locator(".chart canvas").first()).toBeVisible();
    // An empty request has the five bytes of its frame; a later one has the time of the last sample.
    await expect.poll(() => sizes.length > 1 && sizes.at(-1) !== 5).toBe(true);
    expect(sizes[0]).toBe(5);
});
