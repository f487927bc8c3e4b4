/** Compaction and budget of one run, by every way in: the same fields, ranges and refusals, by the schemas' own keys. */
import fc from "fast-check";
import pg from "pg";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { createClient } from "../../src/client/index.ts";
import { budgetKinds, budgetSchema, mergeBudget, type Budget } from "../../src/domain/budget.ts";
import { compactionPolicy, mergeCompaction, resolvePolicy, type CompactionPolicy } from "../../src/domain/compaction/policy.ts";
import { agentDefinition } from "../../src/domain/definition.ts";
import { eventSchemas } from "../../src/domain/event.ts";
import { applyOverlay, definitionOverlay } from "../../src/domain/overlay.ts";
import { PostgresDefinitionStore } from "../../src/store/definitions.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();
const db = new pg.Pool({ connectionString: database.url, max: 4 });
db.on("error", () => {});
const client = createClient({ pool: db });
const same = (text: string): string => text;

const clerk = agent({
  name: "clerk",
  model: "offline:auditor",
  instructions: "Work.",
  compaction: { keep_last_n: 7, after_bytes: 50_000 },
  budget: { soft: { turns: 3 }, hard: { turns: 10, tokens: 1_000 } },
});
beforeAll(async () => {
  await new PostgresDefinitionStore(db, same).register(clerk.definition);
});
afterAll(async () => {
  await client.close();
  await db.end();
});

interface Range {
  readonly field: string;
  readonly kind: "boolean" | "number" | "text";
  readonly min: number | null;
  readonly max: number | null;
}

/** What a schema says of its fields, as the database lists them. */
function rangesOf(schema: z.ZodObject): Range[] {
  const { properties = {} } = z.toJSONSchema(schema) as { properties?: Record<string, { type?: string; minimum?: number; maximum?: number }> };
  return Object.entries(properties)
    .map(([field, { type, minimum, maximum }]): Range => {
      if (type === "boolean") return { field, kind: "boolean", min: null, max: null };
      if (type === "string") return { field, kind: "text", min: null, max: null };
      return { field, kind: "number", min: minimum ?? null, max: maximum === Number.MAX_SAFE_INTEGER ? null : (maximum ?? null) };
    })
    .toSorted(byField);
}
const byField = (a: { readonly field: string }, b: { readonly field: string }): number => (a.field < b.field ? -1 : 1);
const limits = budgetSchema.shape.hard.unwrap();

async function listed(name: "compaction_fields" | "budget_fields"): Promise<Range[]> {
  const { rows } = await db.query<Range & { min: string | null; max: string | null }>(`select * from capstan.${name}()`);
  return rows.map(({ field, kind, min, max }) => ({ field, kind, min: min === null ? null : Number(min), max: max === null ? null : Number(max) })).toSorted(byField);
}

describe("the database's own list of fields", () => {
  it("is the schema's, with the same ranges", async () => {
    expect(await listed("compaction_fields")).toEqual(rangesOf(compactionPolicy));
    expect(await listed("budget_fields")).toEqual(rangesOf(limits));
    expect(Object.keys(limits.shape)).toEqual([...budgetKinds]);
    expect(Object.keys(budgetSchema.shape).toSorted()).toEqual(["hard", "soft", "wrap_up"]);
  });
});

/** A value inside the range of each field, and values just outside of it, or of another kind. */
const tries = (range: Range): { readonly good: unknown[]; readonly bad: unknown[] } => {
  if (range.kind === "boolean") return { good: [true, false], bad: [1, "true", null, []] };
  if (range.kind === "text") return { good: ["a"], bad: ["", 5, null, {}] };
  const { min, max } = range as { min: number; max: number | null };
  return { good: max === null ? [min, 100_000] : [min, max], bad: [min - 1, ...(max === null ? [] : [max + 1]), min + 0.5, "12", true, null, [], {}] };
};

const sqlProblem = async (name: "compaction" | "budget", given: unknown, base: unknown = null): Promise<string | null> => {
  const { rows } = await db.query<{ problem: string | null }>(`select capstan.${name}_problem($1::jsonb, $2::jsonb) as problem`, [
    JSON.stringify(given),
    base === null ? null : JSON.stringify(base),
  ]);
  return rows[0]?.problem ?? null;
};

