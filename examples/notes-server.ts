/** A small MCP server over standard streams, for examples/mcp.ts. */
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { z } from "zod";

const notes = ["High tide is at 14:10."];
const server = new McpServer({ name: "notes", version: "1.0.0" });
server.registerTool("find_note", { description: "Finds notes that hold a word.", inputSchema: { word: z.string() }, annotations: { readOnlyHint: true } }, ({ word }) => ({
  content: [{ type: "text", text: notes.filter((note) => note.toLowerCase().includes(word.toLowerCase())).join("\n") }],
}));
server.registerTool("add_note", { description: "Adds a note.", inputSchema: { text: z.string() } }, ({ text }) => {
  notes.push(text);
  return { content: [{ type: "text", text: "added" }] };
});
// Whoever started it has gone: it goes too.
process.stdin.on("end", () => process.exit());
await server.connect(new StdioServerTransport());
