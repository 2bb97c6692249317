// What an open page costs the node: its processor time while each view is open, and while none is, with 1,000 topics and 100 functions.
// The views take turns, round by round. Writes benches/results/dashboard.json.
import { readFileSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { cpus, loadavg, release, totalmem } from "node:os";
import { join } from "node:path";
import type { Page } from "@playwright/test";
import { signIn, test } from "./fixtures";
import { connectClient } from "./mqtt";
import type { Node } from "./node";

const TOPICS = 1000;
const FUNCTIONS = 100;
const ROUNDS = 3;
/** Time of one measurement, and of the wait before it for the requests of a view that opens. */
const MEASURED_MS = 15_000;
const SETTLE_MS = 3_000;
/** The load of the node, in each case the same: messages, and invocations, a second. */
const MESSAGES = 200;
const INVOCATIONS = 20;
/** Clock ticks a second of the kernel's statistics (`getconf CLK_TCK`), the same on all architectures of Linux. */
const TICKS = 100;

/** Views by name, with their part of the address; empty for no page at all. */
const VIEWS: [string, string][] = [
    ["no page", ""],
    ["Overview", "overview"],
    ["Messages: topics, all levels open", "messages/topics"],
    ["Messages: watch `plant/line-3/#`", "messages/watch?filter=plant%2Fline-3%2F%23"],
    ["Functions", "functions"],
    ["Workflows", "workflows"],
    ["Invocations", "invocations"],
];

/** Processor time of the node, in seconds. */
function processorSeconds(node: Node): number {
    const text = readFileSync(`/proc/${node.pid}/stat`, "utf8");
    // The name of the program, between brackets, may have spaces.
    const fields = text.slice(text.lastIndexOf(")") + 2).split(" ");
    return (Number(fields[11]) + Number(fields[12])) / TICKS;
}

async function deploy(node: Node) {
    const folder = join(node.home, "plant");
    await mkdir(folder, { recursive: true });
    const names = Array.from({ length: FUNCTIONS }, (_, number) => `f${number}`);
    const functions = names.map((name) => `[functions.${name}]\nmain = "f.js"\ntriggers = [{ http = "/${name}" }]\n`);
    await writeFile(join(folder, "edgefaas.toml"), `app = "plant"\n${functions.join("")}`);
    await writeFile(join(folder, "f.js"), "export default () => 'done';\n");
    await node.cli(["deploy", folder]);
}

async function open(page: Page, node: Node, view: string) {
    await page.goto(`${node.url}/#/${view}`);
    if (view !== "messages/topics") return;
    await page.getByRole("button", { name: "Unfold plant", exact: true }).click();
    for (let line = 0; line < 10; line++) await page.getByRole("button", { name: `Unfold plant/line-${line}`, exact: true }).click();
}

test("an open page", async ({ page, node }) => {
    test.setTimeout(3_600_000);
    await deploy(node);
    await signIn(page, node);
    const client = await connectClient(node);
    const topic = (number: number) => `plant/line-${number % 10}/sensor-${number}`;
    for (let number = 0; number < TOPICS; number++) await client.publishAsync(topic(number), "20.5", { retain: true, qos: 1 });
    let number = 0;
    const publishing = setInterval(() => client.publish(topic(number++ % TOPICS), String(20 + (number % 50) / 10)), 1000 / MESSAGES);
    let called = 0;
    const calling = setInterval(() => void fetch(`${node.http}/f${called++ % FUNCTIONS}`).then((answer) => answer.text()), 1000 / INVOCATIONS);
    const percent = new Map<string, number[]>(VIEWS.map(([name]) => [name, []]));
    const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
    for (let round = 0; round < ROUNDS; round++) {
        for (const [name, view] of VIEWS) {
            if (view) await open(page, node, view);
            else await page.goto("about:blank");
            await pause(SETTLE_MS);
            const [before, from] = [processorSeconds(node), performance.now()];
            await pause(MEASURED_MS);
            const used = processorSeconds(node) - before;
            percent.get(name)?.push((100_000 * used) / (performance.now() - from));
        }
    }
    clearInterval(publishing);
    clearInterval(calling);
    await client.endAsync();

    const median = (values: number[]) => [...values].sort((one, next) => one - next)[values.length >> 1] ?? Number.NaN;
    const idle = median(percent.get("no page") ?? []);
    const rows = VIEWS.map(([name]) => {
        const rounds = percent.get(name) ?? [];
        return { contestant: name, figures: [{ name: "the node's processor time", unit: "% of a core", rounds }] };
    });
    for (const { contestant, figures } of rows) {
        const value = median(figures[0]?.rounds ?? []);
        console.log(`${contestant.padEnd(40)} ${value.toFixed(2)} %, above no page ${(value - idle).toFixed(2)}`);
    }
    const worst = Math.max(...rows.map(({ figures }) => median(figures[0]?.rounds ?? []) - idle));
    const [processor] = cpus();
    const report = {
        name: "dashboard",
        title: "An open page of the dashboard",
        what: `Processor time of a node with ${TOPICS} topics and ${FUNCTIONS} functions, which gets ${MESSAGES} messages and ${INVOCATIONS} HTTP requests a second, while a browser (Chromium) has one view open; by \`/proc\`, ${MEASURED_MS / 1000} s each. The views take turns.`,
        command: "cd dashboard && npm run cost",
        date: new Date().toISOString().slice(0, 10),
        machine: {
            processor: `${processor?.model.trim()} (${process.arch === "x64" ? "x86_64" : process.arch})`,
            cores: cpus().length,
            memory_gib: Math.round(totalmem() / 2 ** 30),
            kernel: release(),
        },
        load_average: loadavg()[0],
        tables: [{ title: "The node, by view", rows }],
        targets: [{ id: "dashboard-page", text: "the view that costs most, above no page: under 1 % of a core", reached: worst, limit: 1, at_most: true }],
    };
    await writeFile("../benches/results/dashboard.json", `${JSON.stringify(report, undefined, 2)}\n`);
});
