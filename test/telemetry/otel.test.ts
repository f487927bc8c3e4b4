import { execFile } from "node:child_process";
import { resolve } from "node:path";
import { promisify } from "node:util";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent, createCapstan, tool, type Capstan } from "../../src/index.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { createLog, silentLog } from "../../src/telemetry/log.ts";
import { startTelemetry, wantsTraces, type Telemetry } from "../../src/telemetry/otel.ts";
import { createTestDatabase } from "../support/database.ts";
import { attribute, startCollector, type ReceivedSpan } from "./collector.ts";

const database = await createTestDatabase();
const SERVER = 2;
const INTERNAL = 1;
const CLIENT = 3;
const CONSUMER = 5;
const ERROR = 2;

const tools = [
  tool({ name: "look_up", description: "Looks up.", input: z.object({ key: z.string() }), effect: "read", execute: ({ key }) => `found ${key}` }),
  tool({
    name: "save",
    description: "Saves.",
    input: z.object({ key: z.string() }),
    execute: () => {
      throw new Error("the disk is full");
    },
  }),
];
const tracer = agent({ name: "tracer", model: "scripted:model", instructions: "Trace.", tools });

describe("traces of a run", () => {
  let collector: Awaited<ReturnType<typeof startCollector>>;
  let telemetry: Telemetry;
  let capstan: Capstan;
  const lines: string[] = [];
  const enqueued = { traceId: "0af7651916cd43dd8448eb211c80319c", spanId: "b7ad6b7169203331" };
  let runId: string;
  let lastSpan: string | null;

  beforeAll(async () => {
    collector = await startCollector();
    process.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url;
    process.env["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/json";
    telemetry = await startTelemetry({ log: silentLog });
    const model = scriptedModel([
      {
        toolCalls: [
          { name: "look_up", input: { key: "a" } },
          { name: "save", input: { key: "a" } },
        ],
        usage: { input: 100, output: 7 },
      },
      { failure: { code: "PROVIDER_OVERLOADED", retryAfterMs: 1 } },
      "done",
    ]);
    const log = createLog({ level: "warn", stream: { write: (line) => void lines.push(line) }, traceOf: telemetry.traceOf });
    capstan = createCapstan({
      connectionString: database.url,
      agents: [tracer],
      models: { resolve: () => model, costUsdMicros: () => undefined },
      observability: { log, tracing: telemetry.tracing },
    });
    await capstan.startWorker();
    const run = await capstan.enqueue(tracer, "hello", { traceparent: `00-${enqueued.traceId}-${enqueued.spanId}-01` });
    runId = run.id;
    await run.result({ timeoutMs: 60_000 });
    const { rows } = await capstan.db.query<{ last_span: string | null }>("select last_span from capstan.runs where id = $1", [runId]);
    lastSpan = rows[0]?.last_span ?? null;
    await capstan.close();
    await telemetry.shutdown();
  });
  afterAll(async () => {
    for (const name of ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL"]) delete process.env[name];
    await collector.stop();
  });

  const roots = (): ReceivedSpan[] => collector.spans.filter((span) => (span.parentSpanId ?? "") === "");
  const inside = (root: ReceivedSpan): ReceivedSpan[] => collector.spans.filter((span) => span.parentSpanId === root.spanId);
  const turn = (number: number): ReceivedSpan => roots().find((span) => Number(attribute(span, "capstan.turn")) === number) as ReceivedSpan;

  it("are one per turn, linked to the span that enqueued the run and not a part of its trace", () => {
    expect(
      roots()
        .map((span) => Number(attribute(span, "capstan.turn")))
        .toSorted((a, b) => a - b),
    ).toEqual([1, 2]);
    expect(new Set(roots().map((span) => span.traceId)).size).toBe(2);
    for (const root of roots()) {
      expect(root.name).toBe("invoke_agent tracer");
      expect(root.kind).toBe(CONSUMER);
      expect(root.traceId).not.toBe(enqueued.traceId);
      expect(root.links?.map(({ traceId, spanId }) => ({ traceId, spanId }))).toEqual([enqueued]);
      expect(attribute(root, "gen_ai.conversation.id")).toBe(runId);
      for (const span of inside(root)) expect(span.traceId).toBe(root.traceId);
    }
    expect([...collector.services]).toEqual(["capstan"]);
    expect(collector.spans.every((span) => span.kind !== SERVER)).toBe(true);
  });

  it("hold the model call with its usage and each tool, of which a failed one is an error", () => {
    const spans = inside(turn(1));
    const chat = spans.find((span) => span.name === "chat model") as ReceivedSpan;
    expect(chat.kind).toBe(CLIENT);
    expect(attribute(chat, "gen_ai.provider.name")).toBe("scripted");
    expect(Number(attribute(chat, "gen_ai.usage.input_tokens"))).toBe(100);
    const [lookUp, save] = ["execute_tool look_up", "execute_tool save"].map((name) => spans.find((span) => span.name === name) as ReceivedSpan) as [ReceivedSpan, ReceivedSpan];
    expect(lookUp.kind).toBe(INTERNAL);
    expect(lookUp.status?.code ?? 0).not.toBe(ERROR);
    expect(save.status?.code).toBe(ERROR);
    expect(attribute(save, "error.type")).toBe("TOOL_FAILED");
    expect(spans).toHaveLength(3);
  });

  it("show a repeated model call as two calls, the first of them failed", () => {
    const calls = inside(turn(2)).filter((span) => span.name === "chat model");
    expect(calls.map((span) => attribute(span, "error.type"))).toEqual(["PROVIDER_OVERLOADED", undefined]);
  });

  it("are named by the run's row and by the log lines written meanwhile", () => {
    const ofTurns = roots().map((span) => `00-${span.traceId}-${span.spanId}-01`);
    expect(ofTurns).toContain(lastSpan);
    const failed = lines.map((line) => JSON.parse(line) as { msg: string; trace_id?: string }).find(({ msg }) => msg === "model call failed");
    expect(failed?.trace_id).toBe(turn(2).traceId);
  });

  it("are all that is sent: no metrics, no logs", () => {
    expect([...collector.paths]).toEqual(["/v1/traces"]);
  });
});

describe("telemetry that is off", () => {
  it.each([
    [{}, false],
    [{ OTEL_EXPORTER_OTLP_ENDPOINT: " " }, false],
    [{ OTEL_EXPORTER_OTLP_ENDPOINT: "http://127.0.0.1:4318" }, true],
    [{ OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: "http://127.0.0.1:4318/v1/traces" }, true],
    [{ OTEL_EXPORTER_OTLP_ENDPOINT: "http://127.0.0.1:4318", OTEL_SDK_DISABLED: "true" }, false],
    [{ OTEL_EXPORTER_OTLP_ENDPOINT: "http://127.0.0.1:4318", OTEL_TRACES_EXPORTER: "none" }, false],
  ])("is decided by the standard variables: %j is %s", (env, expected) => {
    expect(wantsTraces(env)).toBe(expected);
  });

  it("loads nothing of OpenTelemetry with the whole worker", async () => {
    const root = resolve(import.meta.dirname, "../..");
    const program = `
      import { registerHooks } from "node:module";
      const seen = [];
      registerHooks({ resolve(name, context, next) { if (name.startsWith("@opentelemetry/")) seen.push(name); return next(name, context); } });
      await import(${JSON.stringify(`${root}/src/cli/worker-process.ts`)});
      const { startTelemetry } = await import(${JSON.stringify(`${root}/src/telemetry/otel.ts`)});
      const { isOn, tracing, shutdown } = await startTelemetry({ env: {}, log: console });
      await shutdown();
      process.stdout.write(JSON.stringify({ seen, isOn, traceparent: tracing.start("x", { kind: "internal" }).traceparent ?? null }));`;
    const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "--eval", program]);
    expect(JSON.parse(stdout)).toEqual({ seen: [], isOn: false, traceparent: null });
  });
});

describe("a collector that does not answer", () => {
  let stop: (() => Promise<void>) | undefined;
  afterEach(() => stop?.());

  it("holds a stopping worker no longer than the bound", async () => {
    const collector = await startCollector({ answers: false });
    stop = collector.stop;
    const program = `
      import { startTelemetry } from ${JSON.stringify(resolve(import.meta.dirname, "../../src/telemetry/otel.ts"))};
      const warnings = [];
      const log = { debug() {}, info() {}, warn: (fields, message) => warnings.push(message), error: (fields, message) => warnings.push(message) };
      const { tracing, shutdown } = await startTelemetry({ log, shutdownMs: 300 });
      tracing.start("x", { kind: "internal", links: ["nonsense"] }).end();
      await Promise.all([shutdown(), shutdown()]);
      process.stdout.write(JSON.stringify(warnings));
      process.exit(0);`;
    const env = { ...process.env, OTEL_EXPORTER_OTLP_ENDPOINT: collector.url, OTEL_EXPORTER_OTLP_PROTOCOL: "http/json" };
    const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "--eval", program], { env });
    expect(JSON.parse(stdout)).toEqual(["the trace collector did not take the last spans in time; they are lost"]);
  });
});
