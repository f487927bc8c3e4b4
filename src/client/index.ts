/** `capstan/client`: for services that enqueue and follow runs. Imports pg and zod, never worker code (test/house proves it). */
export { createClient, type CapstanClient, type ClientOptions } from "./client.ts";
export type { EnqueueAgent, EnqueueOptions } from "./enqueue.ts";
export {
  ArgumentError,
  DatabaseUnavailableError,
  IdempotencyConflictError,
  InboxFullError,
  InputInvalidError,
  ResultTimeoutError,
  RunEndedError,
  RunFailedError,
  TooLargeError,
  UnknownRunError,
} from "./errors.ts";
export { RunHandle, type RunEvent, type RunStatusView } from "./handle.ts";
export type { Tx } from "./transaction.ts";