describe("a value of one field", () => {
  it.each(rangesOf(compactionPolicy))("compaction.$field is refused in SQL exactly where the schema refuses it", async (range) => {
    const { good, bad } = tries(range);
    for (const value of [...good, ...bad]) {
      const given = {
        [range.field]: value,
        ...(range.field === "after_bytes" ? { summarizer: "mine" } : {}),
        ...(range.field === "prefetch_at_pct" ? { autocompact_at_pct: 95 } : {}),
      };
      const parsed = compactionPolicy.safeParse(given);
      const problem = await sqlProblem("compaction", given);
      expect(problem === null, `${range.field} ${JSON.stringify(value)}: ${problem}`).toBe(parsed.success);
      expect(parsed.success).toBe(good.includes(value));
      // Numbers are refused in the same words.
      if (!parsed.success && range.kind === "number") expect(problem).toBe(`compaction.${range.field} ${parsed.error.issues[0]?.message}`);
      if (!parsed.success) expect(problem).toContain(`compaction.${range.field} must be`);
    }
  });

  it.each(rangesOf(limits))("budget.hard.$field and budget.soft.$field likewise", async (range) => {
    const { good, bad } = tries(range);
    for (const level of ["hard", "soft"]) {
      for (const value of [...good, ...bad]) {
        const given = { [level]: { [range.field]: value } };
        const parsed = budgetSchema.safeParse(given);
        const problem = await sqlProblem("budget", given);
        expect(problem === null, `${level} ${JSON.stringify(value)}: ${problem}`).toBe(parsed.success);
        if (!parsed.success) expect(problem).toBe(`budget.${level}.${range.field} ${parsed.error.issues[0]?.message}`);
      }
    }
  });

  it("that is none, and what is no object, is refused by name", async () => {
    expect(await sqlProblem("compaction", { keep: 1 })).toMatch(/^compaction\.keep is not a field of the policy: there are enabled, .*prefetch_at_pct$/);
    expect(await sqlProblem("compaction", [])).toBe("compaction is not an object");
    expect(await sqlProblem("budget", { firm: {} })).toBe("budget.firm is not a field of a budget: there are soft, hard, wrap_up");
    expect(await sqlProblem("budget", { soft: { cents: 1 } })).toBe("budget.soft.cents is not a limit: there are turns, tokens, cost_usd_micros, wall_ms");
    expect(await sqlProblem("budget", { hard: [] })).toBe("budget.hard is not an object");
    expect(await sqlProblem("budget", { wrap_up: "yes" })).toBe('budget.wrap_up must be true or false, not "yes"');
  });

  it("is held against the definition's, field by field", async () => {
    expect(await sqlProblem("compaction", { prefetch_at_pct: 60 }, { autocompact_at_pct: 60 })).toBe(
      "compaction.prefetch_at_pct must be below autocompact_at_pct, from 1 to 59, not 60",
    );
    expect(await sqlProblem("compaction", { max_tokens: 50_000 }, { after_bytes: 50_000 })).toMatch(
      /^compaction\.after_bytes must be a whole number above 200000 \(max_tokens 50000 x 4\), not 50000/,
    );
    expect(await sqlProblem("budget", { hard: { tokens: 1_001 } }, { hard: { tokens: 1_000 } })).toBe(
      "budget.hard.tokens must be at most 1000, which is what the definition allows, not 1001",
    );
    expect(await sqlProblem("budget", { soft: { turns: 5 }, hard: { turns: 5 } })).toBe("budget.soft.turns must be below budget.hard.turns, which is 5, not 5");
    expect(await sqlProblem("budget", { soft: { tokens: 5_000 } }, { hard: { tokens: 1_000 } })).toBeNull();
  });
});

const anyLimits = fc.option(fc.record(Object.fromEntries(budgetKinds.map((kind) => [kind, fc.integer({ min: 1, max: 50 })])), { requiredKeys: [] }), { nil: undefined });
const anyBudget = fc
  .record({ soft: anyLimits, hard: anyLimits, wrap_up: fc.option(fc.boolean(), { nil: undefined }) })
  .map((budget) => JSON.parse(JSON.stringify(budget)) as Budget);
const anyPolicy = fc.record(
  {
    enabled: fc.boolean(),
    after_bytes: fc.integer({ min: 1, max: 99_999 }),
    keep_last_n: fc.nat(9),
    keep_first: fc.boolean(),
    autocompact_at_pct: fc.integer({ min: 50, max: 95 }),
    model: fc.constant("m"),
  },
  { requiredKeys: [] },
);

