/** How MCP servers are configured: in code and nowhere else, since a command line that comes by a request is a way in. */
import type { FetchLike } from "@modelcontextprotocol/sdk/shared/transport.js";
import { z } from "zod";
import { mcpServerNamePattern } from "../../domain/mcp-name.ts";
import { wholeNumber } from "../../domain/ranges.ts";
import { ConfigError } from "../../agents/config-error.ts";

interface McpServerLimits {
  /** Milliseconds of one call, 1 to 86,400,000; default 60,000. Stands in the definition of each tool. */
  readonly timeoutMs?: number;
  /** Milliseconds until a connection is up and its tools are listed; default 30,000. A starting worker waits no longer than that, and 10 s at most. */
  readonly connectTimeoutMs?: number;
  /** Bytes of one message of the server, 65,536 to 64 MiB; default 8 MiB. */
  readonly maxMessageBytes?: number;
  /** Whether the server's own word on its tools is believed (readOnlyHint, idempotentHint); `ignore`: none is ever repeated. Default `trust`. */
  readonly annotations?: "trust" | "ignore";
}

/** A process of the worker's, spoken to over its standard streams. It sees of the environment what is given here, and PATH, HOME and the like. */
export interface McpStdioServer extends McpServerLimits {
  readonly command: string;
  readonly args?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
}

/** Streamable HTTP. */
export interface McpHttpServer extends McpServerLimits {
  readonly url: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** The server may be on this machine or in a private network; default false: such an address is refused. */
  readonly allowPrivate?: boolean;
}

export type McpServerSpec = McpStdioServer | McpHttpServer;

const limits = {
  timeoutMs: wholeNumber(1, 86_400_000).default(60_000),
  /** A server that is fetched when it is first run takes its time; one that was cut off would begin again each time. */
  connectTimeoutMs: wholeNumber(1, 600_000).default(30_000),
  /** A picture of some MB fits; a hundred such messages at once still do not fill a worker's memory. */
  maxMessageBytes: wholeNumber(65_536, 64 * 1024 * 1024).default(8 * 1024 * 1024),
  annotations: z.enum(["trust", "ignore"]).default("trust"),
};
const strings = z.record(z.string(), z.string());

const stdioServer = z.strictObject({ command: z.string().min(1), args: z.array(z.string()).default([]), env: strings.default({}), cwd: z.string().optional(), ...limits });
const httpServer = z.strictObject({ url: z.url({ protocol: /^https?$/ }), headers: strings.default({}), allowPrivate: z.boolean().default(false), ...limits });

export type StdioServer = { readonly kind: "stdio"; readonly name: string } & z.output<typeof stdioServer>;
export type HttpServer = { readonly kind: "http"; readonly name: string } & z.output<typeof httpServer>;
export type ServerConfig = StdioServer | HttpServer;

/** By which a server over HTTP is asked: one that refuses private addresses, unless the server may have one. */
export type FetchFor = (server: HttpServer) => FetchLike;

/** Throws ConfigError naming the server and its field. */
export function parseServers(specs: Readonly<Record<string, McpServerSpec>>): ServerConfig[] {
  return Object.entries(specs).map(([name, spec]): ServerConfig => {
    if (!mcpServerNamePattern.test(name)) {
      throw new ConfigError("createCapstan", [
        { path: `mcp.${name}`, message: "is no name of a server: 1 to 24 letters, digits, - and single underscores that stand between others" },
      ]);
    }
    const isHttp = "url" in spec;
    const parsed = (isHttp ? httpServer : stdioServer).safeParse(spec);
    if (!parsed.success) {
      throw new ConfigError(
        "createCapstan",
        parsed.error.issues.flatMap((issue) => {
          const path = ["mcp", name, ...issue.path.map(String)].join(".");
          return issue.code === "unrecognized_keys" ? issue.keys.map((key) => ({ path: `${path}.${key}`, message: "is not a known field" })) : [{ path, message: issue.message }];
        }),
      );
    }
    return { kind: isHttp ? "http" : "stdio", name, ...parsed.data } as ServerConfig;
  });
}
