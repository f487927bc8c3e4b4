/**
 * A rule says which positions of a view a cut may have: position `i` replaces the messages before `i` and keeps the
 * rest, so a view of n messages has the positions 0 to n. Each rule looks at one thing; the intersection counts.
 */
import type { Message } from "../../transcript/message.ts";

export interface RuleInput {
  readonly view: readonly Message[];
  /** The first message is the head of an earlier compaction. */
  readonly hasHead: boolean;
  readonly interactive: boolean;
  readonly keepFirst: boolean;
}

export type Rule = (input: RuleInput) => (position: number) => boolean;
