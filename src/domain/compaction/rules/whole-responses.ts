/** No response is split from its results, however many there are and however far back the caller stands (C01, C02). */
import { unitsOf } from "../units.ts";
import type { Rule } from "./position.ts";

export const wholeResponses: Rule = ({ view }) => {
  const starts = new Set(unitsOf(view).map((unit) => unit.start));
  return (position) => position === view.length || starts.has(position);
};
