/** A run exists if and only if the transaction that enqueued it commits: from every kind of client (P1). */
import { execFile } from "node:child_process";
import { randomUUID } from "node:crypto";
import { promisify } from "node:util";
import { drizzle } from "drizzle-orm/node-postgres";
import pg from "pg";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import type { Tx } from "../../src/client/transaction.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { openLab, type Lab } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();
const joiner = agent({ name: "joiner", model: "scripted:joiner", instructions: "Join." });
let lab: Lab;
let client: pg.Client;

beforeAll(async () => {
  lab = await openLab(database.url, { agents: [joiner], models: [scriptedModel(["Joined."], { name: "scripted:joiner", by: "turn" })] });
  client = new pg.Client({ connectionString: database.url });
  await client.connect();
});
afterAll(async () => {
  await client.end();
  await lab[Symbol.asyncDispose]();
});

/** Rows that anybody else can see of a run. */
async function traces(runId: string): Promise<number> {
  const { rows } = await lab.db.query<{ n: number }>(
    `select ((select count(*) from capstan.runs where id = $1) + (select count(*) from capstan.events where run_id = $1)
       + (select count(*) from capstan.wishes where run_id = $1) + (select count(*) from capstan.inbox where run_id = $1))::int as n`,
    [runId],
  );
  return rows[0]?.n ?? -1;
}

type InTransaction = (work: (tx: Tx) => Promise<string>, end: "commit" | "rollback") => Promise<string>;

const byClient: InTransaction = async (work, end) => {
  await client.query("begin");
  const id = await work(client);
  await client.query(end);
  return id;
};

const ways: Readonly<Record<string, InTransaction>> = {
  "a pg client": byClient,
  "an object that has nothing but query": (work, end) => byClient(() => work({ query: (text: string, values?: unknown[]) => client.query(text, values) }), end),
  "a query that gives rows, not a result": (work, end) => byClient(() => work({ query: async (text: string, values?: unknown[]) => (await client.query(text, values)).rows }), end),
  "a drizzle transaction": async (work, end) => {
    const undo = new Error("undo");
    let id = "";
    const done = drizzle(client).transaction(async (tx) => {
      id = await work(tx);
      if (end === "rollback") throw undo;
    });
    await done.catch((error: unknown) => {
      if (error !== undo) throw error;
    });
    return id;
  },
};

describe.each(Object.entries(ways))("in the caller's transaction: %s", (_, inTransaction) => {
  it("a rollback leaves nothing", async () => {
    const seenInside: number[] = [];
    const id = await inTransaction(async (tx) => {
      const handle = await lab.capstan.enqueue(joiner, "join", { tx, metadata: { o: "'; drop table runs; --" }, labels: ["a,b", 'q"'] });
      await handle.send("more", { tx, dedupeKey: "once" });
      seenInside.push(await traces(handle.id));
      return handle.id;
    }, "rollback");
    expect(seenInside).toEqual([0]);
    expect(await traces(id)).toBe(0);
  });

  it("a commit runs it to its end", async () => {
    const id = await inTransaction(async (tx) => (await lab.capstan.enqueue(joiner, "join", { tx, metadata: { a: [1, { b: "ü'" }] }, labels: ["a,b", 'q"'] })).id, "commit");
    expect(await lab.capstan.run(id).result({ timeoutMs: 20_000 })).toBe("Joined.");
    const { rows } = await lab.db.query("select metadata, labels from capstan.runs where id = $1", [id]);
    expect(rows).toEqual([{ metadata: { a: [1, { b: "ü'" }] }, labels: ["a,b", 'q"'] }]);
    await lab.intact(id);
  });

  it("a cancel that is rolled back has not happened", async () => {
    const idle = await lab.capstan.enqueue("joiner", "later", { runAt: new Date(Date.now() + 3_600_000) });
    await inTransaction(async (tx) => {
      expect(await idle.cancel("no", { tx })).toBe(true);
      return idle.id;
    }, "rollback");
    expect((await idle.status()).state).toBe("queued");
    expect(await idle.cancel()).toBe(true);
  });
});

