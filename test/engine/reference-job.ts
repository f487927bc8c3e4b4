/**
 * What one job does with a run, between commits at which it may be interrupted. Where the real thing is free (whether a
 * compaction is worth it, which results are recorded together, at which commit it was interrupted) the model asks
 * `choose`, and every choice is tried.
 */
import {
  act,
  end,
  hand,
  isEnded,
  isOver,
  leave,
  nameOfWait,
  newRun,
  spawned,
  childScripts,
  Impossible,
  SPAWN_CONCURRENCY,
  waitKind,
  type Act,
  type Call,
  type Engine,
  type Item,
  type Run,
  type World,
} from "./reference-model.ts";

export type Choose = (options: number) => number;
/** Came in the middle of the job. `noticed`: the worker has looked for calls from outside right after it. */
export type Interruption = { readonly crash: true } | { readonly act: Act; readonly noticed: boolean };

const MAX_CRASHES = 3;
const MAX_LOADS = 4;
/** More than any job has commits: beyond, the model itself is wrong. */
const MAX_POINTS = 500;
const REST = "rest";
const GO_ON = "go_on";
type Outcome = typeof REST | typeof GO_ON;

class Crashed extends Error {}
class Left extends Error {}
class InboxWaits extends Error {}

/** All ends of `step`, over all choices. */
export function explore<T>(step: (choose: Choose) => T): T[] {
  const ends: T[] = [];
  const tape: { taken: number; of: number }[] = [];
  for (;;) {
    let at = 0;
    try {
      ends.push(
        step((of) => {
          const made = (tape[at] ??= { taken: 0, of });
          at++;
          return made.taken;
        }),
      );
    } catch (error) {
      if (!(error instanceof Impossible)) throw error;
    }
    tape.length = at;
    while (tape.length > 0 && (tape.at(-1) as { taken: number; of: number }).taken + 1 >= (tape.at(-1) as { of: number }).of) tape.pop();
    const last = tape.at(-1);
    if (last === undefined) return ends;
    last.taken++;
  }
}

/** Changes the world; gives what came of the action in the middle. Throws Impossible if it was never interrupted though it should. */
export function runJob(w: World, name: string, choose: Choose, interruption?: Interruption): string | undefined {
  const job = new Job(w, w.runs[name] as Run, choose, interruption);
  try {
    job.run();
  } catch (error) {
    if (!(error instanceof Crashed)) throw error;
    const run = w.runs[name] as Run;
    if (run.held) {
      run.held = false;
      run.crashes++;
    }
  }
  if (interruption !== undefined && !job.fired) throw new Impossible();
  return job.outcome;
}

const engineOf = ({ state, reason, turn, phase, calls, words, crashes, retryAt, task }: Run): Engine =>
  structuredClone({ state, reason, turn, phase, calls, words, crashes, retryAt, task });

class Job {
  readonly w: World;
  readonly modelRun: Run;
  readonly choose: Choose;
  readonly interruption: Interruption | undefined;
  fired = false;
  outcome: string | undefined;
  /** A stop was noticed: calls at work are aborted. */
  #aborted = false;
  d!: Engine;
  #consumed = new Set<number>();
  #settled: string[] = [];
  #waits: { index: number; call: Call }[] = [];
  #staged = false;
  /** What waited in the inbox at the last look. */
  #pending = 0;

  constructor(w: World, run: Run, choose: Choose, interruption: Interruption | undefined) {
    this.w = w;
    this.modelRun = run;
    this.choose = choose;
    this.interruption = interruption;
  }

  run(): void {
    try {
      this.#tries();
    } finally {
      if (!this.#hasCommitted && this.modelRun.state === "waiting") this.modelRun.isTimerLost = true;
    }
  }

  #tries(): void {
    // A worker whose memory of the run is old finds that out at its first append.
    this.#point();
    for (let load = 1; load <= MAX_LOADS; load++) {
      this.#load();
      try {
        return this.#drive();
      } catch (error) {
        if (error instanceof Left) return;
        if (!(error instanceof InboxWaits)) throw error;
        if (this.modelRun.held) {
          this.modelRun.held = false;
          return;
        }
      }
    }
  }

  #load(): void {
    this.d = engineOf(this.modelRun);
    this.#drop();
    this.#pending = this.modelRun.inbox.length;
    // A warm memory may not know of what has come; a request that is made again does not ask.
    if (this.#pending > 0 && (this.d.phase === "requested" || this.d.phase === "failed") && this.choose(2) === 1) this.#pending = 0;
  }

