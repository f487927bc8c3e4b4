/** W3C trace context, level 1 (www.w3.org/TR/trace-context, read 2026-11): the one line that travels through a run's row. */
import type { SpanContext } from "@opentelemetry/api";

/** Versions after 00 may append fields; `ff` is no version. */
const pattern = /^(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;

/** Undefined for anything that is not a traceparent, or names no span. */
export function parseTraceparent(text: string): SpanContext | undefined {
  const [, version, traceId, spanId, flags, more] = pattern.exec(text.trim()) ?? [];
  if (traceId === undefined || spanId === undefined || flags === undefined) return undefined;
  if (version === "00" && more !== undefined) return undefined;
  if (/^0+$/.test(traceId) || /^0+$/.test(spanId)) return undefined;
  return { traceId, spanId, traceFlags: Number.parseInt(flags, 16) & 1, isRemote: true };
}

export function formatTraceparent({ traceId, spanId, traceFlags }: SpanContext): string {
  return `00-${traceId}-${spanId}-${(traceFlags & 0xff).toString(16).padStart(2, "0")}`;
}
