/** What others get: the packed tarball, installed in a project outside the tree. */
import { copyFileSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { publint } from "publint";
import { afterAll, expect, it } from "vitest";
import { filesIn, readRoot } from "../house/sources.ts";
import { attw, pack, run, tsc } from "./pack.ts";

const packed = pack();
afterAll(() => rmSync(dirname(packed.tarball), { recursive: true, force: true }));

it("holds what runs and nothing else", () => {
  const files = filesIn(packed.installed, "");
  expect(files).toEqual(expect.arrayContaining(["LICENSE", "README.md", "dist/index.js", "dist/index.d.ts", "dist/cli.js", "dist/client/index.js", "dist/testing/index.js"]));
  expect(files.filter((file) => file.startsWith("migrations/") && file.endsWith(".sql")).length).toBeGreaterThan(5);
  expect(files.filter((file) => /(^|\/)(test|bench|\.git|node_modules)\//.test(file) || /(\.test|\.tsbuildinfo|\.env)/.test(file))).toEqual([]);
});

it("is what publint and attw ask of a package of ES modules", { timeout: 120_000 }, async () => {
  const { messages } = await publint({ pkgDir: packed.installed, strict: true });
  expect(messages).toEqual([]);
  attw([packed.tarball, "--profile", "esm-only", "--no-color"], dirname(packed.tarball));
});

it("carries types from schemas to inputs, outputs and results", { timeout: 120_000 }, () => {
  copyFileSync(join(import.meta.dirname, "service.txt"), join(packed.project, "service.ts"));
  const [, shown = ""] = /### From TypeScript[\s\S]*?```ts\n([\s\S]*?)\n```/.exec(readRoot("docs/following.md")) ?? [];
  expect(shown).toContain("baseUrl");
  writeFileSync(join(packed.project, "shown.ts"), shown);
  const compilerOptions = { target: "es2024", module: "nodenext", strict: true, exactOptionalPropertyTypes: true, noEmit: true, skipLibCheck: true, types: ["node"] };
  writeFileSync(join(packed.project, "tsconfig.json"), JSON.stringify({ compilerOptions, files: ["service.ts", "shown.ts"] }));
  expect(tsc(["-p", "."], packed.project)).toBe("");
});

it("has a client that loads no worker code", () => {
  const files = new Map<string, number>();
  const packages = new Set<string>();
  const queue = [join(packed.installed, "dist/client/index.js")];
  for (let file = queue.pop(); file !== undefined; file = queue.pop()) {
    const name = relative(join(packed.installed, "dist"), file);
    if (files.has(name)) continue;
    files.set(name, statSync(file).size);
    const text = readFileSync(file, "utf8").replaceAll(/\/\*[\s\S]*?\*\//g, "");
    for (const [, specifier = ""] of text.matchAll(/(?:^(?:import|export)\s+(?:[^"';]*?\sfrom\s+)?|\bimport\()["']([^"']+)["']/gm)) {
      if (specifier.startsWith(".")) queue.push(join(dirname(file), specifier));
      else packages.add(specifier);
    }
  }
  const rooms = new Set([...files.keys()].map((name) => name.split("/")[0]));
  expect(rooms).toEqual(new Set(["client", "domain", "store"]));
  // drizzle-orm is imported only for a caller who hands over a transaction of it.
  expect([...packages].filter((name) => !name.startsWith("node:")).toSorted()).toEqual(["croner", "drizzle-orm", "pg", "zod"]);
  const bytes = [...files.values()].reduce((sum, size) => sum + size, 0);
  console.log(`capstan/client: ${files.size} files, ${(bytes / 1024).toFixed(0)} KiB, with ${[...packages].join(", ")}`);
});

it("runs: the client loads and says what it misses, the command prints its version", { timeout: 60_000 }, () => {
  const script = `import { createClient, ArgumentError } from "capstan/client";
try { createClient({}); } catch (error) { console.log(error instanceof ArgumentError, error.message); }
createClient({ baseUrl: "http://127.0.0.1:9" });`;
  writeFileSync(join(packed.project, "loads.js"), script);
  expect(run(process.execPath, ["loads.js"], packed.project)).toMatch(/^true createClient needs/);
  const { version } = JSON.parse(readFileSync(join(packed.installed, "package.json"), "utf8")) as { version: string };
  expect(run(process.execPath, [join(packed.installed, "dist/cli.js"), "--version"], packed.project)).toContain(version);
});
