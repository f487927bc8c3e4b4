import { createServer, type AddressInfo } from "node:net";
import { describe, expect, it } from "vitest";
import { createTestDatabase } from "../support/database.ts";
import { capstan, startCapstan } from "./support.ts";

const database = await createTestDatabase();
const env = { DATABASE_URL: database.url };

const json = async (args: readonly string[]): Promise<Record<string, unknown>> => {
  const { code, stdout, stderr } = await capstan([...args, "--json"], { env });
  expect(code, stderr).toBe(0);
  return JSON.parse(stdout) as Record<string, unknown>;
};

describe("api", () => {
  it("serves until it is stopped, on this machine only while there are no tokens, and with them wherever it is told to", { timeout: 120_000 }, async () => {
    const beyond = await capstan(["api", "--host", "0.0.0.0", "--port", "0"], { env });
    expect(beyond).toMatchObject({ code: 1, stdout: "" });
    expect(beyond.stderr).toMatch(/^FORBIDDEN: .*capstan tokens create/m);
    const api = startCapstan(["api", "--port", "0"], { env });
    const ready = await api.nextEvent();
    expect(ready).toMatchObject({ event: "ready", tokens: false, url: expect.stringMatching(/^http:\/\/127\.0\.0\.1:\d+$/) });
    await api.said("there are no tokens");
    const url = String(ready["url"]);
    expect((await fetch(`${url}/v1/runs`)).status).toBe(200);
    // A stream does not keep it.
    const { run_id: id } = (await (
      await fetch(`${url}/v1/runs`, { method: "POST", headers: { "content-type": "application/json" }, body: '{"agent":"later","input":1}' })
    ).json()) as { run_id: string };
    const stream = await fetch(`${url}/v1/runs/${id}/events`, { headers: { accept: "text/event-stream" } });
    api.child.kill("SIGTERM");
    await stream.text();
    expect(await api.nextEvent()).toMatchObject({ event: "stopped" });
    expect(await api.exited).toBe(0);

    const { token, id: tokenId } = await json(["tokens", "create", "ops", "--tenant", "default", "--scope", "runs:read", "--scope", "runs:create", "--expires", "+1d"]);
    expect(token).toMatch(/^cap_/);
    const again = startCapstan(["api", "--port", "0", "--host", "0.0.0.0"], { env });
    const { url: where, tokens } = await again.nextEvent();
    expect(tokens).toBe(true);
    const headers = { authorization: `Bearer ${String(token)}` };
    expect((await fetch(`${String(where)}/v1/runs/${id}`, { headers })).status).toBe(200);
    expect((await fetch(`${String(where)}/v1/runs/${id}`)).status).toBe(401);
    const mcp = {
      method: "POST",
      body: '{"jsonrpc":"2.0","id":1,"method":"tools/list"}',
      headers: { "content-type": "application/json", accept: "application/json, text/event-stream" },
    };
    expect((await fetch(`${String(where)}/mcp`, mcp)).status).toBe(401);
    expect(await (await fetch(`${String(where)}/mcp`, { ...mcp, headers: { ...mcp.headers, ...headers } })).text()).toContain("list_runs");
    expect(await json(["tokens", "revoke", String(tokenId)])).toEqual({ id: tokenId, revoked: true });
    while ((await fetch(`${String(where)}/v1/runs`, { headers })).status !== 401);
    again.child.kill("SIGINT");
    expect(await again.exited).toBe(0);
    expect(again.stderr()).not.toContain(String(token));
  });

  it("says so when its port is in use", async () => {
    const other = createServer().listen(0, "127.0.0.1");
    await new Promise((resolve) => other.once("listening", resolve));
    const { code, stderr } = await capstan(["api", "--port", String((other.address() as AddressInfo).port)], { env });
    expect({ code, stderr: stderr.split(":")[0] }).toEqual({ code: 1, stderr: "PORT_IN_USE" });
    other.close();
  });
});

describe("tokens", () => {
  it("are shown once, listed and revoked, and must have a scope", async () => {
    const shown = await capstan(["tokens", "create", "person", "--tenant", "acme", "--scope", "admin"], { env });
    expect(shown).toMatchObject({ code: 0, stdout: expect.stringMatching(/^token {3,}cap_[\w-]{43}$/m), stderr: expect.stringContaining("not shown again") });
    const secret = /cap_[\w-]+/.exec(shown.stdout)?.[0] ?? "";
    const { stdout } = await capstan(["tokens", "list", "--tenant", "acme"], { env });
    expect(stdout).toMatch(/person +acme +admin +active/);
    expect(stdout).not.toContain(secret);
    expect(await capstan(["tokens", "create", "person", "--tenant", "acme", "--scope", "admin"], { env })).toMatchObject({
      code: 1,
      stderr: expect.stringMatching(/^TOKEN_EXISTS/),
    });
    expect(await capstan(["tokens", "create", "other"], { env })).toMatchObject({ code: 2, stderr: expect.stringContaining("--scope is missing") });
    expect(await capstan(["tokens", "create", "other", "--scope", "everything"], { env })).toMatchObject({ code: 2, stderr: expect.stringContaining("runs:create") });
    const { tokens } = (await json(["tokens", "list", "--tenant", "acme"])) as { tokens: { id: string }[] };
    expect(await capstan(["tokens", "revoke", tokens[0]?.id ?? ""], { env })).toMatchObject({ code: 0, stdout: `${tokens[0]?.id}  revoked\n` });
    expect(await capstan(["tokens", "revoke", "01900000-0000-7000-8000-000000000000"], { env })).toMatchObject({ code: 1, stderr: expect.stringMatching(/^TOKEN_UNKNOWN/) });
    expect(await capstan(["tokens", "revoke", "abc"], { env })).toMatchObject({ code: 2, stderr: expect.stringMatching(/^ARGUMENT_INVALID/) });
  });
});
