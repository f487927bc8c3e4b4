/** The engine's Tracing port on OpenTelemetry's API. Imported only once tracing is on. */
import { isSpanContextValid, ROOT_CONTEXT, SpanKind, SpanStatusCode, trace, type Attributes, type Link, type Span, type SpanContext, type Tracer } from "@opentelemetry/api";
import type { EngineSpan, Tracing } from "../engine/ports.ts";
import { genAi } from "./names.ts";
import type { TraceIds } from "./otel.ts";
import { formatTraceparent, parseTraceparent } from "./traceparent.ts";

const kinds = { internal: SpanKind.INTERNAL, client: SpanKind.CLIENT, consumer: SpanKind.CONSUMER } as const;

export class OtelTracing implements Tracing {
  readonly #tracer: Tracer;
  /** Open root spans by run: a run has one turn at a time in this process. */
  readonly #turns = new Map<string, SpanContext>();

  constructor(tracer: Tracer) {
    this.#tracer = tracer;
  }

  start(name: string, { kind, parent, links = [], attributes = {} }: Parameters<Tracing["start"]>[1]): EngineSpan {
    const above = parent instanceof OtelSpan ? parent.span : undefined;
    const span = this.#tracer.startSpan(
      name,
      { kind: kinds[kind], root: above === undefined, links: links.flatMap(linkTo), attributes: present(attributes) },
      above === undefined ? ROOT_CONTEXT : trace.setSpan(ROOT_CONTEXT, above),
    );
    const runId = attributes[genAi.conversationId];
    if (above !== undefined || typeof runId !== "string") return new OtelSpan(span);
    const context = span.spanContext();
    this.#turns.set(runId, context);
    return new OtelSpan(span, () => {
      if (this.#turns.get(runId) === context) this.#turns.delete(runId);
    });
  }

  traceOf(runId: string): TraceIds | undefined {
    const context = this.#turns.get(runId);
    return context && { trace_id: context.traceId, span_id: context.spanId };
  }
}

class OtelSpan implements EngineSpan {
  readonly span: Span;
  readonly #onEnd: (() => void) | undefined;

  constructor(span: Span, onEnd?: () => void) {
    this.span = span;
    this.#onEnd = onEnd;
  }

  get traceparent(): string | undefined {
    const context = this.span.spanContext();
    return isSpanContextValid(context) ? formatTraceparent(context) : undefined;
  }

  set(attributes: Parameters<EngineSpan["set"]>[0]): void {
    this.span.setAttributes(present(attributes));
  }

  fail(code: string, message: string): void {
    this.span.setAttribute(genAi.errorType, code);
    this.span.setStatus({ code: SpanStatusCode.ERROR, message });
  }

  event(name: string, attributes: Parameters<EngineSpan["event"]>[1]): void {
    this.span.addEvent(name, attributes);
  }

  end(): void {
    this.#onEnd?.();
    this.span.end();
  }
}

/** A malformed traceparent came from outside with the run: no link is better than no trace. */
function linkTo(traceparent: string): Link[] {
  const context = parseTraceparent(traceparent);
  return context === undefined ? [] : [{ context }];
}

function present(attributes: Parameters<EngineSpan["set"]>[0]): Attributes {
  return Object.fromEntries(Object.entries(attributes).flatMap(([key, value]) => (value === undefined ? [] : [[key, Array.isArray(value) ? [...value] : value]])));
}
