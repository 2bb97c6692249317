// What every test needs: a node, and a page whose errors, foreign requests and findings of axe fail the test.
import AxeBuilder from "@axe-core/playwright";
import { expect, type Page, test as base } from "@playwright/test";
import { Node } from "./node";

interface Fixtures {
    node: Node;
    /** The text of the node's configuration file. */
    config: string;
    /** Errors of the console that the test expects, such as a refused sign-in. */
    expectedErrors: RegExp | null;
}

export const test = base.extend<Fixtures>({
    config: ["", { option: true }],
    node: async ({ config }, use) => {
        const node = await Node.start(config);
        await use(node);
        await node.remove();
    },
    expectedErrors: [null, { option: true }],
    page: async ({ page, node, expectedErrors }, use) => {
        const problems: string[] = [];
        page.on("console", (message) => {
            if (message.type() === "error" || /Content.Security.Policy/i.test(message.text())) {
                problems.push(message.text());
            }
        });
        page.on("pageerror", (error) => problems.push(String(error)));
        page.on("request", (request) => {
            if (!request.url().startsWith(node.url)) problems.push(`a request to ${request.url()}`);
        });
        await use(page);
        expect(problems.filter((text) => !expectedErrors?.test(text))).toEqual([]);
    },
});

export { expect };

/** Signs in with the admin token. */
export async function signIn(page: Page, node: Node) {
    await page.goto(node.url);
    await page.getByRole("button", { name: "With the admin token" }).click();
    await page.getByLabel("Admin token").fill(node.token);
    await page.getByRole("button", { name: "Sign in" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
}

/** Fails on findings of axe, however small. */
export async function checkAccessibility(page: Page) {
    const found = await new AxeBuilder({ page }).analyze();
    expect(found.violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(" ")}`)).toEqual([]);
}

/** Keeps a picture of the page for a look at it. */
export async function picture(page: Page, name: string) {
    await page.screenshot({ path: `../target/dashboard/pictures/${name}.png`, fullPage: true });
}