it("what is in force is reckoned alike in SQL and in TypeScript", async () => {
  const pairs = fc.sample(fc.record({ budget: fc.tuple(anyBudget, anyBudget), policy: fc.tuple(anyPolicy, anyPolicy) }), 200);
  const { rows } = await db.query<{ budget: Budget | null; policy: unknown }>(
    `select capstan.resolved_budget(p -> 'budget' -> 0, p -> 'budget' -> 1) as budget, capstan.resolved_compaction(p -> 'policy' -> 0, p -> 'policy' -> 1) as policy
     from jsonb_array_elements($1::jsonb) with ordinality as x(p, n) order by n`,
    [JSON.stringify(pairs)],
  );
  for (const [i, { budget, policy }] of pairs.entries()) {
    expect(rows[i]?.budget ?? undefined).toEqual(mergeBudget(...budget));
    expect(rows[i]?.policy).toEqual(resolvePolicy(mergeCompaction(...(policy as [CompactionPolicy, CompactionPolicy]))));
  }
});

describe("every form of the two", () => {
  it("has the schema's own fields: stored definition, overlay, run, child of a spawn", () => {
    const child = (eventSchemas["call.waiting"].shape.wait.options.find((option) => option.shape.kind.value === "children") as z.ZodObject).shape[
      "children"
    ] as z.ZodArray<z.ZodObject>;
    expect(agentDefinition.shape.compaction.unwrap()).toBe(compactionPolicy);
    for (const budget of [agentDefinition.shape.budget, eventSchemas["run.created"].shape.budget, child.element.shape["budget"] as typeof agentDefinition.shape.budget])
      expect(budget.unwrap()).toBe(budgetSchema);
    const overlay = z.toJSONSchema(definitionOverlay, { unrepresentable: "any" }) as { properties: Record<string, unknown> };
    const text = JSON.stringify(overlay.properties["budget"]);
    for (const kind of budgetKinds) expect(text).toContain(`"${kind}"`);
    expect(applyOverlay(clerk.definition, { budget: { hard: { tokens: null, wall_ms: 5_000 } } })).toMatchObject({
      ok: true,
      definition: { budget: { soft: { turns: 3 }, hard: { turns: 10, wall_ms: 5_000 } } },
    });
    expect(applyOverlay(clerk.definition, { budget: { soft: { turns: 10 } } })).toMatchObject({ ok: false, issues: [{ path: "budget.soft.turns" }] });
  });
});

const whole: Required<CompactionPolicy> = {
  enabled: true,
  autocompact_at_pct: 70,
  at_tokens: 9_000,
  after_bytes: 60_000,
  keep_first: false,
  keep_last_n: 2,
  target_percentage: 20,
  model: "offline:extractive",
  summarizer: "mine",
  instruction: "Short.",
  max_tokens: 2_048,
  prefetch_at_pct: 50,
};
const wholeBudget: Budget = {
  soft: { turns: 2, tokens: 90, cost_usd_micros: 90, wall_ms: 90_000 },
  hard: { turns: 8, tokens: 900, cost_usd_micros: 900, wall_ms: 900_000 },
  wrap_up: true,
};

async function stored(runId: string): Promise<{
  status: Awaited<ReturnType<ReturnType<typeof client.run>["status"]>>;
  created: { compaction?: unknown; budget?: unknown };
  row: { policy: unknown; overrides: unknown };
}> {
  const { rows } = await db.query<{ payload: { compaction?: unknown; budget?: unknown }; policy: unknown; overrides: unknown }>(
    "select e.payload, r.policy, r.overrides from capstan.runs r join capstan.events e on e.run_id = r.id and e.seq = 1 where r.id = $1",
    [runId],
  );
  const { payload, policy, overrides } = rows[0] as (typeof rows)[number];
  return { status: await client.run(runId).status(), created: payload, row: { policy, overrides } };
}

