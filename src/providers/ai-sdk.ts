/** The one adapter from the ecosystem's provider interface (`LanguageModelV4`) to the engine's `Model`. */
import { createHash } from "node:crypto";
import type { LanguageModelV4, LanguageModelV4StreamPart } from "@ai-sdk/provider";
import type { CanonicalCall } from "../domain/call.ts";
import type { FilePart } from "../domain/transcript/message.ts";
import type { Usage } from "../domain/usage.ts";
import type { Model, ModelCallContext, ModelFailure, ModelOutcome, ModelResponse, ModelWindow, WireEvidence } from "../engine/model-port.ts";
import { toCallOptions, type LoadedMedia } from "./call-options.ts";
import { StreamCollector, type Collected } from "./collect.ts";
import { classifyFailure } from "./errors.ts";
import { estimateUsage } from "./estimate-usage.ts";
import type { Fetch, Vendor } from "./vendor.ts";

/** Gives the bytes of a file by its digest, or undefined when they are gone. */
export type MediaLoader = (file: Pick<FilePart, "sha256" | "media_type" | "size_bytes">) => Promise<Uint8Array | undefined>;

export interface VendorModelOptions {
  readonly name: string;
  readonly vendor: Vendor;
  readonly window: ModelWindow;
  readonly loadMedia?: MediaLoader;
  readonly fetch?: Fetch;
}

export function createVendorModel(options: VendorModelOptions): Model {
  const { name, vendor } = options;
  return {
    name,
    structuredOutput: vendor.structuredOutput,
    window: options.window,
    call: (call, context) => callVendor(options, call, context),
    wireSha256: (call) => renderWire(options, call),
  };
}

export interface ForeignModelOptions {
  readonly name: string;
  /** A model of any provider package. What was sent is not seen, so such a model has no wire evidence. */
  readonly model: LanguageModelV4;
  readonly window?: ModelWindow;
  readonly structuredOutput?: boolean;
  readonly loadMedia?: MediaLoader;
}

/** A model that the user made with a provider package of the ecosystem. */
export function createForeignModel(options: ForeignModelOptions): Model {
  const { model } = options;
  const optionsKey = model.provider.split(".")[0] ?? model.provider;
  const vendor: Vendor = {
    client: model.provider,
    shape: { optionsKey },
    structuredOutput: options.structuredOutput ?? false,
    open: () => Promise.resolve(model),
  };
  const whole = {
    name: options.name,
    vendor,
    window: options.window ?? { tokens: undefined, source: "unknown" },
    ...(options.loadMedia === undefined ? {} : { loadMedia: options.loadMedia }),
  } as const;
  return {
    name: options.name,
    structuredOutput: vendor.structuredOutput,
    window: whole.window,
    call: (call, context) => callVendor(whole, call, context),
  };
}

async function callVendor(options: VendorModelOptions, call: CanonicalCall, context: ModelCallContext): Promise<ModelOutcome> {
  const { vendor } = options;
  const { signal } = context;
  if (signal.aborted) return { kind: "aborted" };
  const wire = new WireTap(options.fetch ?? globalThis.fetch);
  const collector = new StreamCollector({
    onDelta: (delta) => context.onDelta?.(delta),
    ...(vendor.usageInEvent === undefined ? {} : { usageInEvent: vendor.usageInEvent }),
  });
  const failed = (error: unknown, usage?: Usage): ModelFailure => ({
    ...classifyFailure(error, { answering: collector.answering, nowMs: Date.now() }),
    ...(usage === undefined ? {} : { usage }),
    ...wire.evidence(vendor.client),
  });
  const complete = ({ response, usage }: Extract<Collected, { kind: "complete" }>): ModelResponse => ({
    ...response,
    // Some compatible servers count nothing; zero would be a lie to the gauge.
    usage: usage ?? estimateUsage(call, response.content),
    ...wire.evidence(vendor.client),
  });
  try {
    const callOptions = toCallOptions(call, vendor.shape, await loadMedia(call, options.loadMedia));
    const model = await vendor.open(wire.fetch);
    const { stream } = await orAborted(model.doStream({ ...callOptions, abortSignal: signal, ...(vendor.usageInEvent === undefined ? {} : { includeRawChunks: true }) }), signal);
    await drain(stream, collector, signal);
  } catch (error) {
    // Clients report an abort as various errors ("Failed to process successful response"), so the signal is asked first.
    if (signal.aborted) return { kind: "aborted" };
    const result = collector.result();
    // What breaks after the vendor's last event takes nothing from the answer.
    if (result.kind === "complete") return complete(result);
    return failed(result.kind === "error" ? result.error : error, result.usage);
  }
  if (signal.aborted) return { kind: "aborted" };
  const result = collector.result();
  switch (result.kind) {
    case "complete":
      return complete(result);
    case "error":
      return failed(result.error, result.usage);
    case "cut":
      return {
        kind: "failed",
        code: "PROVIDER_STREAM_CUT",
        message: "the stream closed before the answer was complete",
        retryable: true,
        countsAsAttempt: true,
        ...(result.usage === undefined ? {} : { usage: result.usage }),
        ...wire.evidence(vendor.client),
      };
  }
}

