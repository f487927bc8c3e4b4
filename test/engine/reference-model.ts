/**
 * What runs may do, as small as it can be said: no events, no fold, no SQL. A world of a few runs, what people do to it
 * (here) and what a job does with a run (reference-job.ts). Compared with the real thing by interleavings.test.ts.
 */

/** What a scripted model asks for in one response. `soon` kinds have a time limit of half an hour. */
export const callKinds = ["read", "once", "pay", "pay_soon", "ask", "ask_soon", "go", "go_soon", "nap", "later", "spawn1", "spawn3", "compact"] as const;
export type CallKind = (typeof callKinds)[number];
/** One entry a turn: the calls of its response, none for a plain answer. Behind its end all answers are plain. */
export type Script = readonly (readonly CallKind[])[];

export type ChildKind = "say" | "once" | "pay" | "nest";
export const childScripts: Readonly<Record<ChildKind, Script>> = { say: [[]], once: [["once"]], pay: [["pay"]], nest: [["spawn1", "read"]] };
export const spawned: Readonly<Record<"spawn1" | "spawn3", readonly ChildKind[]>> = { spawn1: ["pay"], spawn3: ["say", "nest", "once"] };
/** Children of one call at a time. */
export const SPAWN_CONCURRENCY = 2;
export const MAX_INPUTS = 16;

export interface Item {
  readonly id: number;
  readonly kind: "input" | "stop" | "wait" | "compact" | "compaction";
  readonly text?: string;
  /** Came when the run had ended. */
  readonly isLate?: boolean;
  /** Of a `wait`: which one, and what was said. */
  readonly wait?: string;
  readonly said?: "yes" | "no";
}

export interface Call {
  readonly kind: CallKind;
  state: "open" | "announced" | "waiting" | "done";
  approved: boolean;
}

export interface Wait {
  readonly run: string;
  readonly turn: number;
  readonly index: number;
  readonly kind: CallKind;
  readonly madeAt: number;
  answered: boolean;
  settled: boolean;
  /** Children that have not ended. */
  pending: number;
}

export type State = "queued" | "running" | "waiting" | "completed" | "failed" | "cancelled";

/** What only a job changes. */
export interface Engine {
  state: State;
  reason: string | undefined;
  turn: number;
  phase: "boundary" | "requested" | "failed" | "answered" | "calling";
  calls: Call[];
  /** What the journal says, in short. */
  words: string[];
  crashes: number;
  retryAt: number;
  task: { finished: boolean; prepared: boolean; afterEnd: boolean } | undefined;
}

export interface Run extends Engine {
  readonly name: string;
  readonly parent: { readonly run: string; readonly turn: number; readonly index: number } | undefined;
  readonly script: Script;
  readonly interactive: boolean;
  /** Compacts itself. */
  readonly auto: boolean;
  paused: boolean;
  inbox: Item[];
  /** Some worker has it. */
  held: boolean;
  /** A child that waits for an elder sibling to end. */
  heldBack: boolean;
  /** Its time limit's wish went with a job that came for nothing: the search for lost jobs alone wakes it then. */
  isTimerLost: boolean;
  /** Signals that nobody waited for, by name. */
  kept: string[];
}

export interface World {
  /** Only whole hours pass. */
  hour: number;
  /** The model provider is away. */
  down: boolean;
  tenantPaused: boolean;
  runs: Record<string, Run>;
  waits: Record<string, Wait>;
  ids: number;
}

/** What people and the outside do; `run` and `wait` are names. */
export type Act =
  | { readonly do: "send"; readonly run: string; readonly text: string }
  | { readonly do: "stop" | "pause" | "resume" | "cancel" | "compact" | "compact_later" | "signal" | "signal_soon" | "summarize"; readonly run: string }
  | { readonly do: "answer"; readonly wait: string; readonly yes: boolean }
  | { readonly do: "tick" | "outage" | "pause_all" | "resume_all" };

export const isEnded = ({ state }: Pick<Engine, "state">): boolean => state === "completed" || state === "failed" || state === "cancelled";
export const isSoon = (kind: CallKind): boolean => kind.endsWith("_soon") || kind === "nap";
export const isOver = (w: World, { kind, madeAt }: Pick<Wait, "kind" | "madeAt">): boolean => isSoon(kind) && w.hour > madeAt;
export const nameOfWait = (run: string, turn: number, index: number): string => `${run}/${turn}.${index}`;
/** In words of the database. */
export function waitKind(kind: CallKind): string {
  const kinds: Partial<Record<CallKind, string>> = { nap: "timer", later: "completion", spawn1: "children", spawn3: "children" };
  return kinds[kind] ?? (kind.startsWith("pay") ? "approval" : kind.startsWith("ask") ? "question" : "signal");
}

