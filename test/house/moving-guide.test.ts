/** docs/moving.md shows an example that runs, and lists what the code has. */
import { spawn } from "node:child_process";
import { expect, it } from "vitest";
import { startModelServer } from "../../src/testing/index.ts";
import { EXPORT_FORMAT, EXPORT_VERSION, exportLine } from "../../src/transfer/format.ts";
import { createTestDatabase } from "../support/database.ts";
import { readRoot, root } from "./sources.ts";

const [here, there] = [await createTestDatabase(), await createTestDatabase()];
const page = readRoot("docs/moving.md");
const firstColumn = (heading: string): string[] => [...(page.split(`\n## ${heading}\n`)[1]?.split("\n## ")[0] ?? "").matchAll(/^\| `(\w+)` \|/gm)].map(([, cell = ""]) => cell);

it("shows examples/moving.ts, which moves a run", async () => {
  const [, code] = /```ts\n([\s\S]*?)\n```/.exec(page) ?? [];
  expect(code).toBe(
    readRoot("examples/moving.ts")
      .replace(/"\.\.\/src\/index\.ts";.*/, '"capstan";')
      .trimEnd(),
  );
  await using server = await startModelServer({ respond: ({ index }) => ({ text: index === 0 ? "Noted: order 7." : "It was number 7." }) });
  const env = {
    DATABASE_URL: here.url,
    OTHER_DATABASE_URL: there.url,
    ANTHROPIC_API_KEY: "for-the-test",
    ANTHROPIC_BASE_URL: server.anthropicBaseUrl,
    CAPSTAN_MODEL: "anthropic:claude-sonnet-5",
  };
  const child = spawn(process.execPath, ["examples/moving.ts"], { cwd: root, env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "pipe"] });
  let [stdout, stderr] = ["", ""];
  child.stdout.on("data", (chunk: Buffer) => (stdout += chunk.toString()));
  child.stderr.on("data", (chunk: Buffer) => (stderr += chunk.toString()));
  const exit = await new Promise<number | null>((resolve) => child.once("close", resolve));
  expect(exit, stderr).toBe(0);
  expect(stdout).toBe("4 events moved; it is waiting there\nIt was number 7.\n");
  expect(server.requests).toHaveLength(2);
  expect(server.requests[1]?.raw).toContain("Noted: order 7.");
}, 120_000);

it("lists every kind of line, and format and version", () => {
  expect(firstColumn("The format")).toEqual(exportLine.options.map((option) => option.shape.type.value));
  expect(page).toContain(`\`format\` (\`${EXPORT_FORMAT}\`), \`version\` (${EXPORT_VERSION})`);
});

it("lists every refusal", () => {
  const codes = ["export", "import", "format"]
    .flatMap((file) => readRoot(`src/transfer/${file}.ts`).match(/"(RUN_[A-Z_]+|IMPORT_[A-Z_]+)"/g) ?? [])
    .map((code) => code.slice(1, -1));
  expect(firstColumn("Refusals").toSorted()).toEqual([...new Set(codes)].filter((code) => code !== "IMPORTED_PART").toSorted());
});
