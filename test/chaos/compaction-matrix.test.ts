/**
 * Kills a worker of turns or of summaries (SIGKILL) at every failpoint around a compaction and lets another finish, then
 * looks at what has become of each task and whether the view rebuilt from its marker is the one that was alive, at every
 * event. By default four points once, over all scenarios side by side; CAPSTAN_CHAOS=full takes all of them, kind by kind.
 */
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { describe, expect, it } from "vitest";
import { DefinitionPins, enqueueRun } from "../../src/client/enqueue.ts";
import { compactionFailpoints, type Failpoint } from "../../src/engine/failpoints.ts";
import { definitionSha } from "../../src/store/definitions.ts";
import { createTestDatabase } from "../support/database.ts";
import { killChildrenAfterAll, quickEnv, startChild } from "./child-worker.ts";
import { compactionBreaches, openTasks } from "./compaction-checks.ts";
import { compactionModels, compactionScenarios, compactionSummarizers } from "./compaction-scenarios.ts";
import { effectNoter, readEffects } from "./effects.ts";
import { breaches } from "./invariants.ts";
import { describeRun, eventually, readJournal, runFacts } from "./journal.ts";
import { catalogueOf, chaosModel } from "./model.ts";
import { quickSettings, same, startTestWorker } from "./start-worker.ts";

const isFull = process.env["CAPSTAN_CHAOS"] === "full";
/** Tasks are taken by whoever is there: cells that run side by side have databases of their own. */
const lanes = await Promise.all([1, 2, 3, 4].slice(0, isFull ? 4 : 3).map(async () => await createTestDatabase()));
const effects = join(mkdtempSync(join(tmpdir(), "capstan-compaction-chaos-")), "effects.jsonl");
const note = effectNoter(effects);
const known = compactionScenarios(note);
// Its calls are given up early, which a busy machine would do to it too.
const names = Object.keys(known).filter((name) => name !== "impatient");
killChildrenAfterAll();

const waitsForIt = new Set(["hard", "overflow", "manual", "whole"]);

type Role = "turn" | "summarize";

interface Point {
  readonly failpoint: Failpoint;
  readonly role: Role;
}

interface Cell extends Point {
  /** Which hit kills. */
  readonly hit: number;
  readonly scenarios: readonly string[];
  readonly sticky: boolean;
}

/** Points of every turn and every job: met around requests, markers and waits, if the hit is late enough. */
const everywhere: readonly Point[] = [
  { failpoint: "request.committed", role: "turn" },
  { failpoint: "append.unacknowledged", role: "turn" },
  { failpoint: "job.before_completion", role: "turn" },
  { failpoint: "run.loaded", role: "turn" },
  { failpoint: "job.before_completion", role: "summarize" },
];
const allPoints: readonly Point[] = [
  ...compactionFailpoints.map((failpoint): Point => ({ failpoint, role: failpoint.startsWith("summarize.") ? "summarize" : "turn" })),
  ...everywhere,
];
/** By default one on each side of each hand-over; all of them in full, which CI runs. */
const quick = new Set<Failpoint>(["compaction.committed", "summarize.claimed", "summarize.before_finish", "marker.committed"]);
const points = isFull ? allPoints : allPoints.filter(({ failpoint }) => quick.has(failpoint));
const isOfEveryTurn = ({ failpoint, role }: Point): boolean => role === "turn" && everywhere.some((point) => point.failpoint === failpoint);
/** A scenario's first compaction begins in its sixth turn or so, and several runs share the hits. */
const hitOf = (point: Point, n: number, runs: number): number => (isOfEveryTurn(point) ? (5 + (n % 4) * 2) * runs : 1 + (runs === 1 ? Number(n % 3 === 2) : n % 2));

/** Scenarios of one kind share the cells in full; what is met at every turn is met by all that wait, side by side. */
const groups = [["share"], ["bytes"], ["hard"], ["prefetch"], ["overflow"], ["manual", "whole"], ["self", "self-once"]];
const groupsAt = ({ failpoint }: Point): readonly (readonly string[])[] => {
  if (everywhere.every((point) => point.failpoint !== failpoint)) return groups;
  return [
    ["share", ...waitsForIt],
    ["bytes", ...waitsForIt],
  ];
};

const cells: Cell[] = isFull
  ? points.flatMap((point, p) =>
      groupsAt(point).map((scenarios, s): Cell => ({ ...point, hit: hitOf(point, p + s, Math.ceil(scenarios.length / 2)), scenarios, sticky: (p + s) % 2 === 1 })),
    )
  : points.map((point, p): Cell => ({ ...point, hit: hitOf(point, p, Math.ceil(names.length / 2)), scenarios: names, sticky: p % 3 === 1 }));

const labelOf = ({ failpoint, role }: Point): string => `${role} ${failpoint}`;
const kills = new Map<string, number>(points.map((point) => [labelOf(point), 0]));
let markers = 0;

type Run = { readonly runId: string; readonly scenario: string };

