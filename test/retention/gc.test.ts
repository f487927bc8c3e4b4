/** `capstan gc` as operators run it: with files, killed on the way, and with partitions that are dropped. */
import { once } from "node:events";
import { createReadStream } from "node:fs";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { createInterface } from "node:readline";
import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import pg from "pg";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { checkExport } from "../../src/transfer/check.ts";
import { capstan } from "../cli/support.ts";
import { openLab, until, type Lab } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();
const cli = fileURLToPath(new URL("../../src/cli.ts", import.meta.url));
const clerk = agent({ name: "clerk", model: "scripted:clerk", instructions: "Say." });

let lab: Lab;
let client: pg.Client;
const folders: string[] = [];
beforeAll(async () => {
  lab = await openLab(database.url, { agents: [clerk], models: [scriptedModel(["Said."], { name: "scripted:clerk", by: "turn" })] });
  client = new pg.Client({ connectionString: database.url });
  await client.connect();
});
afterAll(async () => {
  await client.end();
  await lab[Symbol.asyncDispose]();
  for (const each of folders) await rm(each, { recursive: true });
});

const env = { DATABASE_URL: database.url };
const gc = async (...args: string[]) => {
  const result = await capstan(["gc", "--json", ...args], { env });
  return { ...result, json: JSON.parse(result.stdout) as Readonly<Record<string, unknown>> };
};

async function newFolder(): Promise<string> {
  const made = await mkdtemp(join(tmpdir(), "capstan-gc-"));
  folders.push(made);
  return made;
}

async function oldRuns(tenant: string, count: number): Promise<string[]> {
  const ids: string[] = [];
  for (let n = 0; n < count; n++) ids.push((await lab.run(clerk, `go ${n}`, { tenant })).id);
  await client.query("update capstan.runs set finished_at = capstan.now() - interval '40 days' where id = any($1::uuid[])", [ids]);
  return ids.toSorted();
}

const files = async (dir: string): Promise<string[]> => (await readdir(dir, { recursive: true })).filter((name) => name.includes(".ndjson")).toSorted();
const idOf = (file: string): string => basename(file, ".ndjson");
const checked = (path: string) => checkExport(createInterface({ input: createReadStream(path) }));
const remaining = async (tenant: string): Promise<string[]> =>
  (await client.query<{ id: string }>("select id from capstan.runs where tenant = $1 order by id", [tenant])).rows.map(({ id }) => id);

