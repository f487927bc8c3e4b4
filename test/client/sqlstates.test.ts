/** SQLSTATEs as docs/sql.md lists them are what the client makes of them, by code. */
import { expect, it } from "vitest";
import { fromPostgres } from "../../src/client/errors.ts";
import { CapstanError } from "../../src/domain/error.ts";
import { filesIn, readRoot, root } from "../house/sources.ts";
import { join } from "node:path";

const rows = [...readRoot("docs/sql.md").matchAll(/^\| (KC\d{3}) \| `([A-Z_]+)` \| (.+?) \|(.*)\|$/gm)].map(([, state = "", code = "", when = ""]) => ({ state, code, when }));

it.each(rows)("$state is $code", ({ state, code, when }) => {
  const error = fromPostgres({ code: state, message: "what happened", detail: "{}", hint: "what to do" });
  expect(error).toBeInstanceOf(CapstanError);
  expect((error as CapstanError).code).toBe(code);
  expect((error as CapstanError).message).toContain("what happened");
  expect(when.length).toBeGreaterThan(10);
});

it("each is listed once, and so is every one that a function raises", () => {
  const raised = new Set(filesIn(join(root, "migrations"), ".sql").flatMap((name) => readRoot(`migrations/${name}`).match(/(?<=errcode = ')KC\d{3}(?=')/g) ?? []));
  expect(rows.map(({ state }) => state).toSorted()).toEqual([...raised].toSorted());
});
