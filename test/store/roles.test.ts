/** Logins with the least that they need: they enqueue and steer, and read no journal; pinned to a tenant, they reach no other. */
import pg from "pg";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { judgeRoles } from "../../src/cli/doctor/roles.ts";
import { createClient } from "../../src/client/index.ts";
import { PostgresDefinitionStore } from "../../src/store/definitions.ts";
import { migrate } from "../../src/store/migrate.ts";
import { roleFacts } from "../../src/store/role-facts.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();
const db = new pg.Pool({ connectionString: database.url, max: 4 });
db.on("error", () => {});

/** Roles are the server's, and this file's database is not the only one on it. */
const suffix = database.name.replaceAll(/\W/g, "_").slice(-24);
const roles = {
  app: `ct_app_${suffix}`,
  enqueuer: `ct_enq_${suffix}`,
  acme: `ct_acme_${suffix}`,
  group: `ct_group_${suffix}`,
  member: `ct_member_${suffix}`,
  sly: `ct_sly_${suffix}`,
} as const;
const password = "for-these-tests";

const pools: pg.Pool[] = [];
const urlOf = (role: string): string => {
  const url = new URL(database.url);
  url.username = role;
  url.password = password;
  return url.href;
};
function loginAs(role: string, options = ""): pg.Pool {
  const pool = new pg.Pool({ connectionString: urlOf(role), max: 2, options });
  pool.on("error", () => {});
  pools.push(pool);
  return pool;
}

beforeAll(async () => {
  await new PostgresDefinitionStore(db, (text) => text).register(agent({ name: "clerk", model: "offline:auditor", instructions: "Work." }).definition);
  await db.query(`
    create role ${roles.app} login password '${password}' in role capstan_app;
    create role ${roles.enqueuer} login password '${password}' in role capstan_enqueuer;
    create role ${roles.acme} login password '${password}' in role capstan_enqueuer;
    create role ${roles.group} nologin in role capstan_enqueuer;
    create role ${roles.member} login password '${password}' in role ${roles.group};
    create role ${roles.sly} login noinherit password '${password}' in role ${roles.group};
    select capstan.pin_role('${roles.acme}', 'acme');
    select capstan.pin_role('${roles.group}', 'acme');
  `);
});
afterAll(async () => {
  await Promise.all(pools.map((pool) => pool.end()));
  await db.query(`drop role ${Object.values(roles).join(", ")}`);
  await db.end();
});

const one = async <T>(pool: pg.Pool, text: string, values: unknown[] = []): Promise<T> => Object.values((await pool.query<Record<string, T>>(text, values)).rows[0] ?? {})[0] as T;
const enqueue = (pool: pg.Pool, tenant = "default"): Promise<string> => one<string>(pool, "select capstan.enqueue_run('clerk', '\"work\"', tenant => $1)", [tenant]);
const missing = { code: "KC002" };

/** A call that waits for leave, as a worker's event would have made it. */
async function waitingRun(tenant: string): Promise<{ runId: string; waitId: string }> {
  const runId = await enqueue(db, tenant);
  const waitId = await one<string>(db, "select capstan.uuid_v7()");
  await db.query(
    `insert into capstan.waits (id, run_id, tenant, agent, turn, call_id, call_index, kind, name, detail, requested_at)
     values ($1, $2, $3, 'clerk', 1, 'c1', 0, 'approval', 'pay', '{}', capstan.now())`,
    [waitId, runId, tenant],
  );
  return { runId, waitId };
}

