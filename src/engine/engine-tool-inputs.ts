/** What the engine's own tools take. Flat objects: vendors take no alternatives at the top of a tool's input. */
import { z } from "zod";
import { MAX_PIN_CHARS } from "../domain/compaction/pins.ts";

/** Some 4,000 tokens. */
export const DEFAULT_PAGE_BYTES = 16_384;
export const MAX_PAGE_BYTES = 65_536;

export const contextInput = z.strictObject({
  op: z
    .enum(["self", "compact", "pin", "pins", "ledger"])
    .describe("self: how full your context is. compact: compact it at the next boundary. pin, pins: keep a fact. ledger: side effects done."),
  text: z.string().optional().describe(`op=pin: the fact, word for word, at most ${MAX_PIN_CHARS} characters.`),
  tool: z.string().optional().describe("op=ledger: only calls of this tool."),
  offset: z.int().min(0).optional().describe("op=ledger: lines to pass over; the answer's next_offset."),
});
export type ContextInput = z.output<typeof contextInput>;

export const readBlobInput = z.strictObject({
  sha256: z
    .string()
    .regex(/^(sha256:)?[0-9a-fA-F]{64}$/)
    .describe("The digest, as you were shown it."),
  offset: z.int().min(0).optional().describe("Byte to begin at; the answer before names the next. Default 0."),
  limit: z.int().min(64).max(MAX_PAGE_BYTES).optional().describe(`Bytes wanted, default ${DEFAULT_PAGE_BYTES}.`),
});
export type ReadBlobInput = z.output<typeof readBlobInput>;
