// Somebody who has never seen the command line mends a node.
import { deploy } from "./app";
import { checkAccessibility, expect, picture, test } from "./fixtures";
import { connectClient } from "./mqtt";

const MANIFEST = `app = "plant"

[functions.pump]
main = "pump.js"
triggers = [{ mqtt = "tanks/+/level", qos = 1 }]
secrets = ["key"]
permissions = { publish = ["pumps/state"], objects = ["tanks"] }
`;
const SOURCE = `export default async (event, context) => {
    if (context.secrets.key !== "right") throw new Error("the pump refuses the key: set the secret named key");
    await context.object("tanks").counter("levels").add(event.json().level);
    await context.publish("pumps/state", "pumping " + event.json().level, { qos: 1 });
};
`;

test("the failing function is found, its secret set, its dead letter retried, and the value arrives", async ({ page, node, context }) => {
    await deploy(node, { "edgefaas.toml": MANIFEST, "pump.js": SOURCE });
    await node.cli(["users", "add", "ada", "--role", "administer"], "secret of ada\n");
    const sensor = await connectClient(node, { username: "ada", password: "secret of ada" });
    await sensor.publishAsync("tanks/north/level", '{"level": 7}', { qos: 1 });
    await sensor.endAsync();

    // She signs in. The overview says what is wrong, and since when.
    await page.goto(node.url);
    await page.getByLabel("User").fill("ada");
    await page.getByLabel("Password").fill("secret of ada");
    await page.getByRole("button", { name: "Sign in" }).click();
    await expect(page.locator(".figure", { hasText: "Dead letters" })).toContainText("1");
    await page.locator(".card.warnings").getByRole("link", { name: "pump" }).first().click();

    // The log of the function says why.
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Functions");
    await expect(page.getByRole("log")).toContainText("the pump refuses the key: set the secret named key");
    await picture(page, "story-log");

    // In a second tab she watches the topic.
    const second = await context.newPage();
    await second.goto(`${node.url}/#/messages/watch`);
    await second.getByLabel("Topic filter").fill("pumps/#");
    await second.getByRole("button", { name: "Watch" }).click();
    await expect(second.getByText("No message yet.")).toBeVisible();

    // She sets the secret.
    await page.getByRole("link", { name: "Settings" }).click();
    await page.getByLabel("App").fill("plant");
    await page.getByLabel("Name", { exact: true }).fill("key");
    await page.getByLabel("Value").fill("right");
    await page.getByRole("button", { name: "Set secret" }).click();
    await expect(page.getByRole("region", { name: "Secrets" })).toContainText("key");

    // She looks at the dead letter, and retries it.
    await page.getByRole("link", { name: "Invocations", exact: true }).click();
    await page.getByRole("link", { name: /^Dead/ }).click();
    await page.getByRole("region", { name: "Dead invocations" }).getByRole("link").first().click();
    await expect(page.locator("pre").last()).toContainText('"level": 7');
    await checkAccessibility(page);
    await picture(page, "story-dead-letter");
    await page.getByRole("button", { name: "Retry" }).click();
    await expect(page.getByRole("status")).toContainText("It runs again");

    // The value arrives: in the object, and on the topic.
    await page.getByRole("link", { name: "Objects" }).click();
    await page.getByRole("link", { name: "tanks" }).click();
    await expect(page.locator(".card", { hasText: "levels" }).locator("pre")).toHaveText("7");
    await expect(second.getByRole("log", { name: "Messages" })).toContainText("pumping 7");
    await page.getByRole("link", { name: "Overview" }).click();
    await expect(page.locator(".figure", { hasText: "Dead letters" })).toHaveCount(0);
    await picture(page, "story-end");
});
