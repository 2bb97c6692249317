import { defineConfig } from "@playwright/test";

export default defineConfig({
    testDir: "tests",
    globalSetup: "./tests/engine-code.ts",
    // On demand: the pictures of the documentation, and what an open page costs the node.
    testIgnore: ["pictures", "cost"].filter((name) => process.env.ONLY !== name).map((name) => `${name}.spec.ts`),
    outputDir: "../target/dashboard/results",
    timeout: 120_000,
    expect: { timeout: 15_000 },
    fullyParallel: true,
    workers: 2,
    forbidOnly: true,
    reporter: [["list"]],
    use: {
        browserName: "chromium",
        launchOptions: { executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] },
        viewport: { width: 1280, height: 800 },
        locale: "en-GB",
        timezoneId: "UTC",
    },
});
