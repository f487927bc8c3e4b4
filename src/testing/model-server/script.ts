/** What a test says about the model server: how it answers, and what it has seen. */

export type Protocol = "anthropic" | "openai-chat" | "openai-responses";

export interface ModelRequest {
  readonly protocol: Protocol;
  readonly path: string;
  /** The parsed body; it has passed the checks of its protocol. */
  readonly body: Readonly<Record<string, unknown>>;
  /** The body as it came, byte for byte. */
  readonly raw: string;
  readonly headers: Readonly<Record<string, string>>;
  /** From 0, over all protocols, refused requests not counted. */
  readonly index: number;
}

export interface ScriptedToolCall {
  /** Made from the request's index when absent. */
  readonly id?: string;
  readonly name: string;
  /** An object is written as JSON; a string is sent as it stands, valid or not. */
  readonly arguments: string | object;
}

export type ScriptedReasoning =
  | string
  | {
      readonly text: string;
      /** Anthropic's signature, or the Responses API's encrypted content; made from the text when absent. */ readonly signature?: string;
    }
  /** Anthropic only: a block whose content the vendor does not show. */
  | { readonly redacted: string };

export interface ScriptedUsage {
  /** All input tokens, cached ones included. */
  readonly input?: number;
  readonly output?: number;
  readonly cacheRead?: number;
  readonly cacheWrite?: number;
  readonly reasoning?: number;
}

export interface ScriptedError {
  /** HTTP status; for an error in the middle of a stream, what the vendor's error type is derived from. Default 500. */
  readonly status?: number;
  /** Message in the vendor's own envelope. */
  readonly message?: string;
  /** The vendor's own code or type, where the status alone does not say it. */
  readonly code?: string;
  /** The whole body instead of the vendor's envelope. */
  readonly body?: string | object;
  readonly headers?: Readonly<Record<string, string>>;
  /** Send the error inside the stream, after so many events, instead of as the response. */
  readonly afterEvents?: number;
}

export type ScriptedFinish = "stop" | "length" | "tool_calls" | "content_filter";

/** One answer, in the order reasoning, text, tool calls. Everything left out is answered sensibly. */
export interface ScriptedReply {
  readonly reasoning?: ScriptedReasoning | readonly ScriptedReasoning[];
  readonly text?: string;
  readonly toolCalls?: readonly ScriptedToolCall[];
  readonly finish?: ScriptedFinish;
  /** Counted by the server when absent. */
  readonly usage?: ScriptedUsage;
  readonly error?: ScriptedError;
  /** Wait before anything is sent; ends early when the client goes away. */
  readonly delayMs?: number;
  /** Break off the stream after so many events. */
  readonly cutAfterEvents?: number;
  /** `reset` (default) destroys the connection, `end` closes the response properly but too early. */
  readonly cutBy?: "reset" | "end";
  /** Never finish: `true` sends nothing at all, a number sends so many events first. Ends when the client aborts. */
  readonly hang?: boolean | number;
  /** Length of the pieces in which text and arguments are streamed. Default 16. */
  readonly chunkChars?: number;
}

export interface SeenRequest extends ModelRequest {
  /** Whether the client went away before the answer was complete. */
  readonly sawAbort: boolean;
  /** Resolves when the exchange is over, in either way. */
  readonly closed: Promise<"finished" | "aborted">;
}

export interface RefusedRequest {
  readonly protocol: Protocol;
  readonly raw: string;
  /** Why the request breaks the vendor's rules. */
  readonly message: string;
}

export interface ModelServerOptions {
  readonly respond: (request: ModelRequest) => ScriptedReply | Promise<ScriptedReply>;
  /** Refuse longer inputs as the vendor does for its context window, counted as the server counts. */
  readonly windowTokens?: number;
  /** Port to listen on; any free one by default. */
  readonly port?: number;
}

export interface ModelServer {
  readonly url: string;
  /** For clients of Anthropic Messages. */
  readonly anthropicBaseUrl: string;
  /** For clients of both OpenAI protocols, and of OpenAI-compatible servers. */
  readonly openaiBaseUrl: string;
  /** Requests that were answered by the script, in order. */
  readonly requests: readonly SeenRequest[];
  /** Requests that broke the vendor's rules and got its 400. */
  readonly refused: readonly RefusedRequest[];
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}
