/** What was used, by whom and when: the journals' numbers, those beside them, and those of runs that are gone. */
import { expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import { ArgumentError, UnknownRunError } from "../../src/client/errors.ts";
import { UsageClient } from "../../src/client/usage.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { openLab } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();

const look = tool({ name: "look", description: "Looks.", input: z.object({}), effect: "read", execute: () => "seen" });
const callLook = { toolCalls: [{ name: "look", input: {} }] };

it("groups calls, tokens and cost by tenant, agent, model and day, within the time", { timeout: 60_000 }, async () => {
  const looker = agent({ name: "looker", model: "scripted:looks", instructions: "Look.", tools: [look] });
  const talker = agent({ name: "talker", model: "scripted:talks", instructions: "Talk." });
  await using lab = await openLab(database.url, {
    agents: [looker, talker],
    models: [scriptedModel([callLook, "done"], { name: "scripted:looks", by: "turn" }), scriptedModel(["hello"], { name: "scripted:talks", by: "turn" })],
  });
  const { db } = lab;
  const usage = new UsageClient(db, (text) => text);
  const since = new Date(Date.now() - 60_000);
  const looked = await lab.run(looker, "go", { tenant: "acme" });
  const talked = await lab.run(talker, "go", { tenant: "acme" });
  const other = await lab.run(talker, "go", { tenant: "other" });

  const { rows: runs } = await db.query<{ tenant: string; input: number; output: number }>(
    "select tenant, sum(input_tokens)::float8 as input, sum(output_tokens)::float8 as output from capstan.runs where agent in ('looker', 'talker') group by 1 order by 1",
  );
  const byTenant = await usage.by({ by: "tenant", since });
  expect(
    byTenant
      .filter(({ key }) => key !== "default")
      .toSorted((a, b) => (a.key < b.key ? -1 : 1))
      .map(({ key, calls, tool_calls: tools, input_tokens: input, output_tokens: output }) => ({ key, calls, tools, input, output })),
  ).toEqual([
    { key: "acme", calls: 3, tools: 1, input: runs[0]?.input, output: runs[0]?.output },
    { key: "other", calls: 1, tools: 0, input: runs[1]?.input, output: runs[1]?.output },
  ]);
  expect((await usage.by({ by: "agent", since, tenant: "acme" })).map(({ key, calls }) => [key, calls])).toEqual([
    ["looker", 2],
    ["talker", 1],
  ]);
  expect((await usage.by({ by: "model", since, tenant: "acme" })).map(({ key, calls, tool_calls: tools }) => `${key} ${calls} ${tools}`).toSorted()).toEqual([
    " 0 1",
    "scripted:looks 2 0",
    "scripted:talks 1 0",
  ]);
  const today = new Date().toISOString().slice(0, 10);
  expect(await usage.by({ by: "day", since, tenant: "acme" })).toMatchObject([{ key: today, calls: 3, tool_calls: 1 }]);
  expect(await usage.by({ by: "tenant", since: new Date(Date.now() - 7_200_000), until: new Date(Date.now() - 3_600_000) })).toEqual([]);
  expect(await usage.by({ by: "tenant", since: new Date(Date.now() + 3_600_000) })).toEqual([]);

  // Beside the journal, after the run's end: a summary of it.
  await db.query(
    `insert into capstan.usage_ledger (id, at, run_id, tenant, agent, model, kind, turn, attempt, outcome, input_tokens, output_tokens, cost_usd_micros)
     values (gen_random_uuid(), capstan.now() + interval '2 h', $1, 'other', 'talker', 'a:sum', 'summary', 1, 1, 'ok', 500, 50, 7)`,
    [other.id],
  );
  expect(await usage.by({ by: "model", since: new Date(Date.now() + 3_600_000) })).toMatchObject([
    { key: "a:sum", calls: 1, input_tokens: 500, output_tokens: 50, cost_usd_micros: 7 },
  ]);
  // Of runs that were deleted, days are left.
  await db.query(
    "insert into capstan.usage_rollup (tenant, day, agent, model, kind, calls, input_tokens, output_tokens) values ('acme', '2020-02-03', 'talker', 'a:b', 'turn', 9, 100, 10)",
  );
  expect(await usage.by({ by: "day", since: new Date("2020-02-03T00:00:00Z"), until: new Date("2020-02-04T00:00:00Z") })).toMatchObject([{ key: "2020-02-03", calls: 9 }]);
  expect(await usage.by({ by: "day", since: new Date("2020-02-03T01:00:00Z"), until: new Date("2020-02-04T00:00:00Z") })).toEqual([]);

  await db.query("update capstan.runs set parent_run_id = $1, parent_call = 't1.0', child_index = 0 where id = $2", [looked.id, talked.id]);
  const tree = await usage.ofTree(looked.id);
  expect(tree.runs.map(({ run_id: id, depth, agent: name, calls, parent_run_id: parent }) => ({ id, depth, name, calls, parent }))).toEqual([
    { id: looked.id, depth: 0, name: "looker", calls: 2, parent: undefined },
    { id: talked.id, depth: 1, name: "talker", calls: 1, parent: looked.id },
  ]);
  expect(tree).toMatchObject({ is_cut: false, total: { calls: 3, tool_calls: 1, input_tokens: runs[0]?.input, output_tokens: runs[0]?.output } });
  await expect(usage.ofTree("00000000-0000-7000-8000-000000000000")).rejects.toBeInstanceOf(UnknownRunError);
  await expect(usage.by({ by: "day", since, until: since })).rejects.toBeInstanceOf(ArgumentError);
});
