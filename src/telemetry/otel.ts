/**
 * OpenTelemetry, switched on by the standard variables alone: without an OTLP endpoint nothing of it is loaded (the SDK
 * costs some hundred milliseconds and 30 MB at start) and nothing is sent.
 */
import type { Log, Tracing } from "../engine/ports.ts";
import { noTracing } from "./no-tracing.ts";

export interface TraceIds {
  readonly trace_id: string;
  readonly span_id: string;
}

export interface Telemetry {
  readonly tracing: Tracing;
  readonly isOn: boolean;
  /** Ids of the span of the turn that this run is in, for log lines; undefined when it is in none. */
  traceOf(runId: string): TraceIds | undefined;
  /** Sends what is left, within a bounded time: a collector that is away must not hold a stopping worker. May be called twice. */
  shutdown(): Promise<void>;
}

export interface TelemetryOptions {
  readonly env?: NodeJS.ProcessEnv;
  readonly log: Log;
  readonly shutdownMs?: number;
}

/** One batch over a slow network; longer would eat into the time that orchestrators give between SIGTERM and SIGKILL. */
const SHUTDOWN_MS = 3_000;

const off: Telemetry = { tracing: noTracing, isOn: false, traceOf: () => undefined, shutdown: async () => {} };

/** Whether the environment asks for traces, by the names of the OpenTelemetry specification (SDK environment variables, 2026-11). */
export function wantsTraces(env: NodeJS.ProcessEnv): boolean {
  const isSet = (name: string): boolean => (env[name] ?? "").trim() !== "";
  if (env["OTEL_SDK_DISABLED"]?.trim().toLowerCase() === "true") return false;
  if (env["OTEL_TRACES_EXPORTER"]?.trim() === "none") return false;
  return isSet("OTEL_EXPORTER_OTLP_ENDPOINT") || isSet("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
}

/** Registers the SDK for this process: to be called once, by a process that runs a worker. */
export async function startTelemetry({ env = process.env, log, shutdownMs = SHUTDOWN_MS }: TelemetryOptions): Promise<Telemetry> {
  if (!wantsTraces(env)) return off;
  const [{ NodeSDK }, { diag, DiagLogLevel, trace }, { OtelTracing }, { VERSION }] = await Promise.all([
    import("@opentelemetry/sdk-node"),
    import("@opentelemetry/api"),
    import("./otel-tracing.ts"),
    import("../version.ts"),
  ]);
  const said =
    (level: "warn" | "error") =>
    (message: string, ...details: unknown[]) =>
      log[level]({ otel: details.map(String) }, `OpenTelemetry: ${message}`);
  diag.setLogger({ error: said("error"), warn: said("warn"), info() {}, debug() {}, verbose() {} }, { logLevel: DiagLogLevel.WARN, suppressOverrideMessage: true });
  const sdk = new NodeSDK({
    serviceName: env["OTEL_SERVICE_NAME"] ?? "capstan",
    // Traces only. Left out, these two would be made from the environment and send to the same endpoint.
    metricReaders: [],
    logRecordProcessors: [],
    instrumentations: [],
  });
  sdk.start();
  const tracing = new OtelTracing(trace.getTracer("capstan", VERSION));
  let stopping: Promise<void> | undefined;
  return {
    tracing,
    isOn: true,
    traceOf: (runId) => tracing.traceOf(runId),
    shutdown: () => (stopping ??= settledWithin(sdk.shutdown(), shutdownMs, log)),
  };
}

async function settledWithin(work: Promise<void>, ms: number, log: Log): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const tooLate = new Promise<"late">((resolve) => {
    timer = setTimeout(() => resolve("late"), ms);
  });
  try {
    if ((await Promise.race([work, tooLate])) === "late") log.warn({ ms }, "the trace collector did not take the last spans in time; they are lost");
  } catch (error) {
    log.warn({ err: error }, "the last spans could not be sent; they are lost");
  } finally {
    clearTimeout(timer);
  }
}
