/** As much of the API as a client's handle asks for, over the client for Postgres, with faults that a test puts in front of it. */
import Fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from "fastify";
import type pg from "pg";
import type { CapstanClient } from "../../src/client/client.ts";
import type { EnqueueOptions } from "../../src/client/enqueue.ts";
import type { RunHandle } from "../../src/client/handle.ts";
import { CapstanError } from "../../src/domain/error.ts";
import type { JsonObject, JsonValue } from "../../src/domain/json.ts";
import { registerEventStream } from "../../src/http/stream/route.ts";

export interface TestApi {
  readonly app: FastifyInstance;
  readonly url: string;
  readonly port: number;
  /** Requests that arrived, as `POST /v1/runs`. */
  readonly seen: readonly string[];
  readonly headers: readonly FastifyRequest["headers"][];
  /** What is done to the next requests, in their order, before or after they are dealt with. */
  readonly faults: Fault[];
}

export type Fault =
  | { readonly kind: "none" }
  /** Nothing is done. */
  | { readonly kind: "answer"; readonly status: number; readonly retryAfter?: string; readonly body?: string }
  /** Everything is done, and the answer is lost. */
  | { readonly kind: "lost" }
  | { readonly kind: "silent" };

interface Body {
  readonly agent: string;
  readonly input: JsonValue;
  readonly idempotency_key?: string;
  readonly run_at?: string;
  readonly [other: string]: unknown;
}

const silent = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };
const statuses: Readonly<Record<string, number>> = {
  RUN_MISSING: 404,
  WAIT_UNKNOWN: 404,
  ARGUMENT_INVALID: 400,
  INPUT_INVALID: 422,
  PAYLOAD_TOO_LARGE: 413,
  CONVERSATION_MISSING: 404,
};

export async function startTestApi(client: CapstanClient, db: pg.Pool, port = 0): Promise<TestApi> {
  const app = Fastify({ forceCloseConnections: "idle" });
  const stream = registerEventStream(app, { db, named: (text) => text, log: silent });
  const seen: string[] = [];
  const headers: FastifyRequest["headers"][] = [];
  const faults: Fault[] = [];
  const lost = new WeakSet<FastifyRequest>();
  app.addHook("onRequest", async (request, reply) => {
    seen.push(`${request.method} ${request.url}`);
    headers.push(request.headers);
    const fault = faults.shift();
    if (fault?.kind === "lost") lost.add(request);
    if (fault?.kind === "silent") await new Promise((resolve) => request.raw.once("close", resolve));
    if (fault?.kind !== "answer") return;
    if (fault.retryAfter !== undefined) void reply.header("retry-after", fault.retryAfter);
    await reply.status(fault.status).send(fault.body ?? JSON.stringify({ status: fault.status, code: "RATE_LIMITED", detail: "come later" }));
  });
  app.addHook("onSend", async (request) => {
    if (lost.has(request)) request.raw.socket.destroy();
  });
  app.setErrorHandler((error, _request, reply) => {
    const known = error instanceof CapstanError ? error : undefined;
    const status = known === undefined ? 500 : (statuses[known.code] ?? 409);
    const issues = known?.details["issues"];
    return reply
      .status(status)
      .type("application/problem+json")
      .send({
        type: "about:blank",
        status,
        code: known?.code ?? "INTERNAL",
        detail: (error as Error).message,
        details: known?.details ?? {},
        ...(issues === undefined ? {} : { issues }),
      });
  });
  const options = ({ agent: _agent, input: _input, idempotency_key: key, run_at: runAt, ...rest }: Body, request: FastifyRequest): EnqueueOptions => {
    const header = request.headers["idempotency-key"];
    const idempotencyKey = key ?? (typeof header === "string" ? header : undefined);
    return { ...rest, ...(runAt === undefined ? {} : { runAt: new Date(runAt) }), ...(idempotencyKey === undefined ? {} : { idempotencyKey }) };
  };
  const keyOf = (request: FastifyRequest): { dedupeKey: string } => ({ dedupeKey: String(request.headers["idempotency-key"]) });
  type Run = { Params: { id: string; call: string; name: string }; Body: JsonObject; Querystring: Record<string, string> };
  const onRun = (method: "GET" | "POST", path: string, act: (run: RunHandle, request: FastifyRequest<Run>, reply: FastifyReply) => Promise<unknown>): void => {
    app.route<Run>({ method, url: `/v1/runs/:id${path}`, handler: (request, reply) => act(client.run<JsonValue>(request.params.id), request, reply) });
  };
  app.route<{ Body: Body }>({
    method: "POST",
    url: "/v1/runs",
    handler: async (request) => (await client.enqueue(request.body.agent, request.body.input, options(request.body, request))).status(),
  });
  app.route<{ Body: { runs: Body[] } }>({
    method: "POST",
    url: "/v1/runs/batch",
    async handler(request) {
      const runs = await client.enqueueMany(request.body.runs.map((body) => ({ agent: body.agent, input: body.input, options: options(body, request) })));
      return { items: runs.map(({ id }) => ({ run_id: id })) };
    },
  });
  onRun("GET", "", (run) => run.status());
  onRun("GET", "/result", async (run, request) => {
    await run.result({ timeoutMs: Math.min(500, Number(request.query["wait_ms"])) }).catch(() => {});
    return await run.status();
  });
  onRun("GET", "/events", async (run, request, reply) => {
    const after = Number(request.query["after"] ?? 0);
    if (stream.accepts(request)) return stream.open(request, reply, { runId: (await run.status()).run_id, after, deltas: request.query["deltas"] !== "false" });
    const items = [];
    for await (const event of run.events({ after, follow: false })) if (items.length < 30) items.push(event);
    return { items, next_after: items.at(-1)?.seq ?? after };
  });
  onRun("POST", "/input", async (run, request) => ({ input_id: await run.send(request.body["content"], keyOf(request)) }));
  onRun("POST", "/signals/:name", async (run, request) => ({ signal_id: await run.signal(request.params.name, request.body["payload"], keyOf(request)) }));
  onRun("GET", "/waits", async (run) => ({ items: await run.waits() }));
  onRun("POST", "/approvals/:call", async (run, { params, body }) => {
    const { decision, reason, input } = body as { decision: string; reason?: string; input?: JsonObject };
    const why = reason === undefined ? {} : { reason };
    if (decision === "deny") await run.deny(params.call, why);
    else await run.approve(params.call, { ...why, ...(input === undefined ? {} : { input }) });
    return {};
  });
  onRun("POST", "/waits/:name/answer", async (run, { params, body }) => {
    await run.answer(params.name, body["answer"]);
    return {};
  });
  onRun("POST", "/stop", async (run) => {
    await run.stop();
    return {};
  });
  onRun("POST", "/pause", async (run) => ({ paused: await run.pause() }));
  onRun("POST", "/resume", async (run) => ({ resumed: await run.resume() }));
  onRun("POST", "/cancel", async (run, { body }) => ({ cancelled: await run.cancel(body["reason"] as string | undefined) }));
  onRun("POST", "/fork", async (run, request) => ({ run_id: (await run.fork({ ...request.body, idempotencyKey: keyOf(request).dedupeKey })).id }));
  onRun("POST", "/retry", async (run) => ({ run_id: (await run.retry()).id }));
  const url = await app.listen({ port, host: "127.0.0.1" });
  return { app, url, port: Number(new URL(url).port), seen, headers, faults };
}
