/** Worker processes as a test sees them. All that are still there are killed after the test file. */
import { fork, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll } from "vitest";
import type { Failpoint } from "../../src/engine/failpoints.ts";
import type { FromWorker } from "./worker-process.ts";

export interface ChildOptions {
  readonly url: string;
  readonly effects: string;
  readonly pool?: string;
  readonly agents?: readonly string[];
  readonly failpoint?: `${Failpoint}:${number}`;
  /** File of this folder that the process runs. */
  readonly program?: string;
  /** Further variables; leases are short unless these say otherwise. */
  readonly env?: Readonly<Record<string, string>>;
}

export interface ChildWorker {
  readonly pid: number;
  readonly workerId: string;
  readonly warnings: readonly string[];
  /** What it wrote to stderr: its log. */
  readonly log: () => string;
  /** The signal or code that ended it. */
  readonly ended: Promise<string>;
  readonly isAlive: () => boolean;
  kill(signal: NodeJS.Signals): void;
  /** A graceful stop; resolves when the process is gone. */
  stop(): Promise<void>;
}

export const quickEnv = {
  CAPSTAN_LEASE_MS: "1200",
  CAPSTAN_HEARTBEAT_MS: "300",
  CAPSTAN_SWEEP_MS: "300",
  CAPSTAN_LOST_JOB_MS: "3000",
  CAPSTAN_POOL_MAX: "4",
} as const;

const children = new Set<ChildProcess>();

/** To be called at the top of a test file that starts workers. */
export function killChildrenAfterAll(): void {
  afterAll(() => {
    for (const child of children) child.kill("SIGKILL");
  });
}

export async function startChild({ url, effects, pool = "turn", agents, failpoint, program = "worker-process.ts", env = quickEnv }: ChildOptions): Promise<ChildWorker> {
  const child = fork(join(import.meta.dirname, program), {
    stdio: ["ignore", "ignore", "pipe", "ipc"],
    execArgv: [],
    env: {
      PATH: process.env["PATH"],
      // Compiling the same modules again is most of what a start costs.
      NODE_COMPILE_CACHE: join(tmpdir(), "capstan-chaos-compile-cache"),
      DATABASE_URL: url,
      CAPSTAN_LOG_LEVEL: "warn",
      CHAOS_EFFECTS: effects,
      CHAOS_POOL: pool,
      ...(agents === undefined ? {} : { CHAOS_AGENTS: agents.join(",") }),
      ...(failpoint === undefined ? {} : { CAPSTAN_FAILPOINT: failpoint }),
      ...env,
    },
  });
  children.add(child);
  let log = "";
  child.stderr?.setEncoding("utf8").on("data", (text: string) => (log += text));
  const warnings: string[] = [];
  let alive = true;
  const ended = new Promise<string>((resolve) => {
    child.once("exit", (code, signal) => {
      alive = false;
      children.delete(child);
      resolve(signal ?? String(code));
    });
  });
  const ready = new Promise<string>((resolve) => {
    child.on("message", (message) => {
      const told = message as FromWorker;
      if ("ready" in told) resolve(told.ready);
      if ("warned" in told) warnings.push(told.warned);
    });
  });
  // One that is armed may die before it is ready: then `ended` says so.
  const workerId = await Promise.race([ready, ended.then(() => "")]);
  return {
    pid: child.pid ?? 0,
    workerId,
    warnings,
    log: () => log,
    ended,
    isAlive: () => alive,
    kill: (signal) => void child.kill(signal),
    async stop() {
      if (!alive) return;
      child.send("stop");
      await once(child, "exit");
    },
  };
}
