/** What may stand under a name in `createCapstan({ summarizers })`. */
import type { Message } from "../domain/transcript/message.ts";
import type { Usage } from "../domain/usage.ts";
import type { Model } from "../engine/model-port.ts";

export interface SummarizerInput {
  /** What is to be summarized, oldest first. A summary made earlier stands first, in a user message that says so. */
  readonly messages: readonly Message[];
  /** The run's own input, which stays verbatim beside the summary (`keep_first`): to know what matters, not to be repeated. */
  readonly task?: Message;
  /** Wanted size; may be ignored. */
  readonly target_tokens?: number;
  /** Fires on shutdown, timeout and when the task is taken over. */
  readonly signal?: AbortSignal;
}

export interface SummarizerOutput {
  readonly summary: string;
  /** Metered under the run when given. */
  readonly usage?: Usage;
}

/** Any function: a call to another service, another library, or rules. What it throws is an outcome and changes nothing. */
export type SummarizerFunction = (input: SummarizerInput) => Promise<SummarizerOutput>;

/** A Model, a full model name that the worker's catalogue knows, or a function that chooses a model for a tenant. */
export type SummarizerProvider = Model | string | ((context: { readonly tenant: string }) => Model | Promise<Model>);

/** Made by createSummarizerEffect. May be called by itself; a worker calls its model through the capability ring. */
export interface ModelSummarizer extends SummarizerFunction {
  readonly kind: "model";
  readonly provider: SummarizerProvider;
  readonly instruction: string;
  readonly maxTokens: number;
}

export type SummarizerEffect = SummarizerFunction | ModelSummarizer;

export function isModelSummarizer(effect: SummarizerEffect): effect is ModelSummarizer {
  return "kind" in effect && effect.kind === "model";
}

/** How a summary made earlier is handed to a function, whose contract knows messages only. */
export function previousSummaryMessage(summary: string): Message {
  return { role: "user", content: [{ type: "text", text: `Summary of what came before, made earlier. Write it anew, brought up to date with what follows:\n${summary}` }] };
}
