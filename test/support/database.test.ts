import pg from "pg";
import { expect, it } from "vitest";
import { createTestDatabase } from "./database.ts";

const [database, other] = [await createTestDatabase(), await createTestDatabase()];

it("gives a test file a migrated database that nobody else writes to", async () => {
  const client = new pg.Client({ connectionString: database.url });
  await client.connect();
  const { rows } = await client.query("select to_regnamespace('capstan') is not null as migrated");
  await client.end();
  expect(rows).toEqual([{ migrated: true }]);
  expect(database.name).not.toBe(other.name);
});
