/** What users of summarizers import. */
export type { ModelSummarizer, SummarizerEffect, SummarizerFunction, SummarizerInput, SummarizerOutput, SummarizerProvider } from "./effect.ts";
export { SummarizerEmptyError, SummarizerMissingError } from "./errors.ts";
export { DEFAULT_SUMMARIZER_INSTRUCTION } from "./instruction.ts";
export { SUMMARIZER_INPUT_ORIGIN } from "../domain/taint-origins.ts";
export { createSummarizerEffect, SummarizerConfigError, type SummarizerEffectOptions } from "./summarizer.ts";
export { SUMMARIZER_TEXT_TRUNCATED, summarizerText, type SummarizerTextOptions } from "./summarizer-text.ts";
