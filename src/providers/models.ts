/**
 * Windows and prices of known models. Vendors change both without notice: each row says as of when and from where, and
 * configuration overrides it. A model that is not here has an unknown window and no price; nothing is guessed from a
 * similar name.
 */
import type { Usage } from "../domain/usage.ts";
import type { ModelWindow } from "../engine/model-port.ts";

/** US dollars per million tokens, which is micro-dollars per token. */
export interface ModelPrice {
  readonly input: number;
  readonly output: number;
  /** Absent: billed as input. */
  readonly cacheRead?: number;
  readonly cacheWrite?: number;
  /** Prices of the whole request once its input is longer than this. */
  readonly above?: {
    readonly inputTokens: number;
    readonly input: number;
    readonly output: number;
    readonly cacheRead?: number;
    readonly cacheWrite?: number;
  };
}

export interface KnownModel {
  readonly provider: "anthropic" | "openai";
  /** Matches the vendor's id with or without its date. */
  readonly id: RegExp;
  readonly windowTokens: number;
  readonly maxOutputTokens: number;
  readonly price?: ModelPrice;
  readonly asOf: string;
  readonly source: string;
}

const ANTHROPIC_PAGES = "platform.claude.com/docs/en/models";
const OPENAI_PAGES = "developers.openai.com/api/docs/models";

/** Anthropic: a cache read is a tenth of the input price and a five-minute write 1.25 of it, unless a model's page says otherwise. */
function claude(id: RegExp, windowTokens: number, maxOutputTokens: number, input: number, output: number, cacheRead = input / 10): KnownModel {
  return {
    provider: "anthropic",
    id,
    windowTokens,
    maxOutputTokens,
    price: { input, output, cacheRead, cacheWrite: input * 1.25 },
    asOf: "2026-11-01",
    source: ANTHROPIC_PAGES,
  };
}

type GptRow = {
  readonly id: RegExp;
  readonly window: number;
  readonly maxOutput: number;
  readonly input: number;
  readonly output: number;
  readonly cacheRead: number;
  readonly cacheWrite?: number;
  readonly long?: true;
};

/** `long`: above 272,000 input tokens the whole request costs twice for input and cache, 1.5 times for output. */
function gpt(row: GptRow): KnownModel {
  const { input, output, cacheRead, cacheWrite } = row;
  const write = cacheWrite === undefined ? {} : { cacheWrite };
  const doubled = cacheWrite === undefined ? {} : { cacheWrite: cacheWrite * 2 };
  const above = row.long === true ? { above: { inputTokens: 272_000, input: input * 2, output: output * 1.5, cacheRead: cacheRead * 2, ...doubled } } : {};
  return {
    provider: "openai",
    id: row.id,
    windowTokens: row.window,
    maxOutputTokens: row.maxOutput,
    price: { input, output, cacheRead, ...write, ...above },
    asOf: "2026-11-01",
    source: OPENAI_PAGES,
  };
}

const haiku55: KnownModel = {
  ...claude(/^claude-haiku-5-5$/, 1_000_000, 128_000, 0.1, 0.5),
  price: {
    input: 0.1,
    output: 0.5,
    cacheRead: 0.01,
    cacheWrite: 0.125,
    above: { inputTokens: 100_000, input: 0.5, output: 2.5, cacheRead: 0.05, cacheWrite: 0.625 },
  },
};

