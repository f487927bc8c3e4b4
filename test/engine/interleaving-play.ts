/** Plays one drawn sequence against the database and the reference model side by side, and compares after each action. */
import fc from "fast-check";
import { Sequence, type JobReport, type Lane, type Plan } from "./interleaving-bench.ts";
import { finalProblems } from "./interleaving-checks.ts";
import { explore, runJob, type Choose } from "./reference-job.ts";
import { act, callKinds, isEnded, needsWish, newRun, newWorld, seen, waitKind, type Act, type CallKind, type World } from "./reference-model.ts";

const outside = [
  "send",
  "stop",
  "pause",
  "resume",
  "cancel",
  "compact",
  "compact_later",
  "signal",
  "signal_soon",
  "summarize",
  "answer",
  "tick",
  "outage",
  "pause_all",
  "resume_all",
] as const;
type Outside = (typeof outside)[number];

/** Targets are drawn as numbers: which of the runs and waits that there are then. */
interface Draw {
  readonly what: Outside;
  readonly target: number;
  readonly yes: boolean;
}
type Action =
  | { readonly turn: number; readonly worker: number; readonly cut?: { readonly at: number; readonly crash?: boolean; readonly draw: Draw; readonly noticed: boolean } }
  | { readonly draw: Draw };
export interface Drawn {
  readonly interactive: boolean;
  readonly auto: boolean;
  readonly script: readonly (readonly CallKind[])[];
  readonly actions: readonly Action[];
}

const weights: Readonly<Record<Outside, number>> = {
  send: 6,
  stop: 4,
  pause: 2,
  resume: 4,
  cancel: 1,
  compact: 2,
  compact_later: 2,
  signal: 2,
  signal_soon: 1,
  summarize: 4,
  answer: 10,
  tick: 2,
  outage: 1,
  pause_all: 1,
  resume_all: 3,
};
const draw: fc.Arbitrary<Draw> = fc.record({
  what: fc.oneof(...outside.map((what) => ({ weight: weights[what], arbitrary: fc.constant(what) }))),
  target: fc.nat({ max: 11 }),
  yes: fc.boolean(),
});
const turn = { turn: fc.nat({ max: 5 }), worker: fc.nat({ max: 1 }) };
const at = fc.nat({ max: 8 });
const anyAction: fc.Arbitrary<Action> = fc.oneof(
  { weight: 10, arbitrary: fc.record(turn) },
  { weight: 3, arbitrary: fc.record({ ...turn, cut: fc.record({ at, crash: fc.constant(true), draw, noticed: fc.constant(false) }) }) },
  { weight: 5, arbitrary: fc.record({ ...turn, cut: fc.record({ at, draw, noticed: fc.boolean() }) }) },
  { weight: 12, arbitrary: fc.record({ draw }) },
);
const reply = fc.uniqueArray(fc.constantFrom(...callKinds), { maxLength: 3 });
export const sequence: fc.Arbitrary<Drawn> = fc.record({
  interactive: fc.boolean(),
  auto: fc.boolean(),
  script: fc.array(reply, { maxLength: 4 }),
  actions: fc.array(anyAction, { minLength: 6, maxLength: 30, size: "max" }),
});

export async function play(lane: Lane, drawn: Drawn): Promise<void> {
  const player = new Player(lane, drawn);
  try {
    await player.play();
  } finally {
    await player.sequence.end();
  }
}

class Player {
  readonly sequence: Sequence;
  readonly #drawn: Drawn;
  /** All that may be so, by what was seen so far. */
  #worlds: World[];
  readonly #trace: string[] = [];
  #sent = 0;

  constructor(lane: Lane, drawn: Drawn) {
    this.#drawn = drawn;
    this.sequence = new Sequence(lane, drawn.script);
    const { script, interactive, auto } = drawn;
    this.#worlds = [newWorld(newRun({ name: "r", parent: undefined, script, interactive, auto }))];
  }

