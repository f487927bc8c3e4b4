/** Tells a story to a run, compacts it after each part, and looks for every needle that has been replaced by then. */
import { canonicalJson } from "../../../src/domain/json.ts";
import { toolOutputText, type Message } from "../../../src/domain/transcript/message.ts";
import { compactOnce, type Summarizing } from "./compact-once.ts";
import { MemoryRun } from "./memory-run.ts";
import type { Needle, NeedleClass } from "./needles.ts";
import type { Story } from "./story.ts";

export interface Tally {
  kept: number;
  of: number;
}

export interface Retention {
  readonly summarizer: string;
  /** Per class, by how many compactions lie behind the needle (index 0: the one that replaced it). */
  readonly classes: Map<NeedleClass, Tally[]>;
  /** Superseded values of which the old one is still shown, and those of which it is shown alone. */
  readonly stale: Tally;
  readonly misled: Tally;
  /** Lines that the ledger's cap left out, of all that were due. */
  readonly leftOut: Tally;
  readonly facts: { marked: number; found: number; appended: number; dropped: number };
  readonly tokens: { before: number; after: number };
  compactions: number;
  /** Summaries that would not have made the view smaller: not put in. */
  notSmaller: number;
  /** Applied compactions whose view broke a rule, a lost side effect, a summarizer that gave none: in words. */
  readonly problems: string[];
}

export function newRetention(summarizer: string): Retention {
  return {
    summarizer,
    classes: new Map(),
    stale: { kept: 0, of: 0 },
    misled: { kept: 0, of: 0 },
    leftOut: { kept: 0, of: 0 },
    facts: { marked: 0, found: 0, appended: 0, dropped: 0 },
    tokens: { before: 0, after: 0 },
    compactions: 0,
    notSmaller: 0,
    problems: [],
  };
}

/** Adds to `into`. The story is cut into one part more than there are generations. */
export async function measureRetention(story: Story, by: Summarizing, generations: number, into: Retention): Promise<void> {
  const run = new MemoryRun(story);
  const size = Math.floor(story.steps.length / (generations + 1));
  /** seq at which each step is over. */
  const ends: number[] = [];
  /** Which compaction replaced the needle. */
  const replacedBy = new Map<Needle, number>();
  /** The same of the step that gave what a later one uses. */
  const givenBy = new Map<Needle, number>();
  for (let generation = 0; generation < generations; generation++) {
    for (let at = generation * size; at < (generation + 1) * size; at++) ends.push(run.take(story.steps[at] as Story["steps"][number]));
    const told = ends.length;
    const open = story.obligations.filter(({ from, until }) => from < told && until >= told).map(({ text }) => text);
    const done = await compactOnce(run, by, open);
    const where = `${story.name}, compaction ${generation + 1}`;
    if (done.kind === "not_applied") {
      // The engine refuses so too, and goes on with the view that it has.
      if (done.reason === "not_smaller") into.notSmaller++;
      else into.problems.push(`${where}: not applied (${done.reason})`);
      continue;
    }
    into.compactions++;
    into.tokens.before += done.beforeTokens;
    into.tokens.after += done.afterTokens;
    for (const key of ["marked", "found", "appended", "dropped"] as const) into.facts[key] += done.check[key];
    into.problems.push(...done.problems.map((problem) => `${where}: ${problem}`));
    const shown = textOf(run.state.view);
    const isReplaced = (step: number): boolean => (ends[step] ?? Number.POSITIVE_INFINITY) < done.firstKeptSeq;
    for (const needle of story.needles) {
      if (needle.given !== undefined && isReplaced(needle.given) && !givenBy.has(needle)) givenBy.set(needle, generation);
      if (!isReplaced(needle.step)) continue;
      const first = replacedBy.get(needle) ?? generation;
      replacedBy.set(needle, first);
      count(
        into,
        givenBy.has(needle) && givenBy.get(needle) !== first ? "used after a compaction" : needle.class,
        generation - first,
        look(needle, { text: shown, run, into, where, beforeSeq: ends[needle.step - 1] ?? 1 }),
      );
    }
    for (const text of open) count(into, "open obligation", generation, shown.includes(text));
    // What is over must not be asked for: a stale obligation is as wrong as a lost one.
    for (const { text, until } of story.obligations) if (until < told && shown.includes(text)) into.problems.push(`${where}: "${text}" is shown and is over`);
  }
}

interface Shown {
  readonly text: string;
  readonly run: MemoryRun;
  readonly into: Retention;
  readonly where: string;
  /** seq before the needle's last step. */
  readonly beforeSeq: number;
}

function look(needle: Needle, { text, into, where, ...shown }: Shown): boolean | "left out" {
  if (needle.ledger !== undefined) return lookInLedger(needle, needle.ledger, { text, into, where, ...shown });
  const isKept = standsIn(text, needle.token);
  if (needle.old === undefined) return isKept;
  const isOldShown = standsIn(text, needle.old);
  into.stale.of++;
  into.misled.of++;
  if (isOldShown) into.stale.kept++;
  if (isOldShown && !isKept) into.misled.kept++;
  return isKept;
}

/** With its counts, as they were recorded: counted here from the story, not from the product's ledger. */
function lookInLedger({ token }: Needle, { tool, args, outcomes }: NonNullable<Needle["ledger"]>, { text, run, into, where, beforeSeq }: Shown): boolean | "left out" {
  const counts = (["ok", "failed", "unknown"] as const).flatMap((kind) => {
    const n = outcomes.filter(({ outcome }) => outcome === kind).length;
    return n === 0 ? [] : [`${n} ${kind === "unknown" ? "outcome unknown" : kind}`];
  });
  into.leftOut.of++;
  if (text.includes(`${tool} ${canonicalJson(args)}: ${counts.join(", ")}`)) return true;
  const head = run.state.compaction.head;
  // The cap leaves out the oldest, and says how many.
  if ((head?.ledger_left_out ?? 0) > 0 && beforeSeq < (head?.ledger[0]?.last_seq ?? 0)) {
    into.leftOut.kept++;
    return "left out";
  }
  into.problems.push(`${where}: the ledger lost ${tool} ${token} (${counts.join(", ")})`);
  return false;
}

function count({ classes }: Retention, name: NeedleClass, age: number, outcome: boolean | "left out"): void {
  if (outcome === "left out") return;
  const ages = classes.get(name) ?? [];
  classes.set(name, ages);
  const tally = (ages[age] ??= { kept: 0, of: 0 });
  tally.of++;
  if (outcome) tally.kept++;
}

/** What a model reads. */
function textOf(view: readonly Message[]): string {
  return view
    .flatMap(({ content }) =>
      content.map((part) => {
        if (part.type === "text" || part.type === "reasoning") return part.text;
        if (part.type === "tool_result") return toolOutputText(part.output);
        return part.type === "tool_call" ? canonicalJson(part.input ?? part.arguments ?? null) : "";
      }),
    )
    .join("\n");
}

/** "42" does not stand in "1423". */
function standsIn(text: string, token: string): boolean {
  for (let at = text.indexOf(token); at !== -1; at = text.indexOf(token, at + 1)) {
    if (!/[\p{L}\p{N}]/u.test(text.charAt(at - 1)) && !/[\p{L}\p{N}]/u.test(text.charAt(at + token.length))) return true;
  }
  return false;
}
