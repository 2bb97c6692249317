import { deploy } from "./app";
import { checkAccessibility, expect, picture, signIn, test } from "./fixtures";
import { Node } from "./node";

test("members of a cluster are shown with their revisions, and a member that is away", async ({ page, node }) => {
    const south = await Node.start();
    try {
        await node.cli(["cluster", "init", "--name", "north"]);
        const token = (await node.cli(["cluster", "token"])).trim().split(/\s+/).find((word) => word.startsWith("efj"));
        await south.cli(["cluster", "join", token ?? "", "--name", "south"]);
        await deploy(node);
        await signIn(page, node);
        await page.getByRole("link", { name: "Cluster" }).click();
        const members = page.getByRole("region", { name: "Members" });
        await expect(members.getByRole("row", { name: /^south/ })).toContainText("connected");
        await expect(members.getByRole("row", { name: /^north/ })).toContainText("this node");
        const revisions = page.getByRole("region", { name: "plant on the nodes" });
        await expect(revisions.getByRole("row", { name: /^south/ })).toContainText("live");
        await page.getByLabel("Function").fill("greet");
        await page.getByRole("button", { name: "Explain" }).click();
        await expect(page.locator(".figure", { hasText: "Runs on" })).toContainText(/north|south/);
        await checkAccessibility(page);
        await picture(page, "cluster");
        await south.kill();
        await expect(members.getByRole("row", { name: /^south/ })).toContainText("away");
        // The node notices it as well, at its next sample, even if the member came after the last one.
        await page.getByRole("link", { name: "Overview" }).click();
        // Members have the first 30 seconds of a node to connect.
        await expect(page.locator(".card.warnings")).toContainText("south", { timeout: 60_000 });
        await expect(page.getByRole("list", { name: "Recent events" })).toContainText("member-away");
        await page.locator(".card.warnings").getByRole("link", { name: "south" }).click();
        await expect(page.getByRole("heading", { level: 1 })).toHaveText("Cluster");
    } finally {
        await south.remove();
    }
});
