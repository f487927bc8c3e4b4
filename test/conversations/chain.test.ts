/**
 * All recordings as one conversation of more than a thousand turns: one run, and its journal still gives every request
 * again. Over HTTP with CAPSTAN_CONVERSATIONS=full, else with the recording as a model in this process.
 */
import { spawnSync } from "node:child_process";
import { afterAll, beforeAll, expect, it } from "vitest";
import { chainConversations, startModelServer, type ModelServer } from "../../src/testing/model-server/index.ts";
import { openLab, type Lab } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { recordedModel } from "./chain-model.ts";
import { drive } from "./drive.ts";
import { airline, journaled, recorded, replayOf, respondFrom } from "./replay.ts";

const database = await createTestDatabase();
const conversation = chainConversations(airline);
const replay = replayOf(conversation, "openai-chat", "chain");

const isFull = process.env["CAPSTAN_CONVERSATIONS"] === "full";

let server: ModelServer | undefined;
let lab: Lab;
let runId: string;

beforeAll(async () => {
  if (isFull) server = await startModelServer({ respond: respondFrom([replay]) });
  const catalogue = server && { env: { OPENAI_API_KEY: "key-o" }, baseUrls: { openai: server.openaiBaseUrl } };
  const models = isFull ? [] : [recordedModel(replay.agent.definition.model, conversation)];
  lab = await openLab(database.url, {
    agents: [replay.agent],
    models,
    settings: { slots: 2, stickyTurns: { turns: 20, ms: 5_000 } },
    ...(catalogue === undefined ? {} : { catalogue }),
  });
  runId = (await drive(lab, [replay], 400_000))[0]?.runId ?? "";
}, 420_000);

afterAll(async () => {
  await lab[Symbol.asyncDispose]();
  await server?.close();
});

it("is longer than a thousand turns and stands in Postgres as it was recorded", async () => {
  const status = await lab.capstan.run(runId).status();
  expect(status).toMatchObject({ state: "waiting", wait_reason: "input" });
  expect(status.turn).toBeGreaterThan(1_000);
  expect(journaled(await lab.events(runId))).toEqual(recorded(conversation));
});

it("gives every request again: each canonical hash agrees", async () => {
  const report = await lab.intact(runId);
  expect(report.requests).toBe(recorded(conversation).filter((said) => said.role === "assistant").length);
  expect(server?.requests.length ?? report.requests).toBe(report.requests);
  expect(server?.refused ?? []).toEqual([]);
});

it("keeps rows small: no row of the journal grows with the number of turns", async () => {
  const { rows } = await lab.db.query<{ early: number; late: number; run_row: number }>(
    `select max(e.size) filter (where e.turn <= 100)::float8 as early, max(e.size) filter (where e.turn > 1000)::float8 as late,
       (select pg_column_size(r.*)::float8 from capstan.runs r where r.id = $1) as run_row from capstan.events e where e.run_id = $1`,
    [runId],
  );
  expect(rows[0]?.late).toBeLessThan(2 * (rows[0]?.early ?? 0) + 16_384);
  expect(rows[0]?.run_row).toBeLessThan(2_000);
});

it("does not slow down: a turn at 1,000 costs the engine little more than one at 10", async () => {
  const around = async (turn: number): Promise<number> => {
    const { rows } = await lab.db.query<{ ms: number }>(
      `with gaps as (
         select turn, type, extract(epoch from at - lag(at) over (order by seq)) * 1000 as ms, lag(type) over (order by seq) as before from capstan.events where run_id = $1)
       select percentile_cont(0.5) within group (order by ms)::float8 as ms from gaps
       where turn between $2::int - 8 and $2::int + 8 and type = 'model.requested' and before like 'tool.%'`,
      [runId, turn],
    );
    return rows[0]?.ms ?? Number.NaN;
  };
  const [early, late] = [await around(10), await around(1_000)];
  console.log(`engine time from a turn's results to the next request's commit: ${early.toFixed(1)} ms at turn 10, ${late.toFixed(1)} ms at turn 1,000`);
  expect(late).toBeLessThan(early * 4 + 25);
});

it("is verified by the command line too", () => {
  const cli = new URL("../../src/cli.ts", import.meta.url).pathname;
  const { status, stdout, stderr } = spawnSync(process.execPath, [cli, "verify", runId], { encoding: "utf8", env: { ...process.env, DATABASE_URL: database.url } });
  expect(status, stdout + stderr).toBe(0);
});
