/**
 * What is hidden in a transcript and looked for afterwards. The sentences come in several wordings, some of which none
 * of the product's rules knows: a needle that only our own words can keep would measure nothing.
 */
import { seeded } from "../workload.ts";
import type { Plot, Step, Story, StoryCall } from "./story.ts";

/** `used`: a later call has it among its arguments. `seen`: it stands in a result and nowhere else. Used, and replaced by another compaction than the result that gave it, is a class of its own. */
export const needleClasses = [
  "number, used",
  "number, seen",
  "id, used",
  "id, seen",
  "path, used",
  "path, seen",
  "used after a compaction",
  "error",
  "constraint",
  "decision",
  "superseded value",
  "open point, in words",
  "pin",
  "side effect",
  "open obligation",
] as const;
export type NeedleClass = (typeof needleClasses)[number];

export interface Needle {
  readonly class: NeedleClass;
  /** Occurs nowhere else. */
  readonly token: string;
  /** The value that it took the place of. */
  readonly old?: string;
  /** The step that gave it, where a later one uses it. */
  readonly given?: number;
  /** The last step that holds it. */
  readonly step: number;
  /** A side effect's line in the ledger, as it must read once all its calls are replaced. */
  readonly ledger?: {
    readonly tool: string;
    readonly args: { readonly box: string };
    readonly outcomes: readonly { readonly step: number; readonly outcome: StoryCall["outcome"] }[];
  };
}

const wordings: Readonly<Record<"error" | "constraint" | "decision" | "open", readonly ((token: string) => string)[]>> = {
  error: [(t) => `E_UNREACHABLE: node ${t} refused the connection`, (t) => `the request to ${t} timed out after 30 s`, (t) => `${t} answered 502 and an empty page`],
  constraint: [(t) => `You must never write to ${t} before noon.`, (t) => `Please leave ${t} as it is, whatever happens.`, (t) => `For ${t} at most two tries, then ask me.`],
  decision: [(t) => `I decided to go by ${t} instead of the older one.`, (t) => `Then ${t} it is.`, (t) => `We will use ${t} for the rest of this.`],
  open: [(t) => `Still open: the refund for ${t} waits for the airline.`, (t) => `I have not heard back about ${t} yet.`, (t) => `TODO: send the form for ${t}.`],
};

/** A value and the one that takes its place, each pair about a thing of its own. */
const changes: readonly (readonly [before: (about: string, value: string) => string, after: (about: string, value: string) => string])[] = [
  [(about, value) => `The number of desk ${about} is ${value}.`, (about, value) => `The number of desk ${about} is now ${value}.`],
  [(about, value) => `Call desk ${about} under ${value}, please.`, (about, value) => `Not under the old number, please: desk ${about} has ${value}.`],
  [(about, value) => `Desk ${about}: ${value}`, (about, value) => `Desk ${about}: ${value}`],
];

