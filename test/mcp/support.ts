import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll } from "vitest";
import type { McpStdioServer } from "../../src/mcp/client/spec.ts";
import type { NotedCall } from "./tool-server.ts";

const script = fileURLToPath(new URL("./tool-server.ts", import.meta.url));

export interface TestServer {
  readonly spec: McpStdioServer;
  readonly folder: string;
  calls(): NotedCall[];
}

/** A server's configuration and what it will have been asked. */
export function testServer({ env = {}, ...more }: Partial<McpStdioServer> = {}): TestServer {
  const folder = makeFolder();
  const notes = join(folder, "calls");
  return {
    folder,
    spec: { command: process.execPath, args: [script], env: { MCP_NOTES: notes, NODE_NO_WARNINGS: "1", ...env }, ...more },
    calls: () => (existsSync(notes) ? readFileSync(notes, "utf8").split("\n") : []).filter((line) => line !== "").map((line) => JSON.parse(line) as NotedCall),
  };
}

export function makeFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "capstan-mcp-"));
  afterAll(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

export function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
