/** What Postgres takes out of what comes through SQL, where no code of ours is on the way. */
import { sql } from "drizzle-orm";
import { check, smallint, text } from "drizzle-orm/pg-core";
import { capstan } from "./base.ts";

/** Written by every process that redacts, from its configuration; never removed by one, since another may still want it. */
export const redactionRules = capstan.table(
  "redaction_rules",
  {
    name: text("name").primaryKey(),
    /** In which order rules are applied. */
    n: smallint("n").notNull(),
    kind: text("kind").notNull(),
    /** For regexp_replace, with flag g; null of a kind that a function knows. */
    pattern: text("pattern"),
    replacement: text("replacement").notNull(),
  },
  () => [check("redaction_rules_kind", sql`kind in ('pattern', 'card', 'account') and (kind = 'pattern') = (pattern is not null)`)],
);
