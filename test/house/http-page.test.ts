/** What docs/http.md says, held against the code. */
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { afterAll, expect, it } from "vitest";
import { problemStatus } from "../../src/http/problems.ts";
import { defaultRateLimit } from "../../src/http/rate-limit.ts";
import { routeScopes } from "../../src/http/scopes.ts";
import { openApi } from "../http/api-lab.ts";
import { createTestDatabase } from "../support/database.ts";
import { readRoot } from "./sources.ts";

const database = await createTestDatabase();
const api = await openApi(database.url);
afterAll(() => api[Symbol.asyncDispose]());
const page = readRoot("docs/http.md");

const quoted = (cell: string): string[] => [...cell.matchAll(/`([^`]+)`/g)].map(([, text = ""]) => text);

it("has every route under the scope that it needs", () => {
  const words: Readonly<Record<string, string>> = { "without a token": "public", "any token": "any" };
  const listed = [...page.matchAll(/^\| (without a token|any token|`[a-z:]+`) \| (.*) \|$/gm)].flatMap(([, who = "", routes = ""]) =>
    quoted(routes).map((name) => [name, words[who] ?? quoted(who)[0]]),
  );
  expect(Object.fromEntries(listed)).toEqual(routeScopes);
});

it("has every code under its status", () => {
  const listed = [...page.matchAll(/^\| (\d{3}) \| (.*) \|$/gm)].flatMap(([, status, codes = ""]) => quoted(codes).map((code) => [code, Number(status)]));
  expect(Object.fromEntries(listed)).toEqual(problemStatus);
});

it("has the rate that a process takes", () => {
  expect(page).toContain(`${defaultRateLimit.perSecond} requests a second from one token, and ${defaultRateLimit.burst.toLocaleString("en-US")} at once`);
});

it("has a session that goes as it says", async () => {
  const { bearer } = await api.token({ scopes: ["runs:create", "runs:read", "runs:steer"] });
  const env: Record<string, string> = { PATH: process.env["PATH"] ?? "", API: api.url, TOKEN: bearer.slice("Bearer ".length) };
  const blocks = [...page.matchAll(/```sh\n([\s\S]*?)```/g)].map(([, block = ""]) => block);
  const said: string[] = [];
  for (const block of blocks) {
    const { stdout } = await promisify(execFile)("bash", ["-eu", "-c", block.replace("wait_ms=5000", "wait_ms=50")], { env });
    said.push(stdout);
    env["RUN"] ??= (JSON.parse(stdout) as { run_id: string }).run_id;
  }
  const [start = "", look = "", follow = "", end = ""] = said;
  expect(JSON.parse(start)).toMatchObject({ agent: "auditor", state: "queued" });
  expect(look).toContain('"type":"run.created"');
  expect(follow).toContain("event: run.created");
  expect(end).toContain('"cancelled":true');
  expect(end).toContain(`"run_id":"${env["RUN"]}"`);
  expect(said.join("")).not.toContain('"code":');
});
