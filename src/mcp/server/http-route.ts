/** The same server over streamable HTTP, without sessions: each request stands alone, so any process may take it. */
import type { FastifyInstance, FastifyRequest } from "fastify";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import type { Log } from "../../engine/ports.ts";
import type { McpAccess } from "./access.ts";
import { createMcpServer } from "./server.ts";
import type { McpBackend } from "./run-tool.ts";

export interface McpRouteDeps extends McpBackend {
  readonly log: Log;
  /** Throws for a request without a good token; the API's own error handler answers it. */
  access(request: FastifyRequest): Promise<McpAccess>;
}

/** Mounts POST /mcp. The API's body limit and rate limits hold here too. */
export function registerMcp(app: FastifyInstance, { access, ...backend }: McpRouteDeps): void {
  app.post("/mcp", async (request, reply) => {
    const granted = await access(request);
    const transport = new StreamableHTTPServerTransport({ enableJsonResponse: true });
    const server = createMcpServer({ ...backend, access: async () => granted });
    reply.hijack();
    reply.raw.once("close", () => void server.close());
    await server.connect(transport);
    await transport.handleRequest(request.raw, reply.raw, request.body);
  });
  // Nothing is sent without being asked for, and there is no session to end.
  app.route({ method: ["GET", "DELETE"], url: "/mcp", handler: async (_, reply) => reply.code(405).header("allow", "POST").send() });
}
