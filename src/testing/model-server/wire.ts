import type { Json } from "./checks.ts";
import type { Segment } from "./count.ts";
import type { Plan, StreamEvent } from "./plan.ts";
import type { ScriptedError } from "./script.ts";

/** One vendor's protocol. */
export interface Wire {
  /** Throws `Refused` for a body that the vendor would not take. `issued`: reasoning by the signature that was sent with it. */
  readonly check: (body: Json, issued: ReadonlyMap<string, string>) => void;
  /** The prompt in the order in which the vendor caches it. */
  readonly segments: (body: Json) => Segment[];
  readonly streamed: (body: Json) => boolean;
  readonly events: (plan: Plan, body: Json) => StreamEvent[];
  readonly whole: (plan: Plan, body: Json) => object;
  readonly errorBody: (error: ScriptedError) => object;
  /** The error as it comes inside a stream. */
  readonly errorEvent: (error: ScriptedError) => StreamEvent;
  readonly overflow: (input: number, window: number) => ScriptedError;
  /** Whether the vendor caches without being told. */
  readonly automaticCache: boolean;
}
