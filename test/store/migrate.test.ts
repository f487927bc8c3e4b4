import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import pg from "pg";
import { afterAll, expect, inject, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { migrate, migrationStatus, type MigrateReport } from "../../src/store/migrate.ts";
import { createDatabaseOn, type TestDatabase } from "../../src/testing/databases.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { openLab, payloads } from "../engine/harness.ts";
import { dumpSchema, schemaFile } from "../support/dump-schema.ts";
import { calls, doing } from "../bad-input/cases.ts";

const empties: TestDatabase[] = [];
afterAll(async () => {
  for (const database of empties) await database.drop();
});

async function emptyDatabase(): Promise<TestDatabase> {
  const database = await createDatabaseOn(inject("postgresUrl"));
  empties.push(database);
  return database;
}

async function withClient<T>(url: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}

it("five processes that migrate an empty database at once all succeed, and one of them did the work", { timeout: 300_000 }, async () => {
  const database = await emptyDatabase();
  const script = fileURLToPath(new URL("migrate-once.ts", import.meta.url));
  const ends = await Promise.all(Array.from({ length: 5 }, () => promisify(execFile)(process.execPath, [script, database.url])));
  const reports = ends.map(({ stdout }) => JSON.parse(stdout) as MigrateReport);
  const known = reports[0]?.known ?? 0;
  expect(known).toBeGreaterThan(1);
  expect(reports.map((report) => report.applied).toSorted((a, b) => a - b)).toEqual([0, 0, 0, 0, known]);
  expect(new Set(reports.map((report) => report.roles.kind)).size).toBe(1);
});

it("four databases of one server, which share its roles, migrate at once", async () => {
  const databases = [await emptyDatabase(), await emptyDatabase(), await emptyDatabase(), await emptyDatabase()];
  const reports = await Promise.all(databases.map((database) => migrate({ connectionString: database.url })));
  expect(reports.map((report) => report.applied)).toEqual(databases.map(() => reports[0]?.known));
});

it("a second migration changes nothing, and the status says so", async () => {
  const database = await emptyDatabase();
  expect(await migrationStatus({ connectionString: database.url })).toMatchObject({ applied: 0 });
  const first = await migrate({ connectionString: database.url });
  const before = await withClient(database.url, (client) => dumpSchema(client));
  const second = await migrate({ connectionString: database.url });
  expect(first.applied).toBe(first.known);
  expect(second).toMatchObject({ applied: 0, known: first.known });
  expect(await withClient(database.url, (client) => dumpSchema(client))).toBe(before);
  expect(await migrationStatus({ connectionString: database.url })).toEqual({ applied: first.known, known: first.known });
});

it("the schema is the one in test/store/schema.sql (`npm run db:dump` writes it anew)", async () => {
  const database = await emptyDatabase();
  await migrate({ connectionString: database.url });
  expect(await withClient(database.url, (client) => dumpSchema(client))).toBe(readFileSync(schemaFile, "utf8"));
});

it("a whole run under other schema names, beside which the usual ones do not exist", async () => {
  const database = await emptyDatabase();
  const names = { schema: "acme_runs", workerSchema: "acme_queue" };
  try {
    await migrate({ connectionString: database.url, names });
    const own = agent({ name: "renamed", model: "scripted:renamed", instructions: "Do it.", interactive: true, tools: [doing("look", () => "seen")] });
    {
      await using lab = await openLab(database.url, { agents: [own], models: [scriptedModel([calls("look"), "First.", "Second."], { name: "scripted:renamed" })], names });
      const run = await lab.run(own, "go");
      expect(run.status).toMatchObject({ state: "waiting", wait_reason: "input" });
      await run.handle.send("and?");
      await lab.settled(run.id);
      expect(await run.handle.cancel("enough")).toBe(true);
      const events = await lab.events(run.id);
      expect(payloads(events, "model.responded")).toHaveLength(2 + Number(payloads(events, "model.responded").length === 3));
      await lab.intact(run.id);
      const { rows } = await lab.db.query(
        "select to_regnamespace('capstan') as ours, to_regnamespace('graphile_worker') as theirs, (select count(*)::int from acme_runs.usage) > 0 as usage",
      );
      expect(rows).toEqual([{ ours: null, theirs: null, usage: true }]);
    }
    const renamed = await withClient(database.url, (client) => dumpSchema(client, names.schema));
    expect(renamed.replaceAll("acme_runs", "capstan").replaceAll("acme_queue", "graphile_worker")).toBe(readFileSync(schemaFile, "utf8"));
  } finally {
    await database.drop();
    await withClient(inject("postgresUrl"), (client) => client.query("drop role if exists acme_runs_owner, acme_runs_app"));
  }
});

it.each(["Capstan", "a-b", "a.b", 'x"y', ""])("refuses the schema name %j, which would need quoting", async (schema) => {
  await expect(migrate({ connectionString: inject("postgresUrl"), names: { schema, workerSchema: "w" } })).rejects.toThrow(/must match/);
});