  #drop(): void {
    this.#consumed = new Set();
    this.#settled = [];
    this.#waits = [];
    this.#staged = false;
  }

  #points = 0;
  #hasCommitted = false;

  /** A place at which others may come in between. */
  #point(): void {
    if (++this.#points > MAX_POINTS) throw new Error(`the model's job of ${this.modelRun.name} does not end`);
    if (this.interruption === undefined || this.fired || this.choose(2) === 0) return;
    this.fired = true;
    if ("crash" in this.interruption) throw new Crashed();
    this.outcome = act(this.w, this.interruption.act);
    if (this.interruption.noticed && this.modelRun.interactive && this.modelRun.held && this.modelRun.inbox.some(({ kind }) => kind === "stop")) this.#aborted = true;
  }

  #see(): readonly Item[] {
    return this.#pending > 0 || this.#aborted ? this.modelRun.inbox.filter(({ id }) => !this.#consumed.has(id)) : [];
  }

  #stage(change: (d: Engine) => void): void {
    change(this.d);
    this.#staged = true;
  }

  #commit({
    release = false,
    most,
    turnDone = false,
    stops = false,
    ends = false,
    onEnded = false,
  }: { release?: boolean; most?: number; turnDone?: boolean; stops?: boolean; ends?: boolean; onEnded?: boolean } = {}): void {
    this.#point();
    const { w, modelRun: run } = this;
    if (isEnded(run) && !onEnded) throw new Left();
    if (!run.held && (run.paused || w.tenantPaused)) throw new Left();
    const left = run.inbox.filter(({ id }) => !this.#consumed.has(id));
    if (most !== undefined && left.length > most) throw new InboxWaits();
    if (turnDone) this.d.crashes = 0;
    if (this.d.state === "queued" && !release) this.d.state = "running";
    Object.assign(run, structuredClone(this.d));
    run.isTimerLost = false;
    this.#hasCommitted = true;
    run.inbox = left;
    run.held = !release;
    for (const name of this.#settled) (w.waits[name] as { settled: boolean }).settled = true;
    for (const { index, call } of this.#waits) this.#makeWait(index, call);
    if (stops) leave(w, run);
    if (ends) end(w, run, "completed");
    this.d = engineOf(run);
    this.#drop();
    this.#pending = run.inbox.length;
    this.#point();
  }

  #makeWait(index: number, { kind }: Call): void {
    const { w, modelRun: run } = this;
    const name = nameOfWait(run.name, run.turn, index);
    const children = kind === "spawn1" || kind === "spawn3" ? spawned[kind] : [];
    w.waits[name] = { run: run.name, turn: run.turn, index, kind, madeAt: w.hour, answered: false, settled: false, pending: children.length };
    children.forEach((child, n) => {
      const made = newRun({
        name: `${name}.${n}`,
        parent: { run: run.name, turn: run.turn, index },
        script: childScripts[child],
        interactive: false,
        auto: false,
        heldBack: n >= SPAWN_CONCURRENCY,
      });
      w.runs[made.name] = made;
    });
    if (run.kept.includes(kind)) {
      run.kept.splice(run.kept.indexOf(kind), 1);
      hand(w, name, true);
    }
  }

  #drive(): void {
    const { modelRun: run, d } = this;
    if (isEnded(run)) return this.#compactEnded();
    if (run.paused) return;
    if (d.phase === "calling") {
      if (this.#tools(false) === GO_ON) this.#handOver();
      return;
    }
    if (this.#boundary() === REST || this.#ask() === REST) return;
    this.#handOver();
  }

  #handOver(): void {
    this.#commit({ release: true, turnDone: true });
  }

  #compactEnded(): void {
    const { modelRun: run } = this;
    if (this.#pending === 0 || run.paused) return;
    for (const item of run.inbox) {
      this.#consumed.add(item.id);
      if (item.kind === "compact") this.#compactByHand(true);
      if (item.kind === "compaction") this.d.task = undefined;
    }
    this.#commit({ release: true, onEnded: true });
  }

  #compactByHand(afterEnd: boolean): void {
    this.#staged = true;
    if (this.d.task === undefined) {
      if (this.choose(2) === 1) this.d.task = { finished: false, prepared: false, afterEnd };
    } else if (this.d.task.prepared) this.d.task = undefined;
  }

  #mayLoop(): boolean {
    if (this.d.crashes < MAX_CRASHES || this.choose(2) === 1) return false;
    this.#stage((d) => ((d.state = "waiting"), (d.reason = "crash_loop")));
    this.#commit({ release: true });
    return true;
  }

  #stopItem(): Item | undefined {
    return this.modelRun.interactive ? this.#see().find(({ kind }) => kind === "stop") : undefined;
  }

  #boundary(): Outcome {
    const { w, modelRun: run } = this;
    const waited = this.d.state === "waiting" ? this.d.reason : undefined;
    const news = this.#see();
    if (waited === "crash_loop") return REST;
    if ((waited === "input" || waited === "compaction" || waited === "context_exhausted") && news.length === 0) return REST;
    if (waited === "retry" && !(run.interactive && news.length > 0) && w.hour < this.d.retryAt) return REST;
    if (this.#mayLoop()) return REST;
    const stop = this.#stopItem();
    if (stop !== undefined) return this.#stopTurn(stop);
    const task = this.d.task;
    if (this.d.phase === "boundary" || this.d.phase === "answered") this.#apply(news);
    if (waited !== undefined && waited !== "retry" && this.d.state === "waiting") {
      const hasEnded =
        waited === "compaction" ? this.d.task === undefined : waited === "context_exhausted" && task !== undefined && this.d.task === undefined && this.choose(2) === 1;
      if (!hasEnded) {
        if (this.#staged) this.#commit({ release: true });
        return REST;
      }
      this.#stage((d) => ((d.state = "running"), (d.reason = undefined)));
    }
    if (this.d.phase === "answered" && this.#afterAnswer() === REST) return REST;
    if (this.d.phase === "boundary") return this.#compactBefore();
    return GO_ON;
  }

  /** Whether there is something to compact is not for this model to say. */
  #compactBefore(): Outcome {
    const { d } = this;
    const isLively = this.modelRun.auto || this.modelRun.script.some((calls) => calls.includes("compact"));
    if (!isLively && d.task === undefined) return GO_ON;
    if (d.task !== undefined) {
      if (d.task.prepared && this.choose(2) === 1) d.task = undefined;
      return GO_ON;
    }
    if (isLively && this.choose(2) === 1) this.#stage(() => (d.task = { finished: false, prepared: false, afterEnd: false }));
    return GO_ON;
  }

  #apply(items: readonly Item[]): void {
    for (const item of items) {
      this.#consumed.add(item.id);
      if (item.kind === "compact") this.#compactByHand(false);
      else if (item.kind === "compaction") this.#stage((d) => (d.task = undefined));
      else if (item.kind === "input") {
        this.#stage((d) => {
          d.words.push(`in ${item.text}`);
          d.phase = "boundary";
          d.state = "running";
          d.reason = undefined;
        });
      }
    }
  }

  #ask(): Outcome {
    const { w, modelRun: run } = this;
    const isAgain = this.d.phase === "requested" || this.d.phase === "failed";
    this.#stage((d) => {
      if (!isAgain) d.turn++;
      d.phase = "requested";
      d.state = "running";
      d.reason = undefined;
    });
    this.#commit(isAgain ? {} : { most: 0 });
    // The call itself.
    this.#point();
    if (this.#aborted) {
      const stop = this.#stopItem();
      if (stop !== undefined) return this.#stopTurn(stop);
    }
    if (w.down) {
      this.#stage((d) => {
        d.phase = "failed";
        d.state = "waiting";
        d.reason = "retry";
        d.retryAt = w.hour + 1;
      });
      this.#commit({ release: true });
      return REST;
    }
    const kinds = run.script[this.d.turn - 1] ?? [];
    this.#stage((d) => {
      d.words.push(`say ${d.turn}`);
      d.phase = kinds.length === 0 ? "answered" : "calling";
      d.calls = kinds.map((kind) => ({ kind, state: kind === "once" ? "announced" : "open", approved: false }));
    });
    if (kinds.length === 0) return this.#afterAnswer();
    this.#commit();
    return this.#tools(true);
  }

  /** "go_on" means one more turn. */
  #afterAnswer(): Outcome {
    const { modelRun: run } = this;
    if (this.#see().length > 0) {
      if (this.#staged) this.#commit();
      const early = this.#stopItem();
      if (early !== undefined) return this.#stopTurn(early);
      this.#apply(this.#see());
      if (this.d.phase !== "answered") return GO_ON;
    }
    for (;;) {
      const before = { d: structuredClone(this.d), consumed: new Set(this.#consumed), staged: this.#staged };
      try {
        if (run.interactive) this.#stage((d) => ((d.state = "waiting"), (d.reason = "input")));
        this.#commit({ release: true, most: 0, turnDone: true, ends: !run.interactive });
        return REST;
      } catch (error) {
        if (!(error instanceof InboxWaits)) throw error;
      }
      this.#drop();
      this.d = before.d;
      this.#consumed = before.consumed;
      this.#staged = before.staged;
      this.#pending = run.inbox.length;
      if (this.#staged) this.#commit({ turnDone: true });
      const late = this.#stopItem();
      if (late !== undefined) return this.#stopTurn(late);
      this.#apply(this.modelRun.inbox.filter(({ id }) => !this.#consumed.has(id)));
      if (this.d.phase !== "answered") return GO_ON;
    }
  }

  #open(): [number, Call][] {
    return [...this.d.calls.entries()].filter(([, { state }]) => state !== "done");
  }

  #end(index: number, how: string): void {
    this.#stage((d) => {
      (d.calls[index] as Call).state = "done";
      d.words.push(`end ${d.turn}.${index} ${how}`);
      if (d.calls.every(({ state }) => state === "done")) {
        d.calls = d.calls.map((call) => ({ ...call }));
        d.phase = "boundary";
      }
    });
  }

  #hasOverdue(): boolean {
    return this.#open().some(([index, { state }]) => state === "waiting" && this.#isOverdue(index));
  }

  #isOverdue(index: number): boolean {
    const wait = this.w.waits[nameOfWait(this.modelRun.name, this.d.turn, index)];
    return wait !== undefined && isOver(this.w, wait);
  }

  /** True when there was anything. */
  #take(news: readonly Item[]): boolean {
    const answers = news.filter(({ kind }) => kind === "wait");
    const left = news.length - answers.length;
    for (const item of answers) {
      this.#consumed.add(item.id);
      const found = this.#open().find(([index, { state }]) => state === "waiting" && nameOfWait(this.modelRun.name, this.d.turn, index) === item.wait);
      if (found === undefined) continue;
      this.#answer(found[0], item.said === "yes" ? "ok" : ({ approval: "APPROVAL_DENIED", question: "ANSWER_DECLINED" }[waitKind(found[1].kind) as "approval"] ?? "TOOL_FAILED"));
    }
    const overdue = this.#open().filter(([index, { state }]) => state === "waiting" && this.#isOverdue(index));
    if (overdue.length > 0) {
      if (this.modelRun.held && this.#staged) this.#commit();
      for (const [index, { kind }] of overdue) this.#answer(index, kind === "nap" ? "ok" : kind === "pay_soon" ? "APPROVAL_DENIED" : "WAIT_EXPIRED");
      this.#commit({ most: left });
    }
    return answers.length > 0 || overdue.length > 0;
  }

  #answer(index: number, how: string): void {
    const call = this.d.calls[index] as Call;
    this.#settled.push(nameOfWait(this.modelRun.name, this.d.turn, index));
    if (waitKind(call.kind) === "approval" && how === "ok") {
      this.#stage((d) => (d.calls[index] = { ...call, state: "open", approved: true }));
    } else this.#end(index, how);
  }

  #tools(ours: boolean): Outcome {
    if (!ours) {
      if (this.#mayLoop()) return REST;
      const stop = this.#stopItem();
      if (stop !== undefined) return this.#stopTurn(stop);
    }
    const news = this.#see();
    if (!ours && this.d.state === "waiting" && !news.some(({ kind }) => kind === "wait" || kind === "stop") && !this.#hasOverdue()) return REST;
    if (!ours) {
      this.#stage((d) => ((d.state = "running"), (d.reason = undefined)));
      for (const [index, { state }] of this.#open()) if (state === "announced") this.#end(index, "interrupted");
    }
    this.#take(news);
    if (!this.modelRun.held) this.#commit();
    const early = news.find(({ kind }) => kind === "stop");
    if (early !== undefined) return this.#stopTurn(early);
    for (;;) {
      for (const [index, call] of this.#open()) if (waitKind(call.kind) === "approval" && call.kind.startsWith("pay") && call.state === "open" && !call.approved) this.#wait(index);
      this.#execute();
      if (this.#open().length === 0) return GO_ON;
      let items = this.#see();
      let stop = items.find(({ kind }) => kind === "stop");
      if (stop !== undefined) return this.#stopTurn(stop);
      if (this.#open().some(([, { state }]) => state !== "waiting")) throw new Impossible();
      if (this.#take(items)) continue;
      if (this.#park(items.length)) return REST;
      items = this.#see();
      stop = items.find(({ kind }) => kind === "stop");
      if (stop !== undefined) return this.#stopTurn(stop);
      this.#take(items);
    }
  }

  #park(left: number): boolean {
    const before = { d: structuredClone(this.d), staged: this.#staged, waits: this.#waits, settled: this.#settled, consumed: this.#consumed };
    const kinds = this.#open().map(([, { kind }]) => waitKind(kind));
    const reasons = kinds.map((kind) => ({ approval: "approval", question: "approval", children: "children", timer: "timer" })[kind] ?? "signal");
    try {
      this.#stage((d) => ((d.state = "waiting"), (d.reason = ["approval", "children", "signal", "timer"].find((reason) => reasons.includes(reason)))));
      this.#commit({ release: true, most: left, turnDone: true });
      return true;
    } catch (error) {
      if (!(error instanceof InboxWaits)) throw error;
    }
    this.d = before.d;
    this.#staged = before.staged;
    this.#waits = before.waits;
    this.#settled = before.settled;
    this.#consumed = before.consumed;
    this.#pending = this.modelRun.inbox.length;
    if (this.#staged) this.#commit({ turnDone: true });
    return false;
  }

  #wait(index: number): void {
    this.#stage((d) => ((d.calls[index] as Call).state = "waiting"));
    this.#waits.push({ index, call: structuredClone(this.d.calls[index] as Call) });
  }

  /** Calls side by side: which of their results are recorded first is free, so the slower ones are guessed. */
  #execute(): void {
    const due = this.#open().filter(([, { state }]) => state !== "waiting");
    if (due.length === 0 || this.#aborted) return;
    const quietly = due.filter(([, { kind, state }]) => (kind === "once" || kind.startsWith("pay")) && state === "open");
    for (const [index] of quietly) this.#stage((d) => ((d.calls[index] as Call).state = "announced"));
    if (this.#staged && due.some(([, { kind }]) => kind === "once" || kind.startsWith("pay"))) this.#commit();
    if (this.#aborted) return;
    this.#point();
    let queue = due;
    while (queue.length > 0) {
      // An interruption makes any of them slow.
      const isFree = this.interruption !== undefined || queue.some(([, { kind }]) => kind.startsWith("spawn"));
      const now = queue.length > 1 && isFree ? queue.filter(() => this.choose(2) === 0) : queue;
      if (now.length === 0) throw new Impossible();
      for (const [index, { kind }] of now) {
        if (this.#aborted && this.choose(2) === 1) {
          if (kind === "once" || kind.startsWith("pay")) this.#end(index, "interrupted");
          continue;
        }
        if (["read", "once", "pay", "pay_soon", "compact"].includes(kind)) this.#end(index, "ok");
        else this.#wait(index);
      }
      queue = queue.filter((call) => !now.includes(call));
      if (queue.length > 0) {
        this.#commit();
        this.#point();
      }
    }
  }

  #stopTurn(stop: Item): typeof REST {
    const { modelRun: run } = this;
    if (run.held && this.#staged) this.#commit();
    const others = run.inbox.filter(({ id }) => id !== stop.id && !this.#consumed.has(id));
    const answers = others.filter(({ kind }) => kind === "wait");
    for (const { id } of [...answers, stop]) this.#consumed.add(id);
    for (const [index, { state }] of this.d.phase === "calling" ? this.#open() : []) this.#end(index, state === "announced" ? "interrupted" : "STOPPED");
    this.#stage((d) => {
      d.words.push("stopped");
      d.phase = "boundary";
      d.state = "waiting";
      d.reason = "input";
    });
    this.#commit({ release: true, turnDone: true, stops: true, most: others.length - answers.length });
    return REST;
  }
}
