import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import fastify from "fastify";
import { expect, it } from "vitest";
import { createClient } from "../../src/client/client.ts";
import { CapstanError } from "../../src/domain/error.ts";
import { registerMcp } from "../../src/mcp/server/http-route.ts";
import { defaultNames, namedSql } from "../../src/store/names.ts";
import { createPool } from "../../src/store/pool.ts";
import { silentLog } from "../../src/telemetry/log.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();

class Refused extends CapstanError {
  override readonly name = "Refused";
  readonly code = "UNAUTHORIZED";
  readonly statusCode = 401;
}

it("serves the same tools over HTTP, each request under its own token", async () => {
  const db = createPool({ connectionString: database.url, max: 2, applicationName: "mcp test" });
  const client = createClient({ pool: db });
  const app = fastify({ logger: false });
  registerMcp(app, {
    client,
    db,
    named: namedSql(defaultNames),
    log: silentLog,
    access: async ({ headers }) => {
      if (headers.authorization !== "Bearer good") throw new Refused("no good token");
      return { tenant: "acme", scopes: ["runs:create", "runs:read"], actor: "token:good" };
    },
  });
  await app.listen({ port: 0, host: "127.0.0.1" });
  try {
    const url = new URL(`http://127.0.0.1:${(app.server.address() as AddressInfo).port}/mcp`);
    const assistant = new Client({ name: "assistant", version: "1" });
    await assistant.connect(new StreamableHTTPClientTransport(url, { requestInit: { headers: { authorization: "Bearer good" } } }));
    const ask = async (name: string, input: Record<string, unknown> = {}) => {
      const { content } = (await assistant.callTool({ name, arguments: input })) as { content: { text: string }[] };
      return JSON.parse(content[0]?.text ?? "null") as Record<string, unknown>;
    };
    const started = await ask("enqueue_run", { agent: "later", input: "go" });
    expect(started).toMatchObject({ tenant: "acme", state: "queued", note: expect.stringContaining("no worker") });
    // Two at once: requests share nothing.
    const [listed, refused] = await Promise.all([ask("list_runs"), ask("cancel_run", { run_id: started["run_id"] })]);
    expect(listed).toMatchObject({ runs: [{ run_id: started["run_id"] }] });
    expect(refused).toMatchObject({ code: "FORBIDDEN" });
    await assistant.close();
    const bad = await fetch(url, { method: "POST", headers: { "content-type": "application/json", authorization: "Bearer bad" }, body: "{}" });
    expect(bad.status).toBe(401);
    expect((await fetch(url)).status).toBe(405);
  } finally {
    const closed = once(app.server, "close");
    await Promise.all([app.close(), closed]);
    await client.close();
    await db.end();
  }
});
