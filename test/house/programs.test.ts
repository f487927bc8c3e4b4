/** The larger examples run from their first line to their last, against a server that speaks a vendor's protocol. */
import { spawn } from "node:child_process";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { afterAll, expect, it } from "vitest";
import { startModelServer, type ModelServerOptions } from "../../src/testing/index.ts";
import { createTestDatabase } from "../support/database.ts";
import { root } from "./sources.ts";

const database = await createTestDatabase();
const db = new pg.Pool({ connectionString: database.url, max: 1 });
db.on("error", () => {});
afterAll(() => db.end());

async function outputOf(example: string, respond: ModelServerOptions["respond"], args: readonly string[] = []): Promise<string[]> {
  await using server = await startModelServer({ respond });
  const env = { DATABASE_URL: database.url, ANTHROPIC_API_KEY: "for-the-test", ANTHROPIC_BASE_URL: server.anthropicBaseUrl, CAPSTAN_MODEL: "anthropic:claude-sonnet-5" };
  const child = spawn(process.execPath, [`examples/${example}`, ...args], { cwd: root, env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "pipe"] });
  let [stdout, stderr] = ["", ""];
  child.stdout.on("data", (chunk: Buffer) => (stdout += chunk.toString()));
  child.stderr.on("data", (chunk: Buffer) => (stderr += chunk.toString()));
  const exit = await new Promise<number | null>((done) => child.once("close", done));
  expect(exit, stderr).toBe(0);
  expect(server.refused).toEqual([]);
  return stdout.trimEnd().split("\n");
}

it("support-desk: a look-up, a refund that a person changes, and a ticket that goes on", { timeout: 60_000 }, async () => {
  const said = await outputOf("support-desk.ts", ({ index }) => {
    if (index === 0) return { toolCalls: [{ name: "look_up_order", arguments: { order: "7" } }] };
    if (index === 1) return { toolCalls: [{ name: "refund", arguments: { order: "7", amount: 45 } }] };
    return { text: index === 2 ? "You get 40 dollars back." : "Three days." };
  });
  expect(said).toEqual(['to decide: refund {"order":"7","amount":45}', "desk: You get 40 dollars back.", "desk: Three days."]);
  const { rows } = await db.query("select state, subject, turn from capstan.runs where agent = 'support-desk'");
  expect(rows).toEqual([{ state: "cancelled", subject: "customer-12", turn: 4 }]);
});

it("repository-auditor: a child per folder, and a report of what they have found", { timeout: 60_000 }, async () => {
  const repository = await mkdtemp(join(tmpdir(), "capstan-audited-"));
  try {
    for (const folder of ["docs", "src"]) {
      await mkdir(join(repository, folder));
      await writeFile(join(repository, folder, "a.txt"), `TODO in ${folder}`);
    }
    const said = await outputOf(
      "repository-auditor.ts",
      ({ body, raw }) => {
        const results = (body["messages"] as { role: string }[]).filter(({ role }) => role === "user").length - 1;
        if (raw.includes("have a folder-reader read")) {
          if (results === 0) return { toolCalls: [{ name: "list_folder", arguments: { path: "." } }] };
          if (results === 1) {
            const children = ["docs", "src"].map((folder) => ({ agent: "folder-reader", input: { folder } }));
            return { toolCalls: [{ name: "agent", arguments: { op: "parallel_spawn", children } }] };
          }
          if (results === 2)
            return { toolCalls: [{ name: "write_report", arguments: { markdown: `# Audit\n${[...raw.matchAll(/mend \w+/g)].map(([found]) => `- ${found}`).join("\n")}\n` } }] };
          return { text: "Two things to mend." };
        }
        const folder = /\\"folder\\":\s*\\"(\w+)\\"/.exec(raw)?.[1] ?? "";
        if (results === 0) return { toolCalls: [{ name: "read_file", arguments: { path: `${folder}/a.txt` } }] };
        return { text: JSON.stringify({ findings: [raw.includes(`TODO in ${folder}`) ? `mend ${folder}` : "nothing"] }) };
      },
      [repository],
    );
    expect(said).toEqual(["Two things to mend."]);
    expect(await readFile(join(repository, "AUDIT.md"), "utf8")).toBe("# Audit\n- mend docs\n- mend src\n");
    expect((await db.query("select from capstan.runs where agent = 'folder-reader' and state = 'completed'")).rowCount).toBe(2);
  } finally {
    await rm(repository, { recursive: true });
  }
});

it("nightly-report: by the clock, and one now", { timeout: 60_000 }, async () => {
  const answer = ({ index }: { index: number }) => {
    if (index === 0) return { toolCalls: [{ name: "sales_of", arguments: { day: "2026-11-30" } }] };
    return index === 1 ? { toolCalls: [{ name: "save_report", arguments: { day: "2026-11-30", text: "Three lamps, a chair." } }] } : { text: "Three lamps, a chair." };
  };
  const said = await outputOf("nightly-report.ts", answer);
  expect(said).toEqual([expect.stringMatching(/^each night, next at \d{4}-.*T0[01]:00:00/), "Three lamps, a chair.", "reports: Three lamps, a chair."]);
  // At the next start of the service the schedule is there already.
  expect((await outputOf("nightly-report.ts", answer))[2]).toBe("reports: Three lamps, a chair.; Three lamps, a chair.");
  const { rows } = await db.query("select cron, timezone from capstan.schedules where name = 'nightly-report'");
  expect(rows).toEqual([{ cron: "0 2 * * *", timezone: "Europe/Berlin" }]);
});
