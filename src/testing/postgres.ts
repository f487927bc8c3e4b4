import { startContainerServer } from "./container-server.ts";
import { createDatabaseOn, type CreateDatabaseOptions, type TestDatabase } from "./databases.ts";
import { startEmbeddedServer } from "./embedded-server.ts";
import { readTestServerVersion, TestPostgresUnavailableError, type TestServer } from "./test-server.ts";

export type { CreateDatabaseOptions, TestDatabase } from "./databases.ts";
export { TestPostgresUnavailableError } from "./test-server.ts";

export type TestPostgresMode = "container" | "embedded" | "url";

export interface TestPostgres {
  /** of a database in which others can be created; the same after a restart */
  readonly url: string;
  /** which Postgres it is, and why not a container if one was looked for */
  readonly describe: string;
  createDatabase(name?: string, options?: CreateDatabaseOptions): Promise<TestDatabase>;
  /** Throws `TEST_POSTGRES_UNAVAILABLE` for a server that is not ours. */
  restart(mode: "fast" | "immediate"): Promise<void>;
  /** Removes the server and its data; a server that is not ours is left alone. May be called twice. */
  stop(): Promise<void>;
}

/**
 * A Postgres for a test suite. Without a mode, here or in CAPSTAN_TEST_POSTGRES, a container where an engine answers
 * and an image can be had, else the embedded server. Should the test process be killed, the server is removed all
 * the same. Throws `TEST_POSTGRES_UNAVAILABLE` when a mode is forced that this machine does not offer.
 */
export async function startTestPostgres(options: { readonly mode?: TestPostgresMode | undefined } = {}): Promise<TestPostgres> {
  const server = await startServer(options.mode ?? readModeFromEnvironment());
  return {
    get url() {
      return server.url;
    },
    describe: server.describe,
    createDatabase: (name, databaseOptions) => createDatabaseOn(server.url, name, databaseOptions),
    restart: (mode) => server.restart(mode),
    stop: () => server.stop(),
  };
}

function startServer(mode: TestPostgresMode | undefined): Promise<TestServer> {
  switch (mode) {
    case "container":
      return startContainerServer();
    case "embedded":
      return startEmbeddedServer();
    case "url":
      return connectToGivenServer();
    case undefined:
      return startWhatIsThere();
  }
}

async function startWhatIsThere(): Promise<TestServer> {
  let reason: string;
  try {
    return await startContainerServer();
  } catch (error) {
    reason = error instanceof Error ? error.message : String(error);
  }
  const server = await startEmbeddedServer();
  // Members by delegation, since `url` is a getter that a copy would freeze.
  return {
    get url() {
      return server.url;
    },
    describe: `${server.describe}, no container: ${reason}`,
    restart: (mode) => server.restart(mode),
    stop: () => server.stop(),
  };
}

async function connectToGivenServer(): Promise<TestServer> {
  const name = process.env["CAPSTAN_TEST_DATABASE_URL"] ? "CAPSTAN_TEST_DATABASE_URL" : "DATABASE_URL";
  const url = process.env[name];
  if (!url) throw new TestPostgresUnavailableError("CAPSTAN_TEST_POSTGRES=url needs CAPSTAN_TEST_DATABASE_URL or DATABASE_URL");
  const { host, pathname } = new URL(url);
  return {
    url,
    describe: `${name} ${host}${pathname} (${await readTestServerVersion(url)})`,
    restart: () => Promise.reject(new TestPostgresUnavailableError(`the server of ${name} is not ours to restart`)),
    stop: () => Promise.resolve(),
  };
}

function readModeFromEnvironment(): TestPostgresMode | undefined {
  const value = process.env["CAPSTAN_TEST_POSTGRES"];
  if (value === undefined || value === "") return undefined;
  if (value === "container" || value === "embedded" || value === "url") return value;
  throw new TestPostgresUnavailableError(`CAPSTAN_TEST_POSTGRES is "${value}"; it can be container, embedded or url`);
}
