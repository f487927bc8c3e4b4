/** Postgres redacts what comes through SQL as the workers' own code would. */
import pg from "pg";
import fc from "fast-check";
import { afterAll, beforeAll, expect, it } from "vitest";
import { Redactor } from "../../src/domain/redact/redactor.ts";
import { putRedactionRules } from "../../src/store/redaction-rules.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();
const same = (text: string): string => text;
const db = new pg.Pool({ connectionString: database.url, max: 2 });
const redactor = new Redactor({
  personal: true,
  patterns: [
    { name: "order", pattern: /ORDER-\d{4,10}/, sql: "ORDER-\\d{4,10}" },
    { name: "here_only", pattern: /HERE-\d+/ },
  ],
});
beforeAll(() => putRedactionRules(db, same, redactor.sqlRules()));
afterAll(() => db.end());

const bySql = async (value: unknown) => (await db.query<{ v: unknown }>("select capstan.redacted($1::jsonb) as v", [JSON.stringify(value)])).rows[0]?.v;

it("finds what the code finds, and nothing else", async () => {
  const texts = [
    "AKIAIOSFODNN7EXAMPLE and xAKIAIOSFODNN7EXAMPLE",
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "sk-ant-api03-abcDEF123456789_xyz-000, ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.SflKxwRJSMeKKF2QT4fwpM",
    "authorization: bearer mF_9.B5f-4.1JqM0abc and a bearer of good news",
    "api_key: 'abcdefghij0123456789'",
    "postgres://app:s3cr3t-pass@db:5432/app https://example.com:8080/@x",
    "a -----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- b -----BEGIN EC PRIVATE KEY-----\nX\n-----END EC PRIVATE KEY----- c",
    "a -----BEGIN RSA PRIVATE KEY-----\nMIIE without end",
    "ada.lovelace+x@example.co.uk",
    "+49 170 1234567 or (555) 123-4567 or 555-123-4567",
    "4111 1111 1111 1111, 12 4111-1111-1111-1111, 4111 1111 1111 1112, 378282246310005, 1764547200000",
    "078-05-1120, 123.456.789-09, QQ 12 34 56 C",
    "DE89 3704 0044 0532 0130 00 and DE89 3704 0044 0532 0130 01",
    "ORDER-12345 [redacted:aws_key]",
    "5f0c9b1e-4111-1111-1111-111111111111",
    "short",
    "",
  ];
  for (const text of texts) expect(await bySql(text), text).toBe(redactor.text(text));
  const value = { "ada@example.com": [1, 4111111111111111, null, true, { deep: "AKIAIOSFODNN7EXAMPLE" }], empty: {}, list: [] };
  expect(await bySql(value)).toEqual(redactor.json(value, { numbers: true }));
  const file = { type: "file", media_type: "image/png", sha256: "ab".repeat(32), size_bytes: 3, filename: "ada@example.com.png" };
  expect(await bySql([file])).toEqual(redactor.json([file]));
  // A pattern without `sql` is not Postgres's to know.
  expect(await bySql("HERE-123456")).toBe("HERE-123456");
});

it("is not changed by a second time", async () => {
  const piece = fc.constantFrom("AKIAIOSFODNN7EXAMPLE", "4111 1111 1111 1111", "ada@example.com", "+49 170 1234567", "postgres://a:b@c", "ORDER-12345", "word", '"', "\\", "\n");
  await fc.assert(
    fc.asyncProperty(fc.array(piece, { maxLength: 8 }), async (pieces) => {
      const text = pieces.join(" ");
      const once = await bySql({ text });
      expect(await bySql(once)).toEqual(once);
      for (const secret of ["AKIAIOSFODNN7EXAMPLE", "1111 1111", "ada@", "170 1234567", ":b@", "ORDER-12345"]) expect(JSON.stringify(once)).not.toContain(secret);
    }),
    { numRuns: 60 },
  );
});

it("a pattern that Postgres cannot read is refused when it is given, and rules stay until they are removed", async () => {
  await expect(putRedactionRules(db, same, new Redactor({ builtIn: false, patterns: [{ name: "bad", pattern: /x{3}/, sql: "x{3" }] }).sqlRules())).rejects.toThrow(
    /regular expression/,
  );
  const before = (await db.query("select count(*)::int as n from capstan.redaction_rules")).rows;
  await putRedactionRules(db, same, new Redactor({}).sqlRules());
  expect((await db.query("select count(*)::int as n from capstan.redaction_rules")).rows).toEqual(before);
});
