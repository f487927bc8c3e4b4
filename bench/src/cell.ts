/** One cell in a process of its own: `node cell.ts '{"kind": …}'`. Sends its result to the parent, which made the database. */
import { setTimeout as sleep } from "node:timers/promises";
import { answer } from "./child.ts";
import { engines, type EngineName } from "./engines/index.ts";
import type { EngineHooks } from "./engines/engine.ts";
import { readCounters } from "./counters.ts";
import { modelDelayMs } from "./workload.ts";

export interface CellRequest {
  readonly kind: "throughput" | "latency";
  readonly engine: EngineName;
  readonly url: string;
  readonly serverUrl: string;
  readonly database: string;
  readonly postmasterPid?: number;
  readonly concurrency: number;
  readonly runs: number;
  readonly turns: number;
  /** Mean time of a model call; 0 answers at once. */
  readonly modelMs: number;
  /** Latency: how many runs are enqueued one by one while all is idle. */
  readonly samples: number;
}

export interface ThroughputResult {
  readonly turnsPerSecond: number;
  readonly writingCommits: number;
  readonly commits: number;
  readonly fsyncs: number;
  readonly statements: number | undefined;
  readonly walBytes: number;
  readonly cpuMs: number;
  readonly serverCpuMs: number | undefined;
  readonly rssMb: number;
  readonly problems: number;
}

export interface LatencyResult {
  readonly firstEventMs: readonly number[];
  readonly firstTurnMs: readonly number[];
  readonly turnToTurnMs: readonly number[];
}

export interface CellResult {
  readonly throughput?: ThroughputResult;
  readonly latency?: LatencyResult;
}

/** A cell that stands still says so instead of hanging. */
const DEADLINE_MS = 180_000;

class Watch implements EngineHooks {
  turns = 0;
  firstAt = 0;
  lastAt = 0;
  problems = 0;
  readonly firstEventAt = new Map<number, number>();
  readonly turnAt = new Map<number, number[]>();
  #left = 0;
  #resolve: () => void = () => {};

  firstEvent(run: number): void {
    this.firstEventAt.set(run, performance.now());
  }

  turn(run: number): void {
    const now = performance.now();
    if (this.turns++ === 0) this.firstAt = now;
    this.lastAt = now;
    const times = this.turnAt.get(run);
    if (times === undefined) this.turnAt.set(run, [now]);
    else times.push(now);
  }

  done(_run: number, error?: unknown): void {
    if (error !== undefined) {
      this.problems++;
      console.error("a run failed:", error);
    }
    if (--this.#left === 0) this.#resolve();
  }

  /** Forgets all, then waits for so many ends. */
  expect(runs: number): Promise<void> {
    this.turns = 0;
    this.problems = 0;
    this.firstEventAt.clear();
    this.turnAt.clear();
    this.#left = runs;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`${this.#left} of ${runs} runs had not ended after ${DEADLINE_MS} ms`)), DEADLINE_MS);
      this.#resolve = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

async function runCell(request: CellRequest): Promise<CellResult> {
  const watch = new Watch();
  let modelMs = 0;
  const started = await engines[request.engine].start({
    url: request.url,
    concurrency: request.concurrency,
    hooks: watch,
    think: (run, turn) => (modelMs === 0 ? undefined : sleep(modelDelayMs(run, turn, modelMs))),
  });
  let total = 0;
  let events = 0;
  const enqueue = async (runs: number, turns: number): Promise<number> => {
    const first = total;
    total += runs;
    events += runs * (2 * turns + 1);
    const ended = watch.expect(runs);
    await Promise.all(Array.from({ length: runs }, (_, i) => started.enqueue(first + i, turns)));
    await ended;
    return first;
  };
  await enqueue(Math.max(4, Math.min(10, request.concurrency)), 4);
  modelMs = request.modelMs;
  const stop = async (): Promise<void> => {
    await started.verify?.(total, events);
    await Promise.race([started.stop(), sleep(10_000)]);
  };
  if (request.kind === "throughput") return { throughput: await measureThroughput(request, watch, enqueue, stop) };
  const latency = await measureLatency(request, watch, enqueue);
  await stop();
  return { latency };
}

type Enqueue = (runs: number, turns: number) => Promise<number>;

async function measureThroughput(request: CellRequest, watch: Watch, enqueue: Enqueue, stop: () => Promise<void>): Promise<ThroughputResult> {
  const read = () => readCounters(request.serverUrl, request.database, request.postmasterPid);
  await sleep(600);
  const before = await read();
  const cpuBefore = process.cpuUsage();
  await enqueue(request.runs, request.turns);
  const cpu = process.cpuUsage(cpuBefore);
  const { turns, firstAt, lastAt, problems } = watch;
  const atEnd = await read();
  await stop();
  await sleep(300);
  const after = await read();
  const per = (from: number, to: number): number => (to - from) / turns;
  if (turns !== request.runs * request.turns) throw new Error(`${turns} turns were committed instead of ${request.runs * request.turns}`);
  return {
    turnsPerSecond: ((turns - 1) / (lastAt - firstAt)) * 1_000,
    walBytes: per(before.walBytes, atEnd.walBytes),
    // One id was the reading's own.
    writingCommits: per(before.writingCommits + 1, atEnd.writingCommits),
    commits: per(before.commits, after.commits),
    fsyncs: per(before.fsyncs, after.fsyncs),
    statements: before.statements === undefined || atEnd.statements === undefined ? undefined : per(before.statements, atEnd.statements),
    cpuMs: (cpu.user + cpu.system) / 1_000 / turns,
    serverCpuMs: before.serverCpuMs === undefined || atEnd.serverCpuMs === undefined ? undefined : per(before.serverCpuMs, atEnd.serverCpuMs),
    rssMb: Math.round(process.resourceUsage().maxRSS / 1_024),
    problems,
  };
}

const GAP_RUNS = 4;
const GAP_TURNS = 60;

async function measureLatency(request: CellRequest, watch: Watch, enqueue: Enqueue): Promise<LatencyResult> {
  const firstEventMs: number[] = [];
  const firstTurnMs: number[] = [];
  const turnToTurnMs: number[] = [];
  for (let i = 0; i < request.samples; i++) {
    // Not in step with any poll interval.
    await sleep(100 + Math.random() * 200);
    const startedAt = performance.now();
    const run = await enqueue(1, 1);
    const event = watch.firstEventAt.get(run);
    if (event !== undefined) firstEventMs.push(event - startedAt);
    firstTurnMs.push(watch.firstAt - startedAt);
  }
  for (let i = 0; i < GAP_RUNS; i++) {
    const run = await enqueue(1, GAP_TURNS);
    const times = watch.turnAt.get(run) ?? [];
    for (let k = 1; k < times.length; k++) turnToTurnMs.push((times[k] as number) - (times[k - 1] as number));
  }
  return { firstEventMs, firstTurnMs, turnToTurnMs };
}

await answer(runCell);
