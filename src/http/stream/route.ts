/** Server-sent events over a route of the API: what a client asks for by its headers, and streams that end with the server. */
import type { FastifyInstance, FastifyReply, FastifyRequest } from "fastify";
import type pg from "pg";
import { connectionOf, DeltaListener } from "../../client/delta-listener.ts";
import { ArgumentError } from "../../client/errors.ts";
import type { Log } from "../../engine/ports.ts";
import { defaultHubSettings, FollowHub, type HubSettings } from "./hub.ts";

export interface EventStreamDeps {
  readonly db: pg.Pool;
  readonly named: (text: string) => string;
  /** Where notifications arrive, when `db` goes through a pooler in transaction mode. Default: as `db`. */
  readonly directConnectionString?: string;
  readonly log: Log;
  readonly settings?: Partial<HubSettings>;
}

export interface OpenStream {
  /** A run that is known to be there, and to be of the caller's tenant. */
  readonly runId: string;
  readonly tokenId?: string;
  /** From the query; the header Last-Event-ID goes before it. */
  readonly after?: number;
  /** Live text too; default true. */
  readonly deltas?: boolean;
}

export interface EventStream {
  /** Whether the client wants a stream rather than a page of JSON. */
  accepts(request: FastifyRequest): boolean;
  /** Throws ArgumentError for a Last-Event-ID that is no seq; from then on the reply is not the handler's any more. */
  open(request: FastifyRequest, reply: FastifyReply, stream: OpenStream): FastifyReply;
  /** Streams that are open now. */
  readonly size: number;
}

/** For one API process: the handler of GET /v1/runs/:id/events gives its reply to `open` when `accepts` says so. */
export function registerEventStream(app: FastifyInstance, { db, named, directConnectionString, log, settings }: EventStreamDeps): EventStream {
  const connection = directConnectionString === undefined ? connectionOf(db) : { connectionString: directConnectionString };
  const listener = new DeltaListener({ connection, db, named });
  const hub = new FollowHub({ db, named, listener, log, settings: { ...defaultHubSettings, ...settings } });
  // In onClose it would be too late: closing waits for open replies first.
  app.addHook("preClose", async () => {
    await hub.close();
    await listener.close();
  });
  return {
    accepts: ({ headers }) => acceptsEventStream(headers.accept),
    open(request, reply, { runId, tokenId, after = 0, deltas = true }) {
      const cursor = lastEventId(request.headers["last-event-id"]) ?? after;
      reply.headers({ "content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no" });
      if (request.method === "HEAD") return reply.send();
      reply.hijack();
      const { raw } = reply;
      raw.socket?.setNoDelay(true);
      raw.socket?.setTimeout(0);
      raw.socket?.setKeepAlive(true, 30_000);
      raw.writeHead(200, reply.getHeaders() as Record<string, string | string[]>);
      hub.follow({ runId, response: raw, after: cursor, deltas, tokenId });
      return reply;
    },
    get size() {
      return hub.size;
    },
  };
}

function acceptsEventStream(accept: string | undefined): boolean {
  return (accept ?? "").split(",").some((range) => {
    const [type = "", ...parameters] = range.split(";").map((part) => part.trim().toLowerCase());
    return type === "text/event-stream" && !parameters.some((parameter) => /^q=0(\.0*)?$/.test(parameter));
  });
}

/** As the stream itself gave it. Browsers send none at first, and an empty one after a reset. */
function lastEventId(header: string | string[] | undefined): number | undefined {
  if (header === undefined || header === "") return undefined;
  const seq = typeof header === "string" && /^\d{1,10}$/.test(header) ? Number(header) : Number.NaN;
  if (seq <= 2_147_483_647) return seq;
  throw new ArgumentError(`Last-Event-ID is the id of an event of this stream (a whole number), not ${JSON.stringify(header)}`);
}
