/** Redaction of texts and JSON: the same each time, nothing more the second time, valid JSON, and never without end. */
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { redactIssues } from "../../src/domain/redact/options.ts";
import { RedactionFailedError, Redactor } from "../../src/domain/redact/redactor.ts";
import { StreamRedactor } from "../../src/domain/redact/stream.ts";
import type { AssistantPart } from "../../src/domain/transcript/message.ts";
import { storedJson } from "./arbitrary-json.ts";

const PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7bq0\nabcdef\n-----END RSA PRIVATE KEY-----";
/** What is to be found, the secret in it, and under which name. */
const secrets: readonly (readonly [text: string, secret: string, name: string])[] = [
  ["AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE", "aws_key"],
  ["aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "aws_secret"],
  ["sk-ant-api03-abcDEF123456789_xyz-000", "sk-ant-api03-abcDEF123456789_xyz-000", "provider_key"],
  ["sk-proj-1234567890abcdefghij", "sk-proj-1234567890abcdefghij", "provider_key"],
  ["AIzaSyA1234567890abcdefghijklmnopqrstuv", "AIzaSyA1234567890abcdefghijklmnopqrstuv", "provider_key"],
  ["ghp_16C7e42F292c6912E7710c838347Ae178B4a", "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "access_token"],
  ["xoxb-123456789012-abcdefABCDEF", "xoxb-123456789012-abcdefABCDEF", "access_token"],
  ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.SflKxwRJSMeKKF2QT4fwpM", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.SflKxwRJSMeKKF2QT4fwpM", "jwt"],
  ["Authorization: Bearer mF_9.B5f-4.1JqM0abc", "mF_9.B5f-4.1JqM0abc", "bearer"],
  ["client_secret: 'abcdefghij0123456789'", "abcdefghij0123456789", "assigned_key"],
  ["postgres://app:s3cr3t-pass@db.internal:5432/app", "s3cr3t-pass", "connection_string"],
  [PEM, "MIIEpAIBAAKCAQEA7bq0", "private_key"],
  ["ada.lovelace+x@example.co.uk", "ada.lovelace+x@example.co.uk", "email"],
  ["+49 170 1234567", "+49 170 1234567", "phone"],
  ["4111 1111 1111 1111", "4111 1111 1111 1111", "card"],
  ["378282246310005", "378282246310005", "card"],
  ["078-05-1120", "078-05-1120", "national_id"],
  ["DE89 3704 0044 0532 0130 00", "DE89 3704 0044 0532 0130 00", "bank_account"],
];
const redactor = new Redactor({ personal: true, patterns: [{ name: "order", pattern: /ORDER-\d{4,10}/i }] });
const surrounded = fc
  .tuple(fc.string({ maxLength: 30 }), fc.constantFrom(...secrets.map(([text]) => text)), fc.string({ maxLength: 30 }))
  .map(([before, text, after]) => `${before} ${text} ${after}`);
const texts = fc.oneof(
  fc.string({ maxLength: 200 }),
  surrounded,
  fc.array(surrounded, { maxLength: 4 }).map((all) => all.join("\n")),
);

describe("a text", () => {
  it.each(secrets)("hides what is secret in %s", (text, secret, name) => {
    const redacted = redactor.text(`see ${text} there`);
    expect(redacted).not.toContain(secret);
    expect(redacted).toContain(`[redacted:${name}]`);
    expect(redacted).toMatch(/^see .* there$/s);
  });

  it("leaves alone what only resembles a secret", () => {
    for (const text of [
      "AKIA is a prefix, sk-SK a locale, and eyJ begins a token",
      "order 4111 1111 1111 1112 is no card, nor is 1764547200000",
      "see https://example.com:8080/path@2 and git@ and 10-20-30",
      "id 5f0c9b1e-4111-1111-1111-111111111111, sha 0123456789012345678901234567890123456789",
      "-----BEGIN PUBLIC KEY-----",
      "a bearer of news, the basic idea",
    ])
      expect(redactor.text(text)).toBe(text);
  });

  it("is the same each time, and not changed by a second time", () => {
    fc.assert(
      fc.property(texts, (text) => {
        const once = redactor.text(text);
        expect(redactor.text(text)).toBe(once);
        expect(redactor.text(once)).toBe(once);
        expect(new Redactor({ personal: true, patterns: [{ name: "order", pattern: /ORDER-\d{4,10}/i }] }).text(text)).toBe(once);
      }),
    );
  });

  it("is not changed by a second time whatever the patterns are", () => {
    const piece = fc.constantFrom("a", "b", "ab", "[ab]+", "^a", "b$", "(?<!a)b", "\\[redacted", "redacted", ".{3}", "x(?=b)");
    fc.assert(
      fc.property(fc.array(piece, { minLength: 1, maxLength: 3 }), fc.array(fc.constantFrom("a", "b", "x", " ", "[redacted:p0]"), { maxLength: 30 }), (patterns, words) => {
        const own = new Redactor({ builtIn: false, patterns: patterns.map((pattern, i) => ({ name: `p${i}`, pattern })) });
        const once = own.text(words.join(""));
        expect(own.text(once)).toBe(once);
      }),
      { numRuns: 60 },
    );
  });

  it("what only looks like a replacement is looked through", () => {
    expect(redactor.text("[redacted:sk-proj-1234567890abcdefghij]")).not.toContain("sk-proj");
    expect(redactor.text("[redacted:aws_key]")).toBe("[redacted:aws_key]");
  });

  it("a private key without its end is one to the end of the text", () => {
    expect(redactor.text(`a ${PEM.slice(0, 60)}`)).toBe("a [redacted:private_key]");
  });

  it("a secret that a tool was given is one, also in the forms in which services give it back", () => {
    const own = new Redactor({});
    const secret = 'p@ss "w0rd" ä';
    own.knows(secret);
    own.knows("abc");
    for (const form of [secret, encodeURIComponent(secret), Buffer.from(secret).toString("base64"), JSON.stringify(secret)]) {
      expect(own.text(`got ${form}.`)).toMatch(/^got "?\[redacted:secret\]"?\.$/);
    }
    expect(own.text("abc is too short to be looked for")).toContain("abc");
  });

  it("takes no longer than its length allows, however hostile it is", () => {
    const hostile = [
      "eyJ-",
      "sk-",
      "a://b:",
      "secret_key:",
      "bearer ",
      "-----BEGIN PRIVATE KEY-----",
      "1234 ",
      "123-",
      "DE12 ",
      "+1 2 3 ",
      "a@",
      "a.",
      "AKIA",
      "token=",
      "111-11-",
    ];
    for (const piece of hostile) {
      const startedMs = performance.now();
      redactor.text(piece.repeat(Math.ceil(256_000 / piece.length)));
      expect(performance.now() - startedMs, piece).toBeLessThan(5_000);
    }
  });

  it("a pattern of one's own that would never end keeps nothing of the text", () => {
    const own = new Redactor({ builtIn: false, patterns: [{ name: "slow", pattern: /^(a+)+$/ }] });
    const startedMs = performance.now();
    expect(own.text(`${"a".repeat(40)}!`)).toBe("[redacted:pattern_failed]");
    expect(performance.now() - startedMs).toBeLessThan(5_000);
    expect(own.text("bbbbbbbb")).toBe("bbbbbbbb");
  });
});

describe("JSON", () => {
  it("stays JSON, hides names and long numbers too, and comes back as it was when there is nothing", () => {
    const value = { note: "AKIAIOSFODNN7EXAMPLE", "ada@example.com": 4111111111111111, list: [1, "x", { "bob@example.com": null, "eve@example.com": 2 }] };
    expect(redactor.json(value, { numbers: true })).toEqual({
      note: "[redacted:aws_key]",
      "[redacted:email]": "[redacted:card]",
      list: [1, "x", { "[redacted:email]": null, "[redacted:email] 2": 2 }],
    });
    expect(redactor.json(value)).toMatchObject({ "[redacted:email]": 4111111111111111 });
    const clean = { a: [1, "two", { three: null }] };
    expect(redactor.json(clean)).toBe(clean);
  });

  it("is not changed by a second time", () => {
    fc.assert(
      fc.property(storedJson, texts, (json, text) => {
        const once = redactor.json([json, { [text]: text }], { numbers: true });
        expect(redactor.json(once, { numbers: true })).toBe(once);
        expect(JSON.parse(JSON.stringify(once))).toEqual(JSON.parse(JSON.stringify(once)));
      }),
    );
  });

  it("keeps what names a blob", () => {
    const own = new Redactor({ builtIn: false, patterns: [{ name: "hex", pattern: /[0-9a-f]{32}/ }] });
    const file = { type: "file", media_type: "image/png", sha256: "ab".repeat(32), size_bytes: 3 };
    expect(own.json([file])).toEqual([file]);
    expect(own.json([{ ...file, filename: `${"ab".repeat(16)}.png` }])).toEqual([{ ...file, filename: "[redacted:hex].png" }]);
    // Not a reference, though it says so.
    expect(own.json([{ ...file, sha256: "ab".repeat(16) }])).toEqual([{ ...file, sha256: "[redacted:hex]" }]);
  });
});

describe("an answer", () => {
  const call = { type: "tool_call", call_id: "c1", name: "t" } as const;

  it("has arguments that are JSON, and as written only while they say the same", async () => {
    const input = { key: "AKIAIOSFODNN7EXAMPLE", n: 1 };
    const parts: AssistantPart[] = [
      { ...call, input, arguments: '{ "n": 1, "key": "AKIAIOSFODNN7EXAMPLE" }' },
      { ...call, input: { key: "x" }, arguments: '{"key":"AKIAIOSFODNN7EXAMPLE","key":"x"}' },
      { ...call, input: { key: "x" }, arguments: '{ "key": "x" }' },
      { ...call, arguments: '{"key": "AKIAIOSFODNN7EXAMPLE', invalid: "not JSON near AKIAIOSFODNN7EXAMPLE" },
    ];
    expect(await redactor.parts(parts, { place: "model" })).toEqual([
      { ...call, input: { key: "[redacted:aws_key]", n: 1 } },
      { ...call, input: { key: "x" } },
      parts[2],
      { ...call, arguments: '{"key": "[redacted:aws_key]', invalid: "not JSON near [redacted:aws_key]" },
    ]);
  });

  it("keeps a signature only with the reasoning that it signs", async () => {
    const metadata = { anthropic: { signature: "sig" } };
    expect(
      await redactor.parts(
        [
          { type: "reasoning", text: "plain", metadata },
          { type: "reasoning", text: "AKIAIOSFODNN7EXAMPLE", metadata },
        ],
        { place: "model" },
      ),
    ).toEqual([
      { type: "reasoning", text: "plain", metadata },
      { type: "reasoning", text: "[redacted:aws_key]" },
    ]);
  });
});

describe("live text", () => {
  const cut = (text: string, sizes: readonly number[]): string[] => {
    const pieces: string[] = [];
    for (let at = 0, i = 0; at < text.length; i++) {
      const size = sizes[i % sizes.length] ?? 1;
      pieces.push(text.slice(at, at + size));
      at += size;
    }
    return pieces;
  };

  it("shows no secret wherever its pieces end, and in the end what the whole text would show", () => {
    const filler = fc.array(fc.constantFrom("word ", "and ", "then, ", "\n", "longerword "), { maxLength: 80 }).map((words) => words.join(""));
    fc.assert(
      fc.property(filler, fc.constantFrom(...secrets), filler, fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 1, maxLength: 5 }), (before, [text, secret], after, sizes) => {
        const stream = new StreamRedactor(redactor.text);
        let shown = "";
        for (const piece of cut(`${before} ${text} ${after}`, sizes)) {
          shown += stream.push(piece);
          expect(shown).not.toContain(secret.slice(0, Math.ceil(secret.length * 0.8)));
        }
        shown += stream.end();
        expect(shown).toBe(redactor.text(`${before} ${text} ${after}`));
      }),
    );
  });

  it("comes as it is written, a little later", () => {
    const stream = new StreamRedactor(redactor.text);
    let shown = "";
    for (const piece of cut("word ".repeat(200), [3])) shown += stream.push(piece);
    expect(shown.length).toBeGreaterThan(800);
    expect(shown + stream.end()).toBe("word ".repeat(200));
  });

  it("is withheld when a word does not end", () => {
    const stream = new StreamRedactor(redactor.text);
    let shown = "";
    for (let i = 0; i < 300; i++) shown += stream.push("a".repeat(100));
    expect(shown + stream.end()).toBe("[redacted:withheld]");
  });
});

