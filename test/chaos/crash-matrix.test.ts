/**
 * Kills a worker process (SIGKILL) at every failpoint and lets another finish, then compares the journals with those of
 * an undisturbed run. By default each failpoint once, over all scenarios side by side; CAPSTAN_CHAOS=full takes every
 * scenario and both ways of handing over on their own.
 */
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { afterAll, describe, expect, it } from "vitest";
import { DefinitionPins, enqueueRun } from "../../src/client/enqueue.ts";
import { lifeFailpoints, turnFailpoints, type Failpoint } from "../../src/engine/failpoints.ts";
import { definitionSha } from "../../src/store/definitions.ts";
import { createTestDatabase } from "../support/database.ts";
import { killChildrenAfterAll, quickEnv, startChild } from "./child-worker.ts";
import { effectNoter, readEffects } from "./effects.ts";
import { breaches } from "./invariants.ts";
import { bareReference, describeRun, essence, eventually, readJournal, runFacts } from "./journal.ts";
import { catalogueOf, chaosModel } from "./model.ts";
import { scenarios, scripts } from "./scenarios.ts";
import { quickSettings, same, startTestWorker } from "./start-worker.ts";

const isFull = process.env["CAPSTAN_CHAOS"] === "full";
const CELLS_AT_ONCE = 3;
const onceTools = new Set(["pay", "pay_asked"]);
/** Met by runs that wait for their calls alone; what is stopped is killed in life-stop.test.ts. */
const waitFailpoints = lifeFailpoints.filter((point) => !point.startsWith("stop."));
const failpoints: readonly Failpoint[] = [...turnFailpoints, ...waitFailpoints];
const comesBy = (name: string, failpoint: Failpoint): boolean => name === "lives" || !waitFailpoints.some((point) => point === failpoint);

const database = await createTestDatabase();
const effects = join(mkdtempSync(join(tmpdir(), "capstan-chaos-")), "effects.jsonl");
const note = effectNoter(effects);
const known = scenarios(note);
const names = Object.keys(known);
const db = new pg.Pool({ connectionString: database.url, max: 6 });
db.on("error", () => {});
killChildrenAfterAll();
afterAll(() => db.end());

interface Cell {
  readonly failpoint: Failpoint;
  /** Which hit kills: a later one finds runs in the middle of their work. */
  readonly hit: number;
  readonly scenarios: readonly string[];
  readonly sticky: boolean;
  /** The second worker starts when the first is dead, or together with it. */
  readonly second: "after" | "together";
}

const cells: Cell[] = isFull
  ? failpoints.flatMap((failpoint, f) =>
      names
        .filter((name) => comesBy(name, failpoint))
        .flatMap((name, s) =>
          [false, true].map((sticky): Cell => ({ failpoint, hit: 1 + ((f + s) % 3), scenarios: [name], sticky, second: (f + s) % 4 === 3 ? "together" : "after" })),
        ),
    )
  : failpoints.map((failpoint, f): Cell => ({
      failpoint,
      hit: 1 + (f % 2),
      // Runs that wait take longer than all others together: by default they meet the points that are theirs.
      scenarios: waitFailpoints.some((point) => point === failpoint) ? ["lives"] : names.filter((name) => name !== "lives"),
      sticky: f % 3 === 1,
      second: "after",
    }));

const kills = new Map<Failpoint, number>(failpoints.map((failpoint) => [failpoint, 0]));
const references = new Map<string, string[]>();

/** Starts two runs of each scenario in a worker pool of their own. */
async function enqueueAll(pool: string, wanted: readonly string[], each: number): Promise<{ runId: string; scenario: string }[]> {
  const runs: { runId: string; scenario: string }[] = [];
  for (let n = 0; n < each; n++) {
    for (const scenario of wanted) {
      const chosen = known[scenario];
      if (chosen === undefined) throw new Error(`no scenario ${scenario}`);
      runs.push({ scenario, runId: await enqueueRun(db, same, chosen.agent, "begin", { pool }, new DefinitionPins(definitionSha)) });
    }
  }
  return runs;
}

/** Until it has ended; an interactive run is given its inputs, one whenever it waits, and then waits for good. */
async function finish({ runId, scenario }: { runId: string; scenario: string }): Promise<void> {
  const { inputs = [], answered } = known[scenario] ?? {};
  const atRest = (given: number) => async () => {
    if (answered === true) await answerWaits(runId);
    const facts = await runFacts(db, runId);
    if (["completed", "failed", "cancelled"].includes(facts.state)) return true;
    return facts.state === "waiting" && facts.wait_reason === "input" && facts.inbox_pending === 0 && facts.turn > given;
  };
  const options = { withinMs: 300_000, describe: () => describeRun(db, runId) };
  for (const [given, input] of inputs.entries()) {
    await eventually(`${scenario} waits for input ${given + 1}`, atRest(given), options);
    await db.query("select capstan.send(run_id => $1, payload => to_jsonb($2::text), dedupe_key => $2)", [runId, input]);
  }
  await eventually(`${scenario} comes to rest`, atRest(inputs.length), options);
}

