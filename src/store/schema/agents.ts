/** What agents are: definitions by content, and which of them a name stands for. */
import { sql } from "drizzle-orm";
import { index, jsonb, text } from "drizzle-orm/pg-core";
import type { AgentDefinition } from "../../domain/definition.ts";
import { at, big, capstan } from "./base.ts";

/** Content-addressed and immutable: `sha256:` and 64 hex digits of the canonical definition. */
export const agentDefinitions = capstan.table("agent_definitions", {
  sha: text("sha").primaryKey(),
  name: text("name").notNull(),
  definition: jsonb("definition").$type<AgentDefinition>().notNull(),
  createdAt: at("created_at")
    .notNull()
    .default(sql`capstan.now()`),
});

/** Name to promoted definition. */
export const agents = capstan.table("agents", {
  name: text("name").primaryKey(),
  promotedSha: text("promoted_sha")
    .notNull()
    .references(() => agentDefinitions.sha),
  retiredAt: at("retired_at"),
  updatedAt: at("updated_at")
    .notNull()
    .default(sql`capstan.now()`),
});

export const agentPromotions = capstan.table(
  "agent_promotions",
  {
    id: big("id").primaryKey().generatedAlwaysAsIdentity(),
    name: text("name").notNull(),
    sha: text("sha").notNull(),
    actor: text("actor"),
    at: at("at")
      .notNull()
      .default(sql`capstan.now()`),
  },
  (t) => [index("agent_promotions_name").on(t.name, t.id)],
);
