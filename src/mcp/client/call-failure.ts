/** What a failed call means: whether the server may have done it, and whether it may be sent again. */
import { StreamableHTTPError } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ErrorCode, McpError } from "@modelcontextprotocol/sdk/types.js";
import { OutgoingRefusedError } from "../../capabilities/outgoing.ts";
import { McpConnectionLostError, McpFloodError, McpNotSentError } from "./errors.ts";

export type CallFailure =
  /** The server has answered: with an error, or with what is no result. */
  | { readonly kind: "answered"; readonly message: string; readonly isUnknownTool: boolean }
  /** It never got there. `broken`: the connection is to be made anew. */
  | { readonly kind: "not_sent"; readonly message: string; readonly broken: boolean }
  /** The answer was too large to be read. Over HTTP: a process that floods is ended, and its calls are lost. */
  | { readonly kind: "flood"; readonly message: string }
  /** It got there, or may have. */
  | { readonly kind: "lost"; readonly message: string; readonly broken: boolean };

/** Of a request that no server has seen (nodejs.org, system errors; undici, 2026-12). */
const notConnectedCodes = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT"]);

export function judge(error: unknown): CallFailure {
  if (error instanceof McpNotSentError) return { kind: "not_sent", message: error.message, broken: true };
  // Over HTTP only the one response was cut off: the other calls of the server have theirs.
  if (error instanceof McpFloodError) return { kind: "flood", message: error.message };
  if (error instanceof McpConnectionLostError) return { kind: "lost", message: error.message, broken: false };
  if (error instanceof StreamableHTTPError) return judgeStatus(error);
  if (error instanceof McpError) {
    if (error.code === (ErrorCode.ConnectionClosed as number)) return { kind: "lost", message: "the connection was closed", broken: true };
    // -32601 and -32602 are what servers say of a tool that they do not have (modelcontextprotocol.io, tools, 2025-11-25).
    const isUnknownTool =
      (error.code === (ErrorCode.InvalidParams as number) || error.code === (ErrorCode.MethodNotFound as number)) && /unknown|not found|no such/i.test(error.message);
    return { kind: "answered", message: error.message, isUnknownTool };
  }
  if (error instanceof OutgoingRefusedError) return { kind: "not_sent", message: error.message, broken: true };
  // fetch hides the system's error behind one of its own; the guarded one does not.
  const failed = (error instanceof TypeError ? error.cause : error) as { readonly code?: unknown; readonly message?: string } | undefined;
  if (typeof failed?.code === "string") {
    const message = failed.message === undefined || failed.message === "" ? failed.code : failed.message;
    return { kind: notConnectedCodes.has(failed.code) ? "not_sent" : "lost", message, broken: true };
  }
  return { kind: "answered", message: `it gave what is no result of a tool: ${error instanceof Error ? error.message : String(error)}`.slice(0, 1_000), isUnknownTool: false };
}

function judgeStatus({ code, message }: StreamableHTTPError): CallFailure {
  // The session is gone: a server that was restarted, say (modelcontextprotocol.io, transports, session management).
  if (code === 404 || code === 400) return { kind: "not_sent", message, broken: true };
  if (code === 429 || (code !== undefined && code >= 401 && code < 500)) return { kind: "answered", message, isUnknownTool: false };
  return { kind: "lost", message, broken: false };
}
