import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import pg from "pg";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { DemoSummary } from "../../src/cli/demo/summary.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();
const cli = fileURLToPath(new URL("../../src/cli.ts", import.meta.url));
const home = await mkdtemp(join(tmpdir(), "capstan-demo-"));
const audited = join(home, "project");
const shell = promisify(execFile);
const client = new pg.Client({ connectionString: database.url });

beforeAll(async () => {
  await client.connect();
  // 72 files in three folders, some 400 KB of text: enough for dozens of turns each, and for a transcript above the growth warning.
  for (const [n, folder] of ["docs", "lib", "app"].entries()) {
    await mkdir(join(audited, folder), { recursive: true });
    for (let file = 0; file < 24; file++) {
      const lines = Array.from({ length: 110 }, (_, line) => `line ${line} of file ${file} in ${folder}, as long as lines of code are ${n}`);
      await writeFile(join(audited, folder, `f${String(file).padStart(2, "0")}.${n === 0 ? "md" : "ts"}`), `${lines.join("\n")}\n`);
    }
  }
  await writeFile(join(audited, "docs", "f00.md"), "# Start\n\n[gone](../lib/none.ts)\n\nTODO write this\n");
});
afterAll(async () => {
  await client.end();
  await rm(home, { recursive: true, force: true });
});

function startDemo(args: readonly string[]) {
  const child = spawn(process.execPath, ["--disable-warning=ExperimentalWarning", cli, "demo", "--dir", audited, ...args], {
    cwd: home,
    // No key and no model of the machine that runs the tests.
    env: { PATH: process.env["PATH"], HOME: home, DATABASE_URL: database.url, CAPSTAN_OFFLINE_THINK_MS: "60" },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let stdout = "";
  let stderr = "";
  child.stdout.setEncoding("utf8").on("data", (text: string) => (stdout += text));
  child.stderr.setEncoding("utf8").on("data", (text: string) => (stderr += text));
  const ended = once(child, "close").then(([code, signal]) => ({ code: code as number | null, signal: signal as NodeJS.Signals | null, stdout, stderr }));
  return { child, ended, stderr: () => stderr };
}

test("audits a folder, kills a worker that holds runs, and shows that others went on and nothing was lost", { timeout: 240_000 }, async () => {
  const { code, stdout, stderr } = await startDemo(["--runs", "6", "--json"]).ended;
  expect(stdout, stderr).not.toBe("");
  const summary = JSON.parse(stdout) as DemoSummary;
  expect(summary.problems).toEqual([]);
  expect(summary).toMatchObject({ ok: true, model: "offline:auditor" });
  expect(code).toBe(0);

  expect(summary.runs.map(({ folder }) => folder).toSorted()).toEqual([".", ". (auditor-compacted)", ". (auditor-self)", "app", "docs", "lib"]);
  expect(new Set(summary.runs.map(({ tenant }) => tenant)).size).toBe(2);
  for (const run of summary.runs) {
    expect(run.state).toBe("completed");
    expect(run.turns).toBeGreaterThanOrEqual(24);
    expect(run.growth_warning).toBe(run.transcript_bytes > 262_144);
  }
  const long = summary.runs.find(({ folder }) => folder === ".");
  expect(long).toMatchObject({ growth_warning: true });
  expect(stderr).toContain("growth warning for the run on .");
  for (const agent of ["auditor-compacted", "auditor-self"]) {
    const compacted = summary.runs.find(({ folder }) => folder === `. (${agent})`);
    expect(compacted?.compactions).toBeGreaterThan(0);
    // What its turns send is a part of what its journal keeps.
    expect(compacted?.transcript_bytes).toBeLessThan((compacted?.journal_bytes ?? 0) / 2);
    expect(compacted).toMatchObject({ growth_warning: false });
    expect(stderr).toContain(`the run on . (${agent}) was compacted at turn`);
  }
  expect(long?.compactions).toBe(0);
  expect(summary.totals.compactions_verified).toBeGreaterThan(1);

  const takenOver = summary.runs.filter((run) => run.taken_over);
  expect(summary.killed?.runs_held).toBe(takenOver.length);
  expect(takenOver.length).toBeGreaterThan(0);
  expect(summary.takeover?.last_ms).toBeGreaterThan(0);
  expect(summary.takeover?.last_ms).toBeLessThan(15_000);

  const { rows } = await client.query<{ end_reason: string; n: number }>("select end_reason, count(*)::int as n from capstan.workers group by 1 order by 1");
  expect(rows).toEqual([
    // Each process has one worker for turns and one for summaries.
    { end_reason: "lost", n: 2 },
    { end_reason: "stopped", n: 2 },
  ]);
  expect((await readdir(join(home, ".capstan", "reports"))).toSorted()).toEqual(summary.runs.map(({ run_id }) => `${run_id}.md`).toSorted());
  const report = await readFile(join(home, summary.runs.find(({ folder }) => folder === "docs")?.report ?? ""), "utf8");
  expect(report).toContain("docs/f00.md:3: link to ../lib/none.ts");
  expect(report).toContain("docs/f00.md:5: TODO write this");
});

test("stopped in the middle it cancels its runs and leaves no process behind; afterwards it works again", { timeout: 240_000 }, async () => {
  const first = startDemo(["--runs", "2"]);
  const isUnderWay = async (): Promise<boolean> => {
    const { rows } = await client.query("select from capstan.runs where finished_at is null and worker_id is not null and turn > 2");
    return rows.length > 0;
  };
  while (!(await isUnderWay())) {
    if (first.child.exitCode !== null) throw new Error(first.stderr());
    await sleep(50);
  }
  first.child.kill("SIGINT");
  const stopped = await first.ended;
  expect(stopped).toMatchObject({ code: 130, stdout: "", stderr: expect.stringContaining("stopped; its 2 runs are cancelled") });
  const { rows: left } = await client.query("select from capstan.workers where ended_at is null and end_reason is null");
  expect(left).toEqual([]);
  const { rows: states } = await client.query<{ state: string }>("select state from capstan.runs order by created_at desc limit 2");
  expect(states.map(({ state }) => state)).toEqual(["cancelled", "cancelled"]);

  const again = await startDemo(["--runs", "2"]).ended;
  expect(again.stdout, again.stderr).toContain("no event lost, no call answered twice");
  expect(again.code).toBe(0);

  // What it says to try next can be typed as it stands, in the folder of the package.
  const [, next = ""] = again.stdout.split("what to try next\n");
  const [up, ...lines] = next.trimEnd().split("\n");
  expect(up).toMatch(/^ {2}npm run -s capstan -- up /);
  expect(lines).toHaveLength(4);
  for (const line of lines) {
    const { stdout } = await shell("sh", ["-c", line], { cwd: join(cli, "..", ".."), env: { ...process.env, DATABASE_URL: database.url } });
    expect(stdout, line).not.toBe("");
  }
});

test("refuses a folder that is none before it starts anything", async () => {
  const child = startDemo(["--dir", join(audited, "docs", "f00.md")]);
  expect(await child.ended).toMatchObject({ code: 2, stderr: expect.stringContaining("DEMO_FOLDER_MISSING") });
});
