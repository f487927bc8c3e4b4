import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { canonicalJson, MAX_JSON_DEPTH, MAX_JSON_VALUES, parseJson, toJsonValue, wellFormedText, type JsonValue } from "../../src/domain/json.ts";
import { rawJson, rawText, reordered, storedJson } from "./arbitrary-json.ts";

function stored(value: unknown): JsonValue {
  const result = toJsonValue(value);
  if (!result.ok) throw new Error(`${result.problem.path}: ${result.problem.problem}`);
  return result.value;
}

function refusal(value: unknown): { path: string; problem: string } {
  const result = toJsonValue(value);
  if (result.ok) throw new Error(`was not refused: ${canonicalJson(result.value)}`);
  return result.problem;
}

describe("what a tool returns becomes JSON that Postgres stores", () => {
  it("replaces NUL and lone surrogates, in values and in names, and counts the strings", () => {
    const result = toJsonValue({ "k\u0000": "a\u0000b", fine: ["\uD800", "x\uDC00", "😀"] });
    expect(result).toEqual({ ok: true, value: { "k\uFFFD": "a\uFFFDb", fine: ["\uFFFD", "x\uFFFD", "😀"] }, repaired: 4 });
  });

  it("leaves out undefined members, makes undefined items and holes null", () => {
    expect(stored({ a: undefined, b: [undefined, 1] })).toEqual({ b: [null, 1] });
    expect(Object.keys(stored({ a: undefined, b: 1 }) as object)).toEqual(["b"]);
    expect(stored(undefined)).toBe(null);
    // oxlint-disable-next-line no-sparse-arrays
    expect(canonicalJson(stored([, 1, ,]))).toBe("[null,1,null]");
    expect(canonicalJson(stored(new Array(3)))).toBe("[null,null,null]");
  });

  it("makes -0 zero, as jsonb does", () => {
    expect(Object.is(stored(-0), 0)).toBe(true);
    expect(Object.is((stored([-0]) as number[])[0], 0)).toBe(true);
  });

  it.each([
    ["1e400", Number("1e400"), "Infinity is not a JSON number"],
    ["NaN", Number.NaN, "NaN is not a JSON number"],
    ["BigInt", 1n, "a bigint cannot be stored"],
    ["a function", () => 1, "a function cannot be stored"],
    ["a symbol", Symbol("s"), "a symbol cannot be stored"],
    ["Map", new Map([[1, 2]]), "a Map cannot be stored"],
    ["Set", new Set([1]), "a Set cannot be stored"],
    [
      "a class instance",
      new (class Invoice {
        total = 1;
      })(),
      "a Invoice cannot be stored",
    ],
    ["an Error", new Error("x"), "a Error cannot be stored"],
  ])("refuses %s and names the place", (_, value, problem) => {
    expect(refusal(value)).toEqual({ path: "$", problem: expect.stringContaining(problem) });
    expect(refusal({ rows: [1, { cell: value }] }).path).toBe("$.rows[1].cell");
  });

  it("refuses a cycle, but takes the same object twice", () => {
    const shared = { a: 1 };
    expect(stored([shared, { again: shared }])).toEqual([{ a: 1 }, { again: { a: 1 } }]);
    const cycle: { self?: unknown } = {};
    cycle.self = [cycle];
    expect(refusal(cycle)).toEqual({ path: "$.self[0]", problem: "a cycle cannot be stored as JSON" });
  });

  it("takes toJSON at its word: Date, URL, and the user's own", () => {
    expect(stored(new Date(0))).toBe("1970-01-01T00:00:00.000Z");
    expect(stored({ at: new URL("https://example.org/") })).toEqual({ at: "https://example.org/" });
    expect(stored({ toJSON: () => ({ a: "\u0000" }) })).toEqual({ a: "\uFFFD" });
    expect(refusal({ toJSON: () => 1n }).problem).toContain("bigint");
  });

  it("takes objects without a prototype", () => {
    expect(stored(Object.assign(Object.create(null), { a: 1 }))).toEqual({ a: 1 });
  });

  it("keeps __proto__ as an ordinary member", () => {
    const value = stored(JSON.parse('{"__proto__": {"polluted": true}, "a": 1}'));
    expect(canonicalJson(value)).toBe('{"__proto__":{"polluted":true},"a":1}');
    expect((value as { polluted?: boolean }).polluted).toBeUndefined();
    expect(({} as { polluted?: boolean }).polluted).toBeUndefined();
  });

  it("takes values up to the depth limit and no deeper", () => {
    const nested = (levels: number): unknown => {
      let value: unknown = 1;
      for (let i = 0; i < levels; i++) value = i % 2 === 0 ? [value] : { v: value };
      return value;
    };
    expect(toJsonValue(nested(MAX_JSON_DEPTH)).ok).toBe(true);
    expect(refusal(nested(MAX_JSON_DEPTH + 1)).problem).toBe(`nested deeper than ${MAX_JSON_DEPTH} levels`);
    // Far deeper than the call stack.
    expect(refusal(nested(200_000)).problem).toContain("nested deeper");
    const endless = { toJSON: (): unknown => ({ ...endless }) };
    expect(refusal(endless).problem).toContain("nested deeper");
  });

  it("takes huge arrays", () => {
    const items = Array.from({ length: 300_000 }, (_, i) => i);
    expect((stored(items) as number[]).length).toBe(300_000);
    expect(canonicalJson(stored(items)).length).toBe(items.join(",").length + 2);
  });

  it("refuses what would unfold to more values than memory holds", () => {
    let bomb: unknown = "x";
    for (let i = 0; i < 40; i++) bomb = [bomb, bomb];
    expect(refusal(bomb).problem).toContain(`more than ${MAX_JSON_VALUES} values`);
    expect(refusal(new Array(4_000_000_000)).problem).toContain("values");
  });

  it("describes a getter or toJSON that throws, whatever it throws", () => {
    const throwing = (thrown: unknown) => ({
      get bad() {
        throw thrown;
      },
    });
    expect(refusal(throwing(new Error("no such\u0000thing")))).toEqual({ path: "$", problem: "reading the value failed: no such\uFFFDthing" });
    expect(refusal(throwing(Object.create(null))).problem).toContain("it threw a object");
    expect(refusal(throwing(Symbol("s"))).problem).toContain("Symbol(s)");
    expect(refusal(throwing(new Error("x".repeat(1_000_000)))).problem.length).toBeLessThan(1_000);
  });

  it("names the place in text that can itself be stored", () => {
    const { path } = refusal({ "\u0000\uD800": 1n });
    expect(path).toBe("$.\uFFFD\uFFFD");
    expect(refusal({ ["k".repeat(1_000_000)]: 1n }).path.length).toBeLessThan(1_000);
  });

  it("gives a value that comes back from JSON text unchanged, whatever it was given", () => {
    fc.assert(
      fc.property(fc.oneof(rawJson, fc.anything({ withBigInt: true, withMap: true, withSet: true, withDate: true, withSparseArray: true, withNullPrototype: true })), (raw) => {
        const result = toJsonValue(raw);
        const text = JSON.stringify(result);
        expect(text.isWellFormed()).toBe(true);
        // Escapes, not a backslash of the text's own before a "u".
        expect(text.replaceAll("\\\\", "")).not.toMatch(/\\u(0000|d[89a-f])/i);
        if (result.ok) expect(canonicalJson(JSON.parse(JSON.stringify(result.value)) as JsonValue)).toBe(canonicalJson(result.value));
      }),
      { numRuns: 500 },
    );
  });

  it("changes nothing the second time", () => {
    fc.assert(
      fc.property(storedJson, (value) => {
        expect(toJsonValue(value)).toMatchObject({ ok: true, repaired: 0 });
        expect(canonicalJson(stored(value))).toBe(canonicalJson(value));
      }),
    );
  });
});

