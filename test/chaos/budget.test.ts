/** A worker that dies at any place around a limit: each limit is told once, the last turn is one turn, nothing is counted twice. */
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { afterAll, expect, it } from "vitest";
import { DefinitionPins, enqueueRun } from "../../src/client/enqueue.ts";
import type { Failpoint } from "../../src/engine/failpoints.ts";
import { definitionSha } from "../../src/store/definitions.ts";
import { createTestDatabase } from "../support/database.ts";
import { budgetAgents } from "./budget-agents.ts";
import { killChildrenAfterAll, startChild } from "./child-worker.ts";
import { effectNoter, readEffects } from "./effects.ts";
import { breaches } from "./invariants.ts";
import { describeRun, eventually, readJournal, runFacts } from "./journal.ts";
import { same } from "./start-worker.ts";

const database = await createTestDatabase();
const effects = join(mkdtempSync(join(tmpdir(), "capstan-budget-")), "effects.jsonl");
const agents = budgetAgents(effectNoter(effects));
const db = new pg.Pool({ connectionString: database.url, max: 6 });
db.on("error", () => {});
killChildrenAfterAll();
afterAll(() => db.end());
const pins = new DefinitionPins(definitionSha);

async function enqueue(name: string, pool: string): Promise<string> {
  return await enqueueRun(db, same, agents.find((known) => known.name === name) ?? name, "begin", { pool }, pins);
}
async function events(runId: string) {
  return (await readJournal(db, runId)).map(({ event }) => event);
}
const reached = async (runId: string) => (await events(runId)).flatMap((event) => (event.type === "budget.reached" ? [event.payload] : []));

async function afterDeath(kill: `${Failpoint}:${number}`, name: string, pool: string): Promise<string> {
  const runId = await enqueue(name, pool);
  const victim = await startChild({ url: database.url, effects, program: "budget-worker.ts", pool, failpoint: kill });
  expect(await victim.ended, kill).toBe("SIGKILL");
  const heir = await startChild({
    url: database.url,
    effects,
    program: "budget-worker.ts",
    pool,
    env: { CAPSTAN_SWEEP_MS: "300", CAPSTAN_LOST_JOB_MS: "3000", CAPSTAN_POOL_MAX: "4" },
  });
  await eventually(
    `the end after ${kill}`,
    async () => {
      const facts = await runFacts(db, runId);
      return facts !== undefined && ["completed", "failed"].includes(facts.state) && facts;
    },
    { withinMs: 60_000, describe: () => describeRun(db, runId) },
  );
  await heir.stop();
  expect(await breaches(db, runId, readEffects(effects)), kill).toEqual([]);
  return runId;
}

// The third request rides with the soft limit of turns, the fifth with the hard one; both are met before their commit, right
// after it and before the call, and with the answer in hand.
const places = [
  "request.before_append:3",
  "request.committed:3",
  "model.returned:3",
  "request.before_append:5",
  "request.committed:5",
  "model.returned:5",
  "append.unacknowledged:6",
] as const;

it("tells each limit once and gives one last turn, wherever a worker dies", { timeout: 600_000 }, async () => {
  for (const [i, kill] of places.entries()) {
    const runId = await afterDeath(kill, "saver", `budget-${i}`);
    expect(await reached(runId), kill).toEqual([
      { level: "soft", limit: "turns", used: 2, of: 2 },
      { level: "soft", limit: "tokens", used: expect.any(Number) as number, of: 9 },
      { level: "hard", limit: "turns", used: 4, of: 4, text: expect.any(String) as string },
    ]);
    const told = await events(runId);
    expect(told.at(-1), kill).toMatchObject({ type: "run.completed", payload: { output: "what there is" }, turn: 5 });
    expect(new Set(told.flatMap((event) => (event.type === "model.requested" && event.payload.no_tools === true ? [event.turn] : []))), kill).toEqual(new Set([5]));
    const { rows } = await db.query("select budget_level from capstan.runs where id = $1", [runId]);
    expect(rows).toEqual([{ budget_level: 2 }]);
  }
});

it("counts what children took once, although the worker dies with their results in hand", { timeout: 300_000 }, async () => {
  for (const [i, kill] of (["answer.before_append:1", "answer.committed:1"] as const).entries()) {
    const runId = await afterDeath(kill, "family", `family-${i}`);
    const [join_] = (await events(runId)).flatMap((event) => (event.type === "tool.completed" ? [event.payload] : []));
    const { rows } = await db.query<{ total: number }>("select sum(input_tokens + output_tokens)::int as total from capstan.runs where parent_run_id = $1", [runId]);
    expect(join_?.spent).toEqual({ tokens: rows[0]?.total, cost_usd_micros: 0 });
    const own =
      (await events(runId)).flatMap((event) => (event.type === "model.responded" && event.turn === 1 ? [event.payload.usage.input + event.payload.usage.output] : []))[0] ?? 0;
    expect(await reached(runId)).toMatchObject([{ level: "soft", limit: "tokens", used: own + (rows[0]?.total ?? 0) }]);
  }
});