/** Until it has ended, or an interactive one has had all its steps. */
async function finish(db: pg.Pool, { runId, scenario }: Run): Promise<void> {
  const options = { withinMs: 300_000, describe: () => describeRun(db, runId) };
  const rest = (what: string, turnsAbove: number): Promise<unknown> =>
    eventually(
      `${scenario} ${what}`,
      async () => {
        const { state, wait_reason: reason, inbox_pending: pending, turn } = await runFacts(db, runId);
        if (["completed", "failed", "cancelled"].includes(state)) return true;
        return state === "waiting" && reason === "input" && pending === 0 && turn > turnsAbove && (await openTasks(db, [runId])) === 0;
      },
      options,
    );
  await rest("rests", 0);
  for (const step of known[scenario]?.steps ?? []) {
    const { turn } = await runFacts(db, runId);
    if (step === "compact") await db.query("select capstan.compact_run($1)", [runId]);
    else await db.query("select capstan.send(run_id => $1, payload => '\"go on\"')", [runId]);
    await rest(`rests after ${step}`, step === "compact" ? turn - 1 : turn);
  }
}

async function runCell(cell: Cell, id: number, url: string, db: pg.Pool): Promise<string[]> {
  const pool = `cell-${id}`;
  const poolOf = (role: Role): string => (role === "turn" ? pool : "summarize");
  const clean = (role: Role) =>
    startTestWorker({
      url,
      agents: Object.values(known).map(({ agent }) => agent),
      models: catalogueOf(chaosModel({}, note), compactionModels(note)),
      summarizers: compactionSummarizers(note),
      pool: poolOf(role),
      settings: { ...quickSettings, stickyTurns: cell.sticky ? { turns: 2, ms: 10_000 } : undefined },
    });
  const runs: Run[] = [];
  for (const scenario of cell.scenarios) {
    const { agent } = known[scenario] as (typeof known)[string];
    runs.push({ scenario, runId: await enqueueRun(db, same, agent, "Look all pages up.", { pool }, new DefinitionPins(definitionSha)) });
  }
  const [child, other] = await Promise.all([
    startChild({ url, effects, pool: poolOf(cell.role), failpoint: `${cell.failpoint}:${cell.hit}`, env: { ...quickEnv, CAPSTAN_STICKY_TURNS: cell.sticky ? "2" : "0" } }),
    clean(cell.role === "turn" ? "summarize" : "turn"),
  ]);
  const finished = Promise.all(runs.map((run) => finish(db, run)));
  finished.catch(() => {});
  await Promise.race([child.ended, finished]);
  const heir = await clean(cell.role);
  const ids = runs.map(({ runId }) => runId);
  try {
    await finished;
    await eventually("all tasks are settled", async () => (await openTasks(db, ids)) === 0, {
      describe: async () => (await Promise.all(ids.map((runId) => describeRun(db, runId)))).join("\n"),
    });
  } finally {
    await Promise.all([other.stop(), heir.stop(), child.stop()]);
  }
  if ((await child.ended) === "SIGKILL") kills.set(labelOf(cell), (kills.get(labelOf(cell)) ?? 0) + 1);
  const told = readEffects(effects);
  const problems: string[] = [];
  for (const { runId, scenario } of runs) {
    const own = [...(await breaches(db, runId, told)), ...(await compactionBreaches(db, runId))];
    const { state, wait_reason: reason } = await runFacts(db, runId);
    if (state !== "completed" && reason !== "input") own.push(`came to rest as ${state} ${reason}`);
    const applied = (await readJournal(db, runId)).filter(({ event }) => event.type === "context.compacted").length;
    // The others go on meanwhile, and may have come to their end before a summary was there.
    if (applied === 0 && waitsForIt.has(scenario)) own.push("was never compacted");
    markers += applied;
    problems.push(...own.map((problem) => `${scenario} ${runId}: ${problem}`));
  }
  return problems;
}

describe(`workers killed at ${points.length} points of a compaction (${cells.length} cells)`, () => {
  it("leave each task to others, who settle it once, and a view that is rebuilt as it was", { timeout: 3_600_000 }, async () => {
    const waiting = cells.map((cell, id) => ({ cell, id }));
    const problems: string[] = [];
    const work = async (url: string): Promise<void> => {
      const db = new pg.Pool({ connectionString: url, max: 6 });
      db.on("error", () => {});
      for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
        const { cell, id } = next;
        const label = `${labelOf(cell)}:${cell.hit} ${cell.scenarios.join("+")}${cell.sticky ? " sticky" : ""}`;
        try {
          for (const problem of await runCell(cell, id, url, db)) problems.push(`${label}: ${problem}`);
        } catch (error) {
          problems.push(`${label}: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
        }
      }
      await db.end();
    };
    await Promise.all(lanes.map(({ url }) => work(url)));
    expect(problems).toEqual([]);
  });

  it("were really killed at each of them, and runs compacted more than once", () => {
    console.log(`kills: ${[...kills].map(([point, n]) => `${point} ${n}`).join(", ")}; markers ${markers}`);
    expect([...kills].filter(([, n]) => n === 0).map(([point]) => point)).toEqual([]);
    expect(markers).toBeGreaterThan(cells.flatMap(({ scenarios }) => scenarios).length);
  });
});
