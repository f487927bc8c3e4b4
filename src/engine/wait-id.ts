import { createHash } from "node:crypto";

/**
 * The same for every try of a call, so that a tool can hand it out before the journal knows of the wait. A call may wait
 * twice: for leave to be made, and then for what its tool has handed back.
 */
export function waitIdOf(runId: string, turn: number, index: number, kind: "leave" | "result" = "result"): string {
  const bytes = createHash("sha256")
    .update(`wait:${runId}:${turn}:${index}${kind === "leave" ? ":leave" : ""}`)
    .digest()
    .subarray(0, 16);
  bytes[6] = ((bytes[6] as number) & 0x0f) | 0x80;
  bytes[8] = ((bytes[8] as number) & 0x3f) | 0x80;
  return bytes.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}
