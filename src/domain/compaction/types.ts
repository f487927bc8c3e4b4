/** Words that planning, summarizing, the marker and the engine share. Pure data; all positions are event seqs. */
import { z } from "zod";
import { budgetKinds } from "../budget.ts";
import { userPart } from "../transcript/message.ts";
import { tokenScale, usageSchema } from "../usage.ts";

export const compactionTriggers = ["manual", "auto", "self", "overflow"] as const;
export type CompactionTrigger = (typeof compactionTriggers)[number];

/** Why a compaction that was wanted did not change the view. Each is its own outcome, with its own advice (outcomes.ts). */
export const compactionReasons = [
  // Decided before any call.
  "too_few_units",
  "nothing_to_cut",
  "too_little_freed",
  "single_message",
  "irreducible",
  "breaker_open",
  "quota",
  "agent_gone",
  "summarizer_missing",
  // What came of the summarizer.
  "denied",
  "empty",
  "tool_call",
  "truncated",
  "inflated",
  "provider",
  "timed_out",
  "input_too_large",
  "interrupted",
  // The world moved on.
  "joined",
  "superseded",
  "not_smaller",
  "marker_lost",
] as const;
export type CompactionReason = (typeof compactionReasons)[number];

/** The events whose content one message of the view holds: first and last seq (a tool message has one per result). */
export interface Place {
  readonly first: number;
  readonly last: number;
  /** For a tool message: the event of each part, in the order of the parts. */
  readonly parts?: readonly number[];
}

/** A message of the kept tail that is shown as head and tail with a pointer; its row is unchanged. */
export const excerptSchema = z.object({
  /** seq of the event that holds the content: a tool's result, or input. */
  seq: z.int().positive(),
  /** UTF-8 bytes of text that stay, head and tail together. */
  keep_bytes: z.int().nonnegative(),
  /** `pruned`: an old result that can be fetched again; `excerpt`: too large for the view. */
  kind: z.enum(["excerpt", "pruned"]),
});
export type Excerpt = z.infer<typeof excerptSchema>;

export const factSchema = z.object({
  kind: z.enum(["pin", "identifier", "number", "decision"]),
  text: z.string(),
  /** seq where it was first seen (a pin: where it was set). */
  seq: z.int().positive(),
  /** Name of the argument that it was, for an identifier or number. */
  about: z.string().optional(),
});
export type Fact = z.infer<typeof factSchema>;

/** One line of the ledger of side effects done: equal calls are counted, not repeated. */
export const ledgerLineSchema = z.object({
  tool: z.string(),
  /** Key arguments, shortened. */
  args: z.string(),
  ok: z.int().nonnegative(),
  failed: z.int().nonnegative(),
  unknown: z.int().nonnegative(),
  /** seq of the last such call's end. */
  last_seq: z.int().positive(),
});
export type LedgerLine = z.infer<typeof ledgerLineSchema>;

const ledgerDigestSchema = z.tuple([z.string(), z.int().nonnegative(), z.int().nonnegative(), z.int().nonnegative()]);
/** A line that is not shown: digest of tool and arguments, then how often ok, failed and unknown. */
export type LedgerDigest = z.infer<typeof ledgerDigestSchema>;

/** What the model sees in place of the events that were summarized; rendered by head.ts beside the pinned task. */
export const headSchema = z.object({
  /** Version of the pure function that renders it. */
  version: z.int().positive(),
  summary: z.string(),
  /** Verbatim lines for facts that summary and tail lack, and all pins. */
  facts: z.array(factSchema),
  /** Facts that only the tail holds: not shown, and looked for again once the tail is replaced. */
  facts_in_tail: z.array(factSchema).optional(),
  /** Words that results or the user gave and no call has used yet (seq, word): not shown; used by a later call they are facts. */
  given: z.array(z.tuple([z.int().positive(), z.string()])).optional(),
  ledger: z.array(ledgerLineSchema),
  /** Lines of the ledger that the cap left out; the `context` tool lists them. */
  ledger_left_out: z.int().nonnegative(),
  /** Of those the newest, as digest and counts: a call that is made again goes on counting. Not shown. */
  ledger_digests: z.array(ledgerDigestSchema).optional(),
  /** The agent has no `context` tool, so that the head does not send it there. Absent: it has. */
  ledger_listed: z.literal(false).optional(),
  /** What is open by the engine's own tables at the time: children, approvals, timers. */
  obligations: z.array(z.string()),
  /** The summary's source held content that is not the operator's own. */
  tainted: z.boolean(),
  /** The user's newest message, where the exchange about it is so long that the cut lies behind it. */
  request: z.object({ seq: z.int().positive(), content: z.array(userPart) }).optional(),
});
export type Head = z.infer<typeof headSchema>;