describe("a run", () => {
  it("is made with every field by TypeScript, alone, many at a time and in a caller's transaction, and by SQL, and says what is in force", async () => {
    expect(Object.keys(whole).toSorted()).toEqual(Object.keys(compactionPolicy.shape).toSorted());
    const options = { compaction: whole, budget: wholeBudget };
    const together = await Promise.all(Array.from({ length: 4 }, () => client.enqueue(clerk, "a", options)));
    const tx = await db.connect();
    await tx.query("begin");
    const inTx = await client.enqueue("clerk", "a", { ...options, tx });
    await tx.query("commit");
    tx.release();
    const { rows } = await db.query<{ id: string }>("select capstan.enqueue_run('clerk', '1', compaction => $1::jsonb, budget => $2::jsonb) as id", [
      JSON.stringify(whole),
      JSON.stringify(wholeBudget),
    ]);
    const batch = await db.query<{ ids: string[] }>("select capstan.enqueue_runs($1::jsonb) as ids", [
      JSON.stringify([{ agent: "clerk", input: 1, compaction: whole, budget: wholeBudget }]),
    ]);
    const ids = [...together.map(({ id }) => id), inTx.id, rows[0]?.id as string, batch.rows[0]?.ids[0] as string];
    for (const id of ids) {
      const { status, created, row } = await stored(id);
      expect(created).toMatchObject({ compaction: whole, budget: wholeBudget });
      expect(row).toEqual({ policy: whole, overrides: { budget: wholeBudget } });
      expect(status.compaction).toEqual(whole);
      expect(status.budget).toEqual(wholeBudget);
      expect(status.budget_level).toBe(0);
    }
  });

  it("has what it does not say from its definition, and an empty setting says nothing", async () => {
    const { id } = await client.enqueue(clerk, "b", { compaction: { keep_last_n: 1 }, budget: { hard: { tokens: 10 } } });
    const { status, created } = await stored(id);
    expect(created).toMatchObject({ compaction: { keep_last_n: 1 }, budget: { hard: { tokens: 10 } } });
    expect(status.compaction).toEqual({ enabled: false, autocompact_at_pct: 80, keep_first: true, keep_last_n: 1, target_percentage: 10, after_bytes: 50_000 });
    expect(status.budget).toEqual({ soft: { turns: 3 }, hard: { turns: 10, tokens: 10 } });
    const plain = await stored((await client.enqueue(clerk, "b", { compaction: {}, budget: {} })).id);
    expect(plain.created).not.toHaveProperty("compaction");
    expect(plain.created).not.toHaveProperty("budget");
    expect(plain.row).toEqual({ policy: null, overrides: null });
  });

  it("is refused by every way in with the field and its range", async () => {
    const refused = (options: object, message: RegExp) =>
      expect(client.enqueue(clerk, "c", options)).rejects.toMatchObject({ code: "ARGUMENT_INVALID", message: expect.stringMatching(message) as string });
    await refused({ compaction: { autocompact_at_pct: 96 } }, /^compaction\.autocompact_at_pct must be a whole number from 50 to 95, not 96$/);
    await refused({ compaction: { keep_last: 1 } }, /^compaction\.keep_last is not a known field: there are enabled,/);
    await refused({ compaction: { max_tokens: 50_000 } }, /^compaction\.after_bytes must be a whole number above 200000/);
    await refused({ budget: { hard: { tokens: 1_001 } } }, /^budget\.hard\.tokens must be at most 1000/);
    await refused({ budget: { hard: { turns: 0 } } }, /^budget\.hard\.turns must be a whole number from 1 to 1000000, not 0$/);
    await refused({ budget: { soft: { turns: 4 }, hard: { turns: 4 } } }, /^budget\.soft\.turns must be below/);
    await expect(db.query(`select capstan.enqueue_run('clerk', '1', compaction => '{"autocompact_at_pct": 96}')`)).rejects.toMatchObject({
      code: "KC006",
      message: "compaction.autocompact_at_pct must be a whole number from 50 to 95, not 96",
    });
    await expect(db.query(`select capstan.enqueue_run('clerk', '1', budget => '{"hard": {"tokens": 5000}}')`)).rejects.toMatchObject({ code: "KC006" });
    await expect(client.schedules.create("bad", { agent: "clerk", cron: "@daily", compaction: { keep_last_n: -1 } })).rejects.toMatchObject({
      details: { field: "compaction.keep_last_n" },
    });
    await expect(client.schedules.create("bad", { agent: "clerk", cron: "@daily", budget: { soft: { turns: 2 }, hard: { turns: 1 } } })).rejects.toMatchObject({
      details: { field: "budget.soft.turns" },
    });
  });

  it("is the same run under its idempotency key, whatever is said of its settings", async () => {
    const first = await client.enqueue(clerk, "d", { idempotencyKey: "d", budget: { hard: { tokens: 10 } } });
    expect((await client.enqueue(clerk, "d", { idempotencyKey: "d", compaction: { keep_last_n: 0 } })).id).toBe(first.id);
    expect((await stored(first.id)).created).toMatchObject({ budget: { hard: { tokens: 10 } } });
  });

  it("of a schedule, a conversation, a fork and a retry has them too", async () => {
    await client.schedules.create("nightly", { agent: "clerk", cron: "@daily", compaction: { keep_last_n: 1 }, budget: { hard: { tokens: 11 } } });
    const bySchedule = await stored(await client.schedules.runNow("nightly"));
    expect(bySchedule.created).toMatchObject({ origin: "schedule", compaction: { keep_last_n: 1 }, budget: { hard: { tokens: 11 } } });

    const conversation = await client.conversations.create({ agent: "clerk" });
    const first = await conversation.send("hello", { compaction: { keep_last_n: 2 }, runBudget: { hard: { tokens: 12 } } });
    expect((await stored(first.id)).created).toMatchObject({ compaction: { keep_last_n: 2 }, budget: { hard: { tokens: 12 } } });
    await first.cancel();
    const second = await conversation.send("again", { runBudget: { hard: { turns: 2 } } });
    expect((await stored(second.id)).created).toMatchObject({ origin: "continue", budget: { hard: { turns: 2 } } });
    expect((await stored(second.id)).status.budget?.hard).toEqual({ turns: 2, tokens: 1_000 });

    const base = await client.enqueue(clerk, "e", { compaction: { keep_last_n: 3 }, budget: { soft: { turns: 2 }, hard: { tokens: 13 } } });
    const fork = await base.fork({ compaction: { keep_first: false }, budget: { hard: { tokens: 14, turns: 9 } } });
    const forked = await stored(fork.id);
    expect(forked.created).toMatchObject({ compaction: { keep_last_n: 3, keep_first: false }, budget: { soft: { turns: 2 }, hard: { tokens: 14, turns: 9 } } });
    expect(forked.row.overrides).toEqual({ budget: { soft: { turns: 2 }, hard: { tokens: 14, turns: 9 } } });
    await expect(base.fork({ budget: { hard: { tokens: 1_001 } } })).rejects.toMatchObject({ code: "ARGUMENT_INVALID" });
    const { rows } = await db.query<{ id: string }>(`select capstan.fork_run($1, compaction => '{"keep_first": false}') as id`, [base.id]);
    expect((await stored(rows[0]?.id as string)).created).toMatchObject({ compaction: { keep_last_n: 3, keep_first: false }, budget: { hard: { tokens: 13 } } });

    await base.cancel();
    const retry = await base.retry({ budget: { hard: { tokens: 15 } }, compaction: { keep_last_n: 4 } });
    expect((await stored(retry.id)).created).toMatchObject({ origin: "retry", compaction: { keep_last_n: 4 }, budget: { soft: { turns: 2 }, hard: { tokens: 15 } } });
  });
});

