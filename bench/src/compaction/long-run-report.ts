import type { Check } from "../growth-checks.ts";
import { table } from "../markdown.ts";
import { show } from "../statistics.ts";
import type { LongRun, Stop } from "./long-run.ts";
import { WINDOW_TOKENS } from "./long-run-agent.ts";

/** Four bytes a token. */
const WINDOW_BYTES = WINDOW_TOKENS * 4;
/** A tail and its head: some fifty turns of three events, and what was written while the summary was made. */
const MOST_EVENTS_READ = 1_000;
/** A head with full caps: a summary, 1 % of facts and 2 % of ledger, task and tags. */
const MOST_HEAD_BYTES = WINDOW_BYTES / 4;
const LOAD_RATIO = 2;
const LOAD_SLACK_MS = 25;
const MOST_WARM_LOAD_MS = 50;
const ENGINE_RATIO = 1.2;
const ENGINE_SLACK_MS = 1;

export function checkLongRun(measured: LongRun): Check[] {
  const { stops, applied, verify, engineMs } = measured;
  const last = stops.at(-1) as Stop;
  const early = stops.find(({ turn }) => turn === 100) ?? last;
  const [first = Number.NaN, late = Number.NaN] = Object.entries(engineMs)
    .toSorted(([a], [b]) => Number(a) - Number(b))
    .map(([, ms]) => ms);
  const at = (stop: Stop): string => `at turn ${stop.turn.toLocaleString("en-US")}`;
  return [
    check("compactions applied", "≥ 1", applied, applied >= 1),
    ...stops.map((stop) => check(`${at(stop)}, view bytes`, `≤ ${show(WINDOW_BYTES)} (the window)`, stop.viewBytes, stop.viewBytes <= WINDOW_BYTES)),
    ...stops.map((stop) => check(`${at(stop)}, head bytes`, `≤ ${show(MOST_HEAD_BYTES)}`, stop.headBytes, stop.headBytes <= MOST_HEAD_BYTES)),
    ...stops.map((stop) => check(`${at(stop)}, events that a resume reads`, `≤ ${show(MOST_EVENTS_READ)}`, stop.eventsRead, stop.eventsRead <= MOST_EVENTS_READ)),
    check(`${at(last)}, load ms in a process that has loaded before`, `≤ ${MOST_WARM_LOAD_MS}`, last.warmMs, last.warmMs <= MOST_WARM_LOAD_MS),
    check(
      `${at(last)}, load ms in a fresh process`,
      `≤ ${LOAD_RATIO} x ${show(early.ms)} (${at(early)}) + ${LOAD_SLACK_MS}`,
      last.ms,
      last.ms <= early.ms * LOAD_RATIO + LOAD_SLACK_MS,
    ),
    check(`${at(last)}, engine ms a turn`, `≤ ${ENGINE_RATIO} x ${show(first)} (turn 10) + ${ENGINE_SLACK_MS}`, late, late <= first * ENGINE_RATIO + ENGINE_SLACK_MS),
    check(`${at(last)}, the pin of turn 3 is in the view`, "yes", last.holdsPin ? "yes" : "no", last.holdsPin),
    check(
      "capstan verify: problems",
      "0",
      `${verify.problems.length}${verify.problems.length === 0 ? "" : ` (${verify.problems[0]})`}`,
      verify.problems.length === 0 && verify.markers === applied,
    ),
  ];
}

function check(name: string, asked: string, measured: number | string, passed: boolean): Check {
  return { name, asked, measured: typeof measured === "number" ? show(measured) : measured, passed };
}

export function longRunReport(measured: LongRun, checks: readonly Check[], about: string): string {
  const { stops, ms, applied, notApplied, tokensSaved, ledgerLeftOut, largestMarkerBytes, engineMs, verify } = measured;
  const reasons = Object.entries(notApplied).map(([reason, n]) => `${reason} ${n}`);
  const engine = Object.entries(engineMs).map(([turn, own]) => `${show(own)} ms around turn ${whole(Number(turn))}`);
  return [
    about,
    [
      `One run with a window of ${whole(WINDOW_TOKENS)} tokens and \`compaction: { enabled: true }\`, a worker of each pool, the model in the process.`,
      `${applied} compactions were applied, ${reasons.length === 0 ? "none skipped or failed" : `not applied: ${reasons.join(", ")}`}; ${whole(tokensSaved)} tokens saved;`,
      `largest marker ${whole(largestMarkerBytes)} bytes; ${whole(ledgerLeftOut)} lines of side effects left out of the newest ledger. The run took ${show(ms / 1_000)} s.`,
      `\`verify\` rebuilt ${whole(verify.requests)} requests and ${whole(verify.markers)} markers in ${show(verify.ms / 1_000)} s.`,
      `From a model's answer to its next call (two commits and a tool; median of some eighty turns): ${engine.join(", ")}.`,
    ].join(" "),
    "",
    table(["turn", "events in the journal", "events read", "load ms, fresh process", "load ms, warm", "messages", "view bytes", "head bytes"], stops.map(row)),
    "",
    table(
      ["check", "asked", "measured", ""],
      checks.map(({ name, asked, measured: found, passed }) => [name, asked, found, passed ? "pass" : "**fail**"]),
    ),
  ].join("\n");
}

function row({ turn, journalEvents, eventsRead, ms, warmMs, messages, viewBytes, headBytes }: Stop): string[] {
  return [whole(turn), whole(journalEvents), whole(eventsRead), show(ms), show(warmMs), whole(messages), whole(viewBytes), whole(headBytes)];
}

function whole(n: number): string {
  return n.toLocaleString("en-US");
}