describe("a login that enqueues", () => {
  it("enqueues, steers and reads the status of runs, also by the TypeScript client", async () => {
    const pool = loginAs(roles.enqueuer);
    const id = await enqueue(pool);
    expect(await one(pool, "select capstan.run_status($1)", [id])).toMatchObject({ run_id: id, state: "queued" });
    await one(pool, `select capstan.send($1, '"more"')`, [id]);
    await one(pool, `select capstan.signal($1, 'go')`, [id]);
    await one(pool, "select capstan.compact_run($1)", [id]);
    const { waitId } = await waitingRun("default");
    await one(pool, "select capstan.decide($1, 'approve')", [waitId]);
    expect(await one<string[]>(pool, `select capstan.enqueue_runs('[{"agent": "clerk", "input": 1}, {"agent": "clerk", "input": 2, "tenant": "acme"}]')`)).toHaveLength(2);
    const client = createClient({ pool });
    const run = await client.enqueue("clerk", "by the client");
    expect((await run.status()).state).toBe("queued");
    expect(await run.cancel()).toBe(true);
    await expect(run.result({ timeoutMs: 5_000 })).rejects.toMatchObject({ code: "RUN_CANCELLED" });
    expect(await one(pool, "select capstan.cancel_run($1)", [id])).toBe(true);
    await client.close();
    expect(await one(db, "select count(*)::int from capstan.inbox where run_id = $1", [id])).toBe(2);
    expect(await one(db, "select e.type from capstan.events e where e.run_id = $1 order by seq desc limit 1", [id])).toBe("run.cancelled");
  });

  it("may read and write no table or view of the schema, nor any of the queue's", async () => {
    const pool = loginAs(roles.enqueuer);
    const { rows } = await db.query<{ relation: string }>(
      "select c.oid::regclass::text as relation from pg_class c where c.relnamespace in ('capstan'::regnamespace, 'graphile_worker'::regnamespace) and c.relkind in ('r', 'p', 'v', 'm')",
    );
    expect(rows.length).toBeGreaterThan(25);
    for (const { relation } of rows) {
      await expect(pool.query(`select from ${relation} limit 1`), relation).rejects.toMatchObject({ code: "42501" });
      // A view over others is not for writing at all.
      await expect(pool.query(`delete from ${relation}`), relation).rejects.toSatisfy((error: { code: string }) => ["42501", "55000"].includes(error.code));
    }
    await expect(pool.query("set role capstan_owner")).rejects.toMatchObject({ code: "42501" });
    await expect(pool.query("select capstan.pin_role($1, 'acme')", [roles.enqueuer])).rejects.toMatchObject({ code: "42501" });
    await expect(pool.query("select graphile_worker.add_job('x')")).rejects.toMatchObject({ code: "42501" });
  });

  it("finds nothing of its own in the way of those functions", async () => {
    const pool = new pg.Client({ connectionString: urlOf(roles.enqueuer) });
    await pool.connect();
    try {
      // What a function might look up without a schema: the caller's own may not be found first.
      await pool.query("create temp table runs (id uuid, tenant text); create temp table events (run_id uuid); set search_path = pg_temp, public");
      await pool.query("create function pg_temp.now() returns timestamptz language sql as 'select timestamptz ''1999-01-01'''");
      await pool.query("create function pg_temp.length(text) returns int language sql as 'select 1 / 0'");
      const { rows: made } = await pool.query<{ id: string }>("select capstan.enqueue_run('clerk', '1') as id");
      const { rows } = await pool.query<{ status: { created_at: string } }>("select capstan.run_status($1) as status", [made[0]?.id]);
      expect(new Date(rows[0]?.status.created_at ?? 0).getFullYear()).toBeGreaterThan(2_000);
      // Nor may it switch off what keeps the rows beside a journal in step.
      const { waitId, runId } = await waitingRun("default");
      await pool.query("set capstan_import.running = 'on'");
      await pool.query("select capstan.cancel_run($1)", [runId]);
      expect(await one(db, "select settled_at is not null from capstan.waits where id = $1", [waitId])).toBe(true);
    } finally {
      await pool.end();
    }
  });
});

describe("the schema's functions", () => {
  it("are for the application role, and for the enqueuer those that look at the tenant; for nobody else", async () => {
    const { rows } = await db.query<{ name: string; app: boolean; enqueuer: boolean; everybody: boolean; definer: boolean; settings: string[] | null; owner: string }>(
      `select p.proname as name, has_function_privilege('capstan_app', p.oid, 'execute') as app, has_function_privilege('capstan_enqueuer', p.oid, 'execute') as enqueuer,
         exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a where a.grantee = 0) as everybody, p.prosecdef as definer, p.proconfig as settings,
         pg_get_userbyid(p.proowner) as owner
       from pg_proc p where p.pronamespace = 'capstan'::regnamespace order by p.proname`,
    );
    expect(rows.length).toBeGreaterThan(40);
    expect(rows.filter(({ app, name }) => !app && !ownersOnly.has(name)).map(({ name }) => name)).toEqual([]);
    expect(rows.filter(({ everybody }) => everybody)).toEqual([]);
    expect(rows.filter(({ owner }) => owner !== "capstan_owner")).toEqual([]);
    // One that is added has to be tried below.
    expect(rows.filter(({ enqueuer }) => enqueuer).map(({ name }) => name)).toEqual(Object.keys(attempts).toSorted());
    // Whatever runs with the owner's rights looks nothing up on the caller's path.
    for (const { name, definer, settings } of rows) if (definer) expect(settings, name).toContain("search_path=pg_catalog, pg_temp");
  });
});

/** What removes journals. */
const ownersOnly = new Set(["delete_runs", "drop_partition", "strip_audit"]);

