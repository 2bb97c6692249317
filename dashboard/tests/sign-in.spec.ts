import type { Page } from "@playwright/test";
import { checkAccessibility, expect, picture, signIn, test } from "./fixtures";
import { Node } from "./node";

test.describe("a refused sign-in", () => {
    test.use({ expectedErrors: /401|403/ });

    test("says why, and lets a user with a role in", async ({ page, node }) => {
        await node.cli(["users", "add", "ada"], "secret of ada\n");
        await page.goto(node.url);
        await checkAccessibility(page);
        await picture(page, "sign-in");
        await page.getByLabel("User").fill("ada");
        await page.getByLabel("Password").fill("wrong");
        await page.getByRole("button", { name: "Sign in" }).click();
        await expect(page.getByRole("alert")).toHaveText("the user name or the password is wrong");
        await page.getByLabel("Password").fill("secret of ada");
        await page.getByRole("button", { name: "Sign in" }).click();
        await expect(page.getByRole("alert")).toContainText("has no role");
        await node.cli(["users", "role", "ada", "look"]);
        await page.getByRole("button", { name: "Sign in" }).click();
        await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
        await expect(page.getByRole("navigation")).toContainText("ada look");
        await page.reload();
        await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
        await page.getByRole("button", { name: "Sign out" }).click();
        await expect(page.getByRole("heading", { name: "Sign in to this node" })).toBeVisible();
        await page.reload();
        await expect(page.getByRole("heading", { name: "Sign in to this node" })).toBeVisible();
    });
});

test.describe("an error of a sign-in", () => {
    test.use({ expectedErrors: /401/ });

    test("is gone with the next attempt, and in the other form", async ({ page, node }) => {
        await page.goto(node.url);
        const alert = page.getByRole("alert");
        const button = page.getByRole("button", { name: "Sign in" });
        const refused = async () => {
            await page.getByLabel("User").fill("ada");
            await page.getByLabel("Password").fill("wrong");
            await button.click();
            await expect(alert).toBeVisible();
        };
        await refused();
        await page.getByRole("button", { name: "With the admin token" }).click();
        await expect(alert).toHaveCount(0);
        await page.getByRole("button", { name: "With name and password" }).click();
        await expect(alert).toHaveCount(0);
        await refused();
        let goOn = () => {};
        const held = new Promise<void>((resolve) => (goOn = resolve));
        await page.route("**/session", async (route) => {
            await held;
            await route.continue();
        });
        await button.click();
        await expect(button).toBeDisabled();
        await expect(alert).toHaveCount(0);
        goOn();
        await expect(alert).toBeVisible();
    });
});

test("the cookie is out of reach of scripts and of other sites", async ({ page, node, context }) => {
    await signIn(page, node);
    const [cookie] = await context.cookies();
    expect(cookie).toMatchObject({ httpOnly: true, sameSite: "Strict", path: "/" });
    expect(await page.evaluate(() => document.cookie)).toBe("");
    const lastsSeconds = (cookie?.expires ?? 0) - Date.now() / 1000;
    expect(lastsSeconds).toBeGreaterThan(3000);
    expect(lastsSeconds).toBeLessThanOrEqual(3601);
});

test.describe("a session that has ended", () => {
    test("asks for another sign-in, at the same view", async ({ page, node }) => {
        await node.cli(["users", "add", "ada", "--role", "operate"], "one\n");
        await page.goto(`${node.url}/#/objects`);
        const signInAs = async (password: string) => {
            await page.getByLabel("User").fill("ada");
            await page.getByLabel("Password").fill(password);
            await page.getByRole("button", { name: "Sign in" }).click();
            await expect(page.getByRole("heading", { level: 1 })).toHaveText("Objects");
        };
        await signInAs("one");
        await node.cli(["users", "passwd", "ada"], "two\n");
        await expect(page.getByRole("heading", { name: "Sign in to this node" })).toBeVisible();
        await signInAs("two");
        await node.cli(["users", "rm", "ada"]);
        await expect(page.getByRole("heading", { name: "Sign in to this node" })).toBeVisible();
    });
});

test("a tab does not act as somebody who has signed in in another one", async ({ page, node, context }) => {
    await node.cli(["users", "add", "ada", "--role", "operate"], "one\n");
    await node.cli(["users", "add", "bob", "--role", "look"], "one\n");
    const signInAs = async (tab: Page, user: string) => {
        await tab.getByLabel("User").fill(user);
        await tab.getByLabel("Password").fill("one");
        await tab.getByRole("button", { name: "Sign in" }).click();
        await expect(tab.locator(".who")).toContainText(user);
    };
    await page.goto(node.url);
    await signInAs(page, "ada");
    const second = await context.newPage();
    await second.goto(node.url);
    await second.getByRole("button", { name: "Sign out" }).click();
    await signInAs(second, "bob");
    await page.evaluate(() => window.dispatchEvent(new Event("focus")));
    await expect(page.locator(".who")).toContainText("bob look");
    const status = await page.evaluate(async () => {
        const headers = { "content-type": "application/grpc-web+proto", "x-edgefaas-session": "0123456789abcdef" };
        const answer = await fetch("/edgefaas.control.v1.Control/Status", { method: "POST", headers, body: new Uint8Array(5) });
        return answer.headers.get("grpc-status");
    });
    expect(status).toBe("10");
});

test("sessions of two nodes on one host do not mix", async ({ page, node, context }) => {
    await signIn(page, node);
    const other = await Node.start();
    try {
        const second = await context.newPage();
        await second.goto(other.url);
        await expect(second.getByRole("heading", { name: "Sign in to this node" })).toBeVisible();
        await signIn(second, other);
        await page.reload();
        await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
        expect((await context.cookies()).length).toBe(2);
        await second.getByRole("button", { name: "Sign out" }).click();
        await expect(second.getByRole("heading", { name: "Sign in to this node" })).toBeVisible();
        await page.reload();
        await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
    } finally {
        await other.remove();
    }
});

test.describe("a node that is killed", () => {
    test.use({ expectedErrors: /ERR_CONNECTION_REFUSED|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET|ERR_CONNECTION_CLOSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_FAILED/ });

    test("is missed by its open page, which comes back with it", async ({ page, node }) => {
        await signIn(page, node);
        await node.kill();
        await expect(page.getByRole("alert")).toContainText("The node does not answer");
        await picture(page, "away");
        await node.run();
        await expect(page.getByRole("alert")).toHaveCount(0);
        await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
    });
});

test("a role that is given while its page is open arrives", async ({ page, node }) => {
    await node.cli(["users", "add", "ada", "--role", "look"], "one\n");
    await page.goto(`${node.url}/#/messages/publish`);
    await page.getByLabel("User").fill("ada");
    await page.getByLabel("Password").fill("one");
    await page.getByRole("button", { name: "Sign in" }).click();
    await expect(page.getByText("This page needs the role operate.")).toBeVisible();
    await node.cli(["users", "role", "ada", "operate"]);
    await expect(page.getByLabel("Topic", { exact: true })).toBeVisible();
    await expect(page.locator(".who")).toContainText("ada operate");
});
