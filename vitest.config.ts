import { defineConfig } from "vitest/config";

/** Folders whose tests never touch the suite's Postgres: running them alone must not wait for one to start. */
const withoutPostgres = [
  "test/domain/**/*.test.ts",
  "test/agents/**/*.test.ts",
  "test/compaction/**/*.test.ts",
  "test/engine-pure/**/*.test.ts",
  "test/embedded/**/*.test.ts",
  "test/tools/**/*.test.ts",
  "test/providers/offline*.test.ts",
  "test/support/totals-reporter.test.ts",
];

export default defineConfig({
  test: {
    pool: "forks",
    // Two cores: most files wait (for leases to run out, for servers to start), so three at a time keep both busy.
    maxWorkers: 3,
    testTimeout: 60_000,
    hookTimeout: 120_000,
    reporters: ["default", "./test/support/totals-reporter.ts"],
    projects: [
      { extends: true, test: { name: "pure", include: withoutPostgres } },
      {
        extends: true,
        test: {
          name: "postgres",
          include: ["test/**/*.test.ts"],
          exclude: withoutPostgres,
          globalSetup: ["./test/support/global-setup.ts"],
        },
      },
    ],
  },
});
