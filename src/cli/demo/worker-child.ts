/** A worker process as its parent sees it. */
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { CliError } from "../exit.ts";
import type { WorkerArguments, WorkerMessage } from "./messages.ts";

/** An offline model answers at once; a fifth of a second is about what the fastest real one takes, and lets things happen meanwhile. */
const DEFAULT_THINK_MS = "250";
const STOPPED_WITHIN_MS = 10_000;

export interface WorkerChildOptions extends WorkerArguments {
  readonly databaseUrl: string;
  readonly directUrl: string;
  readonly onGrowthWarning: (runId: string, text: string) => void;
}

export class WorkerChild {
  readonly #child: ChildProcess;
  readonly #exited: Promise<void>;
  readonly #ready: Promise<string>;

  constructor({ databaseUrl, directUrl, onGrowthWarning, ...args }: WorkerChildOptions) {
    // After the build the neighbour is a .js file.
    const program = fileURLToPath(new URL(`./worker-entry.${import.meta.url.endsWith(".ts") ? "ts" : "js"}`, import.meta.url));
    this.#child = spawn(process.execPath, ["--disable-warning=ExperimentalWarning", program, JSON.stringify(args)], {
      // The address holds a password: other users can read a process's arguments, but not its environment.
      env: { CAPSTAN_OFFLINE_THINK_MS: DEFAULT_THINK_MS, ...process.env, DATABASE_URL: databaseUrl, CAPSTAN_DIRECT_DATABASE_URL: directUrl },
      stdio: ["ignore", "ignore", "inherit", "ipc"],
    });
    this.#exited = once(this.#child, "exit").then(() => {});
    this.#ready = new Promise((resolve, reject) => {
      const failed = (why: string): void => reject(new CliError("DEMO_WORKER_FAILED", `a worker process did not start: ${why} (its log: ${args.logFile})`));
      this.#child.on("message", (message: WorkerMessage) => {
        if (message.type === "ready") resolve(message.workerId);
        if (message.type === "failed") failed(message.message);
        if (message.type === "growth_warning") onGrowthWarning(message.runId, message.text);
      });
      this.#child.once("error", (error) => failed(error.message));
      this.#child.once("exit", (code, signal) => failed(`it ended with ${signal ?? `code ${code}`}`));
    });
    // Whoever waits for it hears of it; a stop before that is no defect.
    this.#ready.catch(() => {});
    this.#exited.catch(() => {});
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  get isRunning(): boolean {
    return this.#child.pid !== undefined && this.#child.exitCode === null && this.#child.signalCode === null;
  }

  /** The worker's id. Throws DEMO_WORKER_FAILED. */
  async ready(): Promise<string> {
    return await this.#ready;
  }

  /** As a crash does it: nothing is released, nothing said. Resolves when the process is gone. */
  async kill(): Promise<void> {
    if (!this.isRunning) return;
    this.#child.kill("SIGKILL");
    await this.#exited;
  }

  killAtOnce(): void {
    if (this.isRunning) this.#child.kill("SIGKILL");
  }

  async stop(): Promise<void> {
    if (!this.isRunning) return;
    this.#child.kill("SIGTERM");
    const timer = setTimeout(() => this.#child.kill("SIGKILL"), STOPPED_WITHIN_MS);
    await this.#exited;
    clearTimeout(timer);
  }
}
