import { chmod, mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { deleteEmbeddedPostgres, startEmbeddedPostgres, stopEmbeddedPostgres, type EmbeddedPostgres } from "../embedded/index.ts";
import { startGuardian } from "./guardian.ts";
import type { TestServer } from "./test-server.ts";

/** A server on a fresh folder that is gone after `stop`. A crash of the machine may cost its data: nobody needs them. */
const settings = { fsync: "off", full_page_writes: "off", synchronous_commit: "on", max_wal_size: "1GB" };

export async function startEmbeddedServer(): Promise<TestServer> {
  const dir = await mkdtemp(join(tmpdir(), "capstan-test-postgres-"));
  // Made for us alone; as root the server is another user, who has to pass through.
  await chmod(dir, 0o755);
  const guardian = startGuardian({ kind: "embedded", dir });
  const start = (port?: number) => startEmbeddedPostgres({ dir, database: "postgres", settings, ...(port !== undefined && { port }) });
  let postgres: EmbeddedPostgres;
  try {
    postgres = await start();
  } catch (error) {
    await deleteEmbeddedPostgres(dir);
    guardian.dismiss();
    throw error;
  }
  return {
    get url() {
      return postgres.url;
    },
    describe: `embedded Postgres ${postgres.version}`,
    async restart(mode) {
      await stopEmbeddedPostgres(dir, mode);
      postgres = await start(postgres.port);
    },
    async stop() {
      await deleteEmbeddedPostgres(dir);
      guardian.dismiss();
    },
  };
}
