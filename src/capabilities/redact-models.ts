/** Answers of models, whole and live, with no secret in them: of the catalogue's, which are all that a worker calls. */
import { toJsonValue, type JsonObject } from "../domain/json.ts";
import type { ModelDelta } from "../domain/delta.ts";
import { RedactionFailedError, type Redactor } from "../domain/redact/redactor.ts";
import { StreamRedactor } from "../domain/redact/stream.ts";
import type { Model, ModelCallContext, ModelCatalogue, ModelOutcome, ModelResponse } from "../engine/model-port.ts";

export function redactedModels(models: ModelCatalogue, redactor: Redactor): ModelCatalogue {
  const made = new WeakMap<Model, Model>();
  return {
    resolve(name, tenant) {
      const model = models.resolve(name, tenant);
      let redacted = made.get(model);
      if (redacted === undefined) made.set(model, (redacted = redactedModel(model, redactor)));
      return redacted;
    },
    costUsdMicros: (model, usage) => models.costUsdMicros(model, usage),
  };
}

function redactedModel(model: Model, redactor: Redactor): Model {
  return {
    name: model.name,
    structuredOutput: model.structuredOutput,
    window: model.window,
    async call(call, context) {
      const live = new LiveRedactor(redactor, context.onDelta);
      const outcome = await model.call(call, { ...context, onDelta: (delta) => live.take(delta) });
      live.end();
      return await redactedOutcome(outcome, redactor, context);
    },
    ...(model.wireSha256 === undefined ? {} : { wireSha256: model.wireSha256.bind(model) }),
  };
}

async function redactedOutcome(outcome: ModelOutcome, redactor: Redactor, { tenant, runId }: ModelCallContext): Promise<ModelOutcome> {
  if (outcome.kind === "aborted") return outcome;
  if (outcome.kind === "failed") {
    // Of a model of the user's own it may be anything.
    const message: unknown = outcome.message;
    return { ...outcome, message: redactor.text(String(message)) };
  }
  const content = toJsonValue(outcome.content);
  // What is no answer is refused where answers are made to fit an event, and not kept.
  if (!content.ok || !Array.isArray(content.value)) return outcome;
  try {
    const parts = await redactor.parts(content.value, { place: "model", tenant, runId });
    return { ...outcome, content: parts, ...beside(outcome, redactor) };
  } catch (error) {
    if (!(error instanceof RedactionFailedError)) throw error;
    return { kind: "failed", code: "PROVIDER_BAD_RESPONSE", message: `${error.code}: ${error.message}`, retryable: true, countsAsAttempt: true, usage: outcome.usage };
  }
}

/** What the vendor says beside the answer is its own, and may quote all the same. */
function beside({ finish, rawUsage, servedModel, responseId }: ModelResponse, redactor: Redactor): Partial<ModelResponse> {
  return {
    finish: finish?.raw === undefined ? finish : { ...finish, raw: redactor.text(finish.raw) },
    ...(rawUsage === undefined ? {} : { rawUsage: redactor.json(rawUsage) as JsonObject }),
    ...(servedModel === undefined ? {} : { servedModel: redactor.text(servedModel) }),
    ...(responseId === undefined ? {} : { responseId: redactor.text(responseId) }),
  };
}

/** Of one call. A hook is asked about whole texts only: with one nothing is shown before the answer is whole. */
class LiveRedactor {
  readonly #redactor: Redactor;
  readonly #onDelta: ModelCallContext["onDelta"];
  readonly #streams = new Map<string, { readonly redactor: StreamRedactor; readonly last: ModelDelta }>();

  constructor(redactor: Redactor, onDelta: ModelCallContext["onDelta"]) {
    this.#redactor = redactor;
    this.#onDelta = onDelta;
  }

  take(delta: ModelDelta): void {
    if (this.#onDelta === undefined || this.#redactor.hasHook || typeof delta?.text !== "string") return;
    const key = `${delta.kind} ${delta.index ?? ""}`;
    // An answer's blocks come one after another; only the arguments of several calls may come side by side.
    for (const [other, { last }] of this.#streams) if (other !== key && last.kind !== "tool_arguments") this.#end(other);
    const stream = this.#streams.get(key)?.redactor ?? new StreamRedactor(this.#redactor.text);
    const name = delta.name === undefined ? {} : { name: this.#redactor.text(delta.name) };
    this.#streams.set(key, { redactor: stream, last: { ...delta, ...name, text: "" } });
    this.#show({ ...delta, ...name, text: stream.push(delta.text) });
  }

  end(): void {
    for (const key of this.#streams.keys()) this.#end(key);
  }

  #end(key: string): void {
    const stream = this.#streams.get(key);
    this.#streams.delete(key);
    if (stream !== undefined) this.#show({ ...stream.last, text: stream.redactor.end() });
  }

  #show(delta: ModelDelta): void {
    if (delta.text !== "") this.#onDelta?.(delta);
  }
}
