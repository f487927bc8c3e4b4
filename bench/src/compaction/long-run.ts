/**
 * Child processes of the long run: `run` drives one run to its end with a worker of each pool and stops at some turns to
 * be looked at; `load` takes the run up as a resume does, in a fresh process.
 */
import { messageText } from "../../../src/domain/transcript/message.ts";
import { remember, viewDigest } from "../../../src/engine/run-memory.ts";
import { verifyRun } from "../../../src/engine/verify.ts";
import { createCapstan } from "../../../src/main.ts";
import { createModelCatalogue } from "../../../src/providers/catalogue.ts";
import { PostgresDefinitionStore } from "../../../src/store/definitions.ts";
import { JournalReader } from "../../../src/store/journal-reader.ts";
import { defaultNames, namedSql } from "../../../src/store/names.ts";
import { createPool } from "../../../src/store/pool.ts";
import { problemsOnly } from "../bench-agent.ts";
import { answer, inChild } from "../child.ts";
import { median } from "../statistics.ts";
import { LONG_MODEL, longModel, PINNED, reader } from "./long-run-agent.ts";

export type LongRunRequest =
  | { readonly kind: "run"; readonly url: string; readonly turns: number; readonly stops: readonly number[] }
  | { readonly kind: "load"; readonly url: string; readonly runId: string };

interface Loaded {
  /** In a process that has loaded nothing before, and in one that has. */
  readonly ms: number;
  readonly warmMs: number;
  readonly eventsRead: number;
  readonly journalEvents: number;
  readonly headBytes: number;
  readonly viewBytes: number;
  readonly messages: number;
  readonly holdsPin: boolean;
}

export interface Stop extends Loaded {
  readonly turn: number;
}

export interface LongRun {
  readonly stops: readonly Stop[];
  readonly ms: number;
  readonly applied: number;
  /** Skips and failures by reason. */
  readonly notApplied: Readonly<Record<string, number>>;
  readonly tokensSaved: number;
  readonly ledgerLeftOut: number;
  /** Median milliseconds from an answer to the next call, around a turn: two commits and a tool. */
  readonly engineMs: Readonly<Record<string, number>>;
  readonly largestMarkerBytes: number;
  readonly verify: { readonly ms: number; readonly requests: number; readonly markers: number; readonly problems: readonly string[] };
}

/** Fresh processes; loads in each behind the first. */
const LOADS = 3;
const WARM_LOADS = 9;
/** Turns before and behind one that are looked at for its engine time: the median leaves out those with a compaction. */
const AROUND = 40;

async function run(url: string, turns: number, stops: readonly number[]): Promise<LongRun> {
  const found: Stop[] = [];
  /** By turn: from the answer before to this turn's call. */
  const gaps: number[] = [];
  let answeredAt = 0;
  let warm = true;
  let runId = "";
  const app = createCapstan({
    connectionString: url,
    agents: [reader],
    models: createModelCatalogue({
      models: {
        [LONG_MODEL]: longModel(
          turns,
          async (turn) => {
            if (warm) return;
            gaps[turn] = performance.now() - answeredAt;
            if (stops.includes(turn)) found.push({ turn, ...(await looked(url, runId)) });
          },
          () => {
            answeredAt = performance.now();
          },
        ),
      },
      env: {},
    }),
    // One job drives the whole run: what is measured is the run, not the queue.
    worker: { slots: 1, stickyTurns: { turns: 1_000_000, ms: 86_400_000 } },
    observability: { log: { ...problemsOnly, warn() {} } },
    env: {},
  });
  await app.migrate();
  const worker = await app.startWorker();
  // Compiled code, warm caches: the first turns of a process cost what no later one does.
  const { id: warmId } = await app.enqueue(reader, "Warm up.");
  await until(async () => (await app.run(warmId).status()).turn > 120);
  await app.run(warmId).cancel();
  warm = false;
  const started = performance.now();
  const { id } = await app.enqueue(reader, "Read the whole ledger.");
  runId = id;
  await app.run(id).result({ timeoutMs: 3_600_000 });
  const ms = performance.now() - started;
  const around = (turn: number): number => median(gaps.slice(Math.max(2, turn - AROUND), turn + AROUND).filter((gap) => gap !== undefined));
  const engineMs = Object.fromEntries([10, turns].map((turn) => [turn, around(turn)]));
  const measured = await readRun(url, id);
  await worker.stop();
  await app.close();
  return { stops: found, ms, engineMs, ...measured };
}

