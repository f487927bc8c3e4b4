/** The demo's course: start workers, enqueue audits, kill one worker on the way, wait for every end, check. */
import { randomBytes } from "node:crypto";
import { mkdir } from "node:fs/promises";
import { join, relative, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { createCapstan, type Capstan } from "../../main.ts";
import type { Database } from "../database.ts";
import { bytes } from "../format.ts";
import { COMPACTED, demoAgents, demoOptions, SELF_COMPACTED, WARNED } from "./agents.ts";
import { planAudits, type PlannedAudit } from "./audits.ts";
import { checkRuns } from "./check.ts";
import { Crash } from "./crash.ts";
import { Fleet } from "./fleet.ts";
import { isEnded, Progress } from "./progress.ts";
import { cancelLeftOvers, readRuns, type RunRow } from "./run-rows.ts";
import { killedOf, seconds, type DemoRun, type DemoSummary } from "./summary.ts";

export interface ShowOptions {
  readonly database: Database;
  readonly dir: string;
  readonly runs: number;
  readonly stderr: NodeJS.WriteStream;
  /** Fires when the demo is to stop: then it cancels its runs, ends its processes and gives undefined. */
  readonly signal: AbortSignal;
}

const WORKERS = 2;
const LOOK_EVERY_MS = 150;
/** Of the turns that all runs are expected to take. */
const KILL_AT = 0.4;
/** Above the default lease (8 s) and the sweep's pace (2 s), with room for a slow machine. */
const MARGIN_AFTER_LEASE_MS = 7_000;
/** Runs that take longer hang: offline ones end within a minute, on a busy machine within two; a real model may think for long. */
const OFFLINE_LIMIT_MS = 240_000;
const ONLINE_LIMIT_MS = 30 * 60_000;

export async function show(options: ShowOptions): Promise<DemoSummary | undefined> {
  const { database, signal, stderr } = options;
  const startedMs = performance.now();
  const dir = resolve(options.dir);
  const reportsDir = join(database.config.dir, "reports");
  const logsDir = join(database.config.dir, "logs");
  await mkdir(logsDir, { recursive: true });
  // A pool of its own: neither the workers of `capstan up` nor those of another demo take these runs, whose folder they do not have.
  const pool = `demo-${randomBytes(4).toString("hex")}`;
  const agents = demoAgents({ root: dir, reportsDir });
  const auditor = agents[WARNED];
  const capstan = createCapstan({ connectionString: database.url, directConnectionString: database.directUrl, ...demoOptions({ root: dir, reportsDir }) });
  const folders = new Map<string, string>();
  const warned = new Set<string>();
  const fleet: Fleet = new Fleet(
    {
      databaseUrl: database.url,
      directUrl: database.directUrl,
      pool,
      root: dir,
      reportsDir,
      onGrowthWarning(runId) {
        if (!warned.has(runId)) progress.note(`growth warning for the run on ${folders.get(runId) ?? "?"}: its transcript is above 256 KB and it has no compaction`);
        warned.add(runId);
      },
    },
    logsDir,
  );
  const progress = new Progress({ stream: stderr, folderOf: (id) => folders.get(id) ?? "?", workerName: (id) => fleet.nameOf(id) });
  const crash = new Crash(fleet, database);
  const ids: string[] = [];
  try {
    await capstan.migrate();
    const leftOver = await cancelLeftOvers(database);
    if (leftOver > 0) progress.note(`cancelled ${leftOver} runs of an earlier demo that was killed`);
    const audits = await planAudits(dir, options.runs);
    progress.note(`auditing ${dir} with ${auditor.definition.model}, in ${audits.length} runs of two tenants, by ${WORKERS} worker processes`);
    await fleet.start(WORKERS);
    for (const { agent, tenant, input } of audits) {
      const run = await capstan.enqueue(agents[agent], input, { tenant, pool, labels: ["demo"] });
      ids.push(run.id);
      folders.set(run.id, agent === WARNED ? input.folder : `${input.folder} (${agent})`);
    }
    const limitMs = auditor.definition.model.startsWith("offline:") ? OFFLINE_LIMIT_MS : ONLINE_LIMIT_MS;
    const rows = await watch({ database, ids, audits, fleet, crash, progress, folders, signal, deadlineMs: performance.now() + limitMs });
    if (rows === undefined) {
      await cancelAll(capstan, ids);
      progress.end();
      if (ids.length > 0) progress.note(`stopped; its ${ids.length} runs are cancelled`);
      return undefined;
    }
    await fleet.stop();
    const { requests, markers, problems } = await checkRuns({ ...database, runs: rows, reportsDir, warned, isOffline: auditor.definition.model.startsWith("offline:") });
    const runs = rows.map((row): DemoRun => demoRun(row, { folder: folders.get(row.id) ?? "?", reportsDir, isWarned: warned.has(row.id), takeoverMs: crash.takeoverMs(row.id) }));
    const wanted = new Set(audits.flatMap(({ agent }, i) => (agent === COMPACTED || agent === SELF_COMPACTED ? [ids[i]] : [])));
    const lacking = rows
      .filter((row) => wanted.has(row.id) && row.compactions === 0 && row.state === "completed")
      .map((row) => `run ${row.id} was to be compacted and was not: the folder is too small for it; try another --dir`);
    return summarize({
      dir,
      model: auditor.definition.model,
      startedMs,
      runs,
      crash,
      requests,
      leaseMs: database.config.worker.leaseMs,
      markers,
      problems: auditor.definition.model.startsWith("offline:") ? [...problems, ...lacking] : problems,
    });
  } finally {
    progress.end();
    await fleet.stop();
    await capstan.close();
  }
}

interface WatchOptions {
  readonly database: Database;
  readonly ids: readonly string[];
  readonly audits: readonly PlannedAudit[];
  readonly fleet: Fleet;
  readonly crash: Crash;
  readonly progress: Progress;
  readonly folders: ReadonlyMap<string, string>;
  readonly signal: AbortSignal;
  readonly deadlineMs: number;
}

/** Until all runs have ended or time is up. Undefined when it was stopped. */
async function watch({ database, ids, audits, crash, progress, folders, signal, deadlineMs }: WatchOptions): Promise<RunRow[] | undefined> {
  const wanted = KILL_AT * audits.reduce((sum, audit) => sum + audit.expectedTurns, 0);
  const ended = new Set<string>();
  const epochs = new Map<string, number>();
  for (;;) {
    if (signal.aborted) return undefined;
    const rows = await readRuns(database, ids);
    progress.update(rows);
    for (const row of rows.filter((each) => isEnded(each) && !ended.has(each.id))) {
      ended.add(row.id);
      progress.note(`the run on ${folders.get(row.id) ?? "?"} ${row.state} after ${row.turn} turns`);
    }
    for (const row of rows) {
      if (row.compactions > (epochs.get(row.id) ?? 0))
        progress.note(`the run on ${folders.get(row.id) ?? "?"} was compacted at turn ${row.turn}: its transcript is ${bytes(row.transcriptBytes)} now`);
      epochs.set(row.id, row.compactions);
    }
    for (const { runId, afterMs } of await crash.newTakeovers())
      progress.note(`the run on ${folders.get(runId) ?? "?"} goes on under another worker, ${seconds(afterMs)} after the kill`);
    if (ended.size === rows.length || performance.now() > deadlineMs) return rows;
    const turns = rows.reduce((sum, row) => sum + row.turn, 0);
    if (crash.mayTry && (turns >= wanted || ended.size > 0) && (await crash.kill(rows)) && crash.report !== undefined) {
      const { worker, pid, runsHeld } = crash.report;
      progress.note(`killed worker ${worker} (process ${pid}) with SIGKILL; it held ${runsHeld} run${runsHeld === 1 ? "" : "s"}`);
      continue;
    }
    await sleep(LOOK_EVERY_MS, undefined, { signal }).catch(() => {});
  }
}

async function cancelAll(capstan: Capstan, ids: readonly string[]): Promise<void> {
  for (const id of ids) await capstan.run(id).cancel("the demo was stopped", { actor: "demo" });
}

interface RunFacts {
  readonly folder: string;
  readonly reportsDir: string;
  readonly isWarned: boolean;
  readonly takeoverMs: number | undefined;
}

function demoRun(row: RunRow, { folder, reportsDir, isWarned, takeoverMs }: RunFacts): DemoRun {
  return {
    run_id: row.id,
    tenant: row.tenant,
    folder,
    state: row.state,
    turns: row.turn,
    events: row.events,
    journal_bytes: row.journalBytes,
    transcript_bytes: row.transcriptBytes,
    compactions: row.compactions,
    growth_warning: isWarned,
    taken_over: takeoverMs !== undefined,
    ...(takeoverMs === undefined ? {} : { takeover_ms: takeoverMs }),
    report: relative(process.cwd(), join(reportsDir, `${row.id}.md`)),
  };
}

interface Outcome {
  readonly dir: string;
  readonly model: string;
  readonly startedMs: number;
  readonly runs: readonly DemoRun[];
  readonly crash: Crash;
  readonly requests: number;
  readonly markers: number;
  readonly leaseMs: number;
  readonly problems: readonly string[];
}

function summarize({ dir, model, startedMs, runs, crash, requests, markers, leaseMs, problems }: Outcome): DemoSummary {
  const total = (pick: (run: DemoRun) => number): number => runs.reduce((sum, run) => sum + pick(run), 0);
  const takeovers = runs.flatMap((run) => run.takeover_ms ?? []);
  const all = [...problems, ...crashProblems(crash, takeovers, leaseMs + MARGIN_AFTER_LEASE_MS)];
  return {
    ok: all.length === 0,
    problems: all,
    dir,
    model,
    duration_ms: Math.round(performance.now() - startedMs),
    runs,
    totals: {
      turns: total((run) => run.turns),
      events: total((run) => run.events),
      journal_bytes: total((run) => run.journal_bytes),
      requests_verified: requests,
      compactions_verified: markers,
    },
    ...(crash.report === undefined ? {} : { killed: killedOf(crash.report) }),
    ...(takeovers.length === 0 ? {} : { takeover: { first_ms: Math.min(...takeovers), last_ms: Math.max(...takeovers) } }),
  };
}

function crashProblems({ report }: Crash, takeovers: readonly number[], limitMs: number): string[] {
  if (report === undefined) return ["no worker could be killed while it held a run: the folder is too small for runs of some length; try another --dir"];
  const missing = report.runsHeld - takeovers.length;
  return [
    ...(missing > 0 ? [`${missing} of the ${report.runsHeld} runs that the killed worker held were not taken over`] : []),
    ...takeovers.filter((ms) => ms > limitMs).map((ms) => `a takeover took ${seconds(ms)}, more than ${seconds(limitMs)}`),
  ];
}
