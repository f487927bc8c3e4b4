/** `capstan/testing`: what users' own test suites import (docs/testing.md). testcontainers is theirs to install, if they want containers. */
export { startTestPostgres, TestPostgresUnavailableError, type CreateDatabaseOptions, type TestDatabase, type TestPostgres, type TestPostgresMode } from "./postgres.ts";
export { scriptedModel, type ScriptedModel, type ScriptedModelOptions, type ScriptedModelReply, type ScriptedStep } from "./scripted-model.ts";
export { readJournal, runToCompletion, RunNotSettledError, type CompletedRun, type RunToCompletionOptions } from "./run-to-completion.ts";
export {
  chainConversations,
  parseConversations,
  replayScript,
  startModelServer,
  type ModelRequest,
  type ModelServer,
  type ModelServerOptions,
  type Protocol,
  type RecordedConversation,
  type RecordedMessage,
  type RefusedRequest,
  type ReplayScript,
  type ReplayTool,
  type ScriptedError,
  type ScriptedFinish,
  type ScriptedReasoning,
  type ScriptedReply,
  type ScriptedToolCall,
  type ScriptedUsage,
  type SeenRequest,
} from "./model-server/index.ts";
