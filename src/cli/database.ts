/** Which database a command works on: DATABASE_URL, else the embedded server of CAPSTAN_DIR, started if need be. */
import { join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";
import { readConfig, type Config } from "../config.ts";
import type { EmbeddedPostgres } from "../embedded/index.ts";
import { namedSql } from "../store/names.ts";
import { createPool } from "../store/pool.ts";
import { CliError, Stopped } from "./exit.ts";
import type { Output } from "./output.ts";
import { aborted, listenForStop } from "./stop-signals.ts";

export interface Database {
  readonly url: string;
  /** For LISTEN and migrations: past a pooler in transaction mode. */
  readonly directUrl: string;
  readonly config: Config;
  readonly named: (text: string) => string;
  readonly pool: pg.Pool;
  /** It is the server of CAPSTAN_DIR, not one that DATABASE_URL names. */
  readonly isEmbedded: boolean;
  /** Fires when the command is asked to stop, or nobody reads its output any more. */
  readonly signal: AbortSignal;
}

export interface DatabaseNeeds {
  /** `existing`: start the embedded server if it has data. `create`: also make one where there is none. */
  readonly embedded?: "existing" | "create";
  /** The work waits for `signal` itself and takes its time to end; otherwise it is left where it stands. */
  readonly handlesStop?: boolean;
  /** Stop the embedded server at the end though it ran already: it was left by a process that was killed. */
  readonly takesOver?: boolean;
}

/**
 * Runs `work` with a database and takes everything down again: connections, and the embedded server if it was started
 * for this. Throws Stopped when it was interrupted meanwhile.
 */
export async function withDatabase<T>(out: Output, work: (database: Database) => Promise<T>, needs: DatabaseNeeds = {}): Promise<T> {
  const config = readConfig(process.env);
  let embedded: EmbeddedServer | undefined;
  const stop = listenForStop(() => embedded?.letGo());
  const signal = needs.handlesStop === true ? stop.signal : AbortSignal.any([stop.signal, out.closed]);
  let pool: pg.Pool | undefined;
  try {
    embedded = config.databaseUrl === undefined ? await findEmbedded(out, config, needs) : undefined;
    const url = config.databaseUrl ?? (embedded as EmbeddedServer).url;
    pool = createPool({ connectionString: url, max: 4, applicationName: "capstan cli" });
    const done = work({ url, directUrl: config.directDatabaseUrl ?? url, config, named: namedSql(config.names), pool, isEmbedded: embedded !== undefined, signal });
    if (needs.handlesStop === true) return await done;
    // After a stop nobody waits for the work any more, and closing its connections makes it fail.
    done.catch(() => {});
    return await Promise.race([done, stoppedBy(signal, () => (stop.signal.aborted ? stop.exitCode : 0))]);
  } finally {
    await pool?.end();
    await embedded?.release();
    stop.dispose();
  }
}

async function stoppedBy(signal: AbortSignal, exitCode: () => number): Promise<never> {
  await aborted(signal);
  throw new Stopped(exitCode());
}

function embeddedFolder(config: Config): string {
  return join(config.dir, "postgres");
}

interface EmbeddedServer {
  readonly url: string;
  /** Stops the server if it is ours to stop. */
  release(): Promise<void>;
  /** The same without waiting, at the second Ctrl-C: Postgres ends by itself, and cleanly. */
  letGo(): void;
}

async function findEmbedded(out: Output, config: Config, { embedded = "existing", takesOver = false }: DatabaseNeeds): Promise<EmbeddedServer> {
  const { embeddedPostgresStatus, startEmbeddedPostgres } = await import("../embedded/index.ts");
  const dir = embeddedFolder(config);
  const found = await embeddedPostgresStatus(dir);
  if (found.running && found.url !== undefined && !takesOver) return { url: found.url, release: async () => {}, letGo() {} };
  if (found.version === undefined && embedded === "existing") {
    throw new CliError("DATABASE_MISSING", `DATABASE_URL is not set and there is no embedded database in ${resolve(dir)}; set DATABASE_URL, or start one with: capstan up`);
  }
  if (!found.running) out.note(found.version === undefined ? `making an embedded Postgres in ${dir}` : `starting the embedded Postgres of ${dir}`);
  const server = await startEmbeddedPostgres({ dir });
  const isOurs = server.startedByUs || takesOver;
  const { pid } = await embeddedPostgresStatus(dir);
  return {
    url: server.url,
    release: async () => {
      if (isOurs) await stopUnlessShared(out, server);
    },
    letGo() {
      // SIGINT is Postgres's fast shutdown: sessions are ended, what was committed is written.
      if (isOurs && pid !== undefined) process.kill(pid, "SIGINT");
    },
  };
}

/** Another command may have found the server that we started and be at work on it: then it stays. */
async function stopUnlessShared(out: Output, server: Pick<EmbeddedPostgres, "url" | "stop">): Promise<void> {
  const others = await otherClients(server.url);
  if (others > 0) out.note(`the embedded Postgres stays up: ${others} other connection${others === 1 ? " uses" : "s use"} it`);
  else await server.stop();
}

/** The server notices a close a little later than its client: our own connections are given a moment to go. */
const GONE_WITHIN_MS = 1_000;

async function otherClients(url: string): Promise<number> {
  const client = new pg.Client({ connectionString: url, application_name: "capstan cli" });
  client.on("error", () => {});
  try {
    await client.connect();
    const deadline = performance.now() + GONE_WITHIN_MS;
    for (;;) {
      const { rows } = await client.query<{ n: number }>("select count(*)::int as n from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()");
      const n = rows[0]?.n ?? 0;
      if (n === 0 || performance.now() > deadline) return n;
      await sleep(25);
    }
  } catch {
    // It is going down, or somebody stopped it: stopping it once more does no harm.
    return 0;
  } finally {
    await client.end().catch(() => {});
  }
}
