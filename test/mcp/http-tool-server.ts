/** The tools of tool-server.ts over streamable HTTP, in this process: to be stopped, begun anew under its port, and cut off. */
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { toolServer } from "./tool-server.ts";

export interface HttpToolServer extends AsyncDisposable {
  readonly url: string;
  /** Headers of the last request. */
  readonly lastHeaders: () => IncomingMessage["headers"];
  /** Forgets its sessions and cuts its connections, as one that was restarted. */
  restart(): Promise<void>;
  stop(): Promise<void>;
}

export async function startHttpToolServer(notes: string): Promise<HttpToolServer> {
  let sessions = new Map<string, StreamableHTTPServerTransport>();
  let lastHeaders: IncomingMessage["headers"] = {};
  let http: Server;
  const cut = (): never => {
    http.closeAllConnections();
    throw new Error("cut off");
  };
  const handle = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    lastHeaders = request.headers;
    const id = request.headers["mcp-session-id"];
    let transport = typeof id === "string" ? sessions.get(id) : undefined;
    if (transport === undefined && id !== undefined) {
      response.writeHead(404).end();
      return;
    }
    if (transport === undefined) {
      const made = new StreamableHTTPServerTransport({ sessionIdGenerator: randomUUID, onsessioninitialized: (session) => void sessions.set(session, made) });
      await toolServer({ notes, die: cut }).connect(made);
      transport = made;
    }
    await transport.handleRequest(request, response);
  };
  const listen = async (port: number): Promise<number> => {
    http = createServer((request, response) => void handle(request, response));
    http.listen(port, "127.0.0.1");
    await once(http, "listening");
    return (http.address() as AddressInfo).port;
  };
  const stop = async (): Promise<void> => {
    const closed = new Promise((resolve) => http.close(resolve));
    http.closeAllConnections();
    await closed;
    await Promise.all([...sessions.values()].map((transport) => transport.close()));
    sessions = new Map();
  };
  const port = await listen(0);
  return {
    url: `http://127.0.0.1:${port}/mcp`,
    lastHeaders: () => lastHeaders,
    async restart() {
      await stop();
      await listen(port);
    },
    stop,
    [Symbol.asyncDispose]: stop,
  };
}
