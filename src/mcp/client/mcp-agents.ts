/**
 * Agents with tools of MCP servers. A definition is complete once each of its agent's servers was reached: from then on it
 * is one like any other, stored under its digest, and runs are pinned to it. A list that changes makes a new definition.
 */
import type { AnyAgent } from "../../agents/agent.ts";
import { ConfigError } from "../../agents/config-error.ts";
import { normalizeDefinition, type AgentDefinition, type ToolDefinition } from "../../domain/definition.ts";
import { isGranted } from "../../domain/grants.ts";
import { mcpToolOf } from "../../domain/mcp-name.ts";
import type { AgentCode, McpUse, RemoteTools } from "../../engine/code.ts";
import type { Log } from "../../engine/ports.ts";
import { ServerConnection } from "./connection.ts";
import { remoteTool } from "./remote-tool.ts";
import type { FetchFor, ServerConfig } from "./spec.ts";

/** A worker whose other agents could be at work does not wait longer for one. */
const MAX_START_WAIT_MS = 10_000;

export interface McpAgentsOptions {
  readonly servers: readonly ServerConfig[];
  readonly agents: ReadonlyMap<string, AnyAgent>;
  readonly log: Log;
  readonly fetchFor: FetchFor;
  /** An agent's definition is complete, or is another now. */
  onDefined(agent: AnyAgent): void;
}

export class McpAgents {
  readonly #connections = new Map<string, ServerConnection>();
  readonly #agents: ReadonlyMap<string, AnyAgent>;
  readonly #options: McpAgentsOptions;
  readonly #complete = new Map<string, AnyAgent>();
  #users = 0;
  #stopping: Promise<unknown> = Promise.resolve();

  constructor(options: McpAgentsOptions) {
    this.#options = options;
    this.#agents = new Map([...options.agents].filter(([, { code }]) => code.mcp !== undefined));
    const used = new Set([...this.#agents.values()].flatMap(({ code }) => usesOf(code).map(({ server }) => server)));
    for (const server of options.servers) {
      if (used.has(server.name)) this.#connections.set(server.name, new ServerConnection(server, { ...options, onListed: (name) => this.#listed(name) }));
    }
  }

  /**
   * Starts the servers, for the first of their users, and waits for their tools no longer than a connection may take: the
   * slowest does not hold up the others. What it gives back ends them when the last user has gone. Throws ConfigError.
   */
  async use(): Promise<() => Promise<void>> {
    this.#refuseUnknown();
    await this.#stopping;
    this.#users++;
    const connections = [...this.#connections.values()];
    for (const connection of connections) connection.start();
    await Promise.all(connections.map((connection) => connection.listed(Math.min(connection.server.connectTimeoutMs, MAX_START_WAIT_MS))));
    for (const [name, { code }] of this.#agents) {
      const missing = this.#missing(code);
      if (missing !== undefined) this.#options.log.warn({ agent: name, problem: missing }, "an agent's MCP server is not there: its runs wait as agent_missing until it is");
    }
    let isReleased = false;
    return async () => {
      if (isReleased) return;
      isReleased = true;
      if (--this.#users === 0) this.#stopping = Promise.all(connections.map((connection) => connection.stop()));
      await this.#stopping;
    };
  }

  /** The agent with all of its tools; itself when it needs none of a server, undefined while one was never reached. */
  complete(agent: AnyAgent): AnyAgent | undefined {
    return agent.code.mcp === undefined ? agent : this.#complete.get(agent.name);
  }

  /** What the worker runs it with. */
  codeOf(agent: AnyAgent): AgentCode {
    const { code } = agent;
    return code.mcp === undefined ? code : { ...code, remote: this.#remote(code) };
  }

  #remote(code: AgentCode): RemoteTools {
    return {
      missing: () => this.#missing(code),
      toolOf: (tool) => {
        const server = mcpToolOf(tool.name)?.server;
        const use = usesOf(code).find((each) => each.server === server);
        const connection = server === undefined ? undefined : this.#connections.get(server);
        return use === undefined || connection === undefined ? undefined : remoteTool(connection, tool, { agent: code.name, patterns: use.tools });
      },
    };
  }

  #missing(code: AgentCode): string | undefined {
    const absent = usesOf(code).flatMap(({ server }) => {
      const connection = this.#connections.get(server);
      return connection === undefined || connection.listing !== undefined ? [] : [`MCP server ${server} (${connection.problem})`];
    });
    return absent.length === 0 ? undefined : `${absent.join(" and ")} cannot be reached, and its tools are not known`;
  }

  #listed(server: string): void {
    for (const agent of this.#agents.values()) {
      if (!usesOf(agent.code).some((use) => use.server === server)) continue;
      const tools = this.#toolsOf(agent.code);
      if (tools === undefined) continue;
      const definition: AgentDefinition = normalizeDefinition({ ...agent.definition, tools: [...agent.definition.tools, ...tools] });
      const complete: AnyAgent = { ...agent, definition, isComplete: true };
      this.#complete.set(agent.name, complete);
      this.#options.onDefined(complete);
    }
  }

  #toolsOf(code: AgentCode): ToolDefinition[] | undefined {
    const tools: ToolDefinition[] = [];
    for (const { server, tools: patterns } of usesOf(code)) {
      const listing = this.#connections.get(server)?.listing;
      if (listing === undefined) return undefined;
      for (const { name, definition } of listing.values()) if (isGranted(patterns, name)) tools.push(definition);
    }
    return tools;
  }

  #refuseUnknown(): void {
    const known = this.#options.servers.map(({ name }) => name);
    for (const [name, { code }] of this.#agents) {
      const unknown = usesOf(code).filter(({ server }) => !known.includes(server));
      if (unknown.length === 0) continue;
      throw new ConfigError(`agent ${JSON.stringify(name)}`, [
        { path: "mcp", message: `names ${unknown.map(({ server }) => server).join(", ")}; configured with createCapstan({ mcp }) are ${known.join(", ") || "none"}` },
      ]);
    }
  }
}

function usesOf({ mcp = [] }: AgentCode): readonly McpUse[] {
  return mcp;
}