describe("capstan.enqueue_runs", () => {
  const many = async (runs: unknown): Promise<string[]> =>
    (await db.query<{ ids: string[] }>("select capstan.enqueue_runs($1::jsonb) as ids", [JSON.stringify(runs)])).rows[0]?.ids ?? [];

  it("gives the runs in the order of the array, with all of enqueue_run's arguments", async () => {
    const ids = await many([
      { agent: "clerk", input: "z", idempotency_key: "z", labels: ["b", "a"], priority: 3 },
      { agent: "clerk", input: "a", idempotency_key: "a", tenant: "acme" },
      { agent: "clerk", input: null },
    ]);
    const { rows } = await db.query("select id, tenant, idempotency_key, labels, priority from capstan.runs where id = any($1)", [ids]);
    expect(ids.map((id) => rows.find((row: { id: string }) => row.id === id))).toMatchObject([
      { idempotency_key: "z", labels: ["b", "a"], priority: 3, tenant: "default" },
      { idempotency_key: "a", tenant: "acme" },
      { idempotency_key: null },
    ]);
    expect(await many([{ agent: "clerk", input: "z", idempotency_key: "z" }])).toEqual([ids[0]]);
    expect(await many([])).toEqual([]);
    const { rows: args } = await db.query<{ args: string[] }>("select proargnames as args from pg_proc where proname = 'enqueue_run'");
    for (const name of args[0]?.args ?? [])
      await expect(many([{ agent: "clerk", input: 1, [name]: { not: "this" } }]).catch((error: Error) => error.message)).resolves.not.toContain("is not an argument");
  });

  it("makes all of them or none, and says which was refused", async () => {
    const before = await db.query("select count(*) from capstan.runs");
    await expect(
      many([
        { agent: "clerk", input: 1 },
        { agent: "not a name", input: 1 },
      ]),
    ).rejects.toMatchObject({ code: "KC006", message: expect.stringMatching(/^runs\[1\]: agent not a name is not a name/) as string });
    await expect(many([{ agent: "clerk", input: 1, prio: 2 }])).rejects.toMatchObject({ message: "runs[0]: prio is not an argument of enqueue_run" });
    await expect(many([5])).rejects.toMatchObject({ code: "KC006", message: "runs[0]: is not a JSON object" });
    await expect(many({})).rejects.toMatchObject({ code: "KC006" });
    await expect(many([{ agent: "clerk", input: 2, idempotency_key: "z" }])).rejects.toMatchObject({ code: "KC001", detail: expect.stringMatching(/^[0-9a-f-]{36}$/) as string });
    expect((await db.query("select count(*) from capstan.runs")).rows).toEqual(before.rows);
  });
});
