/**
 * Counts input tokens and plays the vendors' prompt caches. A request is a row of segments; a cache knows prefixes of such
 * rows. Anthropic caches up to the marks in the request and counts additively; OpenAI caches by itself and its cached
 * tokens are part of the whole. Vendors' minimum lengths and expiry are left out, so that small tests see the effect.
 */
import { createHash } from "node:crypto";
import { tokensOf } from "./plan.ts";

export interface Segment {
  /** The segment as the model reads it, without cache marks. */
  readonly text: string;
  /** Whether the client asked to cache up to here. */
  readonly marked: boolean;
}

export interface Counted {
  /** The whole input, cached parts included. */
  readonly input: number;
  readonly cacheRead: number;
  readonly cacheWrite: number;
}

export class PromptCache {
  readonly #known = new Set<string>();

  /** Reads the longest prefix that an earlier request wrote, and writes from there to the last mark; `automatic` marks every segment. */
  count(model: string, segments: readonly Segment[], automatic: boolean): Counted {
    let hash = createHash("sha256").update(model).digest("hex");
    let input = 0;
    const prefixes = segments.map(({ text, marked }) => {
      hash = createHash("sha256").update(hash).update(text).digest("hex");
      input += tokensOf(text);
      return { hash, tokens: input, marked: marked || automatic };
    });
    // Vendors look back from a mark, so what stands behind the last one is never read.
    const upTo = prefixes.slice(0, prefixes.findLastIndex((prefix) => prefix.marked) + 1);
    const cacheRead = upTo.findLast((prefix) => this.#known.has(prefix.hash))?.tokens ?? 0;
    for (const prefix of upTo) if (prefix.marked) this.#known.add(prefix.hash);
    return { input, cacheRead, cacheWrite: automatic ? 0 : (upTo.at(-1)?.tokens ?? 0) - cacheRead };
  }
}
