/** A rolling deploy: worker processes with the old code and with the new one side by side, and a promotion in the middle. */
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { afterAll, expect, it } from "vitest";
import { createAgents } from "../../src/client/agents.ts";
import { DefinitionPins, enqueueRun } from "../../src/client/enqueue.ts";
import { definitionSha } from "../../src/store/definitions.ts";
import { createTestDatabase } from "../support/database.ts";
import { killChildrenAfterAll, quickEnv, startChild, type ChildWorker } from "./child-worker.ts";
import { deployedAgent } from "./deploy-agents.ts";
import type { Release } from "./deploy-worker.ts";
import { effectNoter, readEffects } from "./effects.ts";
import { breaches } from "./invariants.ts";
import { describeRun, eventually, readJournal, runFacts } from "./journal.ts";
import { same } from "./start-worker.ts";

const database = await createTestDatabase();
killChildrenAfterAll();
const effects = join(mkdtempSync(join(tmpdir(), "capstan-deploy-")), "effects.jsonl");
const db = new pg.Pool({ connectionString: database.url, max: 4 });
db.on("error", () => {});
afterAll(() => db.end());
const agents = createAgents(db, same);
const note = effectNoter(effects);
const code = { old: deployedAgent("old", note), new: deployedAgent("new", note) };
const shas = { old: definitionSha(code.old.definition), new: definitionSha(code.new.definition) };

const start = (release: Release): Promise<ChildWorker> =>
  startChild({ url: database.url, effects, program: "deploy-worker.ts", env: { ...quickEnv, CAPSTAN_SLOTS: "2", CHAOS_RELEASE: release } });
/** By name, or with the definition of one of the two. */
const enqueue = (what: "name" | Release, count: number): Promise<string[]> =>
  Promise.all(Array.from({ length: count }, () => enqueueRun(db, same, what === "name" ? "deployed" : code[what], "begin", {}, new DefinitionPins(definitionSha))));
const pinOf = async (runId: string): Promise<unknown> => (await db.query("select definition_sha from capstan.runs where id = $1", [runId])).rows[0]?.definition_sha;
const pidsOf = (runIds: readonly string[]): Set<number> => new Set(readEffects(effects).flatMap(({ run, pid }) => (runIds.includes(run) ? [pid] : [])));

it("runs are served by whichever worker fits their own definition, none fails, and a promotion moves new runs only", { timeout: 180_000 }, async () => {
  const old = await start("old");
  expect(await agents.get("deployed")).toMatchObject({ sha: shas.old });
  const before = await enqueue("name", 6);
  await eventually("the old code works", () => pidsOf(before).has(old.pid));

  // Starting the new code stores its definition and changes nothing for anybody.
  const fresh = await start("new");
  expect(await agents.get("deployed")).toMatchObject({ sha: shas.old });
  expect(await agents.get(shas.new)).toMatchObject({ promoted: false });
  before.push(...(await enqueue("name", 4)));
  await eventually("the new code serves runs of the old definition too", () => pidsOf(before).has(fresh.pid));
  // A producer with the new code is ahead of the promotion.
  const ahead = await enqueue("new", 3);
  const unpromoted = await enqueue("name", 2);

  await agents.promote("deployed", shas.new, { actor: "deploy" });
  const after = await enqueue("name", 3);
  // And one that has not been deployed yet.
  const behind = await enqueue("old", 2);

  const [byOld, byNew] = [
    [...before, ...unpromoted, ...behind],
    [...ahead, ...after],
  ];
  for (const runId of byNew) expect(await pinOf(runId)).toBe(shas.new);
  for (const runId of byOld) expect(await pinOf(runId)).toBe(shas.old);
  for (const [runIds, prompt] of [[byOld, "old prompt"] as const, [byNew, "new prompt"] as const]) {
    for (const runId of runIds) {
      const facts = await eventually(
        `a run of the ${prompt} ends`,
        async () => {
          const now = await runFacts(db, runId);
          return ["completed", "failed", "cancelled"].includes(now.state) && now;
        },
        { withinMs: 90_000, describe: () => describeRun(db, runId) },
      );
      expect(facts.state).toBe("completed");
      const journal = await readJournal(db, runId);
      // Its own prompt to the end, whatever was promoted meanwhile and whoever served it.
      expect(journal.at(-1)?.event).toMatchObject({ type: "run.completed", payload: { output: `done by the ${prompt}` } });
      expect(await pinOf(runId)).toBe(prompt === "old prompt" ? shas.old : shas.new);
      // It may have met the code that does not fit, which is said and passed on; nothing was lost or done twice.
      const parked = journal.flatMap(({ event }) => (event.type === "run.parked" ? [event.payload] : []));
      for (const park of parked) expect(park).toMatchObject({ reason: "agent_missing", detail: { missing: "tool extra is missing" } });
      if (prompt === "old prompt") expect(parked).toEqual([]);
      expect(await breaches(db, runId, readEffects(effects))).toEqual([]);
    }
  }
  // Only the code that has the tool executed it, or asked a model in its name.
  expect([...pidsOf(byNew)]).toEqual([fresh.pid]);
  expect(pidsOf(byOld)).toEqual(new Set([old.pid, fresh.pid]));

  // The deploy ends: without the old code its runs go on as well.
  const late = await enqueue("old", 1);
  await old.stop();
  await eventually("the last run of the old definition ends", async () => (await runFacts(db, late[0] as string)).state === "completed", { withinMs: 30_000 });
  await fresh.stop();
  expect((await agents.history("deployed")).filter(({ what }) => what === "promoted").map(({ sha, actor }) => [sha, actor])).toEqual([
    [shas.new, "deploy"],
    [shas.old, null],
  ]);
});
