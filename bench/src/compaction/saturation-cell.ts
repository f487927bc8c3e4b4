/**
 * Child process of the saturation benchmark: the same runs without compaction and with it, by turns, on one worker of
 * each pool. A summary takes seconds, so that the pool is full all the time; the window is far away, so that no run has
 * to wait for one.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { agent } from "../../../src/agents/agent.ts";
import type { Model } from "../../../src/engine/model-port.ts";
import { createCapstan, type Capstan } from "../../../src/main.ts";
import { createModelCatalogue } from "../../../src/providers/catalogue.ts";
import { answerTurn, auditor, finalAnswer, lookupTool, problemsOnly } from "../bench-agent.ts";
import { answer } from "../child.ts";
import { modelDelayMs, promptText } from "../workload.ts";

export interface SaturationRequest {
  readonly url: string;
  /** At once. */
  readonly runs: number;
  readonly turns: number;
  readonly rounds: number;
  /** Mean of a model call. */
  readonly modelMs: number;
  readonly summaryMs: number;
}

export interface Side {
  /** From one model call to the next. */
  readonly turnMs: number[];
  /** The part of it that is not the model's. */
  readonly engineMs: number[];
}

export interface Saturation {
  readonly off: Side;
  readonly on: Side;
  /** Share of looks at which a task waited for a slot of the pool, and the mean number of tasks not yet made. */
  readonly saturatedShare: number;
  readonly meanOpenTasks: number;
  readonly applied: number;
  /** Times that a run had to wait for a summary: none should. */
  readonly waited: number;
}

const MODEL = "bench:saturation";
const LOOK_MS = 100;
/** Sixty turns of the workload take 38,000 tokens: without a summary they still fit. */
const WINDOW_TOKENS = 64_000;
/** Reached by the thirteenth turn. */
const AT_TOKENS = 9_000;

const common = { model: MODEL, instructions: auditor.definition.instructions, tools: [lookupTool], limits: { maxTurns: 1_000_000 }, warnTranscriptBytes: false } as const;
const off = agent({ name: "off", ...common });
const on = agent({ name: "on", ...common, compaction: { enabled: true, at_tokens: AT_TOKENS, summarizer: "slow" } });

async function measure({ url, runs, turns, rounds, modelMs, summaryMs }: SaturationRequest): Promise<Saturation> {
  const sides = { off: newSide(), on: newSide() };
  let side: Side | undefined;
  let nextRun = 0;
  const known = new Map<string, { readonly nth: number; startedAt: number; endedAt: number }>();
  const model: Model = {
    name: MODEL,
    structuredOutput: false,
    window: { tokens: WINDOW_TOKENS, source: "setting" },
    async call(_call, { turn, runId }) {
      const now = performance.now();
      const before = known.get(runId);
      if (before !== undefined) {
        side?.turnMs.push(now - before.startedAt);
        side?.engineMs.push(now - before.endedAt);
      }
      const entry = before ?? { nth: nextRun++ % runs, startedAt: 0, endedAt: 0 };
      known.set(runId, entry);
      entry.startedAt = now;
      await sleep(modelDelayMs(entry.nth, turn, modelMs));
      entry.endedAt = performance.now();
      return turn > turns ? finalAnswer : answerTurn(turn);
    },
  };
  const app = createCapstan({
    connectionString: url,
    agents: [off, on],
    models: createModelCatalogue({ models: { [MODEL]: model }, env: {} }),
    summarizers: {
      slow: async ({ messages, signal }) => {
        await sleep(summaryMs, undefined, { signal });
        return { summary: `${messages.length} messages were read.` };
      },
    },
    worker: { slots: runs, poolMax: 20 },
    observability: { log: { ...problemsOnly, warn() {} } },
    env: {},
  });
  await app.migrate();
  await app.startWorker();
  const depths: { open: number; waiting: number }[] = [];
  const phase = async (name: "off" | "on", isCounted: boolean): Promise<void> => {
    side = isCounted ? sides[name] : undefined;
    nextRun = 0;
    known.clear();
    const watched = new AbortController();
    const watching = name === "on" && isCounted ? watch(app, depths, watched.signal) : Promise.resolve();
    await playAll(app, name === "on" ? on : off, runs);
    side = undefined;
    watched.abort();
    await watching;
    // Tasks of ended runs are dropped by the pool: the next phase begins with an empty one.
    while ((await depthOf(app)).open > 0) await sleep(LOOK_MS);
  };
  await phase("off", false);
  await phase("on", false);
  for (let round = 0; round < rounds; round++) {
    const order = round % 2 === 0 ? (["off", "on"] as const) : (["on", "off"] as const);
    for (const name of order) await phase(name, true);
  }
  const { rows } = await app.db.query<{ applied: number; waited: number }>(
    "select count(*) filter (where type = 'context.compacted')::int as applied, count(*) filter (where type = 'run.parked' and payload ->> 'reason' = 'compaction')::int as waited from capstan.events",
  );
  await app.close();
  return {
    ...sides,
    saturatedShare: depths.filter(({ waiting }) => waiting > 0).length / Math.max(1, depths.length),
    meanOpenTasks: depths.reduce((sum, { open }) => sum + open, 0) / Math.max(1, depths.length),
    applied: rows[0]?.applied ?? 0,
    waited: rows[0]?.waited ?? 0,
  };
}

const newSide = (): Side => ({ turnMs: [], engineMs: [] });

async function playAll(app: Capstan, which: typeof off, runs: number): Promise<void> {
  const handles = await Promise.all(Array.from({ length: runs }, () => app.enqueue(which, promptText)));
  await Promise.all(handles.map((handle) => handle.result({ timeoutMs: 600_000 })));
}

async function watch(app: Capstan, depths: { open: number; waiting: number }[], stop: AbortSignal): Promise<void> {
  while (!stop.aborted) {
    const depth = await depthOf(app);
    // Before the first run has reached the trigger, and behind the last, there is nothing to be full of.
    if (depth.open > 0) depths.push(depth);
    await sleep(LOOK_MS);
  }
}

async function depthOf(app: Capstan): Promise<{ open: number; waiting: number }> {
  const { rows } = await app.db.query<{ open: number; waiting: number }>(
    "select count(*)::int as open, count(*) filter (where state = 'requested')::int as waiting from capstan.compaction_tasks where state in ('requested', 'summarizing')",
  );
  return rows[0] ?? { open: 0, waiting: 0 };
}

await answer<SaturationRequest, Saturation>(measure);
