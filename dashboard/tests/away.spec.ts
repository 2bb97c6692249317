import { deploy } from "./app";
import { expect, picture, signIn, test } from "./fixtures";
import { connectClient } from "./mqtt";

const MANIFEST = `app = "plant"

[functions.slow]
main = "slow.js"
triggers = [{ mqtt = "slow/+", qos = 1 }]
retry = { attempts = 5, backoff = "1h" }
`;
const SOURCE = `export default () => {
    throw new Error("the valve is stuck");
};
`;

test.describe("a node that is away", () => {
    test.use({ expectedErrors: /ERR_CONNECTION_REFUSED|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET|ERR_CONNECTION_CLOSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_FAILED/ });

    test("leaves the last figures in each view", async ({ page, node }) => {
        // The node starts ten times.
        test.slow();
        await deploy(node, { "edgefaas.toml": MANIFEST, "slow.js": SOURCE });
        const client = await connectClient(node, { clientId: "sensor", clean: false, properties: { sessionExpiryInterval: 3600 } });
        client.on("error", () => undefined);
        await client.subscribeAsync("tanks/#", { qos: 1 });
        await client.publishAsync("tanks/north", "7", { qos: 1, retain: true });
        await client.publishAsync("slow/a", "1", { qos: 1 });
        await node.cli(["invoke", "slow"]).catch(() => undefined);
        await signIn(page, node);
        const away = page.getByRole("alert").filter({ hasText: "The node does not answer" });
        const stays = async (view: string, text: string, prepare: () => Promise<void> = async () => undefined) => {
            await page.goto(`${node.url}/#/${view}`);
            await prepare();
            const shown = page.locator("main").getByText(text).first();
            await expect(shown).toBeVisible();
            await node.kill();
            await expect(away).toBeVisible();
            await expect(shown, `${view} while the node is away`).toBeVisible();
            await node.run();
            await expect(away).toHaveCount(0);
        };
        await stays("traces", "slow", () => expect(page.getByRole("region", { name: "Traces" })).toContainText("slow"));
        await stays("messages/retained", "tanks/north");
        await picture(page, "away-retained");
        await stays("messages/queues", "tanks/#");
        await stays("messages/clients", "sensor");
        await stays("messages/clients/sensor", "tanks/#");
        await stays("messages/topics", "tanks/north", () => page.getByLabel("Search in the topics").fill("north"));
        await stays("invocations", "retrying", () => expect(page.getByRole("region", { name: "Pending invocations" })).toContainText("2 of 5"));
        await page.getByRole("region", { name: "Pending invocations" }).getByRole("link").first().click();
        // The list has this text, too.
        await expect(page).toHaveURL(/#\/invocations\/one\//);
        await expect(page.locator("main")).toContainText("slow/a");
        await stays(page.url().split("#/")[1] ?? "", "slow/a");
    });

    test("an error of the time without the node goes when the node is back", async ({ page, node }) => {
        await deploy(node);
        await node.cli(["invoke", "greet", "-d", "ada"]);
        await signIn(page, node);
        const away = page.getByRole("alert").filter({ hasText: "The node does not answer" });
        const open = async (view: string, ready: string) => {
            await page.goto(`${node.url}/#/${view}`);
            await expect(page.locator("main")).toContainText(ready);
        };
        const isBack = async () => {
            await node.run();
            await expect(away).toHaveCount(0);
            await expect(page.locator("main")).not.toContainText("the node does not answer");
        };
        await open("functions/greet", "Invoke");
        await node.kill();
        await page.getByRole("button", { name: "Invoke" }).click();
        await expect(page.getByText("the node does not answer", { exact: true })).toBeVisible();
        await isBack();
        await open("objects/plant/counts", "greetings");
        await node.kill();
        await expect(away).toBeVisible();
        await isBack();
        await expect(page.locator("main")).toContainText("greetings");
    });

    test("a node that was cut off says so, and has the events of the time before", async ({ page, node }) => {
        await signIn(page, node);
        const events = page.getByRole("list", { name: "Recent events" });
        await expect(events.getByText("has started")).toHaveCount(1);
        await node.kill();
        await node.run();
        await expect(events.getByText("has started")).toHaveCount(2);
        await expect(events).toContainText("it was not stopped before: the power failed, or it was killed");
    });
});

test("an invocation that has ended leaves a hint beside its last state", async ({ page, node }) => {
    await deploy(node, { "edgefaas.toml": MANIFEST, "slow.js": SOURCE });
    const client = await connectClient(node);
    await client.publishAsync("slow/a", "1", { qos: 1 });
    await client.endAsync();
    await signIn(page, node);
    await page.goto(`${node.url}/#/invocations`);
    await page.getByRole("region", { name: "Pending invocations" }).getByRole("link").first().click();
    // The list has this text, too.
    await expect(page).toHaveURL(/#\/invocations\/one\//);
    await expect(page.locator("main")).toContainText("slow/a");
    await node.cli(["invocations", "discard", page.url().split("/").at(-1) ?? ""]);
    await expect(page.getByText("It may have ended")).toBeVisible();
    await expect(page.locator("main")).toContainText("slow/a");
});
