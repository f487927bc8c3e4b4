/** Tells the database what to take out of what comes through SQL (migrations/0008_webhooks.sql). */
import type pg from "pg";
import type { SqlRule } from "../domain/redact/rules.ts";
import { replacementOf } from "../domain/redact/rules.ts";

/** A pattern that Postgres cannot read is refused here (2201B), and not at somebody's enqueue. */
const CHECK = "select regexp_replace('', p, '') from unnest($1::text[]) p";

const PUT = `
insert into capstan.redaction_rules as r (name, n, kind, pattern, replacement)
select * from unnest($1::text[], $2::smallint[], $3::text[], $4::text[], $5::text[])
on conflict (name) do update set n = excluded.n, kind = excluded.kind, pattern = excluded.pattern, replacement = excluded.replacement
where (r.n, r.kind, r.pattern, r.replacement) is distinct from (excluded.n, excluded.kind, excluded.pattern, excluded.replacement)`;

export async function putRedactionRules(db: pg.Pool, named: (text: string) => string, rules: readonly { readonly name: string; readonly rule: SqlRule }[]): Promise<void> {
  if (rules.length === 0) return;
  const patterns = rules.map(({ rule }) => (rule.kind === "pattern" ? rule.pattern : null));
  await db.query(CHECK, [patterns.filter((pattern) => pattern !== null)]);
  await db.query(named(PUT), [
    rules.map(({ name }) => name),
    rules.map((_, n) => n),
    rules.map(({ rule }) => rule.kind),
    patterns,
    rules.map(({ name, rule }) => (rule.kind === "pattern" ? rule.replacement : replacementOf(name))),
  ]);
}
