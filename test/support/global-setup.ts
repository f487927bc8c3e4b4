import type { TestProject } from "vitest/node";
import { migrate } from "../../src/store/migrate.ts";
import { startTestPostgres } from "../../src/testing/postgres.ts";

declare module "vitest" {
  export interface ProvidedContext {
    /** a database in which others can be created */
    postgresUrl: string;
    /** which Postgres the suite runs on */
    postgresDescribe: string;
    /** the name of the migrated database that test files clone */
    postgresTemplate: string;
  }
}

/** One server and one migrated template for the whole suite: migrating takes longer than most test files. */
export default async function startSuitePostgres(project: TestProject): Promise<() => Promise<void>> {
  const postgres = await startTestPostgres();
  console.log(`Postgres for the tests: ${postgres.describe}`);
  const template = await postgres.createDatabase();
  const tearDown = async () => {
    await template.drop();
    await postgres.stop();
  };
  try {
    await migrate({ connectionString: template.url });
  } catch (error) {
    await tearDown();
    throw error;
  }
  project.provide("postgresUrl", postgres.url);
  project.provide("postgresDescribe", postgres.describe);
  project.provide("postgresTemplate", template.name);
  return tearDown;
}