interface Target {
  readonly runId: string;
  readonly waitId: string;
}

/** Every function that the enqueuer may call, made to reach for another tenant's run. */
const attempts: Readonly<Record<string, (pool: pg.Pool, target: Target) => Promise<{ readonly refusal: Promise<unknown>; readonly code: string }>>> = {
  enqueue_run: async (pool) => ({ refusal: enqueue(pool, "globex"), code: "KC021" }),
  enqueue_runs: async (pool) => ({
    refusal: pool.query(`select capstan.enqueue_runs('[{"agent": "clerk", "input": 1, "tenant": "acme"}, {"agent": "clerk", "input": 1, "tenant": "globex"}]')`),
    code: "KC021",
  }),
  send: async (pool, { runId }) => ({ refusal: pool.query(`select capstan.send($1, '"x"')`, [runId]), code: "KC002" }),
  cancel_run: async (pool, { runId }) => ({ refusal: pool.query("select capstan.cancel_run($1)", [runId]), code: "KC002" }),
  run_status: async (pool, { runId }) => ({ refusal: pool.query("select capstan.run_status($1)", [runId]), code: "KC002" }),
  // For many runs at once: what it does not reach has no state.
  run_ends: async (pool, { runId }) => ({
    refusal: pool.query<{ state: string | null }>("select state from capstan.run_ends(array[$1::uuid])", [runId]).then(({ rows }) => {
      if (rows.length === 1 && rows[0]?.state === null) throw Object.assign(new Error("no state"), { code: "KC002" });
    }),
    code: "KC002",
  }),
  decide: async (pool, { waitId }) => ({ refusal: pool.query("select capstan.decide($1, 'approve')", [waitId]), code: "KC010" }),
  answer: async (pool, { waitId }) => ({ refusal: pool.query(`select capstan.answer($1, '"x"')`, [waitId]), code: "KC010" }),
  signal: async (pool, { runId }) => ({ refusal: pool.query("select capstan.signal($1, 'go')", [runId]), code: "KC002" }),
  compact_run: async (pool, { runId }) => ({ refusal: pool.query("select capstan.compact_run($1)", [runId]), code: "KC002" }),
};

describe.each([
  ["its own name", roles.acme, ""],
  ["a role that it inherits", roles.member, ""],
  ["a role that it takes on", roles.sly, `set role ${roles.group}`],
])("a login that is pinned to a tenant by %s", (_, role, begin) => {
  const open = (): pg.Pool => loginAs(role, begin === "" ? "" : `-c role=${roles.group}`);

  it("reaches its tenant's runs, and must name the tenant", async () => {
    const pool = open();
    const id = await enqueue(pool, "acme");
    expect(await one(pool, "select capstan.run_status($1)", [id])).toMatchObject({ tenant: "acme" });
    const { waitId } = await waitingRun("acme");
    await one(pool, "select capstan.decide($1, 'deny')", [waitId]);
    await expect(enqueue(pool)).rejects.toMatchObject({ code: "KC021", message: "this login may not enqueue for tenant default", hint: "It is pinned to acme." });
    const client = createClient({ pool });
    await expect(client.enqueue("clerk", "x")).rejects.toMatchObject({ code: "TENANT_DENIED" });
    expect((await (await client.enqueue("clerk", "x", { tenant: "acme" })).status()).tenant).toBe("acme");
    await client.close();
  });

  it("reaches no other tenant's run by any function, and cannot tell it from none", async () => {
    const pool = open();
    const target = await waitingRun("globex");
    const nowhere = { runId: "00000000-0000-7000-8000-000000000000", waitId: "00000000-0000-7000-8000-000000000000" };
    const before = await snapshotOf(target.runId);
    for (const [name, attempt] of Object.entries(attempts)) {
      const messages: string[] = [];
      for (const { runId, waitId } of [target, nowhere]) {
        const { refusal, code } = await attempt(pool, { runId, waitId });
        const error = (await refusal.catch((thrown: unknown) => thrown)) as { code?: string; message?: string };
        expect(error.code, name).toBe(code);
        messages.push(String(error.message).replaceAll(runId, "<id>").replaceAll(waitId, "<id>"));
      }
      expect(messages[0], name).toBe(messages[1]);
    }
    await expect(pool.query("select capstan.enqueue_run('clerk', '1', tenant => 'acme', run_id => $1)", [target.runId])).rejects.toMatchObject({ code: "KC006" });
    expect(await snapshotOf(target.runId)).toEqual(before);
  });

  it("changes nothing about that by what it sets, and cannot lift its pin", async () => {
    const client = new pg.Client({ connectionString: urlOf(role) });
    await client.connect();
    try {
      const target = await waitingRun("globex");
      for (const trick of ["set capstan.tenant = 'globex'", "set role none", "reset role", "set session authorization default", `set search_path = pg_temp`]) {
        await client.query(trick);
        if (role !== roles.sly || trick.includes("search_path")) await client.query(begin === "" ? "select 1" : begin);
        await expect(client.query("select capstan.run_status($1)", [target.runId]), trick).rejects.toSatisfy((error: { code: string }) => ["KC002", "42501"].includes(error.code));
      }
      await expect(client.query("set session authorization capstan_owner")).rejects.toMatchObject({ code: "42501" });
      await expect(client.query(`select capstan.unpin_role('${roles.acme}')`)).rejects.toMatchObject({ code: "42501" });
      await expect(client.query("delete from capstan.role_tenants")).rejects.toMatchObject({ code: "42501" });
    } finally {
      await client.end();
    }
  });
});

