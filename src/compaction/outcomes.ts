/** Why a compaction changed nothing, in words for the run's owner: what happened, with numbers, and the setting that would help. */
import type { CompactionReason } from "../domain/compaction/types.ts";

export type OutcomeSeverity = "info" | "warning" | "error";

/** What is known of the attempt; what is not is left out of the text. */
export interface OutcomeNumbers {
  readonly units?: number;
  readonly keepLastN?: number;
  readonly tokens?: number;
  readonly windowTokens?: number;
  readonly freedTokens?: number;
  readonly limitTokens?: number;
  readonly summaryBytes?: number;
  readonly replacedBytes?: number;
  readonly recordBytes?: number;
  readonly attempts?: number;
  readonly applied?: number;
  readonly turns?: number;
  readonly summarizer?: string;
  readonly model?: string;
  readonly retryAfterMs?: number;
  /** What the summarizer or the provider said. */
  readonly message?: string;
}

export interface OutcomeText {
  readonly severity: OutcomeSeverity;
  readonly text: string;
  /** Key of the setting, as it is written in a policy or in `createCapstan`; undefined where none would help. */
  readonly setting?: string;
}

interface Advice {
  readonly severity: OutcomeSeverity;
  readonly what: (n: OutcomeNumbers) => string;
  readonly setting?: string;
  readonly advice?: string;
}

