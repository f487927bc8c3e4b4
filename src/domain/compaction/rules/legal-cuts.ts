/** The positions that every rule allows, in order. */
import { behindTheHead } from "./behind-the-head.ts";
import { newestInput } from "./newest-input.ts";
import { noOpenCall } from "./no-open-call.ts";
import type { Rule, RuleInput } from "./position.ts";
import { signedReasoning } from "./signed-reasoning.ts";
import { wholeResponses } from "./whole-responses.ts";

const rules: readonly Rule[] = [behindTheHead, wholeResponses, noOpenCall, signedReasoning, newestInput];

export function legalCuts(input: RuleInput): number[] {
  const allows = rules.map((rule) => rule(input));
  return Array.from({ length: input.view.length + 1 }, (_, position) => position).filter((position) => allows.every((allow) => allow(position)));
}
