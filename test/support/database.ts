import pg from "pg";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, inject } from "vitest";
import { createDatabaseOn, type TestDatabase } from "../../src/testing/databases.ts";

/**
 * A migrated database of this test file's own, cloned from the suite's template. Call it at the top of the file
 * (`const database = await createTestDatabase()`): it is dropped after the file's last test, and the file fails when a
 * connection to it is still open then.
 */
export async function createTestDatabase(): Promise<TestDatabase> {
  const serverUrl = inject("postgresUrl");
  const database = await createDatabaseOn(serverUrl, undefined, { template: inject("postgresTemplate") });
  afterAll(async () => {
    const left = await waitForNoConnection(serverUrl, database.name);
    await database.drop();
    if (left.length > 0) throw new Error(`connections left open: ${left.join("; ")}`);
  });
  return database;
}

/** The connections still open after a moment of grace, since the server notices a close a little later than its client. */
async function waitForNoConnection(serverUrl: string, database: string): Promise<readonly string[]> {
  const client = new pg.Client({ connectionString: serverUrl });
  await client.connect();
  try {
    const deadline = performance.now() + 2_000;
    for (;;) {
      const { rows } = await client.query<{ connection: string }>(
        `select format('pid %s %s %s: %s', pid, application_name, state, left(query, 80)) as connection
           from pg_stat_activity where datname = $1 and backend_type = 'client backend'`,
        [database],
      );
      if (rows.length === 0 || performance.now() > deadline) return rows.map((row) => row.connection);
      await sleep(20);
    }
  } finally {
    await client.end();
  }
}