describe("gc", () => {
  it("says what would go, then writes it down and deletes it; an import brings it back", async () => {
    const ids = await oldRuns("plain", 3);
    await client.query("select capstan.hold_run($1)", [ids[1]]);
    const dir = await newFolder();
    expect((await gc("--older-than", "30d", "--tenant", "plain", "--dry-run")).json).toMatchObject({ dry_run: true, matched: 3, deletable: 2, kept: { hold: 1 } });
    expect(await remaining("plain")).toEqual(ids);

    const done = await gc("--older-than", "30d", "--tenant", "plain", "--export", dir);
    expect(done).toMatchObject({ code: 0, json: { deleted: 2, archived: 2, kept: { hold: 1 }, complete: true, exported: { files: 2 } } });
    expect(await remaining("plain")).toEqual([ids[1]]);
    const written = await files(dir);
    expect(written.map(idOf).toSorted()).toEqual([ids[0], ids[2]]);
    expect(written.every((name) => /^\d{4}-\d{2}-\d{2}\//.test(name))).toBe(true);
    for (const name of written) expect(await checked(join(dir, name))).toMatchObject({ runId: idOf(name), lastSeq: 4 });

    const back = await capstan(["runs", "import", join(dir, written[0] ?? "")], { env });
    expect(back).toMatchObject({ code: 0 });
    await lab.intact(ids[0] ?? "");
  });

  it("passes a run by that is held on the command line", async () => {
    const [id = ""] = await oldRuns("held", 1);
    expect(await capstan(["runs", "hold", id, "--reason", "an inquiry", "--json"], { env })).toMatchObject({ code: 0, stdout: expect.stringContaining('"changed":true') });
    const { rows } = await client.query<{ done: { kept: object } }>("select capstan.delete_runs(array[$1::uuid]) as done", [id]);
    expect(rows[0]?.done.kept).toEqual({ [id]: "hold" });
    expect(await capstan(["runs", "release", id, "--json"], { env })).toMatchObject({ code: 0, stdout: expect.stringContaining('"changed":true') });
    expect((await gc("--older-than", "30d", "--tenant", "held")).json).toMatchObject({ deleted: 1, kept: {} });
  });

  it("killed anywhere it has lost nothing, and started again it does the rest", async () => {
    const ids = await oldRuns("killed", 8);
    const dir = await newFolder();
    // What an earlier one was killed over, and a file that was damaged since: neither counts.
    const day =
      (await client.query<{ day: string }>("select to_char(finished_at at time zone 'UTC', 'YYYY-MM-DD') as day from capstan.runs where id = $1", [ids[7]])).rows[0]?.day ?? "";
    await capstan(["gc", "--older-than", "30d", "--tenant", "nobody", "--export", dir], { env });
    for (const [after, batch] of [
      [1, "1"],
      [3, "3"],
      [6, "1"],
    ] as const) {
      const child = spawn(process.execPath, [cli, "gc", "--older-than", "30d", "--tenant", "killed", "--export", dir, "--batch", batch], {
        env: { ...process.env, ...env },
        stdio: "ignore",
      });
      await until(`${after} files`, async () => child.exitCode !== null || (await files(dir)).length >= after);
      child.kill("SIGKILL");
      await once(child, "close");
      // Each run is here, or in a file that is whole.
      const here = await remaining("killed");
      const whole: string[] = [];
      for (const name of (await files(dir)).filter((each) => each.endsWith(".ndjson"))) {
        expect(await checked(join(dir, name))).toMatchObject({ runId: idOf(name), lastSeq: 4 });
        whole.push(idOf(name));
      }
      expect([...new Set([...here, ...whole])].toSorted()).toEqual(ids);
      for (const id of here) await lab.intact(id);
    }
    await writeFile(join(dir, day, `${ids[0]}.ndjson.part`), "half");
    const rest = await gc("--older-than", "30d", "--tenant", "killed", "--export", dir);
    expect(rest).toMatchObject({ code: 0, json: { complete: true, kept: {} } });
    expect(await remaining("killed")).toEqual([]);
    expect(
      (await files(dir))
        .filter((name) => name.endsWith(".ndjson"))
        .map(idOf)
        .toSorted(),
    ).toEqual(ids);
    for (const name of (await files(dir)).filter((each) => each.endsWith(".ndjson"))) expect(await checked(join(dir, name))).toMatchObject({ runId: idOf(name) });
  });

  it("deletes nothing that it cannot write, nor a run that has grown since it was written", async () => {
    const [id = ""] = await oldRuns("stuck", 1);
    const dir = await newFolder();
    const file = join(dir, "file");
    await writeFile(file, "");
    const failed = await capstan(["gc", "--older-than", "30d", "--tenant", "stuck", "--export", file], { env });
    expect(failed).toMatchObject({ code: 1, stderr: expect.stringContaining("FILE_UNWRITABLE") });
    expect(await remaining("stuck")).toEqual([id]);
    const { rows } = await client.query<{ done: object }>("select capstan.delete_runs(array[$1::uuid], last_seqs => array[3]) as done", [id]);
    expect(rows[0]?.done).toMatchObject({ deleted: [], kept: { [id]: "changed" } });
  });

  it("a file that was changed is told from a whole one", async () => {
    const [id = ""] = await oldRuns("changed", 1);
    const dir = await newFolder();
    await gc("--older-than", "30d", "--tenant", "changed", "--export", dir);
    const path = join(dir, (await files(dir))[0] ?? "");
    const text = await readFile(path, "utf8");
    for (const spoilt of [text.replace("Said.", "Sung."), text.split("\n").slice(0, -2).join("\n"), text.replace(`"last_seq":4`, `"last_seq":3`), "", "no JSON\n"]) {
      await writeFile(path, spoilt);
      await expect(checked(path)).rejects.toMatchObject({ code: "IMPORT_DAMAGED" });
    }
    await writeFile(path, text);
    expect(await checked(path)).toMatchObject({ runId: id });
  });

  it.each([
    [["gc"], "--older-than 30d"],
    [["gc", "--older-than", "soon"], "give a number with a unit"],
    [["gc", "--older-than", "1d", "--state", "queued"], "no state in which a run has ended"],
    [["gc", "--older-than", "1d", "--partitions", "--tenant", "acme"], "all tenants"],
  ])("refuses %j", async (args, says) => {
    expect(await capstan(args, { env })).toMatchObject({ code: 2, stderr: expect.stringContaining(says) });
  });
});

it("a partition is split off, filled, and dropped once all of its runs may go", async () => {
  await client.query("update capstan.runs set hold = false");
  const old = await oldRuns("parts", 3);
  const border = (await client.query<{ id: string }>("select capstan.uuid_v7() as id")).rows[0]?.id ?? "";
  const young = await lab.run(clerk, "young", { tenant: "parts" });
  const page = await readFile(new URL("../../docs/scaling.md", import.meta.url), "utf8");
  const [, split = ""] = /<!-- split -->\n```sql\n([\s\S]*?)```/.exec(page) ?? [];
  expect(split).toContain("events_2026_11");
  await client.query(split.replaceAll(/'0[0-9a-f]{7}-[0-9a-f-]{27}'/g, `'${border}'`));
  const where = await client.query(
    "select tableoid::regclass::text as part, count(distinct run_id)::int as runs from capstan.events where run_id = any($1::uuid[]) group by 1 order by 1",
    [[...old, young.id]],
  );
  expect(where.rows).toEqual([
    { part: "capstan.events_2026_11", runs: 3 },
    { part: "capstan.events_default", runs: 1 },
  ]);
  await client.query("update capstan.runs set finished_at = capstan.now() - interval '40 days' where id < $1 and finished_at is not null", [border]);

  // A hold, a fork from outside, a run of the range that has not ended: each keeps all of it.
  const drop = () => gc("--older-than", "30d", "--partitions", "--dry-run");
  await client.query("select capstan.hold_run($1)", [old[0]]);
  expect((await drop()).json["partitions"]).toMatchObject({ dropped: [], kept: [{ name: "events_2026_11", keeps: { hold: 1 } }] });
  await expect(client.query("select capstan.drop_partition('events_2026_11', capstan.now())")).rejects.toMatchObject({ code: "KC023" });
  await client.query("select capstan.release_run($1)", [old[0]]);
  const fork = await lab.capstan.run(old[1] ?? "").fork({ input: "more" });
  await lab.settled(fork.id);
  expect((await drop()).json["partitions"]).toMatchObject({ dropped: [], kept: [{ name: "events_2026_11", keeps: { referenced: 1 } }] });
  expect((await gc("--older-than", "30d", "--partitions", "--batch", "2")).json).toMatchObject({ kept: { referenced: 1 }, partitions: { dropped: [] } });
  await lab.intact(fork.id);
  await client.query("update capstan.runs set finished_at = capstan.now() - interval '40 days' where id = $1", [fork.id]);
  await client.query("select capstan.delete_runs(array[$1::uuid])", [fork.id]);
  await expect(client.query("select capstan.drop_partition('events_default', capstan.now())")).rejects.toMatchObject({ code: "KC006" });

  const dir = await newFolder();
  const usage = async () => (await client.query("select sum(calls)::int as calls from capstan.usage_by_day where tenant = 'parts'")).rows;
  const before = await usage();
  const done = await gc("--older-than", "30d", "--partitions", "--export", dir);
  expect(done).toMatchObject({
    code: 0,
    json: { partitions: { dropped: [{ name: "events_2026_11", runs: 1 }], kept: [], tables: { runs: { rows: 1 } } }, exported: { files: 1 } },
  });
  expect((await files(dir)).map(idOf)).toEqual([old[1]]);
  expect(await usage()).toEqual(before);
  expect((await client.query("select to_regclass('capstan.events_2026_11') as part")).rows).toEqual([{ part: null }]);
  expect(await remaining("parts")).toEqual([young.id]);
  await lab.intact(young.id);
  // Its range is the default partition's again.
  expect((await lab.run(clerk, "after")).status.state).toBe("completed");
});