it("the caller's own rows and the run come together", async () => {
  await client.query("create table orders (id uuid primary key, run_id uuid)");
  const order = randomUUID();
  await client.query("begin");
  const handle = await lab.capstan.enqueue(joiner, "join", { tx: client });
  await client.query("insert into orders values ($1, $2)", [order, handle.id]);
  await client.query("commit");
  await handle.result({ timeoutMs: 20_000 });
  const { rows } = await client.query("select r.state from orders o join capstan.runs r on r.id = o.run_id where o.id = $1", [order]);
  expect(rows).toEqual([{ state: "completed" }]);
});

const run = promisify(execFile);
const has = async (command: string, args: string[]): Promise<boolean> =>
  await run(command, args).then(
    () => true,
    () => false,
  );
const hasPsql = await has("psql", ["--version"]);
const hasPsycopg = await has("python3", ["-c", "import psycopg"]);

/** SQL from a program that is not ours: psql where there is one, else a script that knows only the driver. */
async function runSql(statements: readonly string[]): Promise<string> {
  if (hasPsql) return (await run("psql", ["-qAtX", "-v", "ON_ERROR_STOP=1", ...statements.flatMap((sql) => ["-c", sql]), database.url])).stdout.trim();
  const script = `const pg = require("pg"); const c = new pg.Client({ connectionString: process.argv[1] });
    (async () => { await c.connect(); for (const sql of JSON.parse(process.argv[2])) { const r = await c.query(sql); for (const row of r.rows ?? []) console.log(Object.values(row)[0]); } await c.end(); })();`;
  return (await run(process.execPath, ["-e", script, database.url, JSON.stringify(statements)])).stdout.trim();
}

describe(`from another program (${hasPsql ? "psql" : "a script with the driver alone"})`, () => {
  it("enqueue and roll back: nothing is left", async () => {
    const id = await runSql(["begin", `select capstan.enqueue_run('joiner', '"from SQL"')`, "rollback"]);
    expect(id).toMatch(/^[0-9a-f-]{36}$/);
    expect(await traces(id)).toBe(0);
  });

  it("enqueue and commit: the run comes to its end, and SQL reads it", async () => {
    const id = await runSql(["begin", `select capstan.enqueue_run('joiner', '{"from": "SQL"}', metadata => '{"by": "cron"}')`, "commit"]);
    expect(await lab.capstan.run(id).result({ timeoutMs: 20_000 })).toBe("Joined.");
    const status = JSON.parse(await runSql([`select capstan.run_status('${id}')`])) as { state: string; output: string };
    expect(status).toMatchObject({ state: "completed", output: "Joined." });
  });
});

/** psycopg where it is installed; else Python's own way to psql. What counts is that it is another language. */
const python = hasPsycopg
  ? `import sys, psycopg
with psycopg.connect(sys.argv[1]) as c:
    print(c.execute("select capstan.enqueue_run('joiner', '1'::jsonb)").fetchone()[0])
    c.commit() if sys.argv[2] == "commit" else c.rollback()`
  : `import sys, subprocess
sql = ["begin", "select capstan.enqueue_run('joiner', '1'::jsonb)", sys.argv[2]]
print(subprocess.run(["psql", "-qAtX"] + [a for s in sql for a in ("-c", s)] + [sys.argv[1]], check=True, capture_output=True, text=True).stdout.strip())`;

describe.runIf((await has("python3", ["--version"])) && (hasPsycopg || hasPsql))("from Python", () => {
  it.each(["commit", "rollback"] as const)("enqueue and %s", async (end) => {
    const id = (await run("python3", ["-c", python, database.url, end])).stdout.trim();
    if (end === "rollback") expect(await traces(id)).toBe(0);
    else expect(await lab.capstan.run(id).result({ timeoutMs: 20_000 })).toBe("Joined.");
  });
});
