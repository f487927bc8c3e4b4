import { setTimeout as sleep } from "node:timers/promises";
import type { Lab } from "../engine/harness.ts";
import type { Replay } from "./replay.ts";

export interface Driven {
  readonly replay: Replay;
  readonly runId: string;
}

interface Position {
  readonly id: string;
  readonly state: string;
  readonly wait_reason: string | null;
  readonly error_code: string | null;
  readonly inbox_pending: number;
}

/**
 * Plays the users of many conversations at once: the first message starts the run, each later one is sent when the run
 * waits for input. One query a round looks at all of them. Ends when every run waits and its user has nothing to say.
 */
export async function drive(lab: Lab, replays: readonly Replay[], timeoutMs: number): Promise<Driven[]> {
  const deadline = performance.now() + timeoutMs;
  const driven: (Driven & { said: number })[] = [];
  for (const replay of replays) {
    const { id } = await lab.capstan.enqueue(replay.agent as never, replay.inputs[0]?.[0] as never);
    driven.push({ replay, runId: id, said: 1 });
  }
  const open = new Map(driven.map((run) => [run.runId, run]));
  while (open.size > 0) {
    const { rows } = await lab.db.query<Position>(
      `select id, state, wait_reason, error_code, inbox_pending from capstan.runs
       where id = any($1::uuid[]) and ((state = 'waiting' and wait_reason = 'input' and inbox_pending = 0) or finished_at is not null or wait_reason not in ('input', 'retry'))`,
      [[...open.keys()]],
    );
    for (const row of rows) {
      const run = open.get(row.id);
      if (run === undefined) continue;
      const { inputs, conversation, protocol } = run.replay;
      if (row.state !== "waiting" || row.wait_reason !== "input") throw new Error(`${conversation.id} over ${protocol} is ${row.state} ${row.wait_reason ?? row.error_code}`);
      const next = inputs[run.said];
      if (next === undefined) open.delete(row.id);
      else await sendTogether(lab, row.id, next);
      run.said++;
    }
    if (performance.now() > deadline) throw new Error(`${open.size} of ${replays.length} conversations are not over after ${timeoutMs} ms`);
    if (rows.length === 0) await sleep(5);
  }
  return driven;
}

/** In one transaction, so that the run finds all of it at one boundary. */
async function sendTogether(lab: Lab, runId: string, messages: readonly string[]): Promise<void> {
  const handle = lab.capstan.run(runId);
  if (messages.length === 1) return void (await handle.send(messages[0]));
  const client = await lab.db.connect();
  try {
    await client.query("begin");
    for (const message of messages) await handle.send(message, { tx: client });
    await client.query("commit");
  } finally {
    client.release();
  }
}