async function looked(url: string, runId: string): Promise<Loaded> {
  const loads: Loaded[] = [];
  for (let i = 0; i < LOADS; i++) {
    const outcome = await inChild<Loaded>(new URL(import.meta.url), { kind: "load", url, runId } satisfies LongRunRequest, { killAfterMs: 120_000 });
    if (!outcome.ok) throw new Error(outcome.error);
    loads.push(outcome.value);
  }
  return { ...(loads[0] as Loaded), ms: median(loads.map((loaded) => loaded.ms)), warmMs: median(loads.map((loaded) => loaded.warmMs)) };
}

async function load(url: string, runId: string): Promise<Loaded> {
  const pool = createPool({ connectionString: url, max: 1, applicationName: "capstan bench" });
  await pool.query("select 1");
  const once = async () => {
    const started = performance.now();
    const loaded = await new JournalReader(pool, namedSql(defaultNames)).load(runId);
    if (loaded === undefined) throw new Error(`there is no run ${runId}`);
    const { state } = remember(loaded, started);
    return { ms: performance.now() - started, loaded, state };
  };
  const { ms, loaded, state } = await once();
  const again: number[] = [];
  for (let i = 0; i < WARM_LOADS; i++) again.push((await once()).ms);
  await pool.end();
  const [first] = state.view;
  return {
    ms,
    warmMs: median(again),
    eventsRead: loaded.events.length,
    journalEvents: loaded.row.nextSeq - 1,
    headBytes: state.marker === undefined || first === undefined ? 0 : Buffer.byteLength(messageText(first)),
    viewBytes: viewDigest(state.view).bytes,
    messages: state.view.length,
    holdsPin: state.view.some((message) => messageText(message).includes(PINNED)),
  };
}

async function readRun(url: string, runId: string): Promise<Omit<LongRun, "stops" | "ms" | "engineMs">> {
  const pool = createPool({ connectionString: url, max: 2, applicationName: "capstan bench" });
  const named = namedSql(defaultNames);
  const { rows: markers } = await pool.query<{ n: number; saved: number; left_out: number; largest: number }>(
    `select count(*)::int as n, coalesce(sum((payload #>> '{before,tokens}')::int - (payload #>> '{after,tokens}')::int), 0)::float8 as saved,
       coalesce(max((payload #>> '{head,ledger_left_out}')::int), 0) as left_out, coalesce(max(octet_length(payload::text)), 0) as largest
     from capstan.events where run_id = $1 and type = 'context.compacted'`,
    [runId],
  );
  const { rows: reasons } = await pool.query<{ reason: string; n: number }>(
    "select payload ->> 'reason' as reason, count(*)::int as n from capstan.events where run_id = $1 and type in ('compaction.skipped', 'compaction.failed') group by 1",
    [runId],
  );
  const definitions = new PostgresDefinitionStore(pool, named);
  const started = performance.now();
  const { requests, markers: verified, problems } = await verifyRun({ runId, rows: new JournalReader(pool, named).walk(runId), definition: (sha) => definitions.get(sha) });
  const verify = { ms: performance.now() - started, requests, markers: verified, problems };
  await pool.end();
  const [totals] = markers;
  return {
    applied: totals?.n ?? 0,
    notApplied: Object.fromEntries(reasons.map(({ reason, n }) => [reason, n])),
    tokensSaved: totals?.saved ?? 0,
    ledgerLeftOut: totals?.left_out ?? 0,
    largestMarkerBytes: totals?.largest ?? 0,
    verify,
  };
}

async function until(ask: () => Promise<boolean>): Promise<void> {
  while (!(await ask())) await new Promise((resolve) => setTimeout(resolve, 50));
}

await answer<LongRunRequest, LongRun | Loaded>(async (request) =>
  request.kind === "run" ? await run(request.url, request.turns, request.stops) : await load(request.url, request.runId),
);
