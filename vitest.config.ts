import { join } from "node:path";
import { defineConfig } from "vitest/config";
import LongestFirst from "./test/support/longest-first.ts";

// Half of what a worker process of the tests computes at its start would be compiling. Processes inherit this.
process.env["NODE_COMPILE_CACHE"] ??= join(import.meta.dirname, "node_modules", ".cache", "node-compile");

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

/**
 * Worker processes that are killed, suspended, cut off and raced, case by case, which is minutes of waiting for leases to
 * run out; a thousand followers and ten thousand queued runs; the demo from its first line to its last; a conversation of a
 * thousand turns; the package as it is installed. `npm run test:long`, and `.ci/run` with every cell of the matrices. `npm test` kills at each failpoint once.
 */
const long = [
  "test/chaos/!(crash-matrix|compaction-matrix|cancel).test.ts",
  "test/conversations/{chain,long-runs}.test.ts",
  "test/cli/demo.test.ts",
  "test/queue/fairness-workers.test.ts",
  "test/http/stream-thousand.test.ts",
  "test/package/package.test.ts",
];

/** What meets the server itself: the same tests on a Postgres of another version, build and way of connecting. */
const onContainers = ["test/{store,queue,engine,client,capabilities,testing,providers,telemetry}/**/*.test.ts", "test/cli/migrate-doctor.test.ts", "test/chaos/cancel.test.ts"];

export default defineConfig({
  test: {
    pool: "forks",
    // Two cores: most files wait (for leases to run out, for servers to start), so three at a time keep both busy.
    maxWorkers: 3,
    sequence: { sequencer: LongestFirst },
    testTimeout: 60_000,
    hookTimeout: 120_000,
    // In CI once more: a machine that stands still for a minute must not throw a change away. What passed only then is named.
    retry: Number(process.env["CAPSTAN_TEST_RETRY"] ?? 0),
    reporters: ["default", "./test/support/totals-reporter.ts"],
    projects: [
      { extends: true, test: { name: "pure", include: withoutPostgres } },
      {
        extends: true,
        test: {
          name: "postgres",
          include: ["test/**/*.test.ts"],
          exclude: [...withoutPostgres, ...long],
          globalSetup: ["./test/support/global-setup.ts"],
        },
      },
      { extends: true, test: { name: "long", include: long, globalSetup: ["./test/support/global-setup.ts"] } },
      {
        extends: true,
        test: { name: "container", include: onContainers, exclude: [...withoutPostgres, ...long, "test/engine/interleavings.test.ts"], globalSetup: ["./test/support/global-setup.ts"] },
      },
    ],
  },
});
