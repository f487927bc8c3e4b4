/** Every reported case has a test that names it. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";

const CASES = [1, 2, 4, 6, 7, 9, 11, 12, 14, 15, 17, 18, 20, 23, 24, 25, 27, 28, 30, 31, 33, 35, 36, 37, 39, 40, 42, 44, 45, 48, 51, 52, 53, 54, 58, 59, 61, 63];
const STATEMENTS = [4, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25];

const text = readdirSync(import.meta.dirname)
  .filter((name) => name.endsWith(".test.ts") && name !== "all.test.ts")
  .map((name) => readFileSync(join(import.meta.dirname, name), "utf8"))
  .join("\n");
const titled = (number: string): boolean => new RegExp(`\\((?:\\s*)"${number} \\S`).test(text);

it("each case of the list begins some test's title", () => {
  expect(CASES.map((n) => `C${String(n).padStart(2, "0")}`).filter((number) => !titled(number))).toEqual([]);
});

it("so does each statement about summarizers", () => {
  expect(STATEMENTS.map((n) => `T${n}`).filter((number) => !titled(number))).toEqual([]);
});
