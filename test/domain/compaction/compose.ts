/** Heads over generations: a hostile summary each, so that only the rules can keep anything. */
import { composeHead, type ComposeInput } from "../../../src/domain/compaction/head.ts";
import type { Head, Place } from "../../../src/domain/compaction/types.ts";
import type { JsonValue } from "../../../src/domain/json.ts";
import type { Message } from "../../../src/domain/transcript/message.ts";
import { canonicalJson } from "../../../src/domain/json.ts";
import { toolOutputText } from "../../../src/domain/transcript/message.ts";
import { placesOf } from "./messages.ts";

export function call(name: string, input: JsonValue, output: JsonValue = "ok"): Message[] {
  return [
    { role: "assistant", content: [{ type: "tool_call", call_id: "c", name, input }] },
    { role: "tool", content: [{ type: "tool_result", call_id: "c", name, output }] },
  ];
}

interface Generation extends Partial<ComposeInput> {
  readonly span: readonly Message[];
}

/** Each span begins behind the one before. */
export function composeAll(generations: readonly Generation[]): Head[] {
  const heads: Head[] = [];
  let seq = 0;
  for (const { span, ...more } of generations) {
    const places = placesOf(span).map((place) => behind(place, seq));
    seq = places.at(-1)?.last ?? seq;
    const tail = more.tail ?? [];
    heads.push(
      composeHead({
        previous: heads.at(-1),
        spanMessages: span,
        spanPlaces: places,
        toolEffect: (name) => (name === "read" ? "read" : "once"),
        pins: [],
        summary: "All went well.",
        obligations: [],
        taskText: "",
        tailText: tail.map(plainText).join("\n"),
        tainted: true,
        ...more,
        tail,
      }).head,
    );
  }
  return heads;
}

function behind({ first, last, parts }: Place, seq: number): Place {
  return { first: first + seq, last: last + seq, ...(parts === undefined ? {} : { parts: parts.map((part) => part + seq) }) };
}

function plainText({ content }: Message): string {
  return content
    .map((part) =>
      part.type === "text" ? part.text : part.type === "tool_result" ? toolOutputText(part.output) : part.type === "tool_call" ? canonicalJson(part.input ?? null) : "",
    )
    .join("\n");
}
