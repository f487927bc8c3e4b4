/** What the engine asks of a model provider. Vendors' types stay behind it (src/providers). */
import type { CanonicalCall } from "../domain/call.ts";
import type { ModelDelta } from "../domain/delta.ts";
import type { JsonObject } from "../domain/json.ts";
import type { AssistantPart } from "../domain/transcript/message.ts";
import type { Usage } from "../domain/usage.ts";

/** Why a call failed, in our codes. The journal, logs and metrics use the same strings. */
export type ModelFailureCode =
  | "PROVIDER_RATE_LIMITED"
  | "PROVIDER_OVERLOADED"
  | "PROVIDER_UNAVAILABLE"
  | "PROVIDER_STREAM_CUT"
  | "PROVIDER_AUTH"
  | "PROVIDER_BAD_REQUEST"
  | "PROVIDER_BAD_RESPONSE"
  | "CONTEXT_OVERFLOW"
  | "MODEL_TIMEOUT"
  | "MODEL_UNKNOWN";

export interface ModelFailure {
  readonly kind: "failed";
  readonly code: ModelFailureCode;
  readonly message: string;
  /** Whether the same call may succeed later. */
  readonly retryable: boolean;
  /** The vendor's own wish, from retry-after headers. */
  readonly retryAfterMs?: number;
  /** Whether failing counts against the retry budget; rate limits do not. */
  readonly countsAsAttempt: boolean;
  readonly httpStatus?: number;
  /** Tokens that the vendor reported before the failure: they may be billed. */
  readonly usage?: Usage;
  readonly wire?: WireEvidence;
}

export type FinishReason = "stop" | "length" | "tool_calls" | "content_filter" | "error" | "other";

/** Evidence of what went over the wire: compared by verify only when the client is the same. */
export interface WireEvidence {
  /** sha256 of the request body, hex. */
  readonly sha256: string;
  /** Name and version of the provider's client, e.g. `@ai-sdk/anthropic@4.0.105`. */
  readonly client: string;
}

export interface ModelResponse {
  readonly kind: "responded";
  /** In the order the model gave them. Reasoning blocks and metadata exactly as the vendor sent them. */
  readonly content: readonly AssistantPart[];
  readonly finish: { readonly reason: FinishReason; readonly raw?: string };
  readonly usage: Usage;
  /** The vendor's usage object as it was, for audits. */
  readonly rawUsage?: JsonObject;
  /** The model that the vendor says has answered. */
  readonly servedModel?: string;
  readonly responseId?: string;
  readonly wire?: WireEvidence;
}

export type ModelOutcome = ModelResponse | ModelFailure | { readonly kind: "aborted" };

export interface ModelCallContext {
  readonly signal: AbortSignal;
  readonly tenant: string;
  readonly runId: string;
  readonly turn: number;
  /** Takes the answer as it comes, for followers; not journaled. Never throws. A model may leave it uncalled: its answer is then seen when it is whole. */
  onDelta?(this: void, delta: ModelDelta): void;
}

/** A model that answers canonical calls. Failures after the call began are values; it throws for no outcome of the vendor. */
export interface Model {
  /** Full name, as in CanonicalCall.model. */
  readonly name: string;
  /** Whether `CanonicalCall.output` is honoured; if not, the engine adds the `submit_output` tool. */
  readonly structuredOutput: boolean;
  /** How this vendor counts: `additive` numbers exclude cached tokens (Anthropic), `inclusive` ones contain them. Informative; Usage.input is always the whole. */
  readonly window: ModelWindow;
  call(call: CanonicalCall, context: ModelCallContext): Promise<ModelOutcome>;
  /** sha256 hex of the body that `call` would send, without sending it; undefined when the model has no wire. */
  wireSha256?(call: CanonicalCall): Promise<WireEvidence>;
}

/** Context window in tokens and where the number came from; unknown stays unknown. */
export type ModelWindow =
  | { readonly tokens: number; readonly source: "provider" | "setting" | "table"; readonly asOf?: string }
  | { readonly tokens: undefined; readonly source: "unknown" };

/** Price in micro-dollars for one call, or undefined for a model without a known price. */
export type PriceOf = (model: string, usage: Usage) => number | undefined;

/** Finds models by full name. An unknown name is a ConfigError that lists the known providers. */
export interface ModelCatalogue {
  resolve(name: string, tenant: string): Model;
  costUsdMicros: PriceOf;
}