describe("canonical JSON", () => {
  it("sorts members by UTF-16 code units, without spaces, at every level", () => {
    const value = JSON.parse('{"b": 1, "a": {"10": 1, "9": [ { "z": 0, "y": null } ]}, "\uE000": 1, "😀": 1}') as JsonValue;
    // U+E000 sorts after the surrogates of U+1F600, as code units do and code points do not.
    expect(canonicalJson(value)).toBe('{"a":{"10":1,"9":[{"y":null,"z":0}]},"b":1,"😀":1,"\uE000":1}');
  });

  it("writes numbers as ECMAScript does, and no negative zero", () => {
    expect(canonicalJson([1.0, -0, 1e21, 1e-7, 0.1, 5e-324])).toBe("[1,0,1e+21,1e-7,0.1,5e-324]");
  });

  it("leaves out members that are undefined, so that a message hashes alike before and after it was stored", () => {
    const message = { type: "text", text: "x", metadata: undefined };
    expect(canonicalJson(message as unknown as JsonValue)).toBe(canonicalJson(JSON.parse(JSON.stringify(message)) as JsonValue));
  });

  it("is the same bytes after parsing, whatever the order of members", () => {
    fc.assert(
      fc.property(storedJson, (value) => {
        const text = canonicalJson(value);
        const parsed = JSON.parse(text) as JsonValue;
        expect(canonicalJson(parsed)).toBe(text);
        expect(canonicalJson(reordered(value))).toBe(text);
        expect(canonicalJson(reordered(parsed))).toBe(text);
      }),
      { numRuns: 500 },
    );
  });

  it("tells different values apart", () => {
    fc.assert(
      fc.property(storedJson, storedJson, (a, b) => {
        const same = JSON.stringify(reordered(reordered(JSON.parse(canonicalJson(a)) as JsonValue))) === JSON.stringify(JSON.parse(canonicalJson(b)));
        expect(canonicalJson(a) === canonicalJson(b)).toBe(same);
      }),
    );
  });
});

