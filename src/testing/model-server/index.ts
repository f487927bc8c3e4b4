export { startModelServer } from "./server.ts";
export { chainConversations, parseConversations, replayScript } from "./converters.ts";
export type { RecordedConversation, RecordedMessage, ReplayScript, ReplayTool } from "./converters.ts";
export type {
  ModelRequest,
  ModelServer,
  ModelServerOptions,
  Protocol,
  RefusedRequest,
  ScriptedError,
  ScriptedFinish,
  ScriptedReasoning,
  ScriptedReply,
  ScriptedToolCall,
  ScriptedUsage,
  SeenRequest,
} from "./script.ts";