async function answerWaits(runId: string): Promise<void> {
  const open = "capstan.waits w where w.run_id = $1 and w.answered_at is null and w.settled_at is null";
  await db.query(`select capstan.decide(w.id, 'approve') from ${open} and w.kind = 'approval'`, [runId]);
  await db.query(`select capstan.signal(w.run_id, 'go', '"went"') from ${open} and w.kind = 'signal'`, [runId]);
}

function cleanWorker(pool: string, sticky: boolean, settings = quickSettings) {
  return startTestWorker({
    url: database.url,
    agents: Object.values(known).map(({ agent }) => agent),
    models: catalogueOf(chaosModel(scripts, note)),
    pool,
    settings: {
      ...settings, // Two turns: what lies between turns is met within a job and between jobs.
      stickyTurns: sticky ? { turns: 2, ms: 10_000 } : undefined,
    },
  });
}

async function runCell(cell: Cell, id: number): Promise<string[]> {
  const pool = `cell-${id}`;
  // Some points lie at the very start of a worker: the runs must be there first.
  const runs = await enqueueAll(pool, cell.scenarios, cell.scenarios.length === 1 ? 3 : 1);
  const armed = startChild({ url: database.url, effects, pool, failpoint: `${cell.failpoint}:${cell.hit}`, env: { ...quickEnv, CAPSTAN_STICKY_TURNS: cell.sticky ? "2" : "0" } });
  const child = await armed;
  const finished = Promise.all(runs.map(finish));
  finished.catch(() => {});
  if (cell.second === "after") await Promise.race([child.ended, finished]);
  const clean = await cleanWorker(pool, cell.sticky);
  try {
    await finished;
  } finally {
    await clean.stop();
  }
  // The other worker may have been quicker than the failpoint; or this scenario does not come by it.
  if (child.isAlive()) await child.stop();
  if ((await child.ended) === "SIGKILL") kills.set(cell.failpoint, (kills.get(cell.failpoint) ?? 0) + 1);
  const told = readEffects(effects);
  const problems: string[] = [];
  for (const { runId, scenario } of runs) {
    const events = (await readJournal(db, runId)).map(({ event }) => event);
    const mine = essence(events, onceTools);
    for (const problem of await breaches(db, runId, told)) problems.push(`${scenario} ${runId}: ${problem}`);
    try {
      expect(mine, `${scenario} ${runId}`).toEqual(bareReference(mine, references.get(scenario) ?? []));
    } catch (error) {
      problems.push(error instanceof Error ? error.message : String(error));
    }
  }
  return problems;
}

it("records the same journal in both ways of handing over, undisturbed", { timeout: 300_000 }, async () => {
  for (const sticky of [false, true]) {
    const pool = `reference-${sticky}`;
    const runs = await enqueueAll(pool, names, 1);
    // Leases as long as a user's: on a busy machine a short one may run out, and then this is no undisturbed run.
    const worker = await cleanWorker(pool, sticky, {});
    await Promise.all(runs.map(finish));
    await worker.stop();
    for (const { runId, scenario } of runs) {
      const rows = await readJournal(db, runId);
      expect(await breaches(db, runId, readEffects(effects))).toEqual([]);
      const mine = essence(
        rows.map(({ event }) => event),
        onceTools,
      );
      // Both ways of handing over write the same journal.
      if (references.has(scenario)) expect(mine).toEqual(references.get(scenario));
      references.set(scenario, mine);
    }
  }
});

describe(`a worker killed at ${failpoints.length} points (${cells.length} cells)`, () => {
  it("leaves runs that another worker finishes as if nothing had happened", { timeout: 3_600_000 }, async () => {
    const waiting = cells.map((cell, id) => ({ cell, id }));
    const problems: string[] = [];
    const lane = async (): Promise<void> => {
      for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
        const { cell, id } = next;
        const label = `${cell.failpoint}:${cell.hit} ${cell.scenarios.length === 1 ? cell.scenarios[0] : "all"}${cell.sticky ? " sticky" : ""}`;
        try {
          for (const problem of await runCell(cell, id)) problems.push(`${label}: ${problem}`);
        } catch (error) {
          problems.push(`${label}: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
        }
      }
    };
    await Promise.all(Array.from({ length: CELLS_AT_ONCE }, lane));
    expect(problems).toEqual([]);
  });

  it("was really killed at each of them", () => {
    console.log(`kills: ${[...kills].map(([failpoint, n]) => `${failpoint} ${n}`).join(", ")}`);
    expect([...kills].filter(([, n]) => n === 0).map(([failpoint]) => failpoint)).toEqual([]);
  });
});
