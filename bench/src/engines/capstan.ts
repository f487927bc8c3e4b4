/** Capstan itself, with every promise kept: leases, fencing, heartbeats, sweep, cancellation watch and spans are on. */
import { createCapstan } from "../../../src/main.ts";
import type { EngineSpan, Tracing } from "../../../src/engine/ports.ts";
import { genAi } from "../../../src/telemetry/names.ts";
import { answerTurn, auditor, finalAnswer, modelsOf, problemsOnly, turnsIn, type BenchCall } from "../bench-agent.ts";
import type { Engine, EngineHooks, EngineOptions } from "./engine.ts";

/** As many turns as a run may keep its worker while others wait for theirs. */
const STICKY = { turns: 20, ms: 10_000 };

export function capstan(mode: "one-job" | "sticky"): Engine {
  return {
    title: mode === "one-job" ? "Capstan, one job a turn" : "Capstan, sticky turns",
    kind: "ours",
    pace: "fast",
    async start(options) {
      const watch = new RunWatch(options.hooks, mode);
      const app = createCapstan({
        connectionString: options.url,
        agents: [auditor],
        models: modelsOf(benchModel(options, watch)),
        worker: { slots: options.concurrency, stickyTurns: mode === "sticky" ? STICKY : undefined },
        observability: { tracing: watch.tracing, log: problemsOnly },
        env: {},
      });
      await app.migrate();
      await app.startWorker();
      return {
        async enqueue(run, turns) {
          await app.enqueue(auditor, JSON.stringify({ run, turns }));
        },
        stop: () => app.close(),
        async verify(runs, events) {
          const { rows } = await app.db.query<{ runs: number; events: number }>(
            "select (select count(*)::int from capstan.runs where state = 'completed') as runs, (select count(*)::int from capstan.events where type in ('model.responded', 'tool.completed')) as events",
          );
          const found = rows[0];
          if (found?.runs !== runs || found.events !== events)
            throw new Error(`the journal holds ${found?.runs} completed runs with ${found?.events} responses and results; ${runs} with ${events} were expected`);
        },
      };
    },
  };
}

function benchModel(options: EngineOptions, watch: RunWatch): BenchCall {
  return async (call, { runId }) => {
    const turn = turnsIn(call);
    const { run, turns } = watch.called(runId, turn, () => {
      const first = call.messages[0]?.content[0];
      return JSON.parse(first?.type === "text" ? first.text : "") as { run: number; turns: number };
    });
    if (turn >= turns) return finalAnswer;
    await options.think(run, turn);
    return answerTurn(turn);
  };
}

/**
 * Learns of commits without a query: a model call means that the request before it is committed, and in sticky mode the
 * turn before that; a turn's span ends after the turn's last commit when each turn is a job.
 */
class RunWatch {
  readonly #hooks: EngineHooks;
  readonly #mode: "one-job" | "sticky";
  readonly #runs = new Map<string, { run: number; turns: number; seen: number }>();

  constructor(hooks: EngineHooks, mode: "one-job" | "sticky") {
    this.#hooks = hooks;
    this.#mode = mode;
  }

  called(runId: string, turn: number, read: () => { run: number; turns: number }): { run: number; turns: number } {
    let entry = this.#runs.get(runId);
    if (entry === undefined) {
      entry = { ...read(), seen: 0 };
      this.#runs.set(runId, entry);
      this.#hooks.firstEvent(entry.run);
    }
    if (this.#mode === "sticky") this.#committed(entry, turn);
    return entry;
  }

  #committed(entry: { run: number; turns: number; seen: number }, turns: number): void {
    while (entry.seen < Math.min(turns, entry.turns)) this.#hooks.turn(entry.run, entry.seen++);
  }

  readonly tracing: Tracing = {
    start: (_name, { attributes }): EngineSpan => {
      const turn = attributes?.["capstan.turn"];
      const runId = attributes?.[genAi.conversationId];
      return {
        traceparent: undefined,
        set() {},
        fail() {},
        event() {},
        end: () => {
          const entry = typeof turn === "number" ? this.#runs.get(String(runId)) : undefined;
          if (entry === undefined || typeof turn !== "number") return;
          if (turn > entry.turns) {
            this.#runs.delete(String(runId));
            this.#hooks.done(entry.run);
          } else if (this.#mode === "one-job") this.#committed(entry, turn);
        },
      };
    },
  };
}
