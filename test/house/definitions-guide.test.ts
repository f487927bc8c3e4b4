import { spawn } from "node:child_process";
import { expect, it } from "vitest";
import { agentDefinition } from "../../src/domain/definition.ts";
import { z } from "zod";
import { createTestDatabase } from "../support/database.ts";
import { readRoot, root } from "./sources.ts";

const database = await createTestDatabase();

it("docs/definitions.md shows examples/definitions.ts, and it does what it says", async () => {
  const [, code] = /```ts\n([\s\S]*?)\n```/.exec(readRoot("docs/definitions.md")) ?? [];
  expect(code).toBe(
    readRoot("examples/definitions.ts")
      .replace(/"\.\.\/src\/index\.ts";.*/, '"capstan";')
      .trimEnd(),
  );
  const child = spawn(process.execPath, ["examples/definitions.ts"], { cwd: root, env: { ...process.env, DATABASE_URL: database.url }, stdio: ["ignore", "pipe", "pipe"] });
  let [stdout, stderr] = ["", ""];
  child.stdout.on("data", (chunk: Buffer) => (stdout += chunk.toString()));
  child.stderr.on("data", (chunk: Buffer) => (stderr += chunk.toString()));
  const exit = await new Promise<number | null>((resolve) => child.once("close", resolve));
  expect(exit, stderr).toBe(0);
  expect(stdout.split("\n")).toEqual([
    "compaction.autocompact_at_pct (unset) -> 70",
    "instructions Answer from the order book. -> Answer from the order book, in one sentence.",
    "promoted by ann",
    "promoted by ann",
    "defined by null",
    "promoted by null",
    "defined by null",
    "",
  ]);
});

it("docs/definitions.md names every group that is merged", () => {
  const groups = Object.entries(agentDefinition.shape).flatMap(([name, field]) => (field instanceof z.ZodOptional && field.unwrap() instanceof z.ZodObject ? [name] : []));
  const [, listed = ""] = /^\| (`settings`[^|]*) \| merged/m.exec(readRoot("docs/definitions.md")) ?? [];
  expect(listed.replaceAll("`", "").split(", ").toSorted()).toEqual(groups.toSorted());
});
