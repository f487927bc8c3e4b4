/** Who summarizes, and what is told: the small form for the suite, the whole for the benchmark. */
import { readFileSync } from "node:fs";
import { resolvePolicy } from "../../../src/domain/compaction/policy.ts";
import { chainConversations, parseConversations } from "../../../src/testing/model-server/index.ts";
import { hostileFunctions, hostileSummarizers } from "../../../src/testing/hostile-summarizers.ts";
import { summarizing, type Summarizing } from "./compact-once.ts";
import { plant } from "./needles.ts";
import { generatedSteps, recordedSteps, type Story } from "./story.ts";

/** The window by which the head's caps are sized: facts 1 % and ledger 2 % of it. */
export const WINDOW_TOKENS = 200_000;
export const GENERATIONS = 6;
export const EXTRACTIVE = "offline:extractive";
const PER_SEGMENT = 2;
const recordings = new URL("../../../test/fixtures/conversations/tau-airline.jsonl", import.meta.url);

/** The built-in summarizer on its offline model, and every hostile one that gives text. */
export function summarizers(): Summarizing[] {
  const policy = resolvePolicy({ enabled: true });
  return [
    summarizing(EXTRACTIVE, policy, WINDOW_TOKENS),
    // Small caps: facts of 1,024 bytes and a ledger of 1,280, so that not all can stay.
    summarizing(`${EXTRACTIVE}, window of 16,000`, policy, 16_000),
    ...hostileSummarizers().flatMap(({ name, expected, model }) => (expected === "summarized" ? [summarizing(`hostile: ${name}`, policy, WINDOW_TOKENS, { model })] : [])),
    ...hostileSummarizers().flatMap(({ name, model }) =>
      name === "always_overflows" ? [summarizing("hostile: always_overflows, skeleton", policy, WINDOW_TOKENS, { model, hard: true })] : [],
    ),
    ...hostileFunctions().flatMap(({ name, expected, effect }) =>
      expected === "summarized"
        ? [summarizing(`hostile function: ${name}`, resolvePolicy({ enabled: true, summarizer: name }), WINDOW_TOKENS, { summarizers: { [name]: effect } })]
        : [],
    ),
  ];
}

/** Recordings are chained, so that six compactions have something to replace each. */
export function stories({ recorded, chained, generated }: { readonly recorded: number; readonly chained: number; readonly generated: number }): Story[] {
  const conversations = parseConversations(readFileSync(recordings, "utf8"));
  const groups = Array.from({ length: Math.ceil(conversations.length / chained) }, (_, i) => conversations.slice(i * chained, (i + 1) * chained)).filter(
    (group) => group.length === chained,
  );
  const planted = { segments: GENERATIONS + 1, perSegment: PER_SEGMENT };
  return [
    ...groups.slice(0, recorded).map((group, i) => plant(`recorded ${i + 1}`, recordedSteps(chainConversations(group)), { ...planted, seed: 100 + i })),
    ...Array.from({ length: generated }, (_, i) => plant(`generated ${i + 1}`, generatedSteps(140, 500 + i), { ...planted, seed: 900 + i })),
  ];
}
