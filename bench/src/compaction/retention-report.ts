import { show } from "../statistics.ts";
import { table } from "../markdown.ts";
import { EXTRACTIVE, GENERATIONS } from "./cast.ts";
import { needleClasses, type NeedleClass } from "./needles.ts";
import type { Retention, Tally } from "./retention.ts";

/** What no summarizer may lose, whatever it writes. */
const kept: readonly NeedleClass[] = ["pin", "open obligation", "side effect"];

export interface GateResult {
  readonly passed: boolean;
  readonly failures: readonly string[];
}

export function gate(results: readonly Retention[]): GateResult {
  const failures = results.flatMap((result) => [
    ...result.problems.map((problem) => `${result.summarizer}: ${problem}`),
    ...kept.flatMap((name) => {
      const { kept: n, of } = sum(result.classes.get(name) ?? []);
      return of > 0 && n === of ? [] : [`${result.summarizer}: ${name}: ${n} of ${of} kept`];
    }),
    ...(result.notSmaller * 10 > result.compactions
      ? [`${result.summarizer}: ${result.notSmaller} summaries were not smaller than what they replace, ${result.compactions} were`]
      : []),
    ...(result.compactions === 0 ? [`${result.summarizer}: nothing was compacted`] : []),
  ]);
  return { passed: failures.length === 0, failures };
}

export function retentionReport(results: readonly Retention[]): string {
  const extractive = results.find(({ summarizer }) => summarizer === EXTRACTIVE);
  return [extractive === undefined ? "" : byGeneration(extractive), bySummarizer(results)].filter((part) => part !== "").join("\n\n");
}

/** Of the needles that were replaced at least so many compactions ago, those that are still in the view. */
function byGeneration({ classes, stale, misled }: Retention): string {
  const generations = Array.from({ length: GENERATIONS }, (_, i) => i);
  const rows = needleClasses.map((name) => [name, ...generations.map((age) => share(classes.get(name)?.[age])), String(sum(classes.get(name) ?? []).of)]);
  return [
    `\`${EXTRACTIVE}\`, share of replaced needles that the view still holds, by the number of compactions that they have been through:`,
    "",
    table(["class", ...generations.map((age) => String(age + 1)), "looks"], rows),
    "",
    `Superseded values: the old one is still shown in ${share(stale)} of all looks, in ${share(misled)} without the new one.`,
  ].join("\n");
}

function bySummarizer(results: readonly Retention[]): string {
  const groups: readonly (readonly [string, readonly NeedleClass[]])[] = [
    ["pins", ["pin"]],
    ["obligations", ["open obligation"]],
    ["side effects", ["side effect"]],
    ["used numbers, ids, paths", ["number, used", "id, used", "path, used"]],
    ["used after a compaction", ["used after a compaction"]],
    ["seen once", ["number, seen", "id, seen", "path, seen"]],
    ["errors", ["error"]],
    ["constraints, decisions", ["constraint", "decision"]],
    ["newest value", ["superseded value"]],
  ];
  const rows = results.map((result) => {
    const { tokens, facts, leftOut } = result;
    return [
      result.summarizer,
      result.notSmaller === 0 ? String(result.compactions) : `${result.compactions} (${result.notSmaller} not smaller)`,
      ...groups.map(([, names]) => share(sum(names.flatMap((name) => result.classes.get(name) ?? [])))),
      `${leftOut.kept} of ${leftOut.of}`,
      result.compactions === 0 ? "–" : show(facts.appended / result.compactions),
      String(facts.dropped),
      `${show((1 - tokens.after / tokens.before) * 100)} %`,
    ];
  });
  return [
    "All summarizers, all generations together. *Left out*: lines of side effects that the ledger's cap left out, the oldest first; they are counted in the head and listed by the `context` tool. *Appended*: facts a compaction that summary and tail lacked and the head shows word for word; *dropped*: those over the cap.",
    "",
    table(["summarizer", "compactions", ...groups.map(([title]) => title), "left out", "appended", "dropped", "tokens saved"], rows),
  ].join("\n");
}

function sum(tallies: readonly (Tally | undefined)[]): Tally {
  return tallies.reduce<Tally>((all, tally) => ({ kept: all.kept + (tally?.kept ?? 0), of: all.of + (tally?.of ?? 0) }), { kept: 0, of: 0 });
}

function share(tally: Tally | undefined): string {
  if (tally === undefined || tally.of === 0) return "–";
  const percent = (tally.kept / tally.of) * 100;
  // Nothing less than all is 100 %.
  return `${percent === 100 || percent === 0 ? percent : Math.min(99.9, Math.round(percent * 10) / 10)} %`;
}