describe("what a model wrote as JSON", () => {
  it.each(["", "{", "{a: 1}", "[1,]", "undefined", "NaN", "{} {}"])("says why %j does not parse", (text) => {
    expect(parseJson(text)).toMatchObject({ ok: false, problem: { path: "$", problem: expect.stringMatching(/JSON/) } });
  });

  it("refuses numbers that are not finite instead of making them null", () => {
    expect(parseJson('{"amount": [1, 1e400]}')).toEqual({ ok: false, problem: { path: "$.amount[1]", problem: "Infinity is not a JSON number" } });
    expect(parseJson("-1e400")).toMatchObject({ ok: false });
  });

  it("repairs escapes that jsonb refuses", () => {
    expect(parseJson('{"a": "\\u0000", "b": "\\ud800"}')).toEqual({ ok: true, value: { a: "\uFFFD", b: "\uFFFD" }, repaired: 2 });
  });

  it("keeps the last of two equal members and __proto__ as a member", () => {
    const result = parseJson('{"a": 1, "__proto__": {"x": 1}, "a": 2}');
    expect(result.ok && canonicalJson(result.value)).toBe('{"__proto__":{"x":1},"a":2}');
  });

  it("never throws and never quotes what cannot be stored", () => {
    fc.assert(
      fc.property(rawText, (text) => {
        const result = parseJson(text);
        if (!result.ok) expect(wellFormedText(result.problem.problem)).toBe(result.problem.problem);
      }),
      { numRuns: 500 },
    );
    expect(parseJson("[".repeat(100_000)).ok).toBe(false);
    expect(parseJson(`${"[".repeat(5_000)}${"]".repeat(5_000)}`).ok).toBe(false);
  });
});

it("keeps the length of text that it repairs", () => {
  fc.assert(
    fc.property(rawText, (text) => {
      const fixed = wellFormedText(text);
      expect(fixed.length).toBe(text.length);
      expect(fixed.isWellFormed() && !fixed.includes("\u0000")).toBe(true);
      if (text.isWellFormed() && !text.includes("\u0000")) expect(fixed).toBe(text);
    }),
  );
});
