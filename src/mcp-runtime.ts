/** MCP servers of one createCapstan: loaded and started when a worker needs them, part of the composition root. */
import type { FetchLike } from "@modelcontextprotocol/sdk/shared/transport.js";
import type pg from "pg";
import type { AnyAgent } from "./agents/agent.ts";
import type { OutgoingGuard } from "./capabilities/outgoing.ts";
import { outgoingFetch } from "./capabilities/outgoing-fetch.ts";
import type { AgentCode } from "./engine/code.ts";
import type { Log } from "./engine/ports.ts";
import type { McpAgents } from "./mcp/client/mcp-agents.ts";
import type { ServerConfig } from "./mcp/client/spec.ts";
import type { PostgresDefinitionStore } from "./store/definitions.ts";
import { untilConnected } from "./store/until-connected.ts";
import { WISH_FOR_AGENTS_SQL } from "./store/workers.ts";

export interface McpRuntimeOptions {
  readonly servers: readonly ServerConfig[];
  readonly agents: ReadonlyMap<string, AnyAgent>;
  readonly definitions: PostgresDefinitionStore;
  readonly db: pg.Pool;
  readonly named: (text: string) => string;
  readonly log: Log;
  readonly outgoing: OutgoingGuard;
}

export class McpRuntime {
  readonly #options: McpRuntimeOptions;
  readonly #closed = new AbortController();
  readonly #storing = new Set<Promise<void>>();
  /** Agents whose first complete definition is to be promoted, though it comes after the worker's start. */
  readonly #promoted = new Set<string>();
  readonly #releases = new Set<() => Promise<void>>();
  #agents: McpAgents | undefined;
  /** Definitions that are complete before that are registered with all others. */
  #isStarted = false;

  constructor(options: McpRuntimeOptions) {
    this.#options = options;
  }

  /** Servers of these agents run from now on, until what it gives back is called. Throws ConfigError for a server that is not configured. */
  async use({ promote = false }: { readonly promote?: boolean } = {}): Promise<() => Promise<void>> {
    const { servers, agents, log, outgoing } = this.#options;
    const names = [...agents.values()].filter(({ code }) => code.mcp !== undefined).map(({ name }) => name);
    if (names.length === 0) return async () => {};
    // The SDK costs a worker without servers nothing.
    const { McpAgents } = await import("./mcp/client/mcp-agents.ts");
    const guarded = outgoingFetch(outgoing) as FetchLike;
    this.#agents ??= new McpAgents({ servers, agents, log, fetchFor: (server) => (server.allowPrivate ? fetch : guarded), onDefined: (agent) => this.#defined(agent) });
    const release = await this.#agents.use();
    if (promote) for (const name of names) if (this.complete(agents.get(name) as AnyAgent).isComplete === false) this.#promoted.add(name);
    this.#isStarted = true;
    this.#releases.add(release);
    return async () => {
      this.#releases.delete(release);
      await release();
    };
  }

  /** With the tools of its servers, as soon as they are known; until then as it is, and so not complete. */
  complete(agent: AnyAgent): AnyAgent {
    return this.#options.agents.get(agent.name) === agent ? (this.#agents?.complete(agent) ?? agent) : agent;
  }

  codeOf(agent: AnyAgent): AgentCode {
    return this.#agents?.codeOf(agent) ?? agent.code;
  }

  /** Ends all servers, and what is being stored of them. */
  async close(): Promise<void> {
    this.#closed.abort();
    await Promise.all([...this.#releases].map((release) => release()));
    await Promise.all(this.#storing);
  }

  #defined(agent: AnyAgent): void {
    if (!this.#isStarted || this.#closed.signal.aborted) return;
    const storing = this.#store(agent).catch((error: unknown) => {
      this.#options.log.error({ agent: agent.name, err: error }, "a definition with tools of MCP servers could not be stored: its runs wait, or get an older one");
    });
    this.#storing.add(storing);
    void storing.then(() => this.#storing.delete(storing));
  }

  /** A later list is stored and not promoted: what a server offers by now is for a person to look at before runs get it. */
  async #store({ name, definition }: AnyAgent): Promise<void> {
    const { definitions, db, named, log } = this.#options;
    await untilConnected({ log, signal: this.#closed.signal }, "registering a definition with tools of MCP servers", async () => {
      const sha = await definitions.register(definition, { promote: this.#promoted.has(name) });
      this.#promoted.delete(name);
      await db.query(named(WISH_FOR_AGENTS_SQL), [[name], null]);
      log.info({ agent: name, sha, tools: definition.tools.length }, "an agent's definition with the tools of its MCP servers is stored");
    });
  }
}
