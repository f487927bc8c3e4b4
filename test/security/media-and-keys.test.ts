/** Media that inputs name, and keys of tenants: the first reaches the model, the second reaches nothing else. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { createClient, type CapstanClient } from "../../src/client/client.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { openLab, until, type Lab } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();
const tenantKey = "sk-tenant-key-of-acme-0123456789";
const asked: { authorization: string }[] = [];
const looking = agent({ name: "looking", model: "scripted:looking", instructions: "Look.", interactive: true });
const vendor = agent({ name: "vendor", model: "openai-chat:gpt-4o", instructions: "Answer." });
const model = scriptedModel(["I see.", "I see more."], { name: "scripted:looking", by: "turn" });

let lab: Lab;
let client: CapstanClient;
beforeAll(async () => {
  lab = await openLab(database.url, {
    agents: [looking, vendor],
    models: [model],
    catalogue: {
      keysByTenant: { acme: { openai: tenantKey } },
      // A vendor that quotes the key that it was given.
      fetch: async (_url, init) => {
        const authorization = new Headers(init?.headers).get("authorization") ?? "";
        asked.push({ authorization });
        return new Response(
          JSON.stringify({ error: { message: `Incorrect API key provided: ${authorization.replace("Bearer ", "")}, or ${authorization.slice(7, 17)}****6789.` } }),
          { status: 401, headers: { "content-type": "application/json" } },
        );
      },
    },
  });
  client = createClient({ connectionString: database.url });
});
afterAll(async () => {
  await client.close();
  await lab[Symbol.asyncDispose]();
});

const refs = async (sha256: string) =>
  (await lab.db.query<{ run_id: string }>("select run_id from capstan.blob_refs where sha256 = $1 order by run_id", [sha256])).rows.map((row) => row.run_id);

describe("media by blob", () => {
  it("is uploaded once, named by inputs and messages, and belongs to the runs that name it", async () => {
    const file = await client.putBlob(Buffer.from([0x89, 0x50, 0x4e, 0x47, 1, 2, 3]), { mediaType: "image/png", filename: "cat.png" });
    expect(file).toMatchObject({ type: "file", media_type: "image/png", size_bytes: 7, filename: "cat.png" });
    expect(await client.putBlob(Buffer.from([0x89, 0x50, 0x4e, 0x47, 1, 2, 3]), { mediaType: "image/png" })).toMatchObject({ sha256: file.sha256 });
    const run = await client.enqueue("looking", [{ type: "text", text: "what is this?" }, file]);
    await until("an answer", async () => (await run.status()).wait_reason === "input");
    expect(model.calls[0]?.messages[0]?.content).toEqual([{ type: "text", text: "what is this?" }, file]);
    expect(await refs(file.sha256)).toContain(run.id);
    const other = await client.putBlob(Buffer.from("another"), { mediaType: "text/plain" });
    await run.send([{ type: "text", text: "and this?" }, other]);
    await until("another answer", async () => (await run.status()).turn === 2);
    expect(await refs(other.sha256)).toContain(run.id);
    // By SQL too.
    const { rows } = await lab.db.query<{ id: string }>("select capstan.enqueue_run('looking', $1, run_at => '2099-01-01') as id", [JSON.stringify([file])]);
    expect(await refs(file.sha256)).toContain(rows[0]?.id);
    await run.cancel();
  });

  it("that the tenant does not have is refused, whoever else has it", async () => {
    const theirs = await client.putBlob(Buffer.from("theirs"), { mediaType: "image/png", tenant: "acme" });
    await expect(client.enqueue("looking", [theirs])).rejects.toMatchObject({ code: "INPUT_INVALID", message: expect.stringContaining("upload it first") });
    const { rows } = await lab.db.query<{ id: string }>("select capstan.enqueue_run('looking', $1, run_at => '2099-01-01') as id", [JSON.stringify([theirs])]);
    expect(await refs(theirs.sha256)).not.toContain(rows[0]?.id);
  });

  it("is refused when it is too large or of no type", async () => {
    await expect(client.putBlob(Buffer.alloc(64 * 1024 * 1024 + 1), { mediaType: "image/png" })).rejects.toMatchObject({ code: "PAYLOAD_TOO_LARGE" });
    await expect(client.putBlob(Buffer.from("x"), { mediaType: "image" })).rejects.toMatchObject({ code: "ARGUMENT_INVALID" });
    await expect(client.putBlob(Buffer.from("x"), { mediaType: "image/png", filename: "" })).rejects.toMatchObject({ code: "ARGUMENT_INVALID" });
  });
});

it("a tenant's key is used for that tenant alone, and is nowhere, even when the vendor quotes it", async () => {
  const ours = await lab.capstan.enqueue("vendor", "x", { tenant: "acme" });
  await expect(ours.result({ timeoutMs: 20_000 })).rejects.toMatchObject({
    code: "PROVIDER_AUTH",
    message: expect.stringContaining("[redacted:provider_key], or [redacted:provider_key]"),
  });
  expect(asked.map(({ authorization }) => authorization)).toEqual([`Bearer ${tenantKey}`]);
  // Another tenant has no key: its run waits and says what is missing.
  const theirs = await lab.capstan.enqueue("vendor", "x", { tenant: "other" });
  expect((await lab.settled(theirs.id)).wait_reason).toBe("agent_missing");
  expect(asked).toHaveLength(1);
  const { rows: tables } = await lab.db.query<{ name: string }>(
    "select format('%I.%I', schemaname, tablename) as name from pg_tables where schemaname in ('capstan', 'graphile_worker')",
  );
  for (const { name } of tables)
    expect((await lab.db.query<{ line: string }>(`select t::text as line from ${name} t where t::text like '%' || $1 || '%'`, [tenantKey.slice(0, 9)])).rows, name).toEqual([]);
  expect(JSON.stringify(lab.log, (_, value: unknown) => (value instanceof Error ? String(value.stack) : value))).not.toContain(tenantKey.slice(0, 9));
  await theirs.cancel();
});
