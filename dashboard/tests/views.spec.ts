import { deploy } from "./app";
import { checkAccessibility, expect, picture, signIn, test } from "./fixtures";

test("instances of a workflow are followed step by step, and cancelled", async ({ page, node }) => {
    await deploy(node);
    void node.cli(["invoke", "wait", "-d", "{}"]).catch(() => undefined);
    await signIn(page, node);
    await page.getByRole("link", { name: "Workflows" }).click();
    const instances = page.getByRole("region", { name: "Instances" });
    await expect(instances).toContainText("waiting");
    await expect(instances).toContainText("/do/1/pause");
    await checkAccessibility(page);
    await picture(page, "workflows");
    await instances.getByRole("link").first().click();
    await expect(page.getByRole("heading", { name: "Step by step" })).toBeVisible();
    await page.getByRole("button", { name: /greet/ }).first().click();
    await expect(page.locator(".details")).toContainText("ada");
    await checkAccessibility(page);
    await picture(page, "instance");
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).last().click();
    await expect(async () => {
        expect(await node.cli(["workflow", "list"])).not.toContain("waiting");
    }).toPass();
});

test("objects are watched live and changed by their types", async ({ page, node }) => {
    await deploy(node);
    await node.cli(["invoke", "greet", "-d", "ada"]);
    await signIn(page, node);
    await page.getByRole("link", { name: "Objects" }).click();
    await page.getByRole("link", { name: "counts" }).click();
    const card = page.locator(".card", { hasText: "greetings" });
    await expect(card.locator("pre")).toHaveText("1");
    await expect(page.getByRole("heading", { name: "counts of plant" })).toBeVisible();
    await expect(page).toHaveTitle("plant counts - Objects - edgefaas");
    await node.cli(["invoke", "greet", "-d", "bob"]);
    await expect(card.locator("pre")).toHaveText("2");
    await card.getByLabel("New value of greetings").fill("40");
    await card.getByRole("button", { name: "Add" }).click();
    await expect(card.locator("pre")).toHaveText("42");
    await card.getByLabel("New value of greetings").fill("many");
    await card.getByRole("button", { name: "Add" }).click();
    await expect(card.getByRole("alert")).toHaveText("a whole number is needed");
    await checkAccessibility(page);
    await picture(page, "object");
    await card.getByRole("button", { name: "Delete" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
    await expect(page.locator("pre")).toHaveCount(0);
    await expect(page.locator("#content")).toBeFocused();
    await page.getByRole("link", { name: "Objects of plant" }).click();
    await expect(page).toHaveTitle("plant - Objects - edgefaas");
});

test("the focus is back at its button when a confirmation closes", async ({ page, node }) => {
    await deploy(node);
    await node.cli(["invoke", "greet", "-d", "ada"]);
    await signIn(page, node);
    await page.goto(`${node.url}/#/objects/plant/counts`);
    const button = page.getByRole("button", { name: "Delete" });
    const dialog = page.getByRole("dialog");
    await button.focus();
    await page.keyboard.press("Enter");
    await expect(dialog).toBeVisible();
    await page.keyboard.press("Escape");
    await expect(dialog).toHaveCount(0);
    await expect(button).toBeFocused();
    await page.keyboard.press("Enter");
    await dialog.getByRole("button", { name: "Go back" }).click();
    await expect(button).toBeFocused();
    await page.keyboard.press("Enter");
    await dialog.getByRole("button", { name: "Delete" }).click();
    await expect(page.getByText("The object has no field.")).toBeVisible();
    await expect(page.locator("#content")).toBeFocused();
});

test("traces are listed, searched and followed", async ({ page, node }) => {
    await deploy(node);
    await node.cli(["invoke", "greet", "-d", "ada"]);
    await node.cli(["invoke", "broken"]).catch(() => undefined);
    await signIn(page, node);
    await page.getByRole("link", { name: "Traces" }).click();
    const list = page.getByRole("region", { name: "Traces" });
    await expect(list.locator("tbody tr")).toHaveCount(2);
    await expect(list.getByRole("row", { name: /broken/ })).toContainText("the sensor gives no value");
    await page.getByLabel("Failed only").check();
    await page.reload();
    await expect(list.locator("tbody tr")).toHaveCount(1);
    await page.getByLabel("Failed only").uncheck();
    await page.getByLabel("Search in the traces").fill("GREE");
    await expect(list.locator("tbody tr")).toHaveCount(1);
    await list.getByRole("link", { name: "greet" }).click();
    await page.locator(".waterfall").getByRole("button", { name: /greet/ }).click();
    await expect(page.locator(".details")).toContainText("ada");
    await checkAccessibility(page);
    await picture(page, "traces");
});

test("an instance that waits is the root of its trace", async ({ page, node }) => {
    await deploy(node);
    void node.cli(["invoke", "wait", "-d", "{}"]).catch(() => undefined);
    await signIn(page, node);
    await page.getByRole("link", { name: "Traces" }).click();
    const list = page.getByRole("region", { name: "Traces" });
    // Its first task, the call of a function, has ended.
    await expect(list.getByRole("row", { name: /^wait workflow/ })).toContainText(/4\s*running$/);
    await expect(list.locator("tbody tr")).toHaveCount(1);
});

const VIEWS = ["Overview", "Messages", "Functions", "Invocations", "Workflows", "Objects", "Traces", "Cluster", "Settings"];

for (const [name, width, colorScheme] of [
    ["light", 1280, "light"],
    ["dark", 1280, "dark"],
    ["phone", 360, "light"],
    ["phone-dark", 360, "dark"],
] as const) {
    test.describe(name, () => {
        test.use({ viewport: { width, height: 740 }, colorScheme });

        test(`all views fit and are accessible: ${name}`, async ({ page, node }) => {
            await deploy(node);
            await node.cli(["invoke", "greet", "-d", "ada"]);
            await signIn(page, node);
            for (const view of VIEWS) {
                await page.getByRole("link", { name: view, exact: true }).click();
                await expect(page.getByRole("heading", { level: 1 })).toHaveText(view);
                await expect(page.locator("[aria-busy]")).toHaveCount(0);
                await checkAccessibility(page);
                const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
                expect(overflow, `${view} is wider than the screen`).toBeLessThanOrEqual(0);
                await picture(page, `${view.toLowerCase()}-${name}`);
            }
        });
    });
}

test("the page is used by keyboard alone", async ({ page, node }) => {
    await signIn(page, node);
    await page.reload();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await expect(page.locator("#content")).toBeFocused();
    const link = page.getByRole("link", { name: "Functions" });
    await link.focus();
    await page.keyboard.press("Enter");
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Functions");
    await expect(link).toHaveAttribute("aria-current", "page");
});
