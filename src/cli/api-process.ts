/** The API in this process, with its connections: what `api` and `up` share. */
import type { FastifyInstance } from "fastify";
import { OutgoingGuard } from "../capabilities/outgoing.ts";
import { createClient } from "../client/client.ts";
import type { Config } from "../config.ts";
import type { Api } from "../http/server.ts";
import type { RateLimit } from "../http/rate-limit.ts";
import { createPool } from "../store/pool.ts";
import { createLog } from "../telemetry/log.ts";
import { CliError } from "./exit.ts";

export interface ApiProcessOptions {
  readonly url: string;
  readonly directUrl: string;
  readonly config: Config;
  readonly named: (text: string) => string;
  readonly host: string;
  readonly port: number;
  /** Take another port when this one is in use. */
  readonly orAnyPort?: boolean;
  readonly rateLimit?: Partial<RateLimit>;
}

export interface ApiProcess {
  readonly url: string;
  /** There are no tokens: whoever is on this machine may do everything. */
  readonly isOpen: boolean;
  stop(): Promise<void>;
}

export const DEFAULT_API_PORT = 8787;

export async function startApiProcess({ url, directUrl, config, named, host, port, orAnyPort = false, rateLimit = {} }: ApiProcessOptions): Promise<ApiProcess> {
  // A worker without an API loads nothing of it.
  const [{ createApi }, { defaultRateLimit }, { registerMcp }] = await Promise.all([
    import("../http/server.ts"),
    import("../http/rate-limit.ts"),
    import("../mcp/server/http-route.ts"),
  ]);
  const log = createLog({ level: config.logLevel });
  const pool = createPool({ connectionString: url, max: config.worker.poolMax, applicationName: "capstan api", log });
  const client = createClient({ pool, names: config.names, directConnectionString: directUrl, ...(config.redact === undefined ? {} : { redact: config.redact }) });
  const guard = new OutgoingGuard({ allow: config.outgoingAllow });
  let api: Api | undefined;
  const stop = async (): Promise<void> => {
    await api?.close();
    await client.close();
    await pool.end();
  };
  const mcp = {
    scopes: { "POST /mcp": "any", "GET /mcp": "any", "DELETE /mcp": "any" },
    // The token was looked at before the route is.
    register: (app: FastifyInstance) => registerMcp(app, { client, db: pool, named, log, access: (request) => Promise.resolve(request.access) }),
  } as const;
  try {
    api = await createApi({
      db: pool,
      client,
      names: config.names,
      directConnectionString: directUrl,
      log,
      rateLimit: { ...defaultRateLimit, ...rateLimit },
      webhookGuard: (address) => guard.addressesOf(address, { httpsOnly: true }),
      mounts: [mcp],
    });
    const listening = await listen(api, { host, port, orAnyPort });
    return { ...listening, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function listen(
  api: Api,
  { host, port, orAnyPort }: { readonly host: string; readonly port: number; readonly orAnyPort: boolean },
): Promise<{ url: string; isOpen: boolean }> {
  try {
    return await api.listen({ host, port });
  } catch (error) {
    const { code } = error as { code?: string };
    if (code === "EADDRINUSE" && orAnyPort) return await api.listen({ host, port: 0 });
    if (code === "EADDRINUSE") throw new CliError("PORT_IN_USE", `port ${port} of ${host} is in use; choose another with --port, or 0 for any that is free`, { cause: error });
    if (code === "EACCES" || code === "EADDRNOTAVAIL" || code === "ENOTFOUND")
      throw new CliError("ADDRESS_REFUSED", `cannot listen on ${host}, port ${port} (${code})`, { cause: error });
    throw error;
  }
}

export function openNote(isOpen: boolean): string | undefined {
  return isOpen ? "there are no tokens: the API listens on this machine only, and whoever uses it may do everything; capstan tokens create makes one" : undefined;
}
