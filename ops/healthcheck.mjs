/**
 * The image's health check: is there a worker of this container whose heartbeat is younger than its lease? A process
 * that is alive but cannot reach its database, or was taken for dead, is not healthy.
 */
import { hostname } from "node:os";
import pg from "pg";

const schema = process.env.CAPSTAN_SCHEMA || "capstan";
const client = new pg.Client({
  connectionString: process.env.CAPSTAN_DIRECT_DATABASE_URL || process.env.DATABASE_URL,
  connectionTimeoutMillis: 3_000,
  query_timeout: 3_000,
  application_name: "capstan healthcheck",
});
try {
  await client.connect();
  const { rows } = await client.query(
    `select count(*)::int as alive from ${client.escapeIdentifier(schema)}.workers
     where host = $1 and ended_at is null and heartbeat_at + lease_ms * interval '1 ms' > clock_timestamp()`,
    [hostname()],
  );
  if (rows[0].alive === 0) throw new Error(`no live worker of host ${hostname()}`);
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
} finally {
  await client.end().catch(() => {});
}