async function renderWire(options: VendorModelOptions, call: CanonicalCall): Promise<WireEvidence> {
  let body: string | undefined;
  const caught = new Error("rendered, not sent");
  const model = await options.vendor.open((_url, init) => {
    body = bodyText(init);
    return Promise.reject(caught);
  });
  try {
    await model.doStream(toCallOptions(call, options.vendor.shape, await loadMedia(call, options.loadMedia)));
  } catch (error) {
    if (body === undefined) throw error;
  }
  return { sha256: sha256(body ?? ""), client: options.vendor.client };
}

async function loadMedia(call: CanonicalCall, load: MediaLoader | undefined): Promise<LoadedMedia> {
  const media = new Map<string, Uint8Array>();
  if (load === undefined) return media;
  for (const message of call.messages) {
    if (message.role !== "user") continue;
    for (const part of message.content) {
      if (part.type !== "file" || media.has(part.sha256)) continue;
      const bytes = await load(part);
      if (bytes !== undefined) media.set(part.sha256, bytes);
    }
  }
  return media;
}

/** Hashes the body that really goes out, as late as a client allows. */
class WireTap {
  readonly fetch: Fetch;
  #sha256: string | undefined;

  constructor(send: Fetch) {
    this.fetch = (url, init) => {
      const body = bodyText(init);
      if (body !== undefined) this.#sha256 = sha256(body);
      return send(url, init);
    };
  }

  evidence(client: string): { wire?: WireEvidence } {
    return this.#sha256 === undefined ? {} : { wire: { sha256: this.#sha256, client } };
  }
}

function bodyText(init: RequestInit | undefined): string | undefined {
  return typeof init?.body === "string" ? init.body : undefined;
}

function sha256(text: string): string {
  return createHash("sha256").update(text, "utf8").digest("hex");
}

async function drain(stream: ReadableStream<LanguageModelV4StreamPart>, collector: StreamCollector, signal: AbortSignal): Promise<void> {
  const reader = stream.getReader();
  try {
    for (;;) {
      const next = await orAborted(reader.read(), signal);
      if (next.done) return;
      collector.take(next.value);
    }
  } finally {
    // Not awaited: a stream that ignores its signal may never finish cancelling.
    if (signal.aborted) reader.cancel().catch(() => {});
    else reader.releaseLock();
  }
}

/** Does not trust clients to heed the signal. */
async function orAborted<T>(work: PromiseLike<T>, signal: AbortSignal): Promise<T> {
  const { promise, reject } = Promise.withResolvers<never>();
  const onAbort = () => reject(new Error("aborted"));
  if (signal.aborted) onAbort();
  signal.addEventListener("abort", onAbort, { once: true });
  try {
    return await Promise.race([Promise.resolve(work), promise]);
  } finally {
    signal.removeEventListener("abort", onAbort);
  }
}
