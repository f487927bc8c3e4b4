import pg from "pg";
import { CapstanError } from "../domain/error.ts";

/** One Postgres server for tests, however it was come by. */
export interface TestServer {
  /** a database in which others can be created; stays the same over a restart */
  readonly url: string;
  /** "embedded Postgres 18.4": which one it is, for the line that a suite prints first */
  readonly describe: string;
  restart(mode: "fast" | "immediate"): Promise<void>;
  stop(): Promise<void>;
}

/** The wanted kind of Postgres cannot be had here; the message says why and what else there is. */
export class TestPostgresUnavailableError extends CapstanError {
  override readonly name = "TestPostgresUnavailableError";
  readonly code = "TEST_POSTGRES_UNAVAILABLE";
}

/** "17.2". Also the proof that connections are accepted. */
export async function readTestServerVersion(url: string): Promise<string> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 10_000 });
  client.on("error", () => {});
  try {
    await client.connect();
    const { rows } = await client.query<{ server_version: string }>("show server_version");
    return rows[0]?.server_version.split(" ")[0] ?? "unknown version";
  } finally {
    await client.end().catch(() => {});
  }
}