  async play(): Promise<void> {
    const { interactive, auto, actions } = this.#drawn;
    await this.sequence.begin(`${interactive ? "talk" : "task"}${auto ? "-auto" : ""}`);
    await this.#compare("begin", (w) => void w, undefined);
    for (const next of actions) {
      if ("draw" in next) {
        const resolved = this.#resolve(next.draw);
        if (resolved !== undefined) await this.#act(resolved);
      } else await this.#turn(next);
    }
    await this.#drain();
    const problems = await finalProblems(this.sequence);
    if (problems.length > 0) this.#fail(problems.join("\n"));
  }

  /** Of all runs and waits that the database has by now; undefined when there is nothing to do it to. */
  #resolve({ what, target, yes }: Draw): Act | undefined {
    const { names, waitIds } = this.sequence;
    const pick = (from: readonly string[]): string | undefined => from[target % Math.max(1, from.length)];
    if (what === "answer") {
      const wait = pick(
        [...waitIds]
          .filter(([, { kind }]) => kind !== "timer" && kind !== "children")
          .map(([name]) => name)
          .toSorted(),
      );
      return wait === undefined ? undefined : { do: "answer", wait, yes };
    }
    if (what === "tick" || what === "outage" || what === "pause_all" || what === "resume_all") return { do: what };
    // Every second time the run that all began with.
    const run = target % 2 === 0 ? "r" : (pick([...names.values()].toSorted()) as string);
    return what === "send" ? { do: "send", run, text: `input ${++this.#sent}` } : { do: what, run };
  }

  async #act(action: Act): Promise<string> {
    const outcome = await this.sequence.act(action);
    await this.#compare(`${JSON.stringify(action)}: ${outcome}`, (w) => act(w, action), outcome);
    return outcome;
  }

  async #turn({ turn: which, worker, cut }: Extract<Action, { turn: number }>): Promise<void> {
    const due = await this.sequence.due();
    const runId = due[which % Math.max(1, due.length)];
    if (runId === undefined) return;
    const plan: Plan | undefined = cut && (cut.crash === true ? { at: cut.at, crash: true } : { at: cut.at, act: () => this.#resolve(cut.draw), noticed: cut.noticed });
    await this.#job(runId, worker, plan);
  }

  async #job(runId: string, worker: number, plan: Plan | undefined): Promise<void> {
    const name = this.sequence.names.get(runId) as string;
    const report: JobReport = await this.sequence.job(runId, worker, plan);
    const { fired } = report;
    const told = `job of ${name} on ${worker}${fired === undefined ? "" : ` cut by ${JSON.stringify(fired)}`}`;
    this.#trace.push(told);
    if (report.failure !== undefined) this.#fail(`the job failed: ${String((report.failure as Error).stack)}`);
    await this.#compare("", (w, choose) => runJob(w, name, choose, fired), fired !== undefined && "act" in fired ? fired.outcome : undefined);
  }

  async #compare(what: string, step: (w: World, choose: Choose) => string | undefined | void, outcome: string | undefined): Promise<void> {
    if (what !== "") this.#trace.push(what);
    const ends = this.#worlds.flatMap((world) =>
      explore((choose) => {
        const w = structuredClone(world);
        return { w, outcome: step(w, choose) ?? undefined };
      }),
    );
    const { seen: actual, wished, held } = await this.sequence.look();
    if (this.sequence.failures.length > 0) this.#fail(`the engine failed: ${describe(this.sequence.failures)}`);
    if (held.length > 0) this.#fail(`still held: ${held.join(", ")}`);
    const text = JSON.stringify(actual);
    const fitting = ends.filter((end) => end.outcome === outcome && JSON.stringify(seen(end.w)) === text);
    if (fitting.length === 0) {
      const shown = [...new Set(ends.map((end) => `${end.outcome ?? ""} ${difference(seen(end.w), actual)}`))].toSorted((a, b) => a.length - b.length).slice(0, 3);
      this.#fail(`outcome ${outcome}; the database has\n${JSON.stringify(actual, undefined, 1)}\nthe model has (of ${ends.length}), in what differs:\n${shown.join("\n")}`);
    }
    this.#worlds = [...new Map(fitting.map(({ w }) => [JSON.stringify({ ...w, ids: 0 }), w])).values()].slice(0, 32);
    for (const name of Object.keys(actual)) {
      if (this.#worlds.every((w) => needsWish(w, w.runs[name] as never)) && !wished.has(name))
        this.#fail(`run ${name} should go on and has no wish: ${JSON.stringify(actual[name])}`);
    }
  }

  /** Everybody answers, everything goes on, until nothing is left to do. */
  async #drain(): Promise<void> {
    this.#trace.push("-- drain --");
    await this.#act({ do: "resume_all" });
    if (this.sequence.isDown) await this.#act({ do: "outage" });
    for (let round = 0; round < 300; round++) {
      const due = await this.sequence.due();
      if (due[0] !== undefined) {
        await this.#job(due[0], round, undefined);
        continue;
      }
      if (await this.#search()) continue;
      if (!(await this.#wake())) return;
    }
    this.#fail("never comes to rest");
  }

  /** The last resort may find what is late, and nothing else: whatever else it found would have stood for a minute. */
  async #search(): Promise<boolean> {
    const found = await this.sequence.search();
    for (const name of found) {
      const isLate = this.#worlds.some(({ runs }) => runs[name] !== undefined && (isEnded(runs[name]) || runs[name].isTimerLost));
      if (!isLate) this.#fail(`only the search for lost jobs has found ${name}: ${JSON.stringify(this.#worlds[0]?.runs[name])}`);
    }
    return found.length > 0;
  }

  /** False when all have come to rest. */
  async #wake(): Promise<boolean> {
    const w = this.#worlds[0] as World;
    const paused = Object.values(w.runs).find((run) => run.paused);
    if (paused !== undefined) return (await this.#act({ do: "resume", run: paused.name })) !== "";
    for (const [name, wait] of Object.entries(w.waits)) {
      if (wait.settled || wait.answered || waitKind(wait.kind) === "children") continue;
      const isTimed = waitKind(wait.kind) === "timer" || (w.hour > wait.madeAt && wait.kind.endsWith("_soon"));
      await this.#act(isTimed ? { do: "tick" } : { do: "answer", wait: name, yes: true });
      return true;
    }
    for (const run of Object.values(w.runs)) {
      if (run.task !== undefined && !run.task.finished && !isEnded(run)) return (await this.#act({ do: "summarize", run: run.name })) !== "";
      if (run.reason === "retry") return (await this.#act({ do: "tick" })) !== "";
    }
    for (const run of Object.values(w.runs)) {
      const rests = isEnded(run) || run.reason === "input" || run.reason === "crash_loop";
      // A parent waits for a child that nobody will bring back.
      const isStuck = run.reason === "children" && Object.values(w.runs).some((child) => child.name.startsWith(`${run.name}/`) && child.reason === "crash_loop");
      if (!rests && !isStuck && !run.heldBack) this.#fail(`run ${run.name} stands still: ${JSON.stringify(seen(w)[run.name])}`);
      if (rests && run.reason !== "crash_loop" && run.state !== "cancelled" && run.inbox.length > 0) this.#fail(`left unapplied by ${run.name}: ${JSON.stringify(run.inbox)}`);
    }
    return false;
  }

  #fail(what: string): never {
    throw new Error(
      `${what}\nscript ${JSON.stringify(this.#drawn.script)}${this.#drawn.interactive ? ", interactive" : ""}${this.#drawn.auto ? ", auto" : ""}\n${this.#trace.join("\n")}`,
    );
  }
}

function difference(model: Record<string, unknown>, actual: Record<string, unknown>): string {
  const names = new Set([...Object.keys(model), ...Object.keys(actual)]);
  return JSON.stringify(
    Object.fromEntries([...names].filter((name) => JSON.stringify(model[name]) !== JSON.stringify(actual[name])).map((name) => [name, model[name] ?? "absent"])),
  );
}

function describe(failures: readonly unknown[]): string {
  return failures.map((failure) => `${(failure as { message: string }).message}: ${String((failure as { err?: Error }).err?.stack)}`).join("\n");
}
