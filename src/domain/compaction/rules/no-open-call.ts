/**
 * Nothing that still waits for its result is replaced: its unit and all behind it stay (C07, C11). Only the last
 * response can be open; an older call without a result is dead, and must not block compaction for ever (C12).
 */
import { callIdsOf, unitsOf } from "../units.ts";
import type { Rule } from "./position.ts";

export const noOpenCall: Rule = ({ view }) => {
  const last = unitsOf(view).findLast((unit) => unit.kind === "response");
  const caller = last === undefined ? undefined : view[last.start];
  if (last === undefined || caller?.role !== "assistant") return () => true;
  const answered = new Set(view.slice(last.start + 1, last.end).flatMap((message) => (message.role === "tool" ? message.content.map((part) => part.call_id) : [])));
  const isOpen = callIdsOf(caller).some((id) => !answered.has(id));
  return (position) => !isOpen || position <= last.start;
};
