/**
 * Child process of the parked benchmark. `prepare` parks runs, `idle` measures a worker that has nothing to do, `active`
 * plays the same runs on both databases, by turns, in one process.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { Capstan } from "../../src/main.ts";
import { auditor } from "./bench-agent.ts";
import { answer } from "./child.ts";
import { copyParked } from "./park-many.ts";
import { openParked, parkedKinds } from "./parked-agents.ts";
import { promptText } from "./workload.ts";

export type ParkedRequest =
  | { readonly kind: "prepare"; readonly url: string; readonly each: number }
  | { readonly kind: "idle"; readonly url: string; readonly seconds: number }
  | { readonly kind: "active"; readonly urls: readonly string[]; readonly runs: number; readonly turns: number; readonly rounds: number };

export interface Idle {
  readonly rssMb: number;
  readonly heapMb: number;
}

export interface Active {
  /** Milliseconds from one model call to the next, round by round; the model answers at once. */
  readonly rounds: readonly (readonly number[])[];
  readonly turns: number;
  readonly ms: number;
}

export interface ParkedAnswer {
  readonly parked?: number;
  readonly idle?: Idle;
  /** In the order of the databases. */
  readonly active?: readonly Active[];
}

async function work(request: ParkedRequest): Promise<ParkedAnswer> {
  if (request.kind === "prepare") return { parked: await prepare(request.url, request.each) };
  if (request.kind === "idle") return { idle: await idle(request.url, request.seconds) };
  return { active: await active(request) };
}

async function prepare(url: string, each: number): Promise<number> {
  const app = openParked(url, { turns: 1, slots: 4 });
  await app.migrate();
  const worker = await app.startWorker();
  const templates: string[] = [];
  if (each > 0) {
    for (const { agent, reason } of parkedKinds) {
      const { id } = await app.enqueue(agent, "Begin.");
      while ((await app.run(id).status()).wait_reason !== reason) await sleep(20);
      templates.push(id);
    }
    // The child of the one that waits for it parks in its own time.
    while ((await countParked(app)) < templates.length + 1) await sleep(20);
  }
  await worker.stop();
  const client = await app.db.connect();
  try {
    for (const id of templates) await copyParked(client, id, each - 1);
    await client.query("vacuum (analyze)");
  } finally {
    client.release();
  }
  const parked = await countParked(app);
  await app.close();
  return parked;
}

async function countParked(app: Capstan): Promise<number> {
  const { rows } = await app.db.query<{ n: number }>("select count(*)::int as n from capstan.runs where state = 'waiting' and worker_id is null");
  return rows[0]?.n ?? 0;
}

/** The least of many looks after collections: what is needed, not what happens to lie around. */
async function idle(url: string, seconds: number): Promise<Idle> {
  const app = openParked(url, { turns: 1, slots: 20 });
  await app.startWorker();
  const looks: NodeJS.MemoryUsage[] = [];
  for (let n = 0; n < seconds * 2; n++) {
    await sleep(500);
    globalThis.gc?.();
    looks.push(process.memoryUsage());
  }
  await app.close();
  const least = (of: (look: NodeJS.MemoryUsage) => number): number => Math.min(...looks.slice(looks.length / 2).map(of)) / 1024 ** 2;
  return { rssMb: least(({ rss }) => rss), heapMb: least(({ heapUsed }) => heapUsed) };
}

async function active({ urls, runs, turns, rounds }: Extract<ParkedRequest, { kind: "active" }>): Promise<Active[]> {
  const sides = urls.map((url) => {
    const last = new Map<string, number>();
    const side = { rounds: [] as number[][], turns: 0, ms: 0, isCounted: false };
    const app = openParked(url, {
      turns,
      slots: runs,
      onCall(runId) {
        const now = performance.now();
        const before = last.get(runId);
        last.set(runId, now);
        if (before === undefined || !side.isCounted) return;
        side.rounds.at(-1)?.push(now - before);
        side.turns++;
      },
    });
    return { app, side };
  });
  for (const { app } of sides) await app.startWorker();
  // The first round warms both up. Who is first changes from round to round.
  for (let round = 0; round <= rounds; round++) {
    for (const { app, side } of round % 2 === 0 ? sides : sides.toReversed()) {
      side.isCounted = round > 0;
      if (side.isCounted) side.rounds.push([]);
      const started = performance.now();
      const handles = await Promise.all(Array.from({ length: runs }, () => app.enqueue(auditor, promptText)));
      await Promise.all(handles.map((handle) => handle.result({ timeoutMs: 600_000 })));
      if (side.isCounted) side.ms += performance.now() - started;
    }
  }
  for (const { app } of sides) await app.close();
  return sides.map(({ side: { rounds: measured, turns: counted, ms } }) => ({ rounds: measured, turns: counted, ms }));
}

await answer<ParkedRequest, ParkedAnswer>(work);
