/** The smallest API that streams: one route, without tokens unless a test names one. */
import Fastify, { type FastifyInstance } from "fastify";
import type pg from "pg";
import { registerEventStream, type EventStream, type EventStreamDeps } from "../../src/http/stream/route.ts";

export interface StreamApp {
  readonly app: FastifyInstance;
  readonly stream: EventStream;
  readonly url: string;
}

const silent = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };

export async function startStreamApp(db: pg.Pool, { port = 0, ...deps }: Partial<EventStreamDeps> & { readonly port?: number } = {}): Promise<StreamApp> {
  const app = Fastify({ forceCloseConnections: "idle" });
  const stream = registerEventStream(app, { db, named: (text) => text, log: silent, ...deps });
  app.get<{ Params: { id: string }; Querystring: { after?: string; deltas?: string } }>("/v1/runs/:id/events", (request, reply) => {
    if (!stream.accepts(request)) return { accepted: false };
    const token = request.headers["x-token-id"];
    const { after, deltas } = request.query;
    return stream.open(request, reply, {
      runId: request.params.id,
      ...(typeof token === "string" ? { tokenId: token } : {}),
      ...(after === undefined ? {} : { after: Number(after) }),
      deltas: deltas !== "false",
    });
  });
  const url = await app.listen({ port, host: "127.0.0.1" });
  return { app, stream, url };
}
