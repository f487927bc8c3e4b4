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

/** One flat object for both ways: vendors take no alternatives at the top of a tool's input. */
export const agentInput = z.strictObject({
  op: z.enum(["spawn", "parallel_spawn"]).describe("spawn: one child. parallel_spawn: several at once; all are waited for."),
  agent: z.string().optional().describe("op=spawn: which agent to start."),
  input: z.unknown().optional().describe("op=spawn: its task, text or what the agent's input schema asks for."),
  compaction: z.record(z.string(), z.unknown()).optional().describe("op=spawn: compaction settings for this child and its own children, over yours."),
  children: z
    .array(z.strictObject({ agent: z.string(), input: z.unknown(), compaction: z.record(z.string(), z.unknown()).optional() }))
    .optional()
    .describe("op=parallel_spawn: the children."),
});
export type AgentInput = z.output<typeof agentInput>;

export const askHumanInput = z.strictObject({
  question: z.string().min(1).max(10_000).describe("What you need to know."),
  options: z.array(z.string().max(1_000)).max(50).optional().describe("Answers to choose from, where there are just these."),
});
export type AskHumanInput = z.output<typeof askHumanInput>;

export const waitInput = z.strictObject({
  seconds: z.number().min(0).max(315_360_000).optional().describe("Wait so long."),
  until: z.string().optional().describe("Wait until this time (ISO 8601, with its zone)."),
  signal: z.string().min(1).max(200).optional().describe("Wait for this signal; `seconds` or `until` then say for how long at most."),
});
export type WaitInput = z.output<typeof waitInput>;

export const readBlobInput = z.strictObject({
  sha256: z
    .string()
    .regex(/^(sha256:)?[0-9a-fA-F]{64}$/)
    .describe("The digest, as you were shown it."),
  offset: z.int().min(0).optional().describe("Byte to begin at; the answer before names the next. Default 0."),
  limit: z.int().min(64).max(MAX_PAGE_BYTES).optional().describe(`Bytes wanted, default ${DEFAULT_PAGE_BYTES}.`),
});
export type ReadBlobInput = z.output<typeof readBlobInput>;