/** Sentence, then setting. `info`: as it should be; `warning`: the context goes on growing; `error`: somebody must act. */
const ADVICE: Readonly<Record<CompactionReason, Advice>> = {
  too_few_units: { severity: "info", what: ({ units }) => `the transcript has too few messages to be compacted${given(units, (u) => `: ${u} of at least 4`)}` },
  nothing_to_cut: {
    severity: "info",
    what: ({ units, keepLastN }) => `there is nothing to cut: all ${given(units, (u) => `${u} `)}messages are the task or kept${given(keepLastN, (k) => ` (keep_last_n ${k})`)}`,
    setting: "compaction.keep_last_n",
    advice: "lower it to keep fewer messages verbatim",
  },
  too_little_freed: {
    severity: "info",
    what: ({ freedTokens, tokens }) =>
      `a compaction would free too little to be worth a call${given(freedTokens, (f) => `: about ${f}${given(tokens, (t) => ` of ${t}`)} tokens`)}`,
    setting: "compaction.keep_last_n",
    advice: "lower it to keep fewer messages verbatim",
  },
  single_message: {
    severity: "warning",
    what: ({ tokens }) => `the newest message alone is over the limit${given(tokens, (t) => ` (${t} tokens)`)}; a summary of what is before it would not help`,
    setting: "claimCheck",
    advice: "list the tool whose result is so large",
  },
  irreducible: {
    severity: "error",
    what: ({ tokens, windowTokens }) =>
      `system prompt, tools and what must stay take ${given(tokens, (t) => `${t} tokens`, "too much")}${given(windowTokens, (w) => ` of a window of ${w}`)}: no compaction makes that fit`,
    setting: "model",
    advice: "use one with a larger window, or shorten the instructions, the tools or the task",
  },
  breaker_open: {
    severity: "warning",
    what: ({ applied, turns }) =>
      `automatic compaction is off for this run: it was applied ${given(applied, (a) => `${a} times`, "too often")}${given(turns, (t) => ` within ${t} turns`)} and the context is full again each time`,
    setting: "compaction.keep_last_n",
    advice: "lower it, or take a model with a larger window; compacting by hand still works",
  },
  quota: {
    severity: "warning",
    what: ({ retryAfterMs, message }) => `no quota for a summary${said(message)}${given(retryAfterMs, (ms) => `; there is room again in about ${Math.ceil(ms / 1000)} s`)}`,
    setting: "quotas (kind summary)",
    advice: "raise the limit of the bucket that is named",
  },
  agent_gone: {
    severity: "error",
    what: () => "the definition that the run was started with is not known any more",
    setting: "agents",
    advice: "register the agent again",
  },
  summarizer_missing: {
    severity: "error",
    what: ({ summarizer, message }) => `the summarizer ${given(summarizer, (s) => JSON.stringify(s), "that the policy names")} is not registered with this worker${said(message)}`,
    setting: "createCapstan({ summarizers })",
    advice: "register it there under this name",
  },
  denied: {
    severity: "error",
    what: ({ summarizer, message }) => `the agent may not use the summarizer${given(summarizer, (s) => ` ${s}`)}${said(message)}`,
    setting: "grants",
    advice: "grant what is named, or let the guard allow summaries",
  },
  empty: {
    severity: "warning",
    what: ({ model, limitTokens, message }) => `${who(model)} gave no summary${given(limitTokens, (l) => ` within ${l} output tokens`)}${said(message)}`,
    setting: "compaction.max_tokens",
    advice: "raise it, since reasoning is spent from it too, or set another compaction.model",
  },
  tool_call: {
    severity: "warning",
    what: ({ model, message }) => `${who(model)} called a tool instead of writing a summary; nothing was executed${said(message)}`,
    setting: "compaction.model",
    advice: "set one that follows the instruction",
  },
  truncated: {
    severity: "warning",
    what: ({ model, limitTokens }) => `the summary of ${who(model)} was cut off${given(limitTokens, (l) => ` at ${l} tokens`)} and not used`,
    setting: "compaction.max_tokens",
    advice: "raise it",
  },
  inflated: {
    severity: "warning",
    what: ({ summaryBytes, replacedBytes, message }) =>
      `the summary is not smaller than what it would replace${given(summaryBytes, (s) => ` (${s}${given(replacedBytes, (r) => ` to ${r}`)} bytes)`)}${summaryBytes === undefined ? said(message) : ""} and was not used`,
    setting: "compaction.max_tokens",
    advice: "lower it, or raise compaction.after_bytes to at least twice a summary's size",
  },
  provider: {
    severity: "warning",
    what: ({ model, attempts, message }) => `${who(model)} failed${given(attempts, (a) => ` ${a} times`)}${said(message)}`,
    setting: "compaction.model",
    advice: "check the provider, or set another model",
  },
  timed_out: {
    severity: "warning",
    what: ({ model, message }) => `${who(model)} did not answer in time${said(message)}`,
    setting: "limits.modelTimeoutMs",
    advice: "raise it, or set a faster compaction.model",
  },
  input_too_large: {
    severity: "warning",
    what: ({ recordBytes, windowTokens, message }) =>
      `what is to be summarized ${given(recordBytes, (r) => `(${r} bytes) `)}does not fit the summarizer's window${given(windowTokens, (w) => ` of ${w} tokens`)}, also shortened and in pieces${said(message)}`,
    setting: "compaction.model",
    advice: "set one with a larger window, or let compaction fire earlier (compaction.autocompact_at_pct)",
  },
  interrupted: { severity: "info", what: ({ message }) => `the summary was interrupted and is made again${said(message)}` },
  joined: { severity: "info", what: () => "one was in flight already; this request takes its outcome" },
  superseded: { severity: "info", what: ({ message }) => `the view changed while the summary was made, which is of no use now${said(message)}` },
  not_smaller: {
    severity: "warning",
    what: ({ tokens, freedTokens }) =>
      `the view with the summary would not be smaller than before${given(tokens, (t) => ` (${t} tokens${given(freedTokens, (f) => `, ${f} freed`)})`)}; it stays as it was`,
    setting: "compaction.target_percentage",
    advice: "lower it, or lower compaction.keep_last_n",
  },
  marker_lost: {
    severity: "error",
    what: () => "the marker could not be read back as it was written; the view stays as it was",
    advice: "run `capstan verify` and check the database",
  },
};

/** One sentence, and what would help. The same numbers give the same text. */
export function outcomeText(reason: CompactionReason, numbers: OutcomeNumbers = {}): OutcomeText {
  const { severity, what, setting, advice } = ADVICE[reason];
  const help = advice === undefined ? "" : `; ${setting === undefined ? "" : `${setting}: `}${advice}`;
  return { severity, text: `compaction: ${what(numbers)}${help}`, ...(setting === undefined ? {} : { setting }) };
}

function given<T>(value: T | undefined, text: (value: T) => string, otherwise = ""): string {
  return value === undefined ? otherwise : text(value);
}

function who(model: string | undefined): string {
  return model === undefined ? "the summarizer" : `the summarizer (${model})`;
}

/** Others' words are quoted short: they stand in one line of a log. */
function said(message: string | undefined): string {
  if (message === undefined || message.trim() === "") return "";
  const line = message.replaceAll(/\s+/g, " ").trim();
  return `: ${line.length <= 300 ? line : `${line.slice(0, 300).toWellFormed()}…`}`;
}
