/** What a server's tool gives back, as a tool result of ours: text as text, other data kept outside the transcript. */
import type { CallToolResult } from "@modelcontextprotocol/sdk/types.js";
import { toJsonValue, canonicalJson, type JsonValue } from "../../domain/json.ts";
import { parseJsonText } from "../../domain/json-text.ts";
import type { ToolContext } from "../../engine/code.ts";
import { McpToolError } from "./errors.ts";

type Content = CallToolResult["content"][number];

/** Each is a blob of its own; a result of thousands of tiny pictures is a flood. */
const MAX_FILES = 64;
const MAX_ERROR_CHARS = 3_000;

/** Throws McpToolError for a result that says of itself that it is an error. */
export async function outputOf(result: CallToolResult, tool: string, saveFile: ToolContext["saveFile"]): Promise<unknown> {
  const { content, structuredContent, isError } = result;
  const texts = content.flatMap((part) => (part.type === "text" ? [part.text] : []));
  const text = texts.join("\n");
  if (isError === true) throw new McpToolError(text === "" ? `tool ${tool} failed and did not say why` : text.slice(0, MAX_ERROR_CHARS).toWellFormed());
  const isPlain = texts.length === content.length;
  // Servers give structured results as text once more, for clients that do not know them.
  if (structuredContent !== undefined && isPlain && (text === "" || isSameJson(text, structuredContent))) return structuredContent;
  if (isPlain && structuredContent === undefined) return text;
  let files = 0;
  const parts: unknown[] = [];
  for (const part of content) {
    const hasBytes = part.type === "image" || part.type === "audio" || (part.type === "resource" && "blob" in part.resource);
    if (hasBytes && ++files > MAX_FILES) continue;
    parts.push(await partOf(part, saveFile));
  }
  if (files > MAX_FILES) parts.push({ type: "text", text: `${files - MAX_FILES} more files were left out: one result may have ${MAX_FILES}` });
  return { content: parts, ...(structuredContent === undefined ? {} : { structured_content: structuredContent }) };
}

async function partOf(part: Content, saveFile: ToolContext["saveFile"]): Promise<unknown> {
  switch (part.type) {
    case "text":
      return { type: "text", text: part.text };
    case "image":
    case "audio":
      return await saveFile(Buffer.from(part.data, "base64"), mediaType(part.mimeType));
    case "resource": {
      const { resource } = part;
      const about = { type: "resource", uri: resource.uri };
      if ("blob" in resource) return { ...about, file: await saveFile(Buffer.from(resource.blob, "base64"), mediaType(resource.mimeType)) };
      return { ...about, ...(resource.mimeType === undefined ? {} : { media_type: resource.mimeType }), text: resource.text };
    }
    case "resource_link":
      return {
        type: "resource_link",
        uri: part.uri,
        name: part.name,
        ...(part.description === undefined ? {} : { description: part.description }),
        ...(part.mimeType === undefined ? {} : { media_type: part.mimeType }),
      };
  }
}

/** A server's word, which becomes a blob's: nothing that is no media type. */
function mediaType(given: string | undefined): string {
  return given !== undefined && /^[\w.+-]{1,60}\/[\w.+-]{1,60}$/.test(given) ? given : "application/octet-stream";
}

function isSameJson(text: string, value: unknown): boolean {
  const json = toJsonValue(value);
  if (!json.ok) return false;
  try {
    return canonicalJson(parseJsonText(text) as JsonValue) === canonicalJson(json.value);
  } catch {
    return false;
  }
}
