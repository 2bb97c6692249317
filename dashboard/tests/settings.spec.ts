import { deploy } from "./app";
import { checkAccessibility, expect, picture, signIn, test } from "./fixtures";

const SECRET_SOURCE = `export default (event, { secrets }) => {
    if (secrets.key !== "right") throw new Error("the service refuses the key");
    return "the value";
};
`;

test("a secret is mended, and the function that failed works", async ({ page, node }) => {
    const manifest = `app = "plant"\n\n[functions.broken]\nmain = "broken.js"\nsecrets = ["key"]\n`;
    await deploy(node, { "edgefaas.toml": manifest, "broken.js": SECRET_SOURCE });
    await node.cli(["secrets", "set", "--app", "plant", "key"], "wrong\n");
    await signIn(page, node);
    await page.goto(`${node.url}/#/functions/broken`);
    await page.getByRole("button", { name: "Invoke" }).click();
    await expect(page.locator(".outcome")).toContainText("the service refuses the key");
    await page.getByRole("link", { name: "Settings" }).click();
    await expect(page.getByRole("region", { name: "Secrets" })).toContainText("key");
    await page.getByLabel("App").fill("plant");
    await page.getByLabel("Name", { exact: true }).fill("key");
    await page.getByLabel("Value").fill("right");
    await page.getByRole("button", { name: "Set secret" }).click();
    await expect(page.getByLabel("Value")).toHaveValue("");
    await expect(page.locator("body")).not.toContainText("right");
    await page.goto(`${node.url}/#/functions/broken`);
    await page.getByRole("button", { name: "Invoke" }).click();
    await expect(page.locator(".outcome")).toContainText("the value");
});

test("users are added, get another role, and are removed", async ({ page, node }) => {
    await signIn(page, node);
    await page.getByRole("link", { name: "Settings" }).click();
    await page.getByRole("textbox", { name: "New user" }).fill("bob");
    await page.getByLabel("Password").fill("bob's");
    await page.getByLabel("Role of the new user").selectOption("look");
    await page.getByRole("button", { name: "Add user" }).click();
    await expect(page.getByLabel("Role of bob")).toHaveValue("look");
    await page.getByLabel("Role of bob").selectOption("operate");
    await expect(async () => {
        expect(await node.cli(["users", "list"])).toBe("bob  operate\n");
    }).toPass();
    await checkAccessibility(page);
    await picture(page, "settings");
    await page.getByRole("textbox", { name: "New user" }).fill("not a name");
    await page.getByLabel("Password").fill("x");
    await page.getByRole("button", { name: "Add user" }).click();
    await expect(page.getByRole("alert")).toContainText("is not a valid user name");
    await page.getByRole("region", { name: "Users" }).getByRole("button", { name: "Remove" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
    await expect(page.getByRole("region", { name: "Users" })).toHaveCount(0);
    expect(await node.cli(["users", "list"])).toBe("");
});

test.describe("settings in force", () => {
    test.use({ config: '[dashboard]\nsession = "20m"\n' });

    test("have their places in the file", async ({ page, node }) => {
        await signIn(page, node);
        await page.getByRole("link", { name: "Settings" }).click();
        const list = page.getByRole("region", { name: "Settings in force" });
        await expect(list.getByRole("row", { name: /dashboard\.session/ })).toContainText("node.toml:2");
        await expect(list.getByRole("row", { name: /dashboard\.session/ })).toContainText("20m");
        await expect(list.getByRole("row", { name: /^control / })).toContainText("command line");
        await expect(list).toContainText("default");
        await page.getByLabel("Search in the settings").fill("SESSION");
        await expect(list.getByRole("row", { name: /^control / })).toHaveCount(0);
        await expect(list.getByRole("row", { name: /dashboard\.session/ })).toBeVisible();
        await checkAccessibility(page);
        await picture(page, "settings-in-force");
    });
});
