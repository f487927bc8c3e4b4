/** Whether the service lives and can work, and figures for those who watch it. */
import type { FastifyInstance } from "fastify";
import { z } from "zod";
import { migrationCounts } from "../../store/migrate.ts";
import { openRuns, pools, queueDepth } from "../../store/queue-view.ts";
import type { ApiContext } from "../context.ts";
import { RequestError } from "../problems.ts";
import { route } from "../route.ts";

const READY_WITHIN_MS = 5_000;

export function registerService(app: FastifyInstance, api: ApiContext): void {
  const { db, named, stream } = api;
  let knownMigrations: number | undefined;

  route(app, api, "GET /healthz", {
    summary: "The process lives",
    answers: { 200: z.object({ status: z.literal("ok") }) },
    handle: async () => ({ status: "ok" }),
  });

  route(app, api, "GET /readyz", {
    summary: "The database answers and has the schema",
    answers: { 200: z.object({ status: z.literal("ready") }) },
    async handle() {
      if (api.stopping.aborted) throw new RequestError("STOPPING", "this process is stopping");
      const { applied, known } = await within(READY_WITHIN_MS, counts());
      if (applied < known) throw new RequestError("NOT_MIGRATED", `the schema is behind (${applied} of ${known} migrations); run: capstan migrate`, { retryAfterS: 5 });
      return { status: "ready" };
    },
  });

  /** The files are read once; what is asked every few seconds is the database. */
  async function counts(): Promise<{ applied: number; known: number }> {
    if (knownMigrations === undefined) ({ known: knownMigrations } = await migrationCounts(db, named));
    const { rows } = await db.query<{ n: number }>(named("select count(*)::int as n from capstan.migrations"));
    return { applied: rows[0]?.n ?? 0, known: knownMigrations };
  }

  // Text, not JSON: declared by hand.
  app.get(
    "/metrics",
    {
      schema: {
        summary: "Figures of the whole installation, for Prometheus",
        description: "Needs scope `admin`.",
        tags: ["service"],
        response: { 200: { description: "Prometheus text", content: { "text/plain": { schema: z.string() } } } },
      },
    },
    async (_, reply) => {
      const [runs, depth, alive] = await Promise.all([openRuns(db, named), queueDepth(db, named), pools(db, named)]);
      const lines = [
        ...gauge(
          "capstan_runs_open",
          "Runs that have not ended",
          runs.map(({ state, runs: n }) => [{ state }, n]),
        ),
        ...gauge(
          "capstan_queue_ready",
          "Runs that want a job now",
          depth.map(({ pool, ready }) => [{ pool }, ready]),
        ),
        ...gauge(
          "capstan_queue_later",
          "Runs that want a job later",
          depth.map(({ pool, later }) => [{ pool }, later]),
        ),
        ...gauge(
          "capstan_queue_age_seconds",
          "How long the oldest of them has waited",
          depth.map(({ pool, oldest_ms: ms }) => [{ pool }, ms / 1_000]),
        ),
        ...gauge(
          "capstan_workers",
          "Workers alive",
          alive.map(({ pool, workers }) => [{ pool }, workers]),
        ),
        ...gauge(
          "capstan_slots",
          "Runs that they can take at the same time",
          alive.map(({ pool, slots }) => [{ pool }, slots]),
        ),
        ...gauge(
          "capstan_slots_busy",
          "Slots that are in use",
          alive.map(({ pool, busy }) => [{ pool }, busy]),
        ),
        ...gauge("capstan_api_streams", "Streams of events that this process serves", [[{}, stream.size]]),
      ];
      return await reply.type("text/plain; version=0.0.4; charset=utf-8").send(`${lines.join("\n")}\n`);
    },
  );
}

type Sample = readonly [labels: Readonly<Record<string, string>>, value: number];

function gauge(name: string, help: string, samples: readonly Sample[]): string[] {
  const line = ([labels, value]: Sample): string => {
    const pairs = Object.entries(labels).map(([label, text]) => `${label}="${text.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n")}"`);
    return `${name}${pairs.length === 0 ? "" : `{${pairs.join(",")}}`} ${value}`;
  };
  return [`# HELP ${name} ${help}`, `# TYPE ${name} gauge`, ...samples.map(line)];
}

async function within<T>(ms: number, work: Promise<T>): Promise<T> {
  const { promise, reject } = Promise.withResolvers<never>();
  const timer = setTimeout(() => reject(new RequestError("DATABASE_UNAVAILABLE", "the database does not answer")), ms);
  try {
    return await Promise.race([work, promise]);
  } finally {
    clearTimeout(timer);
  }
}
