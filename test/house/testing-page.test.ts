import { spawnSync } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, inject, it } from "vitest";
import { readRoot, root } from "./sources.ts";

it("runs the complete suite of docs/testing.md as a reader would", async () => {
  const [, code] = /<!-- example: .* -->\n```ts\n([\s\S]*?)\n```/.exec(readRoot("docs/testing.md")) ?? [];
  if (code === undefined) throw new Error("docs/testing.md has no example");
  // Below node_modules, so that it finds vitest and zod; the package's own names are those of the sources here.
  const folder = await mkdtemp(join(root, "node_modules", ".capstan-page-"));
  try {
    await writeFile(join(folder, "clerk.test.ts"), code);
    const alias = { "capstan/testing": join(root, "src/testing/index.ts"), capstan: join(root, "src/index.ts") };
    await writeFile(
      join(folder, "vitest.config.mjs"),
      `export default { resolve: { alias: ${JSON.stringify(alias)} }, test: { include: ["*.test.ts"], exclude: [], testTimeout: 60000, reporters: ["json"], outputFile: "out.json" } };`,
    );
    const vitest = join(root, "node_modules", "vitest", "vitest.mjs");
    const env = { ...cleanEnvironment(), CAPSTAN_TEST_POSTGRES: "url", CAPSTAN_TEST_DATABASE_URL: inject("postgresUrl") };
    const run = spawnSync(process.execPath, [vitest, "run", "--root", folder], { encoding: "utf8", env, timeout: 110_000 });
    expect(run.status, run.stdout + run.stderr).toBe(0);
    const { numPassedTests, numTotalTests } = JSON.parse(readRoot(join("node_modules", folder.slice(folder.lastIndexOf("/") + 1), "out.json"))) as Record<string, number>;
    expect({ numPassedTests, numTotalTests }).toEqual({ numPassedTests: 3, numTotalTests: 3 });
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}, 120_000);

/** Without the variables by which a vitest worker knows that it is one. */
function cleanEnvironment(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("VITEST")));
}
