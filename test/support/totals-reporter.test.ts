import { spawnSync } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { expect, it } from "vitest";

/** A suite of its own, run by a second vitest: the skipped test is what the totals must not count as passed. */
const files = {
  // Its skipped test is the case: the totals must name it and not count it as passed.
  "passes.test.mjs": `
    import { it } from "vitest";
    it("passes", () => {}); it.skip("is skipped", () => {}); it("fails", () => { throw new Error("no"); });`,
  "import-throws.test.mjs": `throw new Error("no");`,
  "hook-throws.test.mjs": `
    import { afterAll, it, describe } from "vitest";
    describe("suite", () => { afterAll(() => { throw new Error("no"); }); it("passes", () => {}); });`,
};

it("counts files and suites that fail outside of a test, on the very last line", async () => {
  const root = resolve(import.meta.dirname, "../..");
  // Inside the repository, so that the files find vitest.
  const folder = await mkdtemp(join(root, "node_modules", ".capstan-totals-"));
  try {
    for (const [name, text] of Object.entries(files)) await writeFile(join(folder, name), text);
    await writeFile(
      join(folder, "vitest.config.mjs"),
      `export default { test: { include: ["*.test.mjs"], exclude: [],
         reporters: ["default", ${JSON.stringify(join(root, "test/support/totals-reporter.ts"))}] } };`,
    );
    const vitest = join(root, "node_modules", "vitest", "vitest.mjs");
    const run = spawnSync(process.execPath, [vitest, "run", "--root", folder], { encoding: "utf8", env: cleanEnvironment() });
    expect(run.status).toBe(1);
    // One failed test, one file that cannot be imported, one suite whose hook throws.
    const last = run.stdout.trimEnd().split("\n").slice(-4);
    expect(last.at(-1)).toBe("2 passed, 3 failed, 1 skipped");
    expect(last.slice(0, 3).toSorted()).toEqual(["failed: hook-throws.test.mjs > suite: no", "failed: import-throws.test.mjs: no", "failed: passes.test.mjs > fails: no"]);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});

/** Without the variables by which a worker knows that it is one. */
function cleanEnvironment(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("VITEST")));
}
