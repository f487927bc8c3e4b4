import { spawn } from "node:child_process";
import { expect, it } from "vitest";
import { startModelServer } from "../../src/testing/index.ts";
import { createTestDatabase } from "../support/database.ts";
import { readRoot, root } from "./sources.ts";

const database = await createTestDatabase();

it("docs/forking.md shows the code that examples/forking.ts runs", () => {
  const [, code] = /```ts\n(import [\s\S]*?)\n```/.exec(readRoot("docs/forking.md")) ?? [];
  expect(code).toBe(
    readRoot("examples/forking.ts")
      .replace(/"\.\.\/src\/index\.ts";.*/, '"capstan";')
      .trimEnd(),
  );
});

it("examples/forking.ts forks, looks back and converses", async () => {
  const answers = ["It was shipped.", "Shipped.", "It is packed.", "Since Monday."];
  await using server = await startModelServer({ respond: ({ index }) => ({ text: answers[index] ?? "" }) });
  const env = {
    ...process.env,
    DATABASE_URL: database.url,
    ANTHROPIC_API_KEY: "for-the-test",
    ANTHROPIC_BASE_URL: server.anthropicBaseUrl,
    CAPSTAN_MODEL: "anthropic:claude-sonnet-5",
  };
  const child = spawn(process.execPath, ["examples/forking.ts"], { cwd: root, env, stdio: ["ignore", "pipe", "pipe"] });
  let stdout = "";
  let stderr = "";
  child.stdout.on("data", (chunk: Buffer) => (stdout += chunk.toString()));
  child.stderr.on("data", (chunk: Buffer) => (stderr += chunk.toString()));
  const code = await new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("close", resolve);
  });
  expect({ code, stdout }, stderr).toEqual({ code: 0, stdout: "It was shipped.\nShipped.\nqueued: 1 message\nIt is packed.\nSince Monday.\n" });
  expect(server.refused).toEqual([]);
  expect(server.requests[1]?.raw).toContain("Answer in one word.");
  for (const said of ["Where is order 8?", "It is packed.", "And since when?"]) expect(server.requests[3]?.raw).toContain(said);
});
