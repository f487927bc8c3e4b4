import { createHash } from "node:crypto";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { CanonicalCall } from "../../src/domain/call.ts";
import { fold } from "../../src/domain/fold.ts";
import { canonicalJson, type JsonValue } from "../../src/domain/json.ts";
import { closeChain, extendChain, hashCall, startChain, type Sha256 } from "../../src/domain/transcript/chain.ts";
import { messageText, type Message } from "../../src/domain/transcript/message.ts";
import { reordered, storedObject, storedText } from "./arbitrary-json.ts";
import { run } from "./runs.ts";

const sha256: Sha256 = (...chunks) => {
  const hash = createHash("sha256");
  for (const chunk of chunks) hash.update(chunk);
  return hash.digest();
};
const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString("hex");

const call: fc.Arbitrary<CanonicalCall> = fc
  .record({ view: run.map((events) => fold(events).view), system: storedText, schema: storedObject, options: storedObject, breakpoints: fc.array(fc.nat(9), { maxLength: 3 }) })
  .map(({ view, system, schema, options, breakpoints }) => ({
    renderVersion: 1,
    model: "offline:x",
    system,
    tools: [{ name: "t", description: "d", inputSchema: schema }],
    messages: view,
    settings: { temperature: 0.5, providerOptions: options },
    breakpoints,
  }));

function prefix({ renderVersion, system, tools, messages }: CanonicalCall, count = messages.length): string {
  let chain = startChain(sha256, { renderVersion, system, tools });
  for (const message of messages.slice(0, count)) ({ chain } = extendChain(sha256, chain, message));
  return hex(chain.head);
}

describe("the chained hash of a call", () => {
  it("is the same extended message by message as over the whole", () => {
    fc.assert(
      fc.property(call, (whole) => {
        const { renderVersion, system, tools, messages, ...tail } = whole;
        let chain = startChain(sha256, { renderVersion, system, tools });
        for (const message of messages) ({ chain } = extendChain(sha256, chain, message));
        const closed = closeChain(sha256, chain, tail);
        expect(hex(closed.hash)).toBe(hex(hashCall(sha256, whole).hash));
        expect(closed.sizeBytes).toBe(hashCall(sha256, whole).sizeBytes);
      }),
    );
  });

  it("is h(i) = sha256(h(i-1) || message i), as written down in the specification", () => {
    const messages: Message[] = [
      { role: "user", content: [{ type: "text", text: "grüß 😀" }] },
      { role: "assistant", content: [{ type: "text", text: "hi" }] },
    ];
    const header = { renderVersion: 1, system: "s", tools: [] };
    const whole = { ...header, messages, model: "m", settings: {}, breakpoints: [0] };
    let h = createHash("sha256").update('{"renderVersion":1,"system":"s","tools":[]}').digest();
    h = createHash("sha256").update(h).update('{"content":[{"text":"grüß 😀","type":"text"}],"role":"user"}').digest();
    h = createHash("sha256").update(h).update('{"content":[{"text":"hi","type":"text"}],"role":"assistant"}').digest();
    h = createHash("sha256").update(h).update('{"breakpoints":[0],"model":"m","settings":{}}').digest();
    expect(hex(hashCall(sha256, whole).hash)).toBe(h.toString("hex"));
  });

  it("counts UTF-8 bytes: of each message, and of the whole", () => {
    fc.assert(
      fc.property(call, (whole) => {
        let chain = startChain(sha256, { renderVersion: 1, system: "", tools: [] });
        const header = chain.sizeBytes;
        let sum = 0;
        for (const message of whole.messages) {
          const extended = extendChain(sha256, chain, message);
          expect(extended.bytes).toBe(Buffer.byteLength(messageText(message)));
          sum += extended.bytes;
          chain = extended.chain;
        }
        expect(chain).toMatchObject({ sizeBytes: header + sum, messages: whole.messages.length });
      }),
    );
  });

  it("does not depend on the order of members, which jsonb does not keep", () => {
    fc.assert(
      fc.property(call, (whole) => {
        const back = reordered(whole as unknown as JsonValue) as unknown as CanonicalCall;
        expect(hex(hashCall(sha256, back).hash)).toBe(hex(hashCall(sha256, whole).hash));
      }),
    );
  });

  it("keeps its prefix when breakpoints, model or settings change, while the call's own hash tells them apart", () => {
    fc.assert(
      fc.property(call, (whole) => {
        const moved = { ...whole, breakpoints: [...whole.breakpoints, 99] };
        const cooler = { ...whole, settings: { temperature: 0.1 } };
        for (const other of [moved, cooler, { ...whole, model: "offline:y" }, { ...whole, output: { name: "output", schema: {} } }]) {
          expect(prefix(other)).toBe(prefix(whole));
          expect(hex(hashCall(sha256, other).hash)).not.toBe(hex(hashCall(sha256, whole).hash));
        }
      }),
    );
  });

  it("agrees on a prefix exactly as long as the messages do", () => {
    fc.assert(
      fc.property(call, fc.nat(), (whole, at) => {
        fc.pre(whole.messages.length > 0);
        const changed = at % whole.messages.length;
        const messages = whole.messages.map((message, i): Message =>
          i === changed ? { role: "user", content: [{ type: "text", text: canonicalJson(message as unknown as JsonValue) }] } : message,
        );
        const other = { ...whole, messages };
        expect(prefix(other, changed)).toBe(prefix(whole, changed));
        expect(prefix(other, changed + 1)).not.toBe(prefix(whole, changed + 1));
        expect(prefix(other)).not.toBe(prefix(whole));
      }),
    );
  });

  it.each([
    ["system", { system: "other" }],
    ["tools", { tools: [] }],
    ["render version", { renderVersion: 2 }],
  ])("has another prefix for another %s", (_, change) => {
    const whole: CanonicalCall = {
      renderVersion: 1,
      model: "m",
      system: "s",
      tools: [{ name: "t", description: "d", inputSchema: {} }],
      messages: [],
      settings: {},
      breakpoints: [],
    };
    expect(prefix({ ...whole, ...change })).not.toBe(prefix(whole));
  });
});
