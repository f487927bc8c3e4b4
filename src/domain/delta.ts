/**
 * Live text of a model call: what followers see while the answer is still coming. Never journaled, and only a hint: a
 * piece that is lost costs nobody anything, since the event `model.responded` brings the whole.
 *
 * Followers and workers meet on two notification channels: followers announce the runs they follow, workers send the
 * deltas of those runs and of no others.
 */
import { z } from "zod";
import { canonicalJson, wellFormedText } from "./json.ts";
import type { AssistantPart } from "./transcript/message.ts";

/** Written as in statements: an installation's own schema name replaces `capstan` in both (store/names.ts). */
export const DELTA_CHANNEL = "capstan_delta";
export const FOLLOW_CHANNEL = "capstan_follow";

const deltaKinds = ["text", "reasoning", "tool_arguments"] as const;

/** A piece of an answer as it comes. */
export interface ModelDelta {
  readonly kind: (typeof deltaKinds)[number];
  readonly text: string;
  /** Of `tool_arguments`: which of the answer's calls, from 0, and of which tool. */
  readonly index?: number | undefined;
  readonly name?: string | undefined;
}

/** A piece of the answer to one model call of a run. */
export interface RunDelta extends ModelDelta {
  readonly run_id: string;
  readonly turn: number;
  readonly attempt: number;
  /** From 0 in each attempt. A number that is missing says that text was left out: nobody followed yet, or it could not be sent. */
  readonly n: number;
}

const call = { run_id: z.string(), turn: z.int(), attempt: z.int() };

/** What travels on DELTA_CHANNEL. */
const liveMessage = z.discriminatedUnion("is", [
  z.object({ is: z.literal("delta"), ...call, n: z.int(), kind: z.enum(deltaKinds), text: z.string(), index: z.int().optional(), name: z.string().optional() }),
  /** The call is over: no delta of it follows. */
  z.object({ is: z.literal("last"), ...call }),
  /** The run's journal has grown: worth looking now, and not at the next poll. */
  z.object({ is: z.literal("appended"), run_id: z.string() }),
  /** A worker listens from now on, and asks who follows what. */
  z.object({ is: z.literal("who") }),
]);

export type LiveMessage = z.infer<typeof liveMessage>;

/** What travels on FOLLOW_CHANNEL: runs that the sender follows, for a while. By `id` the sender knows its own message. */
const announcement = z.object({ id: z.string().max(64), runs: z.array(z.string().max(64)).max(200) });

export type Announcement = z.infer<typeof announcement>;

/** Ids of 36 bytes each: 150 stay below the 8,000 bytes that a notification may have. */
export const MAX_ANNOUNCED_RUNS = 150;

/** Undefined for what is not ours: anybody who may connect may notify. */
export function parseLiveMessage(payload: string | undefined): LiveMessage | undefined {
  return parsed(liveMessage, payload);
}

export function parseAnnouncement(payload: string | undefined): Announcement | undefined {
  return parsed(announcement, payload);
}

function parsed<T>(schema: z.ZodType<T>, payload: string | undefined): T | undefined {
  let value: unknown;
  try {
    value = JSON.parse(payload ?? "");
  } catch {
    return undefined;
  }
  const result = schema.safeParse(value);
  return result.success ? result.data : undefined;
}

/** Cuts between code points, so that the first part takes at most `maxBytes` as JSON in UTF-8. The first code point is always in it. */
export function cutText(text: string, maxBytes: number): readonly [head: string, rest: string] {
  let bytes = 0;
  for (let at = 0; at < text.length;) {
    const code = text.codePointAt(at) as number;
    bytes += jsonBytes(code);
    if (bytes > maxBytes && at > 0) return [text.slice(0, at), text.slice(at)];
    at += code > 0xffff ? 2 : 1;
  }
  return [text, ""];
}

/** An upper bound: some control characters have shorter escapes. */
function jsonBytes(code: number): number {
  if (code < 0x20) return 6;
  if (code === 0x22 || code === 0x5c) return 2;
  if (code < 0x80) return 1;
  if (code < 0x800) return 2;
  // A lone surrogate is written as an escape.
  if (code >= 0xd800 && code <= 0xdfff) return 6;
  return code <= 0xffff ? 3 : 4;
}

/** The deltas of an answer that came whole: one for each part. */
export function deltasOf(content: readonly AssistantPart[]): ModelDelta[] {
  let index = 0;
  return content.flatMap((part): ModelDelta[] => {
    if (part.type === "tool_call") return [{ kind: "tool_arguments", text: wellFormedText(part.arguments ?? canonicalJson(part.input ?? {})), index: index++, name: part.name }];
    return part.text === "" ? [] : [{ kind: part.type, text: part.text }];
  });
}