async function snapshotOf(runId: string): Promise<unknown> {
  return await one(
    db,
    `select jsonb_build_object('run', to_jsonb(r), 'events', (select jsonb_agg(to_jsonb(e)) from capstan.events e where e.run_id = r.id),
       'inbox', (select count(*) from capstan.inbox i where i.run_id = r.id), 'waits', (select jsonb_agg(to_jsonb(w)) from capstan.waits w where w.run_id = r.id),
       'signals', (select count(*) from capstan.signals s where s.run_id = r.id)) from capstan.runs r where r.id = $1`,
    [runId],
  );
}

describe("pins", () => {
  it("may be several, end with unpin_role, and leave who is not pinned alone", async () => {
    const pool = loginAs(roles.acme);
    await db.query("select capstan.pin_role($1, 'initech')", [roles.acme]);
    expect(await enqueue(pool, "initech")).toMatch(/^[0-9a-f-]{36}$/);
    await expect(enqueue(pool, "globex")).rejects.toMatchObject({ code: "KC021", hint: "It is pinned to acme, initech." });
    expect(await one(db, "select capstan.unpin_role($1, 'initech')", [roles.acme])).toBe(1);
    await expect(enqueue(pool, "initech")).rejects.toMatchObject({ code: "KC021" });
    expect(await enqueue(loginAs(roles.app), "globex")).toMatch(/^[0-9a-f-]{36}$/);
    expect(await enqueue(loginAs(roles.enqueuer), "globex")).toMatch(/^[0-9a-f-]{36}$/);
    await expect(db.query("select capstan.pin_role('nobody_at_all', 'acme')")).rejects.toMatchObject({ code: "KC006" });
    const { rows } = await db.query("select action, tenant from capstan.audit_log where target = $1 order by id", [roles.acme]);
    expect(rows).toEqual([
      { action: "role.pin", tenant: "acme" },
      { action: "role.pin", tenant: "initech" },
      { action: "role.unpin", tenant: "initech" },
    ]);
  });

  it("does not let the application role write them, nor is a missing run more than missing", async () => {
    const pool = loginAs(roles.app);
    await expect(pool.query("insert into capstan.role_tenants (role, tenant) values ('x', 'y')")).rejects.toMatchObject({ code: "42501" });
    await expect(pool.query("select capstan.run_status('00000000-0000-7000-8000-000000000000')")).rejects.toMatchObject(missing);
  });
});

it("doctor tells whether the pins hold", async () => {
  const judged = async () => judgeRoles(await roleFacts(db, (text) => text, "capstan")).map(({ level, check, found }) => `${level} ${check} ${found}`);
  expect(await judged()).toEqual(["ok enqueuer_role applications can enqueue without reading journals", `ok role_pins 2 roles pinned: ${roles.acme}, ${roles.group}`]);
  await db.query(`grant capstan_app to ${roles.acme}; insert into capstan.role_tenants (role, tenant) values ('renamed_since', 'acme')`);
  expect(await judged()).toEqual([
    "ok enqueuer_role applications can enqueue without reading journals",
    "warning role_pins pinned to a tenant and no role: renamed_since",
    `warning role_pins pinned to a tenant and able to read tables: ${roles.acme}`,
  ]);
  await db.query(`revoke capstan_app from ${roles.acme}; delete from capstan.role_tenants where role = 'renamed_since'`);
});

it("says which roles there are when it migrates, and finds them there the second time", async () => {
  const report = await migrate({ connectionString: database.url });
  expect(report.roles).toEqual({ kind: "roles", owner: "capstan_owner", app: "capstan_app", enqueuer: "capstan_enqueuer" });
});
