/** Something must be replaced that is not shown again anyway: the head of an earlier compaction, or the pinned task. */
import type { Rule } from "./position.ts";

export const behindTheHead: Rule = ({ hasHead, keepFirst }) => {
  const first = hasHead || keepFirst ? 2 : 1;
  return (position) => position >= first;
};
