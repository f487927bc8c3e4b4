/**
 * What a careful user of graphile-worker writes by hand: one job a turn; one statement commits the turn's rows and adds
 * the next job; transcripts stay warm in the process; local queue and batched completion. Its turn is one commit: the
 * answer is not recorded before the tool runs, and nothing fences a worker that lost its job.
 */
import { Logger, run } from "graphile-worker";
import pg from "pg";
import { FINAL_TEXT, turnTexts } from "../workload.ts";
import type { Engine } from "./engine.ts";
import { answerOf, resultOf, type PlainMessage } from "./plain-messages.ts";

const TABLE = `create table events (run int not null, seq int not null, kind text not null, payload jsonb not null, at timestamptz not null default now(), primary key (run, seq))`;
const TURN = `with written as (insert into events (run, seq, kind, payload) values ($1, $2, 'model', $3::jsonb), ($1, $2 + 1, 'tool', $4::jsonb))
  select graphile_worker.add_job('turn', $5::json)`;
const END = `insert into events (run, seq, kind, payload) values ($1, $2, 'model', $3::jsonb)`;

interface Job {
  readonly run: number;
  readonly turn: number;
  readonly turns: number;
}

export const graphile: Engine = {
  title: "graphile-worker by hand, tuned",
  kind: "by hand",
  pace: "fast",
  async start({ url, concurrency, hooks, think }) {
    const pool = new pg.Pool({ connectionString: url, max: 10 });
    await pool.query(TABLE);
    const warm = new Map<number, PlainMessage[]>();
    const load = async (id: number): Promise<PlainMessage[]> =>
      (await pool.query<{ payload: PlainMessage }>({ name: "load", text: "select payload from events where run = $1 order by seq", values: [id] })).rows.map((row) => row.payload);
    const turnTask = async (payload: unknown): Promise<void> => {
      const { run: id, turn, turns } = payload as Job;
      let messages = warm.get(id);
      if (messages?.length !== 2 * turn) messages = await load(id);
      if (turn >= turns) {
        await pool.query({ name: "end", text: END, values: [id, 2 * turn, JSON.stringify({ role: "assistant", content: FINAL_TEXT })] });
        warm.delete(id);
        return hooks.done(id);
      }
      await think(id, turn);
      const texts = turnTexts(turn);
      const answer = answerOf(texts);
      const result = resultOf(texts);
      const next: Job = { run: id, turn: turn + 1, turns };
      await pool.query({ name: "turn", text: TURN, values: [id, 2 * turn, JSON.stringify(answer), JSON.stringify(result), JSON.stringify(next)] });
      messages.push(answer, result);
      warm.set(id, messages);
      if (turn === 0) hooks.firstEvent(id);
      hooks.turn(id, turn);
    };
    const runner = await run({
      connectionString: url,
      concurrency,
      noHandleSignals: true,
      maxPoolSize: 10,
      logger: new Logger(() => () => {}),
      taskList: { turn: turnTask },
      parsedCronItems: [],
      preset: { worker: { localQueue: { size: Math.max(50, concurrency + 1) }, completeJobBatchDelay: 0 } },
    });
    runner.promise.catch((error: unknown) => console.error("graphile-worker ended:", error));
    return {
      async enqueue(id, turns) {
        await runner.addJob("turn", { run: id, turn: 0, turns });
      },
      async stop() {
        await runner.stop();
        await pool.end();
      },
    };
  },
};
