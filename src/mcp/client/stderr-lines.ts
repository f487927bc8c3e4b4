/** What a server writes to its standard error, for the log: by line, cut, and not more than a log can bear. */
import type { Readable } from "node:stream";
import type { Log } from "../../engine/ports.ts";

const MAX_LINE_CHARS = 1_000;
/** Of a server that writes without end the first lines tell what is wrong. */
const MAX_LINES = 50;
const PER_MS = 10_000;

export function logLines(
  stream: Readable,
  { log, server, clockMs = () => performance.now() }: { readonly log: Log; readonly server: string; readonly clockMs?: () => number },
): void {
  let rest = "";
  let windowFromMs = clockMs();
  let lines = 0;
  let dropped = 0;
  const say = (line: string): void => {
    const nowMs = clockMs();
    if (nowMs - windowFromMs >= PER_MS) {
      if (dropped > 0) log.warn({ mcpServer: server, dropped }, "an MCP server wrote more to standard error than is logged");
      windowFromMs = nowMs;
      lines = 0;
      dropped = 0;
    }
    if (line === "") return;
    if (lines++ < MAX_LINES) log.info({ mcpServer: server, line: line.slice(0, MAX_LINE_CHARS).toWellFormed() }, "an MCP server wrote to standard error");
    else dropped++;
  };
  stream.setEncoding("utf8");
  stream.on("data", (text: string) => {
    const parts = `${rest}${text}`.split("\n");
    rest = parts.pop() ?? "";
    for (const line of parts) say(line.trimEnd());
    // A line without an end is not collected either.
    if (rest.length > MAX_LINE_CHARS) {
      say(rest);
      rest = "";
    }
  });
  stream.on("end", () => say(rest.trimEnd()));
  stream.on("error", () => {});
}
