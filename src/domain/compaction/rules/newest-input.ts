/**
 * The newest user message of an interactive run stays in the tail: after a compaction the model must meet the question
 * it is working on, not only the oldest one (C48). In every run, input that no model has read yet stays.
 */
import type { Message } from "../../transcript/message.ts";
import type { Rule, RuleInput } from "./position.ts";

export const newestInput: Rule = (input) => {
  const { view } = input;
  const newest = newestInputAt(input) ?? view.length;
  const unread = unreadInputAt(input) ?? view.length;
  return (position) => position <= newest && position <= unread;
};

/** Index of the newest user message of an interactive run; undefined where the head shows it anyway. */
function newestInputAt({ view, hasHead, interactive, keepFirst }: RuleInput): number | undefined {
  const at = interactive ? view.findLastIndex((message) => message.role === "user") : -1;
  return at > (hasHead || keepFirst ? 0 : -1) ? at : undefined;
}

/** Index of the first of the user messages that end the view; the head and the first message are no such. */
function unreadInputAt({ view }: { readonly view: readonly Message[] }): number | undefined {
  let at = view.length;
  while (at > 1 && view[at - 1]?.role === "user") at--;
  return at === view.length ? undefined : at;
}