export function newRun(fields: Pick<Run, "name" | "parent" | "script" | "interactive" | "auto"> & { readonly heldBack?: boolean }): Run {
  return {
    heldBack: false,
    ...fields,
    state: "queued",
    reason: undefined,
    turn: 0,
    phase: "boundary",
    calls: [],
    words: [],
    crashes: 0,
    retryAt: 0,
    task: undefined,
    paused: false,
    inbox: [],
    held: false,
    isTimerLost: false,
    kept: [],
  };
}

export function newWorld(root: Run): World {
  return { hour: 0, down: false, tenantPaused: false, runs: { [root.name]: root }, waits: {}, ids: 0 };
}

export function put(w: World, run: Run, item: Omit<Item, "id">): void {
  run.inbox.push({ ...item, id: ++w.ids });
}

/** A choice turns out not to be what happened: `explore` tries the next. */
export class Impossible extends Error {}

/** Gives "ok", "false" for what had been done already, or the code of the refusal. Throws Impossible where its run or wait is not there yet: then it came later. */
export function act(w: World, action: Act): string {
  if (("wait" in action && w.waits[action.wait] === undefined) || ("run" in action && w.runs[action.run] === undefined)) throw new Impossible();
  switch (action.do) {
    case "tick":
      w.hour++;
      return "ok";
    case "outage":
      w.down = !w.down;
      return "ok";
    case "pause_all":
    case "resume_all": {
      const before = w.tenantPaused;
      w.tenantPaused = action.do === "pause_all";
      return before === w.tenantPaused ? "false" : "ok";
    }
    case "answer":
      return answer(w, action.wait, action.yes);
    default:
      return actOn(w, w.runs[action.run] as Run, action);
  }
}

const stoppable = new Set<string | undefined>(["approval", "children", "signal", "timer", "retry", "compaction"]);

function actOn(w: World, run: Run, action: Extract<Act, { run: string }>): string {
  switch (action.do) {
    case "send":
      if (isEnded(run)) return "RUN_FINISHED";
      if (run.inbox.filter(({ kind }) => kind === "input").length >= MAX_INPUTS) return "INBOX_FULL";
      put(w, run, { kind: "input", text: action.text });
      return "ok";
    case "stop":
      if (isEnded(run)) return "RUN_FINISHED";
      if (!run.interactive) return "NOT_INTERACTIVE";
      if (run.inbox.some(({ kind }) => kind === "stop")) return "ok";
      if (run.state === "queued" || (run.state === "waiting" && !stoppable.has(run.reason))) return "NOT_MID_TURN";
      put(w, run, { kind: "stop" });
      return "ok";
    case "pause":
      if (isEnded(run)) return "RUN_FINISHED";
      if (run.paused) return "false";
      run.paused = true;
      return "ok";
    case "resume":
      if (!run.paused) return "false";
      run.paused = false;
      run.isTimerLost = false;
      return "ok";
    case "cancel":
      if (isEnded(run)) return "false";
      end(w, run, "cancelled");
      return "ok";
    case "compact":
    case "compact_later":
      if (action.do === "compact" && (run.held || run.reason === "approval" || run.reason === "children")) return "RUN_BUSY";
      if (run.inbox.some(({ kind }) => kind === "compact")) run.inbox = run.inbox.map((item) => (item.kind === "compact" ? { ...item, isLate: isEnded(run) } : item));
      else put(w, run, { kind: "compact", isLate: isEnded(run) });
      return "ok";
    case "signal":
    case "signal_soon":
      return signal(w, run, action.do === "signal" ? "go" : "go_soon");
    case "summarize":
      if (run.task === undefined || run.task.finished) return "none";
      run.task.finished = true;
      if (!isEnded(run) || run.task.afterEnd) put(w, run, { kind: "compaction", isLate: isEnded(run) });
      return "ok";
  }
}

function answer(w: World, name: string, yes: boolean): string {
  const wait = w.waits[name] as Wait;
  const run = w.runs[wait.run] as Run;
  const kind = waitKind(wait.kind);
  if (kind === "signal") return signal(w, run, wait.kind);
  if (kind === "completion") {
    if (isEnded(run)) return "RUN_FINISHED";
    if (wait.settled || wait.answered) return "WAIT_DECIDED";
    hand(w, name, yes);
    return "ok";
  }
  if (wait.answered || wait.settled) return "WAIT_DECIDED";
  if (isOver(w, wait)) return "WAIT_EXPIRED";
  hand(w, name, yes);
  return "ok";
}

