/** The command line as users meet it: a process, its standard streams and its exit code. */
import { spawn, type ChildProcessByStdio } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { fileURLToPath } from "node:url";

const cli = fileURLToPath(new URL("../../src/cli.ts", import.meta.url));
export const fixtureAgents = fileURLToPath(new URL("./fixture-agents.ts", import.meta.url));

export interface CliResult {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface CliOptions {
  readonly env?: NodeJS.ProcessEnv;
  readonly cwd?: string;
  readonly input?: string;
  /** Closes standard output as `head` does, at its first bytes. */
  readonly closeEarly?: boolean;
}

export async function capstan(args: readonly string[], options: CliOptions = {}): Promise<CliResult> {
  const child = start(args, options);
  let stdout = "";
  let stderr = "";
  child.stdout.setEncoding("utf8").on("data", (text: string) => {
    stdout += text;
    if (options.closeEarly === true) child.stdout.destroy();
  });
  child.stderr.setEncoding("utf8").on("data", (text: string) => (stderr += text));
  child.stdin.end(options.input ?? "");
  const [code] = (await once(child, "close")) as [number | null];
  return { code, stdout, stderr };
}

export interface RunningCli {
  readonly pid: number;
  readonly child: ChildProcessByStdio<Writable, Readable, Readable>;
  readonly stderr: () => string;
  /** The next line of JSON on standard output. */
  nextEvent(): Promise<{ readonly event: string; readonly [field: string]: unknown }>;
  /** Resolves once standard error holds the text. */
  said(text: string): Promise<void>;
  readonly exited: Promise<number | null>;
}

/** A command that stays, with `--json`. */
export function startCapstan(args: readonly string[], options: CliOptions = {}): RunningCli {
  const child = start([...args, "--json"], options);
  child.stdin.end();
  let stderr = "";
  const watchers = new Set<() => void>();
  const changed = (): void => {
    for (const watcher of watchers) watcher();
  };
  child.stderr.setEncoding("utf8").on("data", (text: string) => {
    stderr += text;
    changed();
  });
  const exited = once(child, "close").then(([code]) => code as number | null);
  void exited.then(changed);
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  return {
    pid: child.pid as number,
    child,
    stderr: () => stderr,
    exited,
    async nextEvent() {
      const { value, done } = await lines.next();
      if (done === true) throw new Error(`the command ended: ${stderr}`);
      return JSON.parse(value) as { event: string };
    },
    async said(text) {
      await new Promise<void>((resolve, reject) => {
        const look = (): void => {
          if (stderr.includes(text)) resolve();
          else if (child.exitCode !== null || child.signalCode !== null) reject(new Error(`the command ended without saying ${JSON.stringify(text)}: ${stderr}`));
          else return;
          watchers.delete(look);
        };
        watchers.add(look);
        look();
      });
    },
  };
}

function start(args: readonly string[], { env = {}, cwd }: CliOptions): ChildProcessByStdio<Writable, Readable, Readable> {
  const inherited = Object.entries(process.env).filter(([name]) => !/^(VITEST|CAPSTAN_|DATABASE_URL|OTEL_|PG)/.test(name));
  return spawn(process.execPath, [cli, ...args], {
    stdio: ["pipe", "pipe", "pipe"],
    env: { ...Object.fromEntries(inherited), NODE_NO_WARNINGS: "1", ...env },
    ...(cwd === undefined ? {} : { cwd }),
  });
}

/** Every line of NDJSON. */
export function ndjson<T = { readonly [field: string]: unknown }>(text: string): T[] {
  return text
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line) as T);
}
