/**
 * A worker, its database and what a test wants to know afterwards. Beside the agents of the test there is always a
 * bystander: closing a lab runs it once more, so every test also shows that the worker has survived.
 */
import { createHash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type pg from "pg";
import { expect } from "vitest";
import { agent, type Agent } from "../../src/agents/agent.ts";
import type { EnqueueOptions } from "../../src/client/enqueue.ts";
import type { RunEvent, RunHandle, RunStatusView } from "../../src/client/handle.ts";
import type { WorkerSettings } from "../../src/config.ts";
import type { Model } from "../../src/engine/model-port.ts";
import type { Tracing, WarnSink } from "../../src/engine/ports.ts";
import { verifyRun, type VerifyReport, type VerifySources } from "../../src/engine/verify.ts";
import { createCapstan, type Capstan, type CapstanOptions } from "../../src/main.ts";
import { createModelCatalogue, type ModelCatalogueOptions } from "../../src/providers/catalogue.ts";
import { PostgresDefinitionStore } from "../../src/store/definitions.ts";
import { JournalReader } from "../../src/store/journal-reader.ts";
import { defaultNames, namedSql, type SchemaNames } from "../../src/store/names.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import type { RunningWorker } from "../../src/worker.ts";

/** What a lab needs of an agent, whatever its input and output. */
export type AnyAgent = Omit<Agent, "types">;

export interface LogLine {
  readonly level: "debug" | "info" | "warn" | "error";
  readonly fields: Readonly<Record<string, unknown>>;
  readonly message: string;
}

export interface LabOptions {
  readonly agents: readonly AnyAgent[];
  /** In-process models, known by their names. */
  readonly models?: readonly Model[];
  readonly catalogue?: ModelCatalogueOptions;
  readonly settings?: Partial<WorkerSettings>;
  readonly names?: SchemaNames;
  readonly onWarn?: WarnSink;
  readonly summarizers?: NonNullable<CapstanOptions["summarizers"]>;
  readonly quotas?: NonNullable<CapstanOptions["quotas"]>;
  readonly guard?: NonNullable<CapstanOptions["guard"]>;
  readonly mcp?: NonNullable<CapstanOptions["mcp"]>;
  readonly redact?: NonNullable<CapstanOptions["redact"]>;
  readonly secret?: NonNullable<CapstanOptions["secret"]>;
  readonly tracing?: Tracing;
  /** Private targets of outgoing calls. */
  readonly allow?: readonly string[];
  /** Starts no worker. */
  readonly idle?: boolean;
}

export interface Lab extends AsyncDisposable {
  readonly capstan: Capstan;
  readonly db: pg.Pool;
  readonly log: readonly LogLine[];
  readonly worker: RunningWorker | undefined;
  startWorker(): Promise<RunningWorker>;
  /** Enqueues and waits until the run has ended or is parked for somebody outside. */
  run(agent: AnyAgent | string, input: unknown, options?: EnqueueOptions): Promise<Settled>;
  settled(runId: string, timeoutMs?: number): Promise<RunStatusView>;
  events(runId: string): Promise<RunEvent[]>;
  /** Throws unless the run's journal is whole and gives every request again. */
  intact(runId: string, options?: Pick<VerifySources, "wire" | "onRequest">): Promise<VerifyReport>;
}

export interface Settled {
  readonly id: string;
  readonly handle: RunHandle;
  readonly status: RunStatusView;
  readonly events: readonly RunEvent[];
}

export const BYSTANDER_ANSWER = "the bystander is well";

export async function openLab(url: string, options: LabOptions): Promise<Lab> {
  const log: LogLine[] = [];
  const keep = (level: LogLine["level"]) => (fields: object, message: string) => void log.push({ level, fields: fields as LogLine["fields"], message });
  const bystander = agent({ name: "bystander", model: "scripted:bystander", instructions: "Be well." });
  const bystanderModel = scriptedModel([BYSTANDER_ANSWER], { name: "scripted:bystander", by: "turn" });
  const models = Object.fromEntries([bystanderModel, ...(options.models ?? [])].map((model) => [model.name, model]));
  const names = options.names ?? defaultNames;
  const capstan = createCapstan({
    connectionString: url,
    names,
    agents: [...options.agents, bystander] as readonly Agent[],
    models: createModelCatalogue({ ...options.catalogue, models: { ...options.catalogue?.models, ...models } }),
    worker: { slots: 20, ...options.settings },
    ...(options.summarizers === undefined ? {} : { summarizers: options.summarizers }),
    ...(options.quotas === undefined ? {} : { quotas: options.quotas }),
    ...(options.guard === undefined ? {} : { guard: options.guard }),
    ...(options.mcp === undefined ? {} : { mcp: options.mcp }),
    ...(options.redact === undefined ? {} : { redact: options.redact }),
    ...(options.allow === undefined ? {} : { outgoing: { allow: options.allow } }),
    ...(options.secret === undefined ? {} : { secret: options.secret }),
    observability: {
      log: { debug: keep("debug"), info: keep("info"), warn: keep("warn"), error: keep("error") },
      ...(options.onWarn === undefined ? {} : { onWarn: options.onWarn }),
      ...(options.tracing === undefined ? {} : { tracing: options.tracing }),
    },
    env: {},
  });
  const named = namedSql(names);
  const reader = new JournalReader(capstan.db, named);
  const definitions = new PostgresDefinitionStore(capstan.db, named);
  let worker: RunningWorker | undefined;
  const lab: Lab = {
    capstan,
    db: capstan.db,
    log,
    get worker() {
      return worker;
    },
    startWorker: async () => (worker = await capstan.startWorker()),
    async run(agentOrName, input, enqueueOptions) {
      const handle =
        typeof agentOrName === "string" ? await capstan.enqueue(agentOrName, input, enqueueOptions) : await capstan.enqueue(agentOrName as Agent, input, enqueueOptions);
      const status = await lab.settled(handle.id);
      return { id: handle.id, handle: handle as RunHandle, status, events: await lab.events(handle.id) };
    },
    settled: (runId, timeoutMs = 20_000) => until(`run ${runId} to settle`, async () => restingStatus(await capstan.run(runId).status()), timeoutMs),
    events: async (runId) => await collect(capstan.run(runId).events({ follow: false })),
    async intact(runId, more = {}) {
      const report = await verifyRun({ runId, rows: reader.walk(runId), definition: (sha) => definitions.get(sha), ...more });
      expect(report.problems).toEqual([]);
      return report;
    },
    async [Symbol.asyncDispose]() {
      try {
        if (worker === undefined) return;
        const run = await capstan.enqueue(bystander, "are you well?");
        expect(await run.result({ timeoutMs: 20_000 })).toBe(BYSTANDER_ANSWER);
      } finally {
        await capstan.close();
      }
    },
  };
  if (options.idle !== true) await lab.startWorker();
  return lab;
}

/** A run that waits for a retry, a summary or a quota goes on by itself; one that waits for anything else does not. */
function restingStatus(status: RunStatusView): RunStatusView | undefined {
  if (status.state === "queued" || status.state === "running") return undefined;
  return status.state === "waiting" && ["retry", "compaction", "quota"].includes(status.wait_reason ?? "") ? undefined : status;
}

export async function collect<T>(source: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const item of source) all.push(item);
  return all;
}

/** Asks again until there is an answer. */
export async function until<T>(what: string, ask: () => T | undefined | false | Promise<T | undefined | false>, timeoutMs = 20_000): Promise<T> {
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    const answer = await ask();
    if (answer !== undefined && answer !== false) return answer;
    if (performance.now() > deadline) throw new Error(`waited ${timeoutMs} ms for ${what}`);
    await sleep(15);
  }
}

export function typesOf(events: readonly RunEvent[]): string[] {
  return events.map((event) => event.type);
}

/** Payloads of the events of one type, loosely typed: tests look into them. */
// oxlint-disable-next-line typescript/no-explicit-any
export function payloads(events: readonly RunEvent[], type: string): any[] {
  return events.filter((event) => event.type === type).map((event) => event.payload);
}

export function sha256Hex(text: string): string {
  return createHash("sha256").update(text, "utf8").digest("hex");
}