function signal(w: World, run: Run, name: string): string {
  if (isEnded(run)) return "RUN_FINISHED";
  const open = Object.entries(w.waits).find(([, wait]) => wait.run === run.name && wait.kind === name && !wait.answered && !wait.settled && !isOver(w, wait));
  if (open === undefined) run.kept.push(name);
  else hand(w, open[0], true);
  return "ok";
}

export function hand(w: World, name: string, yes: boolean): void {
  const wait = w.waits[name] as Wait;
  wait.answered = true;
  put(w, w.runs[wait.run] as Run, { kind: "wait", wait: name, said: yes ? "yes" : "no" });
}

/** What follows from the end of a run: its waits are over, its children end, its parent is told. */
export function end(w: World, run: Run, state: "completed" | "cancelled"): void {
  run.state = state;
  run.reason = undefined;
  run.held = false;
  run.words.push(state);
  leave(w, run);
  const { parent } = run;
  const above = parent && w.runs[parent.run];
  const wait = parent && w.waits[nameOfWait(parent.run, parent.turn, parent.index)];
  if (parent === undefined || above === undefined || wait === undefined || isEnded(above) || wait.settled || wait.pending === 0) return;
  wait.pending--;
  if (wait.pending === 0) return hand(w, nameOfWait(parent.run, parent.turn, parent.index), true);
  const next = Object.values(w.runs).find(
    (sibling) =>
      sibling.heldBack &&
      !isEnded(sibling) &&
      sibling.parent !== undefined &&
      nameOfWait(sibling.parent.run, sibling.parent.turn, sibling.parent.index) === nameOfWait(parent.run, parent.turn, parent.index),
  );
  if (next !== undefined) next.heldBack = false;
}

/** Nobody waits for anything of this run any more. */
export function leave(w: World, run: Run): void {
  for (const wait of Object.values(w.waits)) if (wait.run === run.name) wait.settled = true;
  for (const child of Object.values(w.runs)) if (child.parent?.run === run.name && !isEnded(child)) end(w, child, "cancelled");
}

/** Whether somebody must come by: without a wish the run would stand. */
export function needsWish(w: World, run: Run): boolean {
  if (run.paused || w.tenantPaused || run.held) return false;
  const has = (...kinds: Item["kind"][]): boolean => run.inbox.some(({ kind }) => kinds.includes(kind));
  // What was asked of it before its end is found by the search for lost jobs alone.
  if (isEnded(run)) return run.inbox.some(({ isLate }) => isLate === true);
  if (run.state !== "waiting") return !run.heldBack;
  switch (run.reason) {
    case "input":
      return run.inbox.length > 0;
    case "retry":
      return has("stop") || !run.isTimerLost;
    case "compaction":
    case "context_exhausted":
      return has("compact", "compaction", "stop");
    case "crash_loop":
      return false;
    default:
      return has("wait", "stop") || (!run.isTimerLost && Object.values(w.waits).some((wait) => wait.run === run.name && !wait.settled && isSoon(wait.kind)));
  }
}

/** What can be seen from outside, in the same words as interleaving-bench.ts reads it from the database. */
export function seen(w: World): Record<string, unknown> {
  return Object.fromEntries(
    Object.values(w.runs)
      .map(
        (run) =>
          [
            run.name,
            {
              state: run.state,
              reason: run.reason ?? null,
              paused: run.paused,
              turn: run.turn,
              words: sortEnds(run.words),
              inbox: run.inbox.map(({ kind, text }) => text ?? kind),
              waits: Object.values(w.waits)
                .filter((wait) => wait.run === run.name && !wait.settled)
                .map(({ turn, index, kind, answered }) => `${turn}.${index} ${waitKind(kind)}${answered ? " answered" : ""}`)
                .toSorted(),
              task: run.task === undefined ? "none" : run.task.prepared ? "prepared" : "open",
            },
          ] as const,
      )
      .toSorted(([a], [b]) => (a < b ? -1 : 1)),
  );
}

/** Calls that run side by side end in any order. */
export function sortEnds(words: readonly string[]): string[] {
  const out: string[] = [];
  for (let i = 0; i < words.length;) {
    let to = i + 1;
    while (words[i]?.startsWith("end ") === true && words[to]?.startsWith("end ") === true) to++;
    out.push(...words.slice(i, to).toSorted());
    i = to;
  }
  return out;
}
