/** What a summarizer answered, judged: a summary that may stand for the transcript, or one of the reasons why not. */
import type { CompactionReason } from "../domain/compaction/types.ts";
import { wellFormedText } from "../domain/json.ts";
import { answerText } from "../domain/transcript/message.ts";
import { usageSchema, type Usage } from "../domain/usage.ts";
import type { ModelFailure, ModelOutcome, ModelResponse } from "../engine/model-port.ts";

/** The reasons that can come of asking a summarizer. */
export type SummaryReason = Extract<
  CompactionReason,
  "quota" | "summarizer_missing" | "denied" | "empty" | "tool_call" | "truncated" | "inflated" | "provider" | "timed_out" | "input_too_large" | "interrupted"
>;

export type Reply = ({ readonly kind: "text"; readonly text: string } | Rejection) & { readonly usage?: Usage };

export interface Rejection {
  readonly kind: "rejected";
  readonly reason: SummaryReason;
  readonly message: string;
  /** Whether asking again may help. */
  readonly retryable: boolean;
  readonly retryAfterMs?: number;
  /** The failure's own code, e.g. `PROVIDER_OVERLOADED`. */
  readonly code?: string;
  /** The input did not fit: a smaller one may. */
  readonly overflow?: true;
}

/** @param echoes texts of the request; a reply that only repeats them says nothing. */
export function judgeOutcome(outcome: ModelOutcome, echoes: readonly string[]): Reply {
  switch (outcome.kind) {
    case "responded":
      return { ...judgeResponse(outcome, echoes), ...usageOf(outcome) };
    case "failed":
      return { ...judgeFailure(outcome), ...usageOf(outcome) };
    case "aborted":
      return rejected("interrupted", "the call was stopped before it was answered", true);
  }
}

/** A model of the user's own may report numbers that are none: then nobody said what the call cost. */
function usageOf({ usage }: { readonly usage?: Usage | undefined }): { readonly usage?: Usage } {
  const parsed = usageSchema.safeParse(usage);
  return parsed.success ? { usage: parsed.data } : {};
}

function judgeResponse({ content, finish }: ModelResponse, echoes: readonly string[]): Reply {
  const calls = content.flatMap((part) => (part.type === "tool_call" ? [part.name] : []));
  if (calls.length > 0 || finish.reason === "tool_calls") {
    return rejected(
      "tool_call",
      `the summarizer called ${calls.length === 0 ? "a tool" : wellFormedText(calls.slice(0, 3).join(", ")).slice(0, 200)} instead of writing a summary; nothing was executed`,
      true,
    );
  }
  if (finish.reason === "length") return rejected("truncated", "the summary was cut off at the output limit", false);
  if (finish.reason === "content_filter") return rejected("provider", "the provider's content filter stopped the summary", false);
  if (finish.reason === "error") return rejected("provider", "the provider ended the summary with an error", true);
  const text = answerText(content);
  const why = content.some((part) => part.type === "reasoning") ? "only reasoning, no text" : text === "" ? "no text" : "only white space";
  return judgeText(text, echoes, why);
}

/** For any text that is said to be a summary, also one of a registered function. */
export function judgeText(given: string, echoes: readonly string[], why = "only white space"): Reply {
  const text = wellFormedText(given).trim();
  if (isBlank(text)) return rejected("empty", why, true);
  const said = withoutEchoes(text, echoes);
  if (isBlank(said)) return rejected("empty", "it only repeats the instruction", true);
  return { kind: "text", text: said };
}

/** Also what looks like nothing: zero-width characters, and the replacement of what could not be stored. */
function isBlank(text: string): boolean {
  return !/[^\s\p{Cf}\p{Cc}\uFFFD\u2800\u3164]/u.test(text);
}

function withoutEchoes(text: string, echoes: readonly string[]): string {
  let rest = text;
  for (const echo of echoes) {
    const repeated = echo.trim();
    // Short ones occur by chance.
    if (repeated.length < 40) {
      if (rest === repeated) return "";
      continue;
    }
    for (let at = rest.indexOf(repeated); at >= 0; at = rest.indexOf(repeated)) rest = `${rest.slice(0, at)}${rest.slice(at + repeated.length)}`;
  }
  return rest.trim();
}

function judgeFailure(failure: ModelFailure): Rejection {
  const { code, message, retryable, retryAfterMs } = failure;
  if (code === "MODEL_TIMEOUT") return { ...rejected("timed_out", message, true), code };
  return {
    ...rejected("provider", message, retryable),
    code,
    ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
    ...(code === "CONTEXT_OVERFLOW" ? { overflow: true } : {}),
  };
}

export function rejected(reason: SummaryReason, message: string, retryable: boolean): Rejection {
  return { kind: "rejected", reason, message, retryable };
}
