/** The bounds on stored bytes. 1 KB is 1,000 bytes, 1 KiB 1,024. */
import type { Length } from "./growth-length.ts";
import { show } from "./statistics.ts";
import { ANSWER_BYTES, PROMPT_BYTES, RESULT_BYTES } from "./workload.ts";

export interface Check {
  readonly name: string;
  readonly asked: string;
  readonly measured: string;
  readonly passed: boolean;
}

const TURN_BYTES = ANSWER_BYTES + RESULT_BYTES;
const EVENTS_OVER_TRANSCRIPT = 1.5;
const PER_TURN_AT = 650;
const EVENTS_AND_INDEX_PER_TURN = 3_700;
const EVERYTHING_PER_TURN = 4_200;
/** Bytes a turn between two lengths may differ this much before the growth is called other than linear; short runs are all page rounding. */
const LINEAR_WITHIN = 1.1;
const LINEAR_FROM_TURNS = 200;
/** The prompt is the largest thing that a run of this workload is given; the queue's and our own texts are smaller. */
const LARGEST_VALUE = PROMPT_BYTES + 1_024;

export function checkGrowth(lengths: readonly Length[]): Check[] {
  const checks = [crossing(128, 52), crossing(256, 107)];
  for (const length of lengths) checks.push(...checkLength(length));
  checks.push(...checkLinear(lengths));
  return checks;
}

/** The workload itself is what it claims to be. */
function crossing(kib: number, turn: number): Check {
  const measured = Math.ceil((kib * 1_024 - PROMPT_BYTES) / TURN_BYTES);
  return { name: `the transcript reaches ${kib} KiB at turn`, asked: `${turn} ± 1`, measured: String(measured), passed: Math.abs(measured - turn) <= 1 };
}

function checkLength({ turns, size, stored, largest, modelCalls, warnedAtTurn }: Length): Check[] {
  const at = `at ${turns.toLocaleString("en-US")} turns`;
  const expected = PROMPT_BYTES + turns * TURN_BYTES;
  const ratio = stored.events / size.transcriptBytes;
  const warns = expected > 262_144;
  const checks: Check[] = [
    {
      name: `${at}, transcript bytes in the run's row`,
      asked: `within a turn of ${show(expected)}`,
      measured: show(size.transcriptBytes),
      passed: Math.abs(size.transcriptBytes - expected) <= TURN_BYTES,
    },
    { name: `${at}, heap and TOAST of events over the transcript`, asked: `≤ ${EVENTS_OVER_TRANSCRIPT}`, measured: ratio.toFixed(2), passed: ratio <= EVENTS_OVER_TRANSCRIPT },
    {
      name: `${at}, largest value in any column, bytes`,
      asked: `≤ ${show(LARGEST_VALUE)}`,
      measured: `${show(largest.bytes)} (${largest.column})`,
      passed: largest.bytes <= LARGEST_VALUE,
    },
    { name: `${at}, model calls of a resume`, asked: "1", measured: String(modelCalls), passed: modelCalls === 1 },
    {
      name: `${at}, growth warning`,
      asked: warns ? "at turn 107 ± 1" : "none",
      measured: warnedAtTurn === undefined ? "none" : `turn ${warnedAtTurn}`,
      passed: warns ? warnedAtTurn !== undefined && Math.abs(warnedAtTurn - 107) <= 1 : warnedAtTurn === undefined,
    },
  ];
  if (turns === PER_TURN_AT) {
    const events = (stored.events + stored.eventIndexes) / turns;
    const all = (stored.events + stored.eventIndexes + stored.rest) / turns;
    checks.push({
      name: `${at}, events and their indexes, bytes a turn`,
      asked: `≤ ${show(EVENTS_AND_INDEX_PER_TURN)}`,
      measured: show(events),
      passed: events <= EVENTS_AND_INDEX_PER_TURN,
    });
    checks.push({ name: `${at}, everything, bytes a turn`, asked: `≤ ${show(EVERYTHING_PER_TURN)}`, measured: show(all), passed: all <= EVERYTHING_PER_TURN });
  }
  return checks;
}

function checkLinear(lengths: readonly Length[]): Check[] {
  const long = lengths.filter(({ turns }) => turns >= LINEAR_FROM_TURNS).toSorted((a, b) => a.turns - b.turns);
  const slopes = long.slice(1).map((length, i) => (total(length) - total(long[i] as Length)) / (length.turns - (long[i] as Length).turns));
  if (slopes.length < 2) return [];
  const spread = Math.max(...slopes) / Math.min(...slopes);
  return [
    {
      name: `linear: bytes a turn between the lengths from ${LINEAR_FROM_TURNS} turns on, largest over smallest`,
      asked: `≤ ${LINEAR_WITHIN}`,
      measured: `${spread.toFixed(3)} (${slopes.map(show).join(", ")})`,
      passed: spread <= LINEAR_WITHIN,
    },
  ];
}

function total({ stored }: Length): number {
  return stored.events + stored.eventIndexes + stored.rest;
}
