/** Why a call of an MCP server's tool failed. The model reads code and message, so the message says what to do. */
import { CapstanError } from "../../domain/error.ts";

/** The server answered, and its answer is an error. */
export class McpToolError extends CapstanError {
  override readonly name = "McpToolError";
  readonly code = "MCP_TOOL_ERROR";
}

/** Not among what the server offers now, or not any more what the run's definition says of it. Nothing was sent. */
export class McpToolGoneError extends CapstanError {
  override readonly name = "McpToolGoneError";
  readonly code = "MCP_TOOL_GONE";
}

/** There is no connection, and none came in time. Nothing was sent. */
export class McpUnavailableError extends CapstanError {
  override readonly name = "McpUnavailableError";
  readonly code = "MCP_UNAVAILABLE";
  override readonly retryable = true;
}

/** The connection was lost, or the server broke off, while the call was under way. */
export class McpConnectionLostError extends CapstanError {
  override readonly name = "McpConnectionLostError";
  readonly code = "MCP_CONNECTION_LOST";
}

/** The server sent more than may be kept of one message. */
export class McpFloodError extends CapstanError {
  override readonly name = "McpFloodError";
  readonly code = "MCP_MESSAGE_TOO_LARGE";
}

/** Not handed to the server: sending it once more cannot double it. */
export class McpNotSentError extends Error {
  override readonly name = "McpNotSentError";
}
