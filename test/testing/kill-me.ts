/** Starts a test server of the kind in its argument, reports its address and stays, for the test that kills it. */
import { startTestPostgres, type TestPostgresMode } from "../../src/testing/postgres.ts";

const postgres = await startTestPostgres({ mode: process.argv[2] as TestPostgresMode });
console.log(postgres.url);
setInterval(() => {}, 60_000);
