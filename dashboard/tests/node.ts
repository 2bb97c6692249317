// A real node on free ports, with a data directory of its own.
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { cp, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);
const BINARY = process.env.EDGEFAAS_BINARY ?? new URL("../../target/release/edgefaas", import.meta.url).pathname;
const READY_MS = 30_000;

/** The folder of a node that has compiled the JavaScript engine. */
export const ENGINE_CODE = new URL("../../target/dashboard/engine-code", import.meta.url).pathname;

export class Node {
    private process: ChildProcess | undefined;
    url = "";
    http = "";
    mqtt = "";
    token = "";
    /** Everything that it wrote to stderr. */
    log = "";

    private constructor(
        readonly home: string,
        private readonly options: string[],
    ) {}

    /** Starts a node with the text of a configuration file. */
    static async start(config = "", options: string[] = []): Promise<Node> {
        const home = await mkdtemp(join(tmpdir(), "edgefaas-dashboard-"));
        // Compiled code, and the key that authenticates it.
        for (const part of ["cache", "cache-key"]) {
            const compiled = join(ENGINE_CODE, "data", part);
            if (existsSync(compiled)) await cp(compiled, join(home, "data", part), { recursive: true, preserveTimestamps: true });
        }
        return Node.at(home, config, options);
    }

    /** Starts a node in this folder. */
    static async at(home: string, config = "", options: string[] = []): Promise<Node> {
        await mkdir(home, { recursive: true });
        await writeFile(join(home, "node.toml"), config);
        const node = new Node(home, options);
        await node.run();
        return node;
    }

    get pid(): number {
        return this.process?.pid ?? 0;
    }

    get dataDir(): string {
        return join(this.home, "data");
    }

    /** Starts it again, at the same addresses. */
    async run(): Promise<void> {
        const address = (url: string) => (url ? new URL(url).host : "127.0.0.1:0");
        const child = spawn(
            BINARY,
            [
                "run",
                ...["--data-dir", this.dataDir, "--config", join(this.home, "node.toml")],
                ...["--http", address(this.http), "--mqtt", address(this.mqtt), "--control", address(this.url)],
                ...["--p2p", "127.0.0.1:0"],
                ...this.options,
            ],
            { stdio: ["ignore", "pipe", "pipe"] },
        );
        this.process = child;
        child.stderr?.on("data", (chunk) => (this.log += chunk));
        const ready = await new Promise<string>((resolve, reject) => {
            let out = "";
            const timer = setTimeout(() => reject(new Error(`not ready in time:\n${this.log}`)), READY_MS);
            child.on("exit", (code) => reject(new Error(`the node ended with ${code}:\n${this.log}`)));
            child.stdout?.on("data", (chunk) => {
                out += chunk;
                if (out.includes("\n")) {
                    clearTimeout(timer);
                    resolve(out);
                }
            });
        });
        child.removeAllListeners("exit");
        const found = (pattern: RegExp) => pattern.exec(ready)?.[1] ?? "";
        this.url = found(/ control=(https?:\/\/\S+)/);
        this.mqtt = found(/ mqtt=(\S+)/);
        this.http = found(/ http=(\S+)/);
        if (!this.url || !this.mqtt || !this.http) throw new Error(`the ready line is unknown: ${ready}`);
        this.token = (await readFile(join(this.dataDir, "token"), "utf8")).trim();
    }

    /** Ends the process without a warning. */
    async kill(): Promise<void> {
        await this.end("SIGKILL");
    }

    async end(signal: NodeJS.Signals): Promise<void> {
        const child = this.process;
        if (!child || child.exitCode !== null || child.signalCode !== null) return;
        const ended = new Promise((resolve) => child.once("exit", resolve));
        child.kill(signal);
        await ended;
    }

    /** Runs a command of the CLI against it, with `input` on stdin. */
    async cli(parameters: string[], input = "", cwd = this.home): Promise<string> {
        const child = run(BINARY, ["--data-dir", this.dataDir, "--node", this.url, ...parameters], { cwd });
        child.child.stdin?.end(input);
        return (await child).stdout;
    }

    async remove(): Promise<void> {
        await this.kill();
        await rm(this.home, { recursive: true, force: true });
    }
}
