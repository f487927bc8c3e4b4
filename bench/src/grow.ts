/**
 * The child processes of the growth benchmark: `grow` drives one run for so many turns through the real engine and
 * leaves it in the middle of its next model call; `load` reads and renders it as a resume does; `resume` lets a fresh
 * worker take it to its end.
 */
import { JournalReader } from "../../src/store/journal-reader.ts";
import { defaultNames, namedSql } from "../../src/store/names.ts";
import { createPool } from "../../src/store/pool.ts";
import { remember } from "../../src/engine/run-memory.ts";
import { breakpointsOf, renderCall, renderFrame } from "../../src/domain/transcript/render.ts";
import { createCapstan } from "../../src/main.ts";
import { answerTurn, auditor, BENCH_MODEL, finalAnswer, modelsOf, problemsOnly, turnsIn, type BenchCall } from "./bench-agent.ts";
import { answer } from "./child.ts";
import { promptText } from "./workload.ts";

export type GrowRequest = { readonly url: string } & ({ readonly kind: "grow"; readonly turns: number } | { readonly kind: "load" | "resume"; readonly runId: string });

export interface Grown {
  readonly runId: string;
  readonly ms: number;
  /** The turn in which the growth warning came. */
  readonly warnedAtTurn: number | undefined;
}
export interface Loaded {
  readonly ms: number;
  readonly messages: number;
  readonly callBytes: number;
}
export interface Resumed {
  /** From the start of the worker to the first model call: connecting, registering and the queue included. */
  readonly ms: number;
  readonly modelCalls: number;
}

/** One job drives the whole run: what is measured is bytes, not the queue. */
const sticky = { turns: 1_000_000, ms: 86_400_000 };

function capstanOf(url: string, call: BenchCall, onWarn: (message: string, detail: object) => void = () => {}) {
  return createCapstan({
    connectionString: url,
    agents: [auditor],
    models: modelsOf(call),
    worker: { slots: 1, stickyTurns: sticky },
    observability: { log: problemsOnly, onWarn },
    env: {},
  });
}

async function grow(url: string, turns: number): Promise<Grown> {
  let reached: () => void = () => {};
  const atEnd = new Promise<void>((resolve) => (reached = resolve));
  let turn = 0;
  let warnedAtTurn: number | undefined;
  const app = capstanOf(
    url,
    async (call, { signal }) => {
      turn = turnsIn(call);
      if (turn < turns) return answerTurn(turn);
      reached();
      await new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
      return { kind: "aborted" };
    },
    (_message, detail) => {
      warnedAtTurn = Number((detail as { turn?: unknown }).turn ?? turn);
    },
  );
  const worker = await app.startWorker();
  const started = performance.now();
  const { id } = await app.enqueue(auditor, promptText);
  await atEnd;
  const ms = performance.now() - started;
  await worker.stop({ graceMs: 0 });
  await app.close();
  return { runId: id, ms, warnedAtTurn };
}

/** What lies between a job and its model call after a crash, alone: read the journal, fold it, hash and render the call. */
async function load(url: string, runId: string): Promise<Loaded> {
  const pool = createPool({ connectionString: url, max: 1, applicationName: "capstan bench" });
  await pool.query("select 1");
  const started = performance.now();
  const loaded = await new JournalReader(pool, namedSql(defaultNames)).load(runId);
  if (loaded === undefined) throw new Error(`there is no run ${runId}`);
  const { state, meter } = remember(loaded, started);
  const frame = renderFrame(auditor.definition, BENCH_MODEL, false);
  const breakpoints = breakpointsOf(state.view.length);
  const { sizeBytes } = meter.close(frame, state, { model: frame.model, settings: frame.settings, breakpoints });
  const call = renderCall(frame, [...state.view], breakpoints);
  const ms = performance.now() - started;
  await pool.end();
  return { ms, messages: call.messages.length, callBytes: sizeBytes };
}

async function resume(url: string, runId: string): Promise<Resumed> {
  let modelCalls = 0;
  let calledAt = 0;
  const app = capstanOf(url, async () => {
    if (modelCalls++ === 0) calledAt = performance.now();
    return finalAnswer;
  });
  const started = performance.now();
  await app.startWorker();
  await app.run(runId).result({ timeoutMs: 120_000 });
  await app.close();
  return { ms: calledAt - started, modelCalls };
}

await answer<GrowRequest, Grown | Loaded | Resumed>(async (request) => {
  if (request.kind === "grow") return await grow(request.url, request.turns);
  return request.kind === "load" ? await load(request.url, request.runId) : await resume(request.url, request.runId);
});
