import { spawn } from "node:child_process";
import { once } from "node:events";
import { chmod, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import pg from "pg";
import { startEmbeddedPostgres, type EmbeddedPostgresOptions } from "../../src/embedded/index.ts";

export const runsAsRoot = process.getuid?.() === 0;

/** Nothing here has to survive a power cut, and an initdb without sync is a second faster. */
export const quick = { fsync: "off" };

export function startQuickly(options: EmbeddedPostgresOptions) {
  return startEmbeddedPostgres({ ...options, settings: { ...quick, ...options.settings } });
}

/** A folder that other users may pass through, and its removal. */
export async function makeOpenFolder(): Promise<{ path: string; remove(): Promise<void> }> {
  const path = await mkdtemp(join(tmpdir(), "capstan-embedded-"));
  await chmod(path, 0o755);
  return { path, remove: () => rm(path, { recursive: true, force: true }) };
}

export async function queryValue(url: string, text: string): Promise<unknown> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    const { rows } = await client.query<Record<string, unknown>>(text);
    return Object.values(rows[0] ?? {})[0];
  } finally {
    await client.end();
  }
}

export interface ServerReport {
  readonly url: string;
  readonly port: number;
  readonly pid: number;
  readonly dataDir: string;
  readonly startedByUs: boolean;
  readonly version: string;
}

/** Another Node process that starts the server of `dir`, reports, and then stays until it is killed. */
export async function startInOtherProcess(dir: string, identity?: { uid: number; gid: number }): Promise<{ report: ServerReport; kill(): Promise<void> }> {
  const program = fileURLToPath(new URL("./other-process.ts", import.meta.url));
  const child = spawn(process.execPath, [program, dir], { stdio: ["ignore", "pipe", "inherit"], cwd: "/", ...identity });
  for await (const line of createInterface(child.stdout)) {
    const exited = once(child, "exit");
    const kill = async () => {
      child.kill("SIGKILL");
      await exited;
    };
    return { report: JSON.parse(line) as ServerReport, kill };
  }
  throw new Error("the other process ended without a report");
}
