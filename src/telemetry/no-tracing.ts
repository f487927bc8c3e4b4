import type { EngineSpan, Tracing } from "../engine/ports.ts";

const noSpan: EngineSpan = { traceparent: undefined, set() {}, fail() {}, event() {}, end() {} };

/** Telemetry that is off: what the engine gets without an OTLP endpoint. */
export const noTracing: Tracing = { start: () => noSpan };