/** Hides `perSegment` needles of each class in each of `segments` equal parts of the steps. The steps are changed in place. */
export function plant(
  name: string,
  { task, interactive, steps }: Plot,
  { segments, perSegment, seed }: { readonly segments: number; readonly perSegment: number; readonly seed: number },
): Story {
  const random = seeded(seed);
  const taken = new Set<string>();
  const digits = (n: number): string => Array.from({ length: n }, () => Math.floor(random() * 10)).join("");
  const fresh = (make: () => string): string => {
    for (;;) {
      const token = make();
      if (taken.has(token)) continue;
      taken.add(token);
      return token;
    }
  };
  const makers: Readonly<Record<"number" | "id" | "path", () => string>> = {
    number: () => `${1 + Math.floor(random() * 9)}${digits(4)}.${1 + Math.floor(random() * 9)}${1 + Math.floor(random() * 9)}`,
    id: () => `QX${digits(5)}Z`,
    path: () => `/srv/ledger/part-${digits(5)}.csv`,
  };
  const needles: Needle[] = [];
  const obligations: { text: string; from: number; until: number }[] = [];
  const pick = <T>(list: readonly T[]): T => list[Math.floor(random() * list.length)] as T;
  const size = Math.floor(steps.length / segments);

  for (let segment = 0; segment < segments; segment++) {
    const range = Array.from({ length: size }, (_, i) => segment * size + i);
    const where = (kind: Step["kind"], half?: 0 | 1): number => {
      const part = half === undefined ? range : half === 0 ? range.slice(0, size >> 1) : range.slice(size >> 1);
      const fitting = part.filter((i) => steps[i]?.kind === kind);
      // A part without a user's word (an autonomous run), or without calls: the agent says it, or calls where it would have said something.
      const spoken = part.filter((i) => steps[i]?.kind !== "user");
      return pick(fitting.length > 0 ? fitting : spoken.length > 0 ? spoken : part);
    };
    const say = (kind: Step["kind"], text: string, half?: 0 | 1): number => {
      const at = where(kind, half);
      const step = steps[at] as Step;
      step.text = step.text === "" ? text : `${step.text} ${text}`;
      return at;
    };
    const intoResult = (text: string, half?: 0 | 1): number => {
      const at = where("turn", half);
      const step = steps[at] as Step;
      if (step.kind === "turn") (step.calls[0] as StoryCall).result += `\n${text}`;
      else step.text = `${step.text} ${text}`.trimStart();
      return at;
    };
    const addCall = (call: StoryCall, half?: 0 | 1): number => {
      const at = where("turn", half);
      const step = steps[at] as Step;
      if (step.kind === "turn") step.calls.push(call);
      // Talk only, here: the agent calls a tool where it would have answered.
      else if (step.kind === "answer") steps[at] = { kind: "turn", text: step.text, calls: [call] };
      else throw new Error(`story ${name} has no response in a half of segment ${segment}: chain more recordings`);
      return at;
    };
    for (let nth = 0; nth < perSegment; nth++) {
      for (const kind of ["number", "id", "path"] as const) {
        const used = fresh(makers[kind]);
        const first = intoResult(`reference of ${kind}: ${used}`, 0);
        const use = addCall({ name: "lookup", input: { reference: used }, result: "found", outcome: "ok" }, 1);
        needles.push({ class: `${kind}, used`, token: used, given: first, step: Math.max(first, use) });
        const seen = fresh(makers[kind]);
        needles.push({ class: `${kind}, seen`, token: seen, step: intoResult(`another ${kind} on this page: ${seen}`) });
      }
      const error = fresh(() => `db-${digits(5)}`);
      needles.push({ class: "error", token: error, step: addCall({ name: "lookup", input: { node: nth }, result: pick(wordings.error)(error), outcome: "failed" }) });
      const constraint = fresh(() => `box-${digits(5)}`);
      needles.push({ class: "constraint", token: constraint, step: say("user", pick(wordings.constraint)(constraint)) });
      const decision = fresh(() => `RT-${digits(5)}`);
      needles.push({ class: "decision", token: decision, step: say(random() < 0.5 ? "answer" : "turn", pick(wordings.decision)(decision)) });
      const open = fresh(() => `TK-${digits(5)}`);
      needles.push({ class: "open point, in words", token: open, step: say("answer", pick(wordings.open)(open)) });
      const [old, now] = [fresh(() => `555-${digits(5)}`), fresh(() => `555-${digits(5)}`)];
      const [before, after] = pick(changes);
      const desk = fresh(() => `d${digits(4)}`);
      say("user", before(desk, old), 0);
      needles.push({ class: "superseded value", token: now, old, step: say("user", after(desk, now), 1) });
      const pin = fresh(() => `PIN-${digits(6)}`);
      needles.push({
        class: "pin",
        token: pin,
        step: addCall({ name: "context", input: { op: "pin", text: `Keep ${pin}` }, result: `{"pinned":true}`, outcome: "ok", pin: `Keep ${pin}` }),
      });
      const box = fresh(() => `SE-${digits(6)}`);
      const outcomes = Array.from({ length: 1 + Math.floor(random() * 3) }, () => {
        const outcome = pick(["ok", "ok", "ok", "failed", "unknown"] as const);
        return { outcome, step: addCall({ name: "send_notice", input: { box }, result: outcome === "failed" ? "the box is full" : "sent", outcome }) };
      });
      needles.push({ class: "side effect", token: box, step: Math.max(...outcomes.map(({ step }) => step)), ledger: { tool: "send_notice", args: { box }, outcomes } });
    }
    const child = fresh(() => `CH-${digits(6)}`);
    const from = range[Math.floor(size / 3)] as number;
    obligations.push({ text: `run ${child} (child) is at work`, from, until: random() < 0.4 ? from + size : Number.POSITIVE_INFINITY });
  }
  return { name, task, interactive, steps, needles, obligations };
}