describe("the hook", () => {
  it("is asked first, text by text, and told where from", async () => {
    const asked: unknown[] = [];
    const own = new Redactor({ hook: (text, context) => (asked.push([text, context]), text.replace("Ada", "A.")) });
    expect(await own.value({ who: "Ada", key: "AKIAIOSFODNN7EXAMPLE" }, { place: "tool", tenant: "t" })).toEqual({ who: "A.", key: "[redacted:aws_key]" });
    expect(asked).toContainEqual(["Ada", { place: "tool", tenant: "t" }]);
  });

  it.each([
    ["throws", () => Promise.reject(new Error("seen AKIAIOSFODNN7EXAMPLE"))],
    ["hangs", () => new Promise<string>(() => {})],
    ["gives no text", () => undefined as unknown as string],
  ])("that %s lets nothing through", async (_, hook) => {
    const failed = new Redactor({ hook, hookTimeoutMs: 50 }).value("anything at all", { place: "input" });
    await expect(failed).rejects.toThrow(RedactionFailedError);
    await expect(failed).rejects.not.toThrow(/AKIA|anything/);
  });
});

it.each([
  [{ patterns: ["("] as never }, "must be a RegExp"],
  [{ patterns: [{ name: "x", pattern: "(" }] }, "no regular expression"],
  [{ patterns: [{ name: "x", pattern: "a*" }] }, "matches an empty text"],
  [{ patterns: [{ name: "X y", pattern: "a" }] }, "must have 1 to 40"],
  [{ patterns: [{ name: "x", pattern: "a".repeat(1_001) }] }, "more than 1000"],
  [{ personal: ["passport"] as never }, "is not known"],
  [{ hookTimeoutMs: 0 }, "whole number"],
  [{ secrets: true } as never, "is not known"],
])("options %j are refused", (options, message) => {
  expect(
    redactIssues(options)
      .map(({ path, message: text }) => `${path} ${text}`)
      .join("\n"),
  ).toContain(message);
});