export const KNOWN_MODELS: readonly KnownModel[] = [
  claude(/^claude-opus-5-5$/, 1_000_000, 128_000, 4, 20, 0.2),
  claude(/^claude-opus-5$/, 1_000_000, 128_000, 5, 25),
  claude(/^claude-opus-4-[678]$/, 1_000_000, 128_000, 5, 25),
  claude(/^claude-opus-4-5(-20251101)?$/, 200_000, 64_000, 5, 25),
  claude(/^claude-opus-4-1(-20250805)?$/, 200_000, 32_000, 15, 75),
  claude(/^claude-opus-4(-0|-20250514)$/, 200_000, 32_000, 15, 75),
  claude(/^claude-sonnet-5$/, 1_000_000, 128_000, 2, 10),
  // Its page's price for cache reads was not seen: no price rather than a wrong one.
  {
    provider: "anthropic",
    id: /^claude-sonnet-5-5$/,
    windowTokens: 1_000_000,
    maxOutputTokens: 128_000,
    asOf: "2026-11-01",
    source: ANTHROPIC_PAGES,
  },
  claude(/^claude-sonnet-4-6$/, 1_000_000, 128_000, 3, 15),
  claude(/^claude-sonnet-4-5(-20250929)?$/, 200_000, 64_000, 3, 15),
  claude(/^claude-sonnet-4(-0|-20250514)$/, 200_000, 64_000, 3, 15),
  haiku55,
  claude(/^claude-haiku-4-5(-20251001)?$/, 200_000, 64_000, 1, 5),
  claude(/^claude-3-5-haiku(-20241022|-latest)$/, 200_000, 8_192, 0.8, 4),
  {
    ...claude(/^claude-3-haiku-20240307$/, 200_000, 4_096, 0.25, 1.25),
    price: { input: 0.25, output: 1.25, cacheRead: 0.03, cacheWrite: 0.3 },
  },
  claude(/^claude-fable-5$/, 1_000_000, 128_000, 10, 50),
  {
    provider: "anthropic",
    id: /^claude-fable-5-1$/,
    windowTokens: 1_000_000,
    maxOutputTokens: 128_000,
    asOf: "2026-11-01",
    source: ANTHROPIC_PAGES,
  },

  gpt({ id: /^gpt-6-sol$/, window: 1_050_000, maxOutput: 128_000, input: 2, output: 10, cacheRead: 0.2, cacheWrite: 2.5, long: true }),
  gpt({
    id: /^gpt-6-luna$/,
    window: 1_050_000,
    maxOutput: 128_000,
    input: 0.1,
    output: 0.5,
    cacheRead: 0.01,
    cacheWrite: 0.125,
    long: true,
  }),
  gpt({ id: /^gpt-5\.6-terra$/, window: 1_050_000, maxOutput: 128_000, input: 2, output: 12, cacheRead: 0.2, cacheWrite: 2.5, long: true }),
  gpt({
    id: /^gpt-5\.6-luna$/,
    window: 1_050_000,
    maxOutput: 128_000,
    input: 0.2,
    output: 1.2,
    cacheRead: 0.02,
    cacheWrite: 0.25,
    long: true,
  }),
  gpt({ id: /^gpt-5\.2(-2025-12-11)?$/, window: 400_000, maxOutput: 128_000, input: 1.75, output: 14, cacheRead: 0.175 }),
  gpt({ id: /^gpt-5(\.1-2025-11-13|\.1|-2025-08-07)?$/, window: 400_000, maxOutput: 128_000, input: 1.25, output: 10, cacheRead: 0.125 }),
  gpt({ id: /^gpt-5-mini(-2025-08-07)?$/, window: 400_000, maxOutput: 128_000, input: 0.25, output: 2, cacheRead: 0.025 }),
  gpt({ id: /^gpt-5-nano(-2025-08-07)?$/, window: 400_000, maxOutput: 128_000, input: 0.05, output: 0.4, cacheRead: 0.005 }),
  gpt({ id: /^gpt-4\.1(-2025-04-14)?$/, window: 1_047_576, maxOutput: 32_768, input: 2, output: 8, cacheRead: 0.5 }),
  gpt({ id: /^gpt-4\.1-mini(-2025-04-14)?$/, window: 1_047_576, maxOutput: 32_768, input: 0.4, output: 1.6, cacheRead: 0.1 }),
  gpt({ id: /^gpt-4\.1-nano(-2025-04-14)?$/, window: 1_047_576, maxOutput: 32_768, input: 0.1, output: 0.4, cacheRead: 0.025 }),
  gpt({ id: /^gpt-4o(-2024-(08-06|11-20))?$/, window: 128_000, maxOutput: 16_384, input: 2.5, output: 10, cacheRead: 1.25 }),
  gpt({ id: /^gpt-4o-mini(-2024-07-18)?$/, window: 128_000, maxOutput: 16_384, input: 0.15, output: 0.6, cacheRead: 0.075 }),
  gpt({ id: /^o3(-2025-04-16)?$/, window: 200_000, maxOutput: 100_000, input: 2, output: 8, cacheRead: 0.5 }),
  gpt({ id: /^o4-mini(-2025-04-16)?$/, window: 200_000, maxOutput: 100_000, input: 1.1, output: 4.4, cacheRead: 0.275 }),
];

/** The row of a full name such as `anthropic:claude-opus-5-5`; the same model behind another server has none. */
export function findModel(name: string): KnownModel | undefined {
  const colon = name.indexOf(":");
  const provider = name.slice(0, colon) === "openai-chat" ? "openai" : name.slice(0, colon);
  const id = name.slice(colon + 1);
  return KNOWN_MODELS.find((model) => model.provider === provider && model.id.test(id));
}

/** @param windows tokens by full model name, from configuration; they win over the table. */
export function windowOf(name: string, windows: Readonly<Record<string, number>> = {}): ModelWindow {
  const set = Object.hasOwn(windows, name) ? windows[name] : undefined;
  if (set !== undefined) return { tokens: set, source: "setting" };
  const known = findModel(name);
  return known === undefined ? { tokens: undefined, source: "unknown" } : { tokens: known.windowTokens, source: "table", asOf: known.asOf };
}

/**
 * Price of one call in whole micro-dollars, or undefined without a known price. Cached tokens are part of `usage.input`
 * and are priced by their own class, once. Reasoning tokens are part of `usage.output`.
 */
export function costUsdMicros(name: string, usage: Usage, prices: Readonly<Record<string, ModelPrice>> = {}): number | undefined {
  const price = (Object.hasOwn(prices, name) ? prices[name] : undefined) ?? findModel(name)?.price;
  if (price === undefined) return undefined;
  const rate = price.above !== undefined && usage.input > price.above.inputTokens ? price.above : price;
  const read = usage.cache_read ?? 0;
  const write = usage.cache_write ?? 0;
  const plain = Math.max(0, usage.input - read - write);
  return Math.round(plain * rate.input + read * (rate.cacheRead ?? rate.input) + write * (rate.cacheWrite ?? rate.input) + usage.output * rate.output);
}
