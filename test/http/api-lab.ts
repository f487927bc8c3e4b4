/** The API on a free port over a lab's database and worker, and requests to it. */
import type pg from "pg";
import { expect } from "vitest";
import { createClient, type CapstanClient } from "../../src/client/client.ts";
import { TokensClient, type TokenScope } from "../../src/client/tokens.ts";
import { createApi, type Api, type ApiOptions } from "../../src/http/server.ts";
import { createPool } from "../../src/store/pool.ts";
import type { LogLine } from "../engine/harness.ts";

export interface ApiLab extends AsyncDisposable {
  readonly api: Api;
  readonly url: string;
  readonly db: pg.Pool;
  readonly client: CapstanClient;
  readonly tokens: TokensClient;
  readonly log: readonly LogLine[];
  /** A new token, ready to be sent. */
  token(options: {
    readonly tenant?: string;
    readonly scopes: readonly TokenScope[];
    readonly subject?: string;
  }): Promise<{ readonly id: string; readonly name: string; readonly bearer: string }>;
}

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  // oxlint-disable-next-line typescript/no-explicit-any
  readonly body: any;
}

export async function openApi(url: string, options: Partial<ApiOptions> & { readonly host?: string; readonly poolMax?: number } = {}): Promise<ApiLab> {
  const { host = "127.0.0.1", poolMax = 6, ...rest } = options;
  const db = createPool({ connectionString: url, max: poolMax, applicationName: "api test" });
  const client = createClient({ pool: db });
  const log: LogLine[] = [];
  const keep = (level: LogLine["level"]) => (fields: object, message: string) => void log.push({ level, fields: fields as LogLine["fields"], message });
  const api = await createApi({
    db,
    client,
    log: { debug: keep("debug"), info: keep("info"), warn: keep("warn"), error: keep("error") },
    rateLimit: { perSecond: 100_000, burst: 100_000 },
    ...rest,
  });
  const tokens = new TokensClient(db, (text) => text);
  const { url: address } = await api.listen({ host, port: 0 });
  let made = 0;
  return {
    api,
    url: address,
    db,
    client,
    tokens,
    log,
    async token({ tenant = "default", scopes, subject }) {
      const { id, name, token } = await tokens.create({ name: `test ${(made += 1)} ${process.pid}`, tenant, scopes, ...(subject === undefined ? {} : { subject }) });
      return { id, name, bearer: `Bearer ${token}` };
    },
    async [Symbol.asyncDispose]() {
      await api.close();
      await client.close();
      await db.end();
      // Whatever was refused, nothing went wrong.
      expect(log.filter(({ level }) => level === "error")).toEqual([]);
    },
  };
}

export interface Request {
  readonly method?: string;
  readonly bearer?: string | undefined;
  readonly body?: unknown;
  /** Sent as it is. */
  readonly text?: string;
  readonly headers?: Readonly<Record<string, string>>;
}

export async function ask(url: string, path: string, { method, bearer, body, text, headers = {} }: Request = {}): Promise<Answer> {
  const payload = text ?? (body === undefined ? undefined : JSON.stringify(body));
  const response = await fetch(`${url}${path}`, {
    method: method ?? (payload === undefined ? "GET" : "POST"),
    headers: { ...(payload === undefined ? {} : { "content-type": "application/json" }), ...(bearer === undefined ? {} : { authorization: bearer }), ...headers },
    ...(payload === undefined ? {} : { body: payload }),
  });
  const raw = await response.text();
  const type = response.headers.get("content-type") ?? "";
  return { status: response.status, headers: response.headers, body: type.includes("json") ? JSON.parse(raw) : raw };
}
