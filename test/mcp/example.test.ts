import { spawn } from "node:child_process";
import { expect, it } from "vitest";
import { startModelServer } from "../../src/testing/index.ts";
import { readRoot, root } from "../house/sources.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();

it("docs/mcp.md shows examples/mcp.ts, which answers from its server's notes", async () => {
  const [, code] = /```ts\n(import [\s\S]*?)\n```/.exec(readRoot("docs/mcp.md")) ?? [];
  expect(code).toBe(
    readRoot("examples/mcp.ts")
      .replace(/"\.\.\/src\/index\.ts";.*/, '"capstan";')
      .trimEnd(),
  );
  await using server = await startModelServer({
    respond: ({ index }) => (index === 0 ? { toolCalls: [{ name: "mcp__notes__find_note", arguments: { word: "tide" } }] } : { text: "At ten past two." }),
  });
  const child = spawn(process.execPath, ["examples/mcp.ts"], {
    cwd: root,
    env: { ...process.env, DATABASE_URL: database.url, ANTHROPIC_API_KEY: "for-the-test", ANTHROPIC_BASE_URL: server.anthropicBaseUrl, CAPSTAN_MODEL: "anthropic:claude-sonnet-5" },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let stdout = "";
  let stderr = "";
  child.stdout.on("data", (chunk: Buffer) => (stdout += chunk.toString()));
  child.stderr.on("data", (chunk: Buffer) => (stderr += chunk.toString()));
  const ended = await new Promise<number | null>((resolve) => child.once("close", resolve));
  expect({ ended, stdout }, stderr).toEqual({ ended: 0, stdout: "At ten past two.\n" });
  expect(server.refused).toEqual([]);
  expect(server.requests[1]?.raw).toContain("14:10");
});