export const factsCheckSchema = z.object({ marked: z.int().nonnegative(), found: z.int().nonnegative(), appended: z.int().nonnegative(), dropped: z.int().nonnegative() });
export type FactsCheck = z.infer<typeof factsCheckSchema>;

/** How the summarizer's input was made to fit: 0 whole, 1 old tool results capped, 2 dropped from the middle out, 3 chunked and merged, 4 deterministic skeleton without a call. */
export const rungSchema = z.int().min(0).max(4);

/** Where the cut lies. `from_seq`..`to_seq` is replaced; `first_kept_seq` is the first event of the tail (next seq when nothing is kept). */
export const cutSchema = z.object({
  from_seq: z.int().positive(),
  to_seq: z.int().positive(),
  first_kept_seq: z.int().positive(),
  kept_units: z.int().nonnegative(),
  keep_first: z.boolean(),
  excerpts: z.array(excerptSchema).optional(),
  /** The user's newest message is among what is replaced: the head shows it word for word. */
  request_seq: z.int().positive().optional(),
});
export type Cut = z.infer<typeof cutSchema>;

export const summarizedSchema = z.object({
  head: headSchema,
  rung: rungSchema,
  summarizer: z.string(),
  model: z.string().optional(),
  usage: usageSchema.optional(),
  cost_usd_micros: z.int().nonnegative().optional(),
  calls: z.int().nonnegative(),
  facts_check: factsCheckSchema,
  /** sha256 over the canonical bytes of the messages that were replaced, base64url. */
  source_digest: z.string(),
  duration_ms: z.int().nonnegative(),
});
/** What the summarizing worker hands to the holder of the run's lease. */
export type Summarized = z.infer<typeof summarizedSchema>;

/** A view's size, and whose counting it is. */
export const viewSizeSchema = z.object({ tokens: z.int().nonnegative(), scale: tokenScale, bytes: z.int().nonnegative() });

/** What a fold that begins at a marker cannot learn from the events behind it. */
export const carrySchema = z.object({
  turn: z.int().nonnegative(),
  native_output: z.boolean(),
  corrections: z.object({ empty: z.int(), truncated: z.int(), output_invalid: z.int() }),
  model_failures: z.int().nonnegative(),
  truncated_to: z.int().positive().optional(),
  /** The attempt that was refused for length, where that is what the compaction is for: its turn is asked again. */
  overflow_attempt: z.int().nonnegative().optional(),
  /** Where the cut keeps no message: the first event that says what the run was at (its answer, what it waits for). */
  from_seq: z.int().positive().optional(),
  /** Turns of the last applied compactions, this one included; bounded. */
  applied_turns: z.array(z.int().nonnegative()),
  /** Turn of the last skip or failure. */
  unapplied_turn: z.int().nonnegative().optional(),
  /** Reasons that were journaled already: each is told once per run. */
  reported: z.array(z.enum(compactionReasons)),
  /** Set by the agent (`op=pin`) or by people. */
  pins: z.array(factSchema),
  /** Where the run has a budget: what its events have said of it, this summary's cost included. */
  budget: z
    .object({
      told: z.array(z.enum(budgetKinds)),
      over: z.enum(budgetKinds).optional(),
      wrap_turn: z.int().positive().optional(),
      spent: z.object({ tokens: z.int().nonnegative(), cost_usd_micros: z.int().nonnegative() }),
    })
    .optional(),
});
export type Carry = z.infer<typeof carrySchema>;

/** So many applied compactions are remembered for the breaker. */
export const REMEMBERED_COMPACTIONS = 8;
