import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";

export interface TestDatabase {
  readonly name: string;
  readonly url: string;
  /** Cuts remaining connections. May be called twice. */
  drop(): Promise<void>;
}

export interface CreateDatabaseOptions {
  /** a database to clone; nobody may be connected to it at that moment */
  readonly template?: string;
}

/** Creates a database on the server of `serverUrl`. A clone of a small template takes about 50 ms. */
export async function createDatabaseOn(
  serverUrl: string,
  name: string = `capstan_test_${randomBytes(6).toString("hex")}`,
  options: CreateDatabaseOptions = {},
): Promise<TestDatabase> {
  const quoted = pg.escapeIdentifier(name);
  const template = options.template === undefined ? "" : ` template ${pg.escapeIdentifier(options.template)}`;
  await whileTemplateIsBusy(() => runStatement(serverUrl, `create database ${quoted}${template}`));
  const url = new URL(serverUrl);
  url.pathname = encodeURIComponent(name);
  return {
    name,
    url: url.toString(),
    async drop() {
      await runStatement(serverUrl, `drop database if exists ${quoted} with (force)`);
    },
  };
}

async function runStatement(serverUrl: string, statement: string): Promise<void> {
  const client = new pg.Client({ connectionString: serverUrl, connectionTimeoutMillis: 10_000 });
  client.on("error", () => {});
  try {
    await client.connect();
    await client.query(statement);
  } finally {
    await client.end().catch(() => {});
  }
}

/** A connection just closed by its client may still be there for the server for some milliseconds (55006). */
async function whileTemplateIsBusy(work: () => Promise<void>): Promise<void> {
  const deadline = performance.now() + 5_000;
  for (;;) {
    try {
      await work();
      return;
    } catch (error) {
      if ((error as pg.DatabaseError).code !== "55006" || performance.now() > deadline) throw error;
      await sleep(50);
    }
  }
}
