/** Counts of side effects over compactions and the cap: right in the head, or said to be unknown there. */
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { renderHead } from "../../../src/domain/compaction/head.ts";
import { ledgerText, MAX_DIGESTS } from "../../../src/domain/compaction/ledger.ts";
import { headSchema, type Head } from "../../../src/domain/compaction/types.ts";
import { call, composeAll } from "./compose.ts";

const send = (k: number, output = "ok") => call("send", { k }, output);
const caps = { ledgerBytes: 120 };
const shown = (head: Head): string =>
  renderHead(head, undefined)
    .content.map((part) => (part.type === "text" ? part.text : ""))
    .join("");

describe("a line that the cap left out", () => {
  it("goes on with its count when the call is made again, and is left out once only", () => {
    const others = Array.from({ length: 10 }, (_, i) => send(100 + i)).flat();
    const heads = composeAll([
      { span: [...send(1), ...send(1), ...others], caps },
      { span: send(1), caps },
      { span: others, caps },
      { span: send(1), caps },
    ]);
    const ofOne = heads.map(({ ledger }) => ledger.find(({ args }) => args === '{"k":1}')?.ok);
    expect(ofOne).toEqual([undefined, 3, undefined, 4]);
    for (const { ledger, ledger_left_out } of heads) expect(ledger.length + ledger_left_out).toBe(11);
    for (const head of heads) expect(headSchema.parse(head)).toEqual(head);
  });

  it("is counted as what was done says, for any calls, cuts and caps", () => {
    const action = fc.tuple(fc.integer({ min: 0, max: 8 }), fc.boolean());
    fc.assert(
      fc.property(fc.array(fc.array(action, { maxLength: 12 }), { minLength: 1, maxLength: 6 }), fc.integer({ min: 20, max: 300 }), (spans, ledgerBytes) => {
        const heads = composeAll(spans.map((actions) => ({ span: actions.flatMap(([k, isFailed]) => marked(send(k), isFailed)), caps: { ledgerBytes } })));
        const done = spans.flat();
        const last = heads.at(-1) as Head;
        for (const line of last.ledger) {
          const own = done.filter(([k]) => line.args === `{"k":${k}}`);
          expect([line.ok, line.failed]).toEqual([own.filter(([, isFailed]) => !isFailed).length, own.filter(([, isFailed]) => isFailed).length]);
        }
        expect(last.ledger.length + last.ledger_left_out).toBe(new Set(done.map(([k]) => k)).size);
      }),
      { numRuns: 300 },
    );
  });

  it("is told of when it is so long ago that its count is not known any more", () => {
    const many = Array.from({ length: MAX_DIGESTS + 50 }, (_, i) => send(i)).flat();
    const [first, second] = composeAll([
      { span: many.slice(0, 200), caps },
      { span: many.slice(200), caps },
    ]) as [Head, Head];
    expect(shown(first)).not.toContain("may have been made before");
    expect(second.ledger.length + second.ledger_left_out).toBe(MAX_DIGESTS + 50);
    expect(second.ledger_digests).toHaveLength(MAX_DIGESTS);
    expect(shown(second)).toContain("may have been made before");
    expect(JSON.stringify(second.ledger_digests).length).toBeLessThan(32_768);
  });
});

it("sends the agent to the context tool only if it has one; a head from before this was told does", () => {
  const span = Array.from({ length: 10 }, (_, i) => send(i)).flat();
  const [without, having] = [false, true].map((hasContextTool) => composeAll([{ span, caps, hasContextTool }])[0] as Head) as [Head, Head];
  expect(shown(without)).toMatch(/\(\d+ older lines left out\)/);
  expect(shown(having)).toMatch(/\(\d+ older lines left out; the context tool lists them\)/);
  const { ledger_digests: _, ...before } = having;
  expect(shown(before)).toBe(shown(having));
  expect(having.ledger.map(ledgerText)).toEqual(without.ledger.map(ledgerText));
});

function marked(messages: ReturnType<typeof send>, isFailed: boolean): ReturnType<typeof send> {
  return messages.map((message) => (message.role === "tool" && isFailed ? { ...message, content: message.content.map((part) => ({ ...part, is_error: true })) } : message));
}
