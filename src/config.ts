/** The environment, read once, as a validated and frozen object. Every variable is listed here and in docs/configuration.md. */
import { z } from "zod";
import { ConfigError } from "./agents/config-error.ts";

const count = (fallback: number, min: number, max: number) => z.coerce.number().int().min(min).max(max).default(fallback);

/** The value is not repeated: it may hold a password. Sockets may also be named as pg has it, by their path. */
const postgresUrl = z
  .string()
  .regex(/^(postgres(ql)?:\/\/|socket:|\/)/, "is no postgres:// URL")
  .optional();

const environment = z.object({
  DATABASE_URL: postgresUrl,
  /** For LISTEN and migrations when DATABASE_URL goes through a pooler in transaction mode. */
  CAPSTAN_DIRECT_DATABASE_URL: postgresUrl,
  CAPSTAN_SCHEMA: z.string().default("capstan"),
  CAPSTAN_WORKER_SCHEMA: z.string().default("graphile_worker"),
  CAPSTAN_DIR: z.string().default(".capstan"),
  CAPSTAN_MODEL: z.string().optional(),
  CAPSTAN_SLOTS: count(20, 1, 10_000),
  CAPSTAN_SUMMARIZE_SLOTS: count(2, 1, 1_000),
  CAPSTAN_LEASE_MS: count(8_000, 500, 600_000),
  CAPSTAN_HEARTBEAT_MS: count(2_000, 100, 60_000),
  CAPSTAN_SWEEP_MS: count(2_000, 50, 60_000),
  CAPSTAN_LOST_JOB_MS: count(15_000, 500, 3_600_000),
  CAPSTAN_GRACE_MS: count(25_000, 0, 3_600_000),
  CAPSTAN_STICKY_TURNS: count(0, 0, 10_000),
  CAPSTAN_STICKY_MS: count(10_000, 1, 3_600_000),
  CAPSTAN_POOL_MAX: count(10, 2, 500),
  /** What is redacted where code says nothing of it. */
  CAPSTAN_REDACT: z.enum(["off", "secrets", "personal"]).default("off"),
  /** Addresses that may be asked though they are private: networks, addresses and host names, with commas. */
  CAPSTAN_OUTGOING_ALLOW: z.string().default(""),
  CAPSTAN_LOG_LEVEL: z.enum(["trace", "debug", "info", "warn", "error", "fatal", "silent"]).default("info"),
});

export interface Config {
  readonly databaseUrl: string | undefined;
  readonly directDatabaseUrl: string | undefined;
  readonly names: { readonly schema: string; readonly workerSchema: string };
  /** Where the embedded server keeps its data. */
  readonly dir: string;
  readonly model: string | undefined;
  readonly worker: WorkerSettings;
  /** Summaries at the same time in the worker that runs beside one of turns. */
  readonly summarizeSlots: number;
  readonly redact: { readonly personal: boolean } | undefined;
  readonly outgoingAllow: readonly string[];
  readonly logLevel: z.output<typeof environment>["CAPSTAN_LOG_LEVEL"];
}

export interface WorkerSettings {
  readonly slots: number;
  readonly leaseMs: number;
  readonly heartbeatMs: number;
  readonly sweepMs: number;
  readonly lostJobMs: number;
  /** How long a stopping worker lets turns finish before it aborts their calls. */
  readonly graceMs: number;
  readonly stickyTurns: { readonly turns: number; readonly ms: number } | undefined;
  readonly poolMax: number;
}

/** Throws ConfigError naming the variable and its range. */
export function readConfig(env: NodeJS.ProcessEnv = process.env): Config {
  const parsed = environment.safeParse(Object.fromEntries(Object.entries(env).filter(([, value]) => value !== "")));
  if (!parsed.success)
    throw new ConfigError(
      "environment",
      parsed.error.issues.map((issue) => ({ path: issue.path.join("."), message: issue.message })),
    );
  const e = parsed.data;
  if (e.CAPSTAN_LEASE_MS < 2 * e.CAPSTAN_HEARTBEAT_MS) {
    throw new ConfigError("environment", [
      { path: "CAPSTAN_LEASE_MS", message: `must be at least twice CAPSTAN_HEARTBEAT_MS (${e.CAPSTAN_HEARTBEAT_MS}), or one late beat loses every lease` },
    ]);
  }
  return Object.freeze({
    databaseUrl: e.DATABASE_URL,
    directDatabaseUrl: e.CAPSTAN_DIRECT_DATABASE_URL,
    names: { schema: e.CAPSTAN_SCHEMA, workerSchema: e.CAPSTAN_WORKER_SCHEMA },
    dir: e.CAPSTAN_DIR,
    model: e.CAPSTAN_MODEL,
    worker: {
      slots: e.CAPSTAN_SLOTS,
      leaseMs: e.CAPSTAN_LEASE_MS,
      heartbeatMs: e.CAPSTAN_HEARTBEAT_MS,
      sweepMs: e.CAPSTAN_SWEEP_MS,
      lostJobMs: e.CAPSTAN_LOST_JOB_MS,
      graceMs: e.CAPSTAN_GRACE_MS,
      stickyTurns: e.CAPSTAN_STICKY_TURNS === 0 ? undefined : { turns: e.CAPSTAN_STICKY_TURNS, ms: e.CAPSTAN_STICKY_MS },
      poolMax: e.CAPSTAN_POOL_MAX,
    },
    summarizeSlots: e.CAPSTAN_SUMMARIZE_SLOTS,
    redact: e.CAPSTAN_REDACT === "off" ? undefined : { personal: e.CAPSTAN_REDACT === "personal" },
    outgoingAllow: e.CAPSTAN_OUTGOING_ALLOW.split(",").flatMap((entry) => (entry.trim() === "" ? [] : [entry.trim()])),
    logLevel: e.CAPSTAN_LOG_LEVEL,
  });
}
